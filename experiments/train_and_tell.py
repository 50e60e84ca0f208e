"""The body of ``python -m experiments.exor``: the theory, the training, and what came of it, on a terminal."""

from __future__ import annotations

import logging
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from exor.config import RunConfig
from experiments.terminal import console, duration, errors, number, progress

if TYPE_CHECKING:
    from exor.findings import Outcome
    from exor.plan import Planned
    from exor.runs import RunFolder

ROW_BYTES = 1_200  # of a logged step in metrics.csv and TensorBoard events
RUN_BYTES = 250_000  # of everything else in a run folder
MOST_ROWS = 40  # of the closing table


def main(
    configs: list[RunConfig],
    *,
    out: Path,
    name: str | None,
    accelerator: str,
    compiled: bool,
    workers: int | None,
    checkpoint_every: float,
    overwrite: bool,
    dry_run: bool,
    quiet: bool,
) -> int:
    """Train and tell; returns the exit status."""
    say = Console(quiet=True) if quiet else console
    say.print(theory(configs[0]))

    from exor import plan, training  # torch and lightning: seconds
    from exor.workers import Interrupted

    logging.basicConfig(format="%(message)s", level="WARNING")
    logging.getLogger("exor").setLevel("WARNING" if quiet else "INFO")
    device = training.pick_device(accelerator)
    cores = workers or training.cores()
    if dry_run:
        runs = plan.plan(configs, out, name, overwrite=overwrite)
        training.check_model(None, {}, runs[0])
        tell_plan(runs, cores)
        return 0
    with progress(say) as watch:
        try:
            folders = training.train(
                configs,
                out,
                name,
                accelerator="gpu" if device.type == "cuda" else "cpu",
                compiled=compiled,
                workers=cores,
                checkpoint_every=checkpoint_every,
                overwrite=overwrite,
                watch=watch,
            )
        except Interrupted as stopped:
            say.print(f"{stopped}; everything is saved, and the same command continues.")
            return 128 + stopped.signal
    say.print()
    return tell_results(configs, folders, say)


def theory(config: RunConfig) -> Table:
    """What theory predicts for the distance of every telling pair of symbols."""
    language = config.language
    holds = "holds" if language.distributional_hypothesis_holds() else "does not hold"
    train, test = language.split(config.split_seed)
    ceilings = ", ".join(
        f"{language.bayes_accuracy(strings):.3f} ({word} strings)"
        for word, strings in (("training", train), ("test", test))
        if len(strings)
    )
    table = Table(
        title=f"Theory: {config.preset}, {language.bits} bits: the distributional hypothesis {holds}",
        caption=f"Best possible accuracy {ceilings}. Pairs of symbols for different bits stay apart.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("pair", "same meaning", "same contexts", "untied input", "untied output", "tied"):
        table.add_column(heading)
    for r in language.relations():
        if r.semantically_equivalent or r.conditionally_equivalent:
            words = [_predicted(r.meets(m, tied)) for m, tied in (("input", False), ("output", False), ("input", True))]
            gaps = [_gap(r.semantic_gap), _gap(r.conditional_gap)]
            table.add_row(r.name, *gaps, *words)
    return table


def tell_plan(runs: Sequence[Planned], cores: int) -> None:
    """What would run, how long it would take, and how much disk it would need."""
    table = Table(title="Would run", title_justify="left")
    for heading in ("folder", "state", "steps to do"):
        table.add_column(heading, overflow="fold")
    for run in runs:
        state = run.state or (f"continues at step {run.step:,}" if run.step else "new")
        table.add_row(str(run.folder), state, f"{run.todo:,}")
    console.print(table)
    console.print(cost(runs, cores))


def cost(runs: Sequence[Planned], cores: int) -> str:
    """How long the runs would take, and how much disk they would need."""
    from exor.plan import expected_seconds

    waiting = [run for run in runs if not run.state]
    seconds = sum(run.todo * expected_seconds(run.config) for run in waiting) / max(1, min(cores, len(waiting)))
    disk = sum(run.todo // run.config.log_every * ROW_BYTES + RUN_BYTES for run in waiting)
    return (
        f"About {duration(seconds)} on {cores} such cores (a rough guess), some seconds to start, the first "
        f"time half a minute to compile, and {disk / 1e6:.0f} MB of disk."
    )


def tell_results(configs: Sequence[RunConfig], folders: Sequence[RunFolder], say: Console) -> int:
    """A row for every run, theory against observation, and the TensorBoard line; returns the exit status."""
    from exor.board import shown_pairs
    from exor.findings import outcomes

    summaries = [folder.summary() or {} for folder in folders]
    pairs = shown_pairs(configs[0].language)
    ceilings = summaries[0]["ceilings"]
    best = [f"{number(ceilings[f'accuracy_{s}'])} on {w} strings" for s, w in (("train", "training"), ("test", "test"))]
    table = Table(
        title="Runs: accuracies and distances, means over the last 20,000 steps",
        caption=f"Best possible accuracy: {', '.join(best)}.",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("mode", "seed", "state", "accuracy", "test acc."):
        table.add_column(heading, no_wrap=True)
    for pair in pairs:
        table.add_column(f"{pair} input")
        table.add_column(f"{pair} output")
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    for config, folder, summary in zip(configs, folders, summaries, strict=True):
        mean = summary["mean_last_20000_steps"]
        names = ["accuracy_train", "accuracy_test", *[f"{m}/{p}" for p in pairs for m in ("input", "output")]]
        cells = [number(None if summary["state"] == "diverged" else mean[name]) for name in names]
        table.add_row(config.mode, str(config.seed), summary["state"], *cells)
        if summary["state"] != "diverged":
            for outcome in outcomes(config, folder.metrics()):
                found.setdefault((config.mode, outcome.matrix, outcome.relation.name), []).append(outcome)
    if len(configs) <= MOST_ROWS:
        say.print(table)
    if found:
        say.print(_observed(found))
    root = folders[0].path.parent.parent
    say.print(f"Runs: {root}", soft_wrap=True)
    points = configs[0].max_steps // configs[0].log_every
    samples = f" --samples_per_plugin scalars={points + 2}" if points > 1000 else ""
    say.print(f"Curves: tensorboard --logdir {shlex.quote(str(root))}{samples}", soft_wrap=True)
    if any(s["contexts"]["sampled"] for s in summaries):
        say.print(
            "Accuracy and loss are estimates: the contexts are too many, and a fixed random sample stands for them."
        )
    diverged = [f"{c.mode} seed {c.seed}" for c, s in zip(configs, summaries, strict=True) if s["state"] == "diverged"]
    if diverged:
        message = f"Diverged: {', '.join(diverged)}. A lower --learning-rate may help."
        errors.print(message, soft_wrap=True)
    return 1 if diverged else 0


def _observed(found: dict[tuple[str, str, str], list[Outcome]]) -> Table:
    table = Table(title="Theory and observation: mean distances over seeds", title_justify="left")
    for heading in (
        "mode",
        "matrix",
        "pair",
        "theory",
        "start",
        "end",
        "below 10 % of start",
        "agrees",
    ):
        table.add_column(heading)
    for (mode, matrix, pair), several in sorted(found.items()):
        met = [o for o in several if o.met]
        steps = [o.step for o in met if o.step is not None]
        when = f", from step {statistics.median(steps):,.0f}" if steps else ""
        agree = [o.agrees for o in several]
        verdict = "–" if None in agree else f"{sum(map(bool, agree))} of {len(agree)}"
        table.add_row(
            mode,
            "both" if mode == "tied" else matrix,
            pair,
            _predicted(several[0].predicted),
            number(statistics.fmean(o.start for o in several)),
            number(statistics.fmean(o.end for o in several)),
            f"{len(met)} of {len(several)}{when}",
            verdict,
        )
    return table


def _predicted(meets: bool | None) -> str:
    return {True: "→ 0", False: "apart", None: "both ways"}[meets]


def _gap(gap: float) -> str:
    return "yes" if gap < 1e-9 else f"no ({gap:.3g})"
