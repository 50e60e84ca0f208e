"""Training through Lightning: the module, its data, and the callbacks that measure and keep.

A Lightning batch is a *chunk* of optimiser steps, so that the Trainer's cost per batch is spread over many. Chunks
end on logged steps. The x axis everywhere is ``module.step``, the optimiser step, not Lightning's count of batches.

Your own callback is an ordinary Lightning callback, or a :class:`Metric`, whose numbers go to ``metrics.csv`` and
TensorBoard beside the lab's own.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, Protocol

import lightning as L
import numpy as np
import torch
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from exor.config import RunConfig
from exor.events import EventLog
from exor.language import Contexts, Language
from exor.metrics import SCORES, mean_row_norm, pair_distances
from exor.runs import RunFolder

log = logging.getLogger("exor")

LONGEST_CHUNK = 200  # steps between two looks at signals and the clock
MOST_SNAPSHOTS = 512


class Engine(Protocol):
    """What trains R runs together: ``exor.replicas.Replicas`` or ``exor.plain.PlainLoop``."""

    configs: list[RunConfig]
    step: int
    width: int
    compiled: bool
    device: torch.device
    contexts: Contexts

    def advance(self, count: int) -> Tensor: ...
    def evaluate(self) -> Tensor: ...
    def embeddings(self) -> tuple[Tensor, Tensor]: ...
    def weights(self, i: int) -> dict[str, Tensor]: ...
    def state(self, i: int) -> dict: ...
    def load_state(self, states: Sequence[dict], step: int) -> None: ...


class Chunks(L.LightningDataModule):
    """The steps still to do, as ``(first step, number of steps)``.

    Args:
        first: updates done already.
        last: updates to do in all.
        log_every: chunks end at every multiple of it, and in between so that none is longer than 200 steps.
    """

    def __init__(self, first: int, last: int, log_every: int) -> None:
        super().__init__()
        self.steps = _Steps(first, last, log_every)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.steps, batch_size=None)


class _Steps(Dataset):
    def __init__(self, first: int, last: int, log_every: int) -> None:
        pieces = -(-log_every // LONGEST_CHUNK)
        cuts = [log_every * i // pieces for i in range(pieces)]  # within a period; independent of first and last
        self.first, self.last, self.period, self.cuts = first, last, log_every, np.array([*cuts, log_every])
        self.done = self._index(first)

    def _index(self, step: int) -> int:
        """How many chunk ends lie at or before a step."""
        whole, rest = divmod(step, self.period)
        return whole * (len(self.cuts) - 1) + int(np.searchsorted(self.cuts, rest, "right")) - 1

    def _end(self, index: int) -> int:
        whole, part = divmod(index, len(self.cuts) - 1)
        return whole * self.period + int(self.cuts[part])

    def __len__(self) -> int:
        return self._index(self.last - 1) + 1 - self.done if self.last > self.first else 0

    def __getitem__(self, i: int) -> tuple[int, int]:
        first = max(self._end(self.done + i), self.first)
        return first, min(self._end(self.done + i + 1), self.last) - first


class ReplicaModule(L.LightningModule):
    """R runs as one LightningModule.

    Attributes:
        engine: trains them.
        configs: one for each run.
        folders: one for each run, or none.
        step: optimiser steps done.
        alive: ``[R]`` (bool) runs that have not diverged.
        losses: ``[steps, R]`` batch losses of the last chunk.
        metrics: filled by callbacks at every logged step: name to ``[R]`` numbers, NaN for "not now". These are the
            columns of ``metrics.csv``.
        scalars: the same for numbers that only TensorBoard shows.
        paused: set when training stops before its end; this step is logged when it continues.
    """

    def __init__(self, engine: Engine, folders: Sequence[RunFolder] = ()) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.engine = engine
        self.configs = engine.configs
        self.folders = list(folders)
        self.alive = np.ones(len(self.configs), bool)
        self.diverged_at: dict[int, int] = {}
        self.losses = torch.zeros(0, len(self.configs))
        self.metrics: dict[str, np.ndarray] = {}
        self.scalars: dict[str, np.ndarray] = {}
        self.paused = False

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self.engine.step

    @property
    def language(self) -> Language:
        """The language that all runs share."""
        return self.configs[0].language

    @property
    def logs_now(self) -> bool:
        """Whether callbacks measure at this step."""
        config = self.configs[0]
        return self.step % config.log_every == 0 and self.step < config.max_steps and not self.paused

    def training_step(self, batch: tuple[int, int], batch_idx: int) -> None:
        """One chunk."""
        self.losses = self.engine.advance(batch[1])
        finite = torch.isfinite(self.losses).cpu().numpy()
        for i in np.flatnonzero(self.alive & ~finite.all(0)).tolist():
            self.alive[i] = False
            self.diverged_at[i] = batch[0] + int(np.argmin(finite[:, i]))
            c = self.configs[i]
            log.warning("%s seed %d diverged: its loss at step %d is not finite.", c.mode, c.seed, self.diverged_at[i])

    def configure_optimizers(self) -> None:
        """None: AdamW is part of the engine's step."""


class Metric(L.Callback, ABC):
    """A callback that measures something at every logged step.

    The row of the last step is left to the end of the training, and a checkpoint is taken before its own step's row:
    a run that continues from it writes that row first.
    """

    @abstractmethod
    def measure(self, module: ReplicaModule) -> None:
        """Put numbers, ``[R]`` each, into ``module.metrics`` or ``module.scalars``."""

    def on_train_start(self, trainer: L.Trainer, pl_module: ReplicaModule) -> None:
        if pl_module.logs_now:
            self.measure(pl_module)

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: ReplicaModule, *_: Any) -> None:
        if pl_module.logs_now:
            self.measure(pl_module)


def evaluation_cadence(config: RunConfig, contexts: int) -> int:
    """Steps between exact evaluations over so many contexts: ``config.eval_every``, rounded up to logged steps.

    By default each logged step, or so seldom that evaluations cost less than a tenth of the training.
    """
    strings = config.batch_size or len(config.language.split(config.split_seed)[0])
    # evaluating a context costs at most six tenths of training an example: measured for every model of the lab
    every = config.eval_every or ceil(6 * contexts / strings)
    return -(-every // config.log_every) * config.log_every


class ExactScores(Metric):
    """Exact accuracy and loss on training and test strings, with the Bayes ceilings beside them."""

    def measure(self, module: ReplicaModule) -> None:
        config = module.configs[0]
        train, test = module.language.split(config.split_seed)
        every = evaluation_cadence(config, len(module.engine.contexts))
        due = module.step % every == 0 or module.step == config.max_steps
        scores = module.engine.evaluate().numpy() if due else np.full((len(module.configs), len(SCORES)), np.nan)
        module.metrics.update(zip(SCORES, scores.T, strict=True))
        for name, strings in (("train", train), ("test", test)):
            if len(strings):
                ceiling = module.language.bayes_accuracy(strings)
                module.scalars[f"accuracy/{name}-ceiling"] = np.full(len(scores), ceiling)
            else:
                module.metrics[f"loss_{name}"][:] = module.metrics[f"accuracy_{name}"][:] = np.nan


class PairDistances(Metric):
    """Euclidean distance of every pair of bit symbols in both matrices, absolute and relative to the mean row norm."""

    def measure(self, module: ReplicaModule) -> None:
        pairs = module.language.pairs
        for matrix, rows in zip(("input", "output"), module.engine.embeddings(), strict=True):
            distances = pair_distances(rows, pairs)
            relative = distances / mean_row_norm(rows)[:, None]
            for j, pair in enumerate(pairs):
                name = f"{matrix}/{module.language.pair_name(pair)}"
                module.metrics[name] = distances[:, j].numpy()
                module.scalars[f"relative-distance/{name}"] = relative[:, j].numpy()


class LearningRate(Metric):
    """The learning rate of the next update."""

    def measure(self, module: ReplicaModule) -> None:
        module.scalars["learning-rate"] = np.full(len(module.configs), module.configs[0].rate(module.step))


class Snapshots(Metric):
    """Both embedding matrices at a few hundred steps.

    At most 512 are kept: when there are more, every other one goes. Which steps remain depends only on how
    far the run is, so a continued run has the same ones.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.matrices: list[tuple[np.ndarray, np.ndarray]] = []  # (input, output), each [R, V, D]

    def measure(self, module: ReplicaModule) -> None:
        every = module.configs[0].log_every
        while module.step // every >= MOST_SNAPSHOTS:
            every *= 2
        if module.step % every:
            return
        kept = [i for i, step in enumerate(self.steps) if step % every == 0]
        self.steps = [self.steps[i] for i in kept] + [module.step]
        inputs, outputs = module.engine.embeddings()
        self.matrices = [self.matrices[i] for i in kept] + [(inputs.numpy().copy(), outputs.numpy().copy())]

    def of(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Input and output snapshots of run i, each ``[S, V, D]``."""
        return np.stack([m[0][i] for m in self.matrices]), np.stack([m[1][i] for m in self.matrices])

    def state(self, i: int) -> dict[str, Any]:
        """Run i's snapshots, for a checkpoint."""
        if not self.steps:
            return {"step": []}
        inputs, outputs = map(torch.from_numpy, self.of(i))
        return {"step": list(self.steps), "input": inputs, "output": outputs}

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from the states of all runs."""
        self.steps = list(states[0]["step"])
        both = [torch.stack([s[name] for s in states], 1).numpy() for name in ("input", "output")] if self.steps else []
        self.matrices = list(zip(*both, strict=True))


TAGS = {name: "/".join(name.split("_")) for name in SCORES}  # TensorBoard groups tags by what stands before the slash


def tag(metric: str) -> str:
    """TensorBoard's name for a column of ``metrics.csv``."""
    is_distance = metric.startswith(("input/", "output/"))
    return f"distance/{metric}" if is_distance else TAGS.get(metric, metric)


class RunWriter(Metric):
    """Appends logged steps to ``metrics.csv`` and TensorBoard, in bulk every two seconds."""

    def __init__(self, folders: Sequence[RunFolder]) -> None:
        self.folders = folders
        self.logs = [EventLog(f.path) for f in folders]
        self.rows: list[tuple[int, float, np.ndarray, np.ndarray, np.ndarray]] = []
        self.names: tuple[list[str], list[str]] = ([], [])
        self.flushed = time.monotonic()
        self.pause = 2.0

    def announce(self, summaries: Sequence[Summary]) -> None:
        """Put summaries at the head of every run's events."""
        for events in self.logs:
            events.summaries(summaries)

    def measure(self, module: ReplicaModule) -> None:
        self.names = (list(module.metrics), list(module.scalars))
        metrics = np.stack([*module.metrics.values()], 1)
        scalars = np.stack([*module.scalars.values()], 1)
        self.rows.append((module.step, time.time(), metrics, scalars, module.alive.copy()))
        if time.monotonic() - self.flushed > self.pause:
            self.flush()

    def flush(self) -> None:
        """Write all rows. Takes long for thousands of runs, which then wait longer for the next time."""
        start = time.monotonic()
        metrics, scalars = self.names
        tags = [*map(tag, metrics), *scalars]
        for i, (folder, events) in enumerate(zip(self.folders, self.logs, strict=True)):
            lines = []
            for step, wall_time, values, extra, alive in self.rows:
                if alive[i]:
                    row = values[i].tolist()
                    lines.append(csv_line(step, row))
                    found = zip(tags, row + extra[i].tolist(), strict=True)
                    events.scalars(step, {t: x for t, x in found if x == x}, wall_time)
            if lines:
                path = folder.file("metrics.csv")
                header = [] if path.exists() and path.stat().st_size else [",".join(["step", *metrics]) + "\n"]
                with path.open("a", encoding="utf-8") as file:
                    file.write("".join(header + lines))
            events.flush()
        self.rows.clear()
        self.flushed = time.monotonic()
        self.pause = max(2.0, 20 * (self.flushed - start))


def csv_line(step: int, values: Sequence[float]) -> str:
    """A row of ``metrics.csv``: nine digits, which name every float32 exactly; nothing for NaN."""
    return ",".join([str(step), *[format(x, ".9g") if x == x else "" for x in values]]) + "\n"


class Keeper(L.Callback):
    """Saves every run at intervals, at the last step, and when asked to stop. Comes before all metrics.

    Args:
        save: writes the checkpoints.
        asked: whether to stop at the end of this chunk.
        seconds: longest time between checkpoints.
    """

    def __init__(self, save: Callable[[ReplicaModule], None], asked: Callable[[], bool], seconds: float) -> None:
        self.save, self.asked, self.seconds = save, asked, seconds
        self.last = time.monotonic()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: ReplicaModule, *_: Any) -> None:
        ended = pl_module.step == pl_module.configs[0].max_steps
        pl_module.paused = not ended and self.asked()
        trainer.should_stop = pl_module.paused or not pl_module.alive.any()
        if ended or pl_module.paused or time.monotonic() - self.last > self.seconds:
            self.save(pl_module)
            self.last = time.monotonic()
