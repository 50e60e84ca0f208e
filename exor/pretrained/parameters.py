"""How many parameters a model has, and which share of them is in its embeddings, from its config alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import torch

from exor import InputError
from exor.pretrained import require

ACCEPTED = "a config.json of a language model that the library transformers knows is accepted"
LEFT_OUT = ("model_type", "torch_dtype", "dtype", "quantization_config", "auto_map")
"""Given otherwise, or about how parameters are stored, not how many there are."""


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    Attributes:
        total: of the whole model with its head, a tied matrix counted once.
        embedding: those of the input and the output matrix, once if tied. Positions and biases are not counted.
        share: ``embedding / total``.
        share_tied, share_untied: the share that the same model would have.
    """

    total: int
    embedding: int
    share: float
    share_tied: float
    share_untied: float


def count(config: Mapping[str, Any], *, tied: bool | None = None) -> Parameters:
    """Count the parameters of a model that is never loaded: it is built without memory for its weights.

    Args:
        config: the content of ``config.json``. Code that it points to is never run.
        tied: whether the checkpoint is, by its tensors; by the config if None.

    Raises:
        InputError: transformers does not know the model's type, the config does not fit it, or it is no language model.
    """
    require("transformers")
    model = _model(config)
    every = {id(parameter): parameter.numel() for parameter in model.parameters()}
    inward, outward = (_matrix(model, name) for name in ("get_input_embeddings", "get_output_embeddings"))
    once, twice = inward.numel(), inward.numel() + outward.numel()
    rest = sum(every.values()) - (once if inward is outward else twice)
    tied = inward is outward if tied is None else tied
    embedding = once if tied else twice
    total = rest + embedding
    return Parameters(total, embedding, embedding / total, once / (rest + once), twice / (rest + twice))


def parameters(configs: Mapping[str, Mapping[str, Any]], tied: Mapping[str, bool | None] | None = None) -> pd.DataFrame:
    """A row per model: ``model`` and the fields of :class:`Parameters`.

    Args:
        configs: the content of ``config.json``, by model.
        tied: whether its checkpoint is, for models where that is known.

    Raises:
        InputError: a config cannot be used; names the model.
    """
    rows = []
    for name, config in configs.items():
        try:
            counted = count(config, tied=(tied or {}).get(name))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        rows.append({"model": name, **asdict(counted)})
    return pd.DataFrame(rows, columns=["model", *Parameters.__dataclass_fields__])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers, which are about using a model."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _model(config: Mapping[str, Any]) -> torch.nn.Module:
    """The model, on the meta device: shapes without numbers."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        own = ", and its own code is not run" if config.get("auto_map") else ""
        raise InputError(f"config.json: model_type {kind!r} is unknown to transformers{own}; {ACCEPTED}")
    rest = {key: deepcopy(value) for key, value in config.items() if key not in LEFT_OUT}
    try:
        with quiet():
            made = AutoConfig.for_model(kind, **rest)
            builder = _builder(made, config.get("architectures") or ())
            with torch.device("meta"):
                # not the attention that the config asks for, which may need a package or a GPU
                return builder.from_config(made, attn_implementation="eager", dtype=torch.float32)
    except InputError:
        raise
    except Exception as error:  # any: each model type has a config and code of its own
        raise InputError(
            f"config.json: no model of type {kind} can be made of it ({_line(error)}); {ACCEPTED}"
        ) from error


def _builder(made: Any, architectures: Any) -> Any:
    """The class that builds it with a head. Encoders that can also be made into decoders are taken as encoders."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM

    decoder = any(str(name).endswith(("CausalLM", "LMHeadModel")) for name in architectures)
    causal, masked, other = AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForImageTextToText
    for builder in (causal, masked, other) if decoder else (masked, causal, other):
        if type(made) in builder._model_mapping:
            return builder
    raise InputError(
        f"config.json: model_type {made.model_type} is no language model with an output matrix; {ACCEPTED}"
    )


def _matrix(model: Any, getter: str) -> torch.Tensor:
    """The weight of an embedding module."""
    module = getattr(model, getter)()
    if not isinstance(weight := getattr(module, "weight", None), torch.Tensor):
        kind = model.config.model_type
        raise InputError(
            f"config.json: a model of type {kind} has no single {getter[4:].replace('_', ' ')}; {ACCEPTED}"
        )
    return weight


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
