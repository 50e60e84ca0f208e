"""What TensorBoard shows besides curves: overlays, hyperparameters, and the embedding projector."""

from __future__ import annotations

import io

import numpy as np
from google.protobuf import text_format
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig
from torch.utils.tensorboard.summary import custom_scalars, hparams

from exor.board import shown_pairs
from exor.config import RunConfig
from exor.events import EventLog
from exor.language import Language
from exor.runs import RunFolder

SETTINGS = ("preset", "mode", "seed", "model", "width", "layers", "learning_rate", "weight_decay", "schedule")
RESULTS = {"accuracy_train": "accuracy/train", "accuracy_test": "accuracy/test", "loss_train": "loss/train"}


def layout(config: RunConfig) -> list[Summary]:
    """Overlays for the Custom Scalars tab: telling pairs in both matrices, and accuracy with its ceilings."""
    charts = {
        f"{pair}: input and output": ["Multiline", [f"distance/input/{pair}", f"distance/output/{pair}"]]
        for pair in shown_pairs(config.language)
    }
    every = [f"distance/{matrix}/{pair}" for matrix in ("input", "output") for pair in shown_pairs(config.language)]
    accuracy = {name: ["Multiline", [f"accuracy/{name}", f"accuracy/{name}-ceiling"]] for name in ("train", "test")}
    return [custom_scalars({"distance": {"together": ["Multiline", every]} | charts, "accuracy": accuracy})]


def write_hyperparameters(folder: RunFolder, config: RunConfig, last: dict[str, float]) -> None:
    """Settings and final metrics for the HParams tab, as events of their own."""
    settings = {name: getattr(config, name) for name in SETTINGS}
    settings |= {"bits": config.bits, "zero": _numbers(config.zero), "one": _numbers(config.one)}
    pairs = [f"{matrix}/{pair}" for matrix in ("input", "output") for pair in shown_pairs(config.language)]
    results = {tag: last[name] for name, tag in RESULTS.items()} | {f"distance/{p}": last[p] for p in pairs}
    log = EventLog(folder.path)
    log.summaries(hparams(settings, {k: v for k, v in results.items() if np.isfinite(v)}))
    log.flush()


def write_projector(folder: RunFolder, language: Language, inputs: np.ndarray, outputs: np.ndarray) -> None:
    """Both final matrices for the Projector tab, rows labelled with their symbols."""
    config = ProjectorConfig()
    folder.write("symbols.tsv", "".join(f"{symbol}\n" for symbol in language.vocabulary))
    for name, matrix in (("input", inputs), ("output", outputs)):
        buffer = io.StringIO()
        np.savetxt(buffer, matrix, fmt="%.9g", delimiter="\t")
        folder.write(f"{name}-embedding.tsv", buffer.getvalue())
        config.embeddings.add(
            tensor_name=f"{name} embedding", tensor_path=f"{name}-embedding.tsv", metadata_path="symbols.tsv"
        )
    folder.write("projector_config.pbtxt", text_format.MessageToString(config))


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:g}" for v in values)
