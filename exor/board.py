"""Progress that several processes report and one shows."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import numpy as np

from exor.language import Language
from exor.plan import Planned, expected_seconds

FIELDS = ("done", "work", "step", "runs", "loss", "accuracy", "first", "second")


def shown_pairs(language: Language) -> list[str]:
    """The two pairs that tell the story: the first that writes 1 and the first that writes 0, as far as they exist."""
    same = [p for p in language.pairs if language.bit_of(p[0]) == language.bit_of(p[1])]
    first = [next((p for p in same if language.bit_of(p[0]) == bit), None) for bit in (1, 0)]
    return [language.pair_name(p) for p in first if p]


class Board:
    """Shared memory with one row for each worker.

    Attributes:
        total: seed-steps to do now.
        work: seconds that they are expected to take one core.
        pairs: names of the pairs whose distances are shown.
        started: when, on the monotonic clock.
    """

    def __init__(self, runs: Sequence[Planned], workers: int) -> None:
        self.total = sum(run.todo for run in runs)
        self.work = sum(run.todo * expected_seconds(run.config) for run in runs)
        self.pairs = shown_pairs(runs[0].config.language)
        self.started = time.monotonic()
        memory = multiprocessing.get_context("fork").RawArray("d", workers * len(FIELDS))
        self.rows = np.frombuffer(memory).reshape(workers, len(FIELDS))

    def mean(self, name: str) -> float:
        """A field averaged over runs; NaN before the first report."""
        weight, values = self.rows[:, FIELDS.index("runs")], self.rows[:, FIELDS.index(name)]
        return float((weight * values).sum() / weight.sum()) if weight.sum() else float("nan")

    @property
    def done(self) -> int:
        """Seed-steps done now."""
        return int(self.rows[:, FIELDS.index("done")].sum())

    @property
    def share(self) -> float:
        """The part of the work that is done, from 0 to 1; steps of slow models count more."""
        return float(self.rows[:, FIELDS.index("work")].sum() / self.work) if self.work else 1.0


class Place(L.Callback):
    """One worker's row; also shows the board if it is the only worker."""

    def __init__(self, board: Board, worker: int, watch: Callable[[Board], None] | None) -> None:
        self.board, self.row, self.watch = board, board.rows[worker], watch
        self.before = self.row[:2].copy()
        self.first: int | None = None
        self.shown = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.report(pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if time.monotonic() - self.shown > 0.1:
            self.report(pl_module)

    def report(self, module: Any) -> None:
        """Enter what the module's runs have done and measured."""
        self.shown, runs = time.monotonic(), len(module.configs)
        self.first = module.step if self.first is None else self.first
        done = (module.step - self.first) * runs
        work = done * expected_seconds(module.configs[0])
        values = [*(self.before + np.array([done, work])), module.step, runs]
        names = ["loss_train", "accuracy_train", *[f"input/{pair}" for pair in self.board.pairs]]
        with np.errstate(all="ignore"):
            for name in names:
                numbers = module.metrics.get(name, np.array([]))[module.alive[: len(module.metrics.get(name, []))]]
                values.append(float(np.nanmean(numbers)) if np.isfinite(numbers).any() else float("nan"))
        self.row[: len(values)] = values
        if self.watch:
            self.watch(self.board)
