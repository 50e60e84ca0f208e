"""Training one group of runs in this process, from their checkpoints to their summaries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import lightning as L
import numpy as np
import torch

from exor import InputError, tensorboard
from exor.board import Place
from exor.config import MODELS, RunConfig
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
from exor.models import ModelFactory
from exor.plain import PlainLoop
from exor.plan import Planned
from exor.replicas import Replicas
from exor.runs import CHECKPOINT_FORMAT, versions


@dataclass(frozen=True)
class Options:
    """How to train, whatever the runs are; see :func:`exor.training.train`."""

    device: torch.device
    compiled: bool
    model: ModelFactory | None
    callbacks: tuple[L.Callback, ...]
    checkpoint_every: float
    width: int | None = None

    def batched(self, config: RunConfig) -> bool:
        """Whether the lab's replicas train this model; another goes through the plain loop."""
        return self.model is None and config.model in MODELS


@dataclass
class Group:
    """Runs that share one program and stand at one step."""

    runs: list[Planned]
    width: int | None


def train_group(group: Group, options: Options, asked: Callable[[], bool], place: Place) -> None:
    """Train in this process, through Lightning, to the end or until asked to stop."""
    runs, configs = group.runs, [run.config for run in group.runs]
    engine: Engine
    if options.batched(configs[0]):
        engine = Replicas(configs, device=options.device, compiled=options.compiled, width=group.width)
    else:
        engine = PlainLoop(configs, options.model, device=options.device)
    module = ReplicaModule(engine, [run.folder for run in runs])
    snapshots, scores = Snapshots(), ExactScores()
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
        place.report(module)
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
