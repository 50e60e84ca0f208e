"""``train``: runs into their folders. The one function that notebooks and commands call."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import lightning as L
import torch

from exor import InputError
from exor.board import Board
from exor.config import RunConfig
from exor.group import Options
from exor.models import ModelFactory, build
from exor.plan import plan, prepare
from exor.runs import RunFolder, run_path
from exor.workers import train_on_cores


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
        model: makes a model of your own, see ``exor.models``; by default what each config's ``model`` names.
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
    for config in {replace(config, seed=0) for config in configs}:
        build(config, model)  # a model that cannot be made is found before anything is written
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
                prepare(run)
            options = Options(device, compiled, model, tuple(callbacks), checkpoint_every)
            many = device.type == "cpu" and sys.platform == "linux"  # elsewhere, forking a loaded torch is unsafe
            train_on_cores(waiting, options, workers if many else 1, watch)
    finally:
        for folder in folders:
            folder.unlock()
    return folders


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
