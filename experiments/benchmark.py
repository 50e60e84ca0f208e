"""How fast the lab trains, against the loop that anyone would write over the plain module.

Both sides get the same number of threads, first one (pinned to one core), then, for the small transformer, all, and
every figure comes from a process of its own. The lab's includes drawing, the optimiser, exact evaluation at its default
cadence, logging to disk and TensorBoard, checkpoints and Lightning, from the first step to the last file written;
setting up is reported beside it. Then how fast real models are compared, against the code that anyone would write.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from exor import InputError
from experiments.command import main

PLAIN_SECONDS = 4.0
GPU_STEPS = {1: 300_000, 100: 15_000, 1_000: 2_000, 10_000: 500}


class Case(NamedTuple):
    """What is timed, and how many times faster than the plain loop it has to be on one thread."""

    model: str
    size: str
    seeds: int
    steps: int
    goal: int


CASES = [
    Case("transformer", "small", 1, 300_000, 15),
    Case("transformer", "small", 10, 60_000, 70),
    Case("transformer", "small", 100, 15_000, 110),
    Case("transformer", "medium", 10, 1_500, 5),
    Case("lstm", "small", 10, 2_000, 5),
    Case("lstm", "medium", 10, 150, 5),
    Case("mixer", "small", 10, 20_000, 5),
    Case("mixer", "medium", 10, 1_000, 5),
]

app = App(name="python -m experiments.benchmark", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def benchmark(
    *,
    quick: Annotated[
        bool,
        Parameter(
            negative="",
            help="Small models and a tenth of the steps: rougher figures, without the time that compiling takes.",
        ),
    ] = False,
    only: Annotated[
        Literal["training", "geometry"] | None, Parameter(help="One of both parts; geometry is that of real models.")
    ] = None,
    output: Annotated[Path, Parameter(name="--json", help="Where the figures go.")] = Path("benchmark.json"),
    measure: Annotated[str | None, Parameter(show=False)] = None,
) -> int:
    """Time both sides, print tables, write the figures."""
    if measure:
        print(json.dumps(_measure(**json.loads(measure))))
        return 0
    if not output.absolute().parent.is_dir():
        raise InputError(f"json: {output} cannot be written, its folder does not exist")
    terminal = Console(highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=100)
    share = 0.1 if quick else 1.0
    figures: dict[str, list[dict[str, Any]]] = {}
    if only != "geometry":
        figures |= _training(quick, share, console)
    if only != "training":
        from experiments import geometry_benchmark

        figures["geometry"] = geometry_benchmark.geometry(share)
        console.print(geometry_benchmark.table(figures["geometry"]))
    from exor.runs import write_file

    write_file(output, json.dumps(figures, indent=2) + "\n")
    console.print(f"Written: {output}")
    return 0


def _training(quick: bool, share: float, console: Console) -> dict[str, list[dict[str, Any]]]:
    """Seed-steps a second of the lab and of the plain loop, by ``cpu`` and ``gpu``."""
    with tempfile.TemporaryDirectory() as folder:
        cache = None if quick else Path(folder) / "programs"  # an empty one, to see how long compiling takes
        results = []
        for threads in sorted({1, _cores()}):
            for case in (c for c in CASES if c.size == "small" or not quick):
                model = {"model": case.model, "size": case.size}
                if threads > 1 and model != {"model": "transformer", "size": "small"}:
                    continue
                name = f"{case.model} {case.size}, {case.seeds} seeds, {threads} thread{'s' * (threads > 1)}"
                console.print(f"{name} …")
                plain = {"what": "plain", "threads": threads, "seconds": PLAIN_SECONDS * max(share, 0.25)} | model
                lab = {"what": "lab", "threads": threads, "seeds": case.seeds, "folder": folder} | model
                before = _process(plain, cache)
                # programs are for one and for two replicas at a time; others reuse them
                compiles = cache and threads == 1 and case.seeds < 100
                cold = _process(lab | {"steps": 100}, cache)["setup"] if compiles else None
                ours = _process(lab | {"steps": max(int(case.steps * share), 100)}, cache)
                results.append(_row(case, threads, ours, [before["rate"], _process(plain, cache)["rate"]], cold))
        gpu = _on_gpu(share, cache, Path(folder))
    console.print(_table(results))
    console.print(_breakdown(results))
    for row in gpu:
        console.print(f"GPU, {row['seeds']:,} seeds: {row['rate']:,.0f} seed-steps/s, {row['memory']:,.0f} MB")
    return {"cpu": results, "gpu": gpu}


def _row(case: Case, threads: int, ours: dict[str, float], plain: list[float], cold: float | None) -> dict[str, Any]:
    """The figures of one measurement; the plain loop was timed before and after it."""
    rate = statistics.mean(plain)
    return {
        "model": case.model,
        "size": case.size,
        "seeds": case.seeds,
        "threads": threads,
        "plain_steps_per_second": rate,
        "lab_seed_steps_per_second": ours["rate"],
        "ratio": ours["rate"] / rate,
        "goal": case.goal if threads == 1 else None,
        "compile_seconds": None if cold is None else cold - ours["setup"],
        "setup_seconds": ours["setup"],
        "peak_memory_mb": ours["memory"],
        "seconds": {name: ours[name] for name in ("total", "updates", "evaluations", "writing")},
    }


def _process(job: dict[str, Any], cache: Path | None) -> dict[str, float]:
    """Run a measurement in a fresh process."""
    environment = os.environ | {"OMP_NUM_THREADS": str(job["threads"])} | ({"EXOR_CACHE": str(cache)} if cache else {})
    command = [sys.executable, "-m", "experiments.benchmark", "--measure", json.dumps(job)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _measure(what: str, threads: int, **job: Any) -> dict[str, float]:
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import torch

    torch.set_num_threads(threads)
    result = _plain(**job) if what == "plain" else _lab(threads=threads, **job)
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return result | {"memory": peak / 1024}


def _plain(model: str, size: str, seconds: float) -> dict[str, float]:
    """The ordinary loop: one seed, no logging."""
    import torch
    from torch.nn.functional import cross_entropy

    from exor.config import from_options
    from exor.models import build

    config = from_options({"model": model, "size": size})
    language = config.language
    bits = torch.tensor(language.bits_of(language.split()[0]))
    rows, first = torch.arange(len(bits)), torch.tensor([language.zero[0], language.one[0]])
    parity = language.parity_id(0) + bits.sum(1, keepdim=True) % 2
    module = build(config)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=config.learning_rate, eps=config.eps, weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.period, config.final_learning_rate)

    def step() -> None:
        tokens = torch.cat([2 * bits + (torch.rand(bits.shape) >= first[bits]), parity], 1)
        position = torch.randint(language.bits, (len(bits),))
        target = tokens[rows, position]
        tokens[rows, position] = language.mask_id
        optimizer.zero_grad()
        cross_entropy(module(tokens, position), target).backward()
        optimizer.step()
        schedule.step()

    for _ in range(30):
        step()
    start = time.perf_counter()
    steps = 0
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    return {"rate": steps / (time.perf_counter() - start)}


def _lab(
    threads: int, model: str, size: str, seeds: int, steps: int, folder: str, accelerator: str = "cpu"
) -> dict[str, float]:
    """The lab's own path, half of the runs tied; also where its time goes (in this process only)."""
    from exor.config import from_options, with_seeds
    from exor.lightning import RunWriter, evaluation_cadence
    from exor.replicas import Replicas
    from exor.training import train

    spent = dict.fromkeys(("updates", "evaluations", "writing"), 0.0)

    def timed(owner: type, method: str, name: str) -> None:
        function = getattr(owner, method)

        def wrapper(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            spent[name] += time.perf_counter() - start
            return result

        setattr(owner, method, wrapper)

    for owner, method, name in (
        (Replicas, "advance", "updates"),
        (Replicas, "evaluate", "evaluations"),
        (RunWriter, "flush", "writing"),
    ):
        timed(owner, method, name)
    config = from_options({"model": model, "size": size, "max_steps": steps})
    configs = with_seeds(config, tuple(range(-(-seeds // 2))), (True, False))[:seeds]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        start = time.perf_counter()
        folders = train(configs, out, workers=threads, accelerator=accelerator)
        end = time.perf_counter()
        summaries = [folder.summary() or {} for folder in folders]
    seconds = max(summary["seconds"] for summary in summaries)  # without setting up
    setup = end - start - seconds
    if threads == 1:  # as often as in a long run, and not at the first and the last step of a short one
        every = evaluation_cadence(config, summaries[0]["contexts"]["evaluated"])
        done = 1 + -(-steps // every)
        usual = spent["evaluations"] / done * steps / every
        seconds += usual - spent["evaluations"]
        spent["evaluations"] = usual
    return {"rate": seeds * steps / seconds, "total": seconds, "setup": setup} | spent


def _on_gpu(share: float, cache: Path | None, folder: Path) -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        return []
    jobs = [
        {
            "what": "lab",
            "threads": 1,
            "model": "transformer",
            "size": "small",
            "seeds": n,
            "steps": int(GPU_STEPS[n] * share),
            "accelerator": "gpu",
        }
        for n in GPU_STEPS
    ]
    return [{"seeds": job["seeds"]} | _process(job | {"folder": str(folder)}, cache) for job in jobs]


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Seed-steps per second", title_justify="left")
    for heading in (
        "model",
        "threads",
        "seeds",
        "plain loop",
        "lab",
        "ratio",
        "goal",
        "compiling",
        "setting up",
        "peak memory",
    ):
        table.add_column(heading, justify="right")
    for r in results:
        table.add_row(
            f"{r['model']} {r['size']}",
            str(r["threads"]),
            str(r["seeds"]),
            f"{r['plain_steps_per_second']:,.0f}",
            f"{r['lab_seed_steps_per_second']:,.0f}",
            f"{r['ratio']:.{0 if r['ratio'] >= 10 else 1}f}×",
            f"≥ {r['goal']}×" if r["goal"] else "",
            f"{r['compile_seconds']:.0f} s" if r["compile_seconds"] else "",
            f"{r['setup_seconds']:.1f} s",
            f"{r['peak_memory_mb']:,.0f} MB",
        )
    return table


def _breakdown(results: list[dict[str, Any]]) -> Table:
    table = Table(title="Where the lab's time goes, one thread", title_justify="left")
    for heading in ("model", "seeds", "training steps", "evaluation", "writing", "Lightning and the rest"):
        table.add_column(heading, justify="right")
    for r in results:
        if r["threads"] == 1:
            seconds = r["seconds"]
            parts = [seconds[name] / seconds["total"] for name in ("updates", "evaluations", "writing")]
            table.add_row(
                f"{r['model']} {r['size']}", str(r["seeds"]), *[f"{part:.0%}" for part in [*parts, 1 - sum(parts)]]
            )
    return table


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main(app)()
