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

# seed-steps per second of the small models on one 2.6 GHz server core, with 115 strings a step, and how the time grows
# with the multiply-adds: the medium models are 44, 14 and 21 times slower, this says 35, 15 and 26
SPEED = {"transformer": 60_000, "lstm": 1_700, "mixer": 21_000}
GROWTH = 0.73
OWN_SPEED = 150  # of a model of one's own, in the plain loop
FEW = 40  # strings; with fewer a step takes no less


@dataclass
class Planned:
    """A run and where it stands.

    Attributes:
        config: what is asked for.
        folder: where.
        step: updates done.
        state: of a run that needs no training (``finished`` or ``diverged``); None otherwise.
        checkpoint: to continue from; None to start afresh.
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

    @property
    def todo(self) -> int:
        """Updates left to do."""
        return 0 if self.state else self.config.max_steps - self.step

    def look(self, *, overwrite: bool = False) -> None:
        """Find out what is in the folder, without writing anything.

        Raises:
            InputError: another run is there (and ``overwrite`` is false), or it is damaged.
        """
        if overwrite or (there := check_identity(self.folder, self.config)) is None:
            return
        summary = self.folder.summary()
        state, step = (summary["state"], summary["step"]) if summary else (None, 0)
        # a finished run that is to go on keeps its old summary until it ends again
        if there == self.config and (state == "diverged" or (state == "finished" and step == self.config.max_steps)):
            if summary and self.folder.metrics()["step"].iloc[-1] != summary["last"]["step"]:
                path = self.folder.file("metrics.csv")
                raise InputError(f"{path}: damaged, it does not end with its run; --overwrite trains the run again")
            self.state, self.step = state, step
        else:
            self.checkpoint = self.folder.checkpoint()
            self.step = self.checkpoint["step"] if self.checkpoint else 0


def expected_seconds(config: RunConfig) -> float:
    """Seconds that one update of one run takes on one core, compiled; right within a factor of two."""
    strings = max(config.batch_size or round(0.9 * 2**config.bits), FEW)
    if config.model not in SPEED:
        return max(strings / 115, 1) / OWN_SPEED
    size = _multiply_adds(config) / _multiply_adds(RunConfig(model=config.model))
    return strings / 115 * size**GROWTH / SPEED[config.model]


def _multiply_adds(config: RunConfig) -> int:
    """In the layers, for one string, all positions counted alike."""
    width, length = config.width, config.bits + 1
    if config.model == "lstm":
        inputs = [width] + [2 * config.hidden] * (config.layers - 1)
        return length * sum(2 * 4 * config.hidden * (size + config.hidden) for size in inputs)
    if config.model == "mixer":
        return config.layers * 2 * width * length * (config.token_feed_forward + config.feed_forward)
    return config.layers * width * (4 * width + 2 * config.feed_forward)


def plan(
    configs: Sequence[RunConfig], out: Path | str, name: str | None = None, *, overwrite: bool = False
) -> list[Planned]:
    """Look at every run's folder without writing anything.

    Raises:
        InputError: another run is there (and ``overwrite`` is false), or it is damaged.
    """
    runs = [Planned(config, RunFolder(run_path(out, config, name))) for config in configs]
    for run in runs:
        run.look(overwrite=overwrite)
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
