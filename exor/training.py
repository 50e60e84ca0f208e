"""Training runs into their folders: what is there already, what shares a program, and which core does what."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from exor import InputError, board, tensorboard
from exor.board import Board
from exor.config import RunConfig
from exor.findings import last_mean
from exor.lightning import (
    Chunks,
    Engine,
    ExactScores,
    Keeper,
    LearningRate,
    Metric,
    PairDistances,
    ReplicaModule,
    RunWriter,
    Snapshots,
)
from exor.plain import ModelFactory, PlainLoop
from exor.replicas import Replicas
from exor.runs import CHECKPOINT_FORMAT, RunFolder, check_identity, run_path, versions

log = logging.getLogger("exor")


@dataclass
class Planned:
    """A run and where it stands.

    Attributes:
        config: what is asked for.
        folder: where.
        step: updates done.
        state: of a run that needs no training (``finished`` or ``diverged``); None otherwise.
        checkpoint: to continue from; None to start afresh.
        width: of the program it has to run in; None if free.
    """

    config: RunConfig
    folder: RunFolder
    step: int = 0
    state: str | None = None
    checkpoint: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def width(self) -> int | None:
        """Replicas per program that the run began with; None if it has not begun."""
        return self.checkpoint["width"] if self.checkpoint else None


def plan(
    configs: Sequence[RunConfig], out: Path | str, name: str | None = None, *, overwrite: bool = False
) -> list[Planned]:
    """Look at every run's folder without writing anything.

    Raises:
        InputError: another run is there (and ``overwrite`` is false), or it is damaged.
    """
    runs = []
    for config in configs:
        run = Planned(config, RunFolder(run_path(out, config, name)))
        runs.append(run)
        if overwrite or (there := check_identity(run.folder, config)) is None:
            continue
        summary = run.folder.summary()
        state, step = (summary["state"], summary["step"]) if summary else (None, 0)
        # a finished run that is to go on keeps its old summary until it ends again
        if there == config and (state == "diverged" or (state == "finished" and step == config.max_steps)):
            run.state, run.step = state, step
        else:
            run.checkpoint = run.folder.checkpoint()
            run.step = run.checkpoint["step"] if run.checkpoint else 0
    return runs


def train(
    configs: Sequence[RunConfig],
    out: Path | str = "runs",
    name: str | None = None,
    *,
    model: ModelFactory | None = None,
    callbacks: Sequence[L.Callback] = (),
    accelerator: str = "auto",
    compiled: bool = True,
    workers: int = 1,
    overwrite: bool = False,
    checkpoint_every: float = 20,
    watch: Callable[[Board], None] | None = None,
) -> list[RunFolder]:
    """Train runs, or continue them, each in its folder; finished ones are left alone.

    Args:
        configs: any mixture; those that differ in seed and mode only are trained together.
        out, name: see :func:`exor.runs.run_path`.
        model: makes a model of your own, see ``exor.plain``; by default the lab's.
        callbacks: your own Lightning callbacks, called after the lab's metrics and before they are written.
        accelerator: ``auto``, ``cpu`` or ``gpu``.
        compiled: compile the training step.
        workers: processes to spread runs over, on a CPU. With more than one, callbacks act in those processes.
        checkpoint_every: longest time between checkpoints, in seconds.
        overwrite: start again whatever is in the folders.
        watch: called a few times a second with the progress.

    Returns:
        The folders, in the order of ``configs``.

    Raises:
        InputError: the folders, the accelerator or the model cannot be used; nothing has been trained then.
        Interrupted: asked to stop by a signal; everything is saved.
    """
    device = pick_device(accelerator)
    _allow_open_files(len(configs))
    folders = [RunFolder(run_path(out, config, name)) for config in configs]
    try:
        for folder in folders:
            folder.lock()
        runs = plan(configs, out, name, overwrite=overwrite)
        for run, folder in zip(runs, folders, strict=True):
            run.folder = folder
        waiting = [run for run in runs if run.state is None]
        if waiting:
            for run in waiting:
                _prepare(run)
            options = _Options(device, compiled and model is None, model, tuple(callbacks), checkpoint_every)
            many = device.type == "cpu" and sys.platform == "linux"  # elsewhere, forking a loaded torch is unsafe
            _train_on_cores(waiting, options, workers if many else 1, watch)
    finally:
        for folder in folders:
            folder.unlock()
    return folders


class Interrupted(Exception):
    """Training was stopped by a signal, and saved.

    Attributes:
        signal: which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def pick_device(accelerator: str) -> torch.device:
    """``auto``: a GPU if there is one.

    Raises:
        InputError: unknown, or a GPU is asked for and there is none.
    """
    if accelerator not in ("auto", "cpu", "gpu"):
        raise InputError(f"accelerator: {accelerator!r} is unknown, auto, cpu and gpu are accepted")
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator == "gpu":
        raise InputError("accelerator: no GPU that this torch can use was found, auto and cpu are accepted")
    return torch.device("cpu")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- one group ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    device: torch.device
    compiled: bool
    model: ModelFactory | None
    callbacks: tuple[L.Callback, ...]
    checkpoint_every: float


@dataclass
class _Group:
    """Runs that share one program and stand at one step."""

    runs: list[Planned]
    width: int | None


def _train_group(group: _Group, options: _Options, asked: Callable[[], bool], place: board.Place) -> None:
    """Train in this process, through Lightning, to the end or until asked to stop."""
    runs, configs = group.runs, [run.config for run in group.runs]
    engine: Engine
    if options.model is None:
        engine = Replicas(configs, device=options.device, compiled=options.compiled, width=group.width)
    else:
        engine = PlainLoop(configs, options.model, device=options.device)
    module = ReplicaModule(engine, [run.folder for run in runs])
    snapshots, scores = Snapshots(), ExactScores(configs[0].eval_every)
    writer = RunWriter(module.folders)
    checkpoints = [run.checkpoint for run in runs if run.checkpoint]
    if checkpoints:
        try:
            engine.load_state([c["state"] for c in checkpoints], runs[0].step)
        except (KeyError, RuntimeError):
            raise InputError(
                f"{runs[0].folder}: its checkpoint is of another model; --overwrite starts again"
            ) from None
        snapshots.restore([c["snapshots"] for c in checkpoints])
    else:
        writer.announce(tensorboard.layout(configs[0]))
    started, before = time.monotonic(), sum(c["seconds"] for c in checkpoints) / len(runs)

    def seconds() -> float:
        return before + time.monotonic() - started

    def save(module: ReplicaModule) -> None:
        writer.flush()
        for i in np.flatnonzero(module.alive):
            _save(module, int(i), snapshots, seconds())

    metrics: list[Metric] = [scores, PairDistances(), LearningRate(), snapshots]
    trainer = L.Trainer(
        accelerator="gpu" if options.device.type == "cuda" else "cpu",
        devices=1,
        max_epochs=1,
        callbacks=[Keeper(save, asked, options.checkpoint_every), *metrics, *options.callbacks, writer, place],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = configs[0].max_steps
    if engine.step < last:
        trainer.fit(module, datamodule=Chunks(engine.step, last, configs[0].log_every))
    else:
        save(module)
    if not module.paused:
        own = [c for c in options.callbacks if isinstance(c, Metric)]
        for metric in [*metrics, *own, writer]:
            metric.measure(module)
    writer.flush()
    for i, run in enumerate(runs):
        _finish(run, module, i, snapshots, seconds(), len(runs))


def _save(module: ReplicaModule, i: int, snapshots: Snapshots, seconds: float) -> None:
    folder = module.folders[i]
    content = {
        "format": CHECKPOINT_FORMAT,
        "step": module.step,
        "width": module.engine.width,
        "state": module.engine.state(i),
        "snapshots": snapshots.state(i),
        "lengths": folder.file_lengths(),
        "seconds": seconds,
        "versions": dict(versions()),
    }
    folder.write_tensors("checkpoint.pt", content)


def _finish(run: Planned, module: ReplicaModule, i: int, snapshots: Snapshots, seconds: float, together: int) -> None:
    """Everything that is written once training ends: weights, embeddings, TensorBoard's extras, and the summary."""
    config, folder, language = run.config, run.folder, run.config.language
    diverged = not module.alive[i]
    state = "diverged" if diverged else "stopped" if module.paused else "finished"
    frame = folder.metrics()
    if not diverged:
        folder.write_tensors("weights.pt", module.engine.weights(i))
    if snapshots.steps:
        folder.write_embeddings(snapshots.steps, *snapshots.of(i))
    last = {str(k): float(v) for k, v in frame.iloc[-1].items()}
    if state == "finished":
        inputs, outputs = module.engine.embeddings()
        tensorboard.write_projector(folder, language, inputs[i].numpy(), outputs[i].numpy())
        tensorboard.write_hyperparameters(folder, config, last)
    tested = frame.set_index("step")["accuracy_test"].dropna()
    strings = dict(zip(("train", "test"), language.split(config.split_seed), strict=True))
    done = module.diverged_at.get(i, module.step)
    folder.write_summary(
        {
            "state": state,
            "step": done,
            "last": last,
            "mean_last_20000_steps": last_mean(frame).drop("step").to_dict(),
            "best_accuracy_test": {"value": tested.max(), "step": tested.idxmax()} if len(tested) else None,
            "ceilings": {f"accuracy_{k}": language.bayes_accuracy(s) for k, s in strings.items()}
            | {f"loss_{k}": language.bayes_loss(s) for k, s in strings.items()},
            "contexts": {"evaluated": len(module.engine.contexts), "sampled": module.engine.contexts.sampled},
            "seconds": seconds,
            "steps_per_second": done / seconds if seconds > 0 else None,
            "trained_together": together,
            "device": str(module.engine.device),
            "compiled": module.engine.compiled,
            "versions": versions(),
        }
    )


def _prepare(run: Planned) -> None:
    """Bring the folder to the state of its checkpoint, or empty it, and write the config."""
    if run.checkpoint is None:
        run.folder.clear()
    else:
        run.folder.cut_back(run.checkpoint["lengths"])
        if run.checkpoint["versions"] != versions():
            changed = [f"{k} {v}" for k, v in run.checkpoint["versions"].items() if versions().get(k) != v]
            log.warning("%s: continues with other versions than it began with (%s).", run.folder, ", ".join(changed))
    run.folder.write_config(run.config)


# --- many groups on many cores --------------------------------------------------------------------------------


def _groups(runs: Sequence[Planned], workers: int, options: _Options) -> list[list[_Group]]:
    """The groups of each worker: every group of equal runs is dealt out in whole blocks of its program's width."""
    kinds: dict[tuple, list[Planned]] = {}
    for run in runs:
        shared = replace(run.config, seed=0, tied=False)
        kinds.setdefault((shared, run.step, run.width), []).append(run)
    shares: list[list[_Group]] = [[] for _ in range(workers)]
    for (_, _, begun), members in kinds.items():
        width = begun
        if width is None and options.compiled and options.device.type == "cpu":
            width = 1 if len(members) <= workers else 2
        block = width or 1
        blocks = [members[i : i + block] for i in range(0, len(members), block)]
        for w, share in enumerate(sorted(shares, key=lambda groups: sum(len(g.runs) for g in groups))):
            mine = [run for part in blocks[w::workers] for run in part]
            if mine:
                share.append(_Group(mine, width))
    return [share for share in shares if share]


def _train_on_cores(
    runs: list[Planned], options: _Options, workers: int, watch: Callable[[Board], None] | None
) -> None:
    shares = _groups(runs, workers, options)
    state = Board(runs, len(shares))
    with _signals() as stop:
        if len(shares) == 1:
            _work(shares[0], options, state, 0, lambda: bool(stop.value), watch)
        else:
            _fork(shares, options, state, stop, watch)
        if stop.value:
            raise Interrupted(stop.value)


def _work(
    share: list[_Group],
    options: _Options,
    state: Board,
    worker: int,
    asked: Callable[[], bool],
    watch: Callable[[Board], None] | None,
) -> None:
    if options.device.type == "cpu":
        torch.set_num_threads(1 if options.model is None else torch.get_num_threads())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*configure_optimizers.*")
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for group in share:
            if not asked():
                _train_group(group, options, asked, board.Place(state, worker, watch))


def _fork(
    shares: list[list[_Group]],
    options: _Options,
    state: Board,
    stop: Any,
    watch: Callable[[Board], None] | None,
) -> None:
    """One process for each share; this one only watches. They share the folders' locks, and stop if it dies."""
    context = multiprocessing.get_context("fork")
    parent = os.getpid()

    def asked() -> bool:
        return bool(stop.value) or os.getppid() != parent

    problems = context.SimpleQueue()

    def run(worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            _work(shares[worker], options, state, worker, asked, None)
            gc.collect()  # unloads the programs, which removes the folders that they were unpacked to
        except (InputError, OSError) as error:
            problems.put(error)
            sys.exit(2)

    processes = [context.Process(target=run, args=(w,)) for w in range(len(shares))]
    for process in processes:
        process.start()
    try:
        while any(p.is_alive() for p in processes):
            if watch:
                watch(state)
            time.sleep(0.1)
        if watch:
            watch(state)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    if not problems.empty():
        raise problems.get()
    failed = [p.exitcode for p in processes if p.exitcode]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(processes)} training processes failed; their messages are above")


@contextmanager
def _signals() -> Iterator[Any]:
    """SIGINT and SIGTERM set a shared number instead of ending the process; the second time they end it."""
    stop = multiprocessing.get_context("fork").RawValue("i", 0)

    def handle(number: int, _: Any) -> None:
        if stop.value:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.value = number

    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: signals are somebody else's business
        pass
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _allow_open_files(runs: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = runs + 256  # every folder's lock is an open file
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise InputError(f"seeds: {runs} runs need {wanted} open files, this system allows {hard}")
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
