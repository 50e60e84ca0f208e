"""Train a sweep: many settings, in both modes, with many seeds.

The file says what: seeds, modes, settings for all cells, a list of alternatives, a grid of which every combination is
trained; see experiments/sweeps. Runs have the folders of experiments.exor; finished ones are skipped, and started
again, the same command continues what is unfinished. A run that fails does not stop the others. All numbers go to
<out>/sweeps/<file>.csv.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Group, Parameter

from exor import InputError
from exor.config import RunConfig
from experiments.command import main, whole
from experiments.exor import arguments

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from exor.plan import Planned
    from exor.sweeps import Failure

WHERE = Group("Where and how", sort_key=1)
MOST_ROWS = 100  # of the closing table

app = App(name="python -m experiments.sweep", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def sweep(
    file: Annotated[Path, Parameter(help="YAML file of the sweep.")],
    /,
    *,
    out: Annotated[Path, Parameter(group=WHERE, help="Where the runs and the table go.")] = Path("runs"),
    accelerator: Annotated[Literal["auto", "cpu", "gpu"], Parameter(group=WHERE, help="Device to train on.")] = "auto",
    compile: Annotated[bool, Parameter(group=WHERE, help="Compile the training step.")] = True,
    workers: Annotated[
        int | None,
        Parameter(group=WHERE, converter=whole, help="Processes on a CPU, or tasks at a time; by default all cores."),
    ] = None,
    ray: Annotated[
        list[str] | None,
        Parameter(
            group=WHERE,
            consume_multiple=True,
            negative_iterable="",
            help="Train on the Ray cluster at this address (host:port); without one, on that which runs here, or a new "
            "one on this machine. Nodes share --out and this code.",
        ),
    ] = None,
    checkpoint_every: Annotated[float, Parameter(group=WHERE, help="Seconds between checkpoints, at most.")] = 20,
    overwrite: Annotated[bool, Parameter(group=WHERE, negative="", help="Train again what is there.")] = False,
    dry_run: Annotated[bool, Parameter(group=WHERE, negative="", help="Say what would run, and stop.")] = False,
    quiet: Annotated[bool, Parameter(group=WHERE, negative="", help="Print problems only.")] = False,
) -> int:
    """Train a sweep."""
    if workers is not None and workers < 1:
        raise InputError(f"workers: {workers} is out of range, at least 1 is accepted")
    if not checkpoint_every >= 0:
        raise InputError(f"checkpoint_every: {checkpoint_every:g} is out of range, at least 0 is accepted")
    if ray is not None and len(ray) > 1:
        raise InputError(f"ray: {' '.join(ray)!r} is not accepted, one address such as host:6379 is, or none")

    from exor import sweeps, training  # torch and lightning: seconds
    from exor.runs import write_file
    from exor.workers import Interrupted
    from experiments.terminal import console, errors, progress, silent

    say = silent if quiet else console
    logging.basicConfig(format="%(message)s", level="WARNING")
    logging.getLogger("exor").setLevel("WARNING" if quiet else "INFO")
    configs = sweeps.read(file)
    if dry_run:
        tell_plan(*sweeps.plan(configs, out, overwrite=overwrite), workers or training.cores())
        return 0
    how = [*(["--accelerator", accelerator] if accelerator != "auto" else []), *([] if compile else ["--no-compile"])]
    with progress(say) as watch:
        try:
            failures = sweeps.run(
                configs,
                out,
                ray=False if ray is None else (ray[0] if ray else True),
                workers=workers,
                accelerator=accelerator,
                compiled=compile,
                checkpoint_every=checkpoint_every,
                overwrite=overwrite,
                watch=watch,
            )
        except Interrupted as stopped:
            say.print(f"{stopped}; everything is saved, and the same command continues.")
            return 128 + stopped.signal
    say.print()
    table = sweeps.table(configs, out)
    path = out / "sweeps" / f"{file.stem}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, table.to_csv(index=False))
    tell_results(configs, table, say)
    say.print(f"All numbers of all runs: {path}", soft_wrap=True)
    if failures:
        errors.print(f"{len(failures)} of {len(configs)} runs failed. The reason, and what trains them again:")
        for line in failed_lines(failures, [*how, *([] if out == Path("runs") else ["--out", str(out)])]):
            errors.print(line, soft_wrap=True, markup=False)
    return 1 if failures else 0


def tell_plan(runs: Sequence[Planned], unable: Sequence[Failure], cores: int) -> None:
    """What would run, cell by cell, how long it would take, and how much disk it would need."""
    from rich.table import Table

    from exor import sweeps
    from experiments.terminal import console
    from experiments.train_and_tell import cost

    everything = [*(run.config for run in runs), *(failure.config for failure in unable)]
    names = sweeps.varied(everything) or ["model"]
    standing = {run.config: run for run in runs}
    table = Table(title="Would run", title_justify="left")
    for heading in (*names, "runs", "finished", "continue", "new", "cannot run", "steps to do"):
        table.add_column(heading, justify="left" if heading in names else "right")
    for cell, members in sweeps.cells(everything).items():
        here = [standing[c] for c in members if c in standing]
        ended, begun = sum(r.state is not None for r in here), sum(r.state is None and r.step > 0 for r in here)
        counts = (len(members), ended, begun, len(here) - ended - begun, len(members) - len(here))
        values = [sweeps.text(getattr(cell, name)) for name in names]
        table.add_row(*values, *map(str, counts), f"{sum(r.todo for r in here):,}")
    console.print(table)
    for failure in unable:
        console.print(f"Cannot run: {failure.reason}", soft_wrap=True, markup=False)
    console.print(cost(runs, cores))


def tell_results(configs: Sequence[RunConfig], table: pd.DataFrame, say: Console) -> None:
    """A row for every cell and mode: means over seeds of the finished runs."""
    from rich.table import Table

    from exor import sweeps
    from exor.board import shown_pairs
    from experiments.terminal import number

    names = sweeps.varied(configs) or ["model"]
    pairs = list(dict.fromkeys(pair for c in sweeps.cells(configs) for pair in shown_pairs(c.language)))
    numbers = ["accuracy_train", "accuracy_test", *[f"{m}/{p}" for p in pairs for m in ("input", "output")]]
    shown = Table(title="Means over seeds, and over the last 20,000 steps", title_justify="left")
    for heading in (*names, "mode", "finished", "accuracy", "test acc.", *numbers[2:]):
        shown.add_column(heading.replace("/", " "))
    number_of = {c: i for i, members in enumerate(sweeps.cells(configs).values()) for c in members}
    for (_, mode), group in table.groupby([[number_of[c] for c in configs], "mode"], sort=False):
        config, done = configs[int(group.index[0])], group[group["state"] == "finished"]
        values = [sweeps.text(getattr(config, name)) for name in names]
        means = [number(done[name].mean()) for name in numbers]
        shown.add_row(*values, str(mode), f"{len(done)} of {len(group)}", *means)
    if shown.row_count <= MOST_ROWS:
        say.print(shown)


def failed_lines(failures: Sequence[Failure], how: Sequence[str]) -> Iterator[str]:
    """Why runs failed, and a command for each cell and mode that trains them again."""
    from exor import sweeps

    together: dict[tuple[RunConfig, str, str], list[Failure]] = {}
    for failure in failures:
        cell = next(iter(sweeps.cells([failure.config])))
        reason = failure.reason.replace(f"seed-{failure.config.seed}", "seed-…")
        together.setdefault((cell, failure.config.mode, reason), []).append(failure)
    for members in together.values():
        config, reason = members[0].config, members[0].reason
        more = f" (and {len(members) - 1} more seeds)" if len(members) > 1 else ""
        again = ["--overwrite"] if "--overwrite" in reason or reason.startswith("diverged") else []
        yield f"{config.default_name} {config.mode} seed {config.seed}{more}: {reason}"
        seeds = [member.config.seed for member in members]
        yield f"  python -m experiments.exor {shlex.join([*arguments(config, seeds), *how, *again])}"


if __name__ == "__main__":
    main(app)()
