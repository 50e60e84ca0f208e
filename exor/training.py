"""``train``: runs into their folders. The one function that notebooks and commands call."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import lightning as L
import torch

from exor import InputError
from exor.board import Board
from exor.config import RunConfig
from exor.group import Options
from exor.models import ModelFactory, build
from exor.plan import Planned, prepare
from exor.runs import PATIENCE, RunFolder, run_path
from exor.workers import OnFailure, train_on_cores


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
    width: int | None = None,
    overwrite: bool = False,
    checkpoint_every: float = 20,
    patience: float = PATIENCE,
    watch: Callable[[Board], None] | None = None,
    on_failure: OnFailure | None = None,
) -> list[RunFolder]:
    """Train runs, or continue them, each in its folder; finished ones are left alone.

    Args:
        configs: any mixture; those that differ in seed and mode only are trained together.
        out, name: see :func:`exor.runs.run_path`.
        model: makes a model of your own, see ``exor.models``; by default what each config's ``model`` names.
        callbacks: your own Lightning callbacks, called after the lab's metrics and before they are written.
        accelerator: ``auto``, ``cpu`` or ``gpu``.
        compiled: compile the training step.
        workers: processes to spread runs over, on a CPU. With more than one, callbacks act in those processes.
        width: runs per program, on a CPU, for runs that begin now: bytes depend on it. By default what is fastest.
        checkpoint_every: longest time between checkpoints, in seconds.
        overwrite: start again whatever is in the folders.
        patience: how long to wait for other processes that train some of these runs, in seconds.
        watch: called a few times a second with the progress.
        on_failure: called with every run that cannot be trained, and why; all others are trained. Without it, the
            first failure ends everything.

    Returns:
        The folders, in the order of ``configs``.

    Raises:
        InputError: the folders, the accelerator or the model cannot be used; nothing has been trained then.
        Interrupted: asked to stop by a signal; everything is saved.
    """
    device = pick_device(accelerator)
    _allow_open_files(len(configs))
    runs = [Planned(config, RunFolder(run_path(out, config, name))) for config in configs]
    deadline = time.monotonic() + patience
    # each check is made for all runs before the next: a failure without on_failure leaves the folders as they were
    able = succeeding(runs, partial(check_model, model, {}), on_failure)
    try:
        able = succeeding(able, lambda run: run.folder.lock(max(0.0, deadline - time.monotonic())), on_failure)
        able = succeeding(able, lambda run: run.look(overwrite=overwrite), on_failure)
        waiting = succeeding([run for run in able if run.state is None], prepare, on_failure)
        if waiting:
            options = Options(device, compiled, model, tuple(callbacks), checkpoint_every, width)
            many = device.type == "cpu" and sys.platform == "linux"  # elsewhere, forking a loaded torch is unsafe
            train_on_cores(waiting, options, workers if many else 1, watch, on_failure)
    finally:
        for run in runs:
            run.folder.unlock()
    return [run.folder for run in runs]


def succeeding(runs: Iterable[Planned], act: Callable[[Planned], None], on_failure: OnFailure | None) -> list[Planned]:
    """Do something to every run; those for which it can be done."""
    able = []
    for run in runs:
        try:
            act(run)
        except (InputError, OSError) as error:
            if on_failure is None:
                raise
            on_failure(run.config, error)
        else:
            able.append(run)
    return able


def check_model(model: ModelFactory | None, seen: dict[RunConfig, InputError | None], run: Planned) -> None:
    """Find a model that cannot be made before anything is written.

    Args:
        model: see :func:`train`.
        seen: what was found before; one is made for all seeds.
        run: whose model to make.

    Raises:
        InputError: see :func:`exor.models.build`.
    """
    kind = replace(run.config, seed=0)
    if kind not in seen:
        try:
            build(kind, model)
            seen[kind] = None
        except InputError as error:
            seen[kind] = error
    if (problem := seen[kind]) is not None:
        raise problem


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


def _allow_open_files(runs: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = runs + 256  # every folder's lock is an open file
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise InputError(f"seeds: {runs} runs need {wanted} open files, this system allows {hard}")
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
