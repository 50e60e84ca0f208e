"""Where runs stand: what is in their folders, and what is left to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exor import InputError
from exor.config import RunConfig
from exor.runs import RunFolder, check_identity, run_path, versions

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
            if summary and run.folder.metrics()["step"].iloc[-1] != summary["last"]["step"]:
                path = run.folder.file("metrics.csv")
                raise InputError(f"{path}: damaged, it does not end with its run; --overwrite trains the run again")
        else:
            run.checkpoint = run.folder.checkpoint()
            run.step = run.checkpoint["step"] if run.checkpoint else 0
    return runs


def prepare(run: Planned) -> None:
    """Bring the folder to the state of its checkpoint, or empty it, and write the config."""
    if run.checkpoint is None:
        run.folder.clear()
    else:
        run.folder.cut_back(run.checkpoint["lengths"])
        if run.checkpoint["versions"] != versions():
            changed = [f"{k} {v}" for k, v in run.checkpoint["versions"].items() if versions().get(k) != v]
            log.warning("%s: continues with other versions than it began with (%s).", run.folder, ", ".join(changed))
    run.folder.write_config(run.config)
