"""The models as a reader expects them: plain PyTorch modules, tied or untied. They are the specification.

A model that the lab trains is an ``nn.Module`` that maps ``tokens [batch, length]`` (int64) and the masked ``position
[batch]`` to logits ``[batch, vocabulary]``, and has the properties ``input_embedding`` and ``output_embedding``
(``[vocabulary, width]`` parameters, one and the same when tied). One that sees a sequence only through its symbol
counts says so by a true attribute ``order_free``, and is evaluated more cheaply.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from exor import InputError
from exor.config import MODELS, RunConfig, check_model_name


class MaskedLM(nn.Module):
    """A model with ``embed`` and ``unembed``, which is ``embed`` itself when tied.

    Subclasses make ``unembed`` last: a tied and an untied model of one seed start equal in everything that both have.
    """

    embed: nn.Embedding
    unembed: nn.Embedding

    @property
    def input_embedding(self) -> Tensor:
        """``[vocabulary, width]``"""
        return self.embed.weight

    @property
    def output_embedding(self) -> Tensor:
        """``[vocabulary, width]``, the input embedding itself when tied."""
        return self.unembed.weight

    def logits(self, states: Tensor, position: Tensor) -> Tensor:
        """``[batch, length, width], [batch] -> [batch, vocabulary]``: of the symbol at the masked position."""
        return at(states, position) @ self.output_embedding.T


def at(states: Tensor, position: Tensor) -> Tensor:
    """``[batch, length, features], [batch] -> [batch, features]``: the states at one position of each sequence."""
    return states[torch.arange(len(states), device=states.device), position]


class Transformer(MaskedLM):
    """Post-norm transformer encoder without positional encoding, final norm or output bias.

    The layers start as copies of one initial layer, as ``nn.TransformerEncoder`` makes them.
    """

    order_free = True

    def __init__(
        self,
        vocabulary: int,
        *,
        width: int = 4,
        feed_forward: int = 4,
        heads: int = 1,
        layers: int = 1,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, feed_forward, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.unembed = self.embed if tied else nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """``[batch, length], [batch] -> [batch, vocabulary]``"""
        return self.logits(self.encoder(self.embed(tokens)), position)


class LSTM(MaskedLM):
    """Bidirectional LSTM, then a linear map of both directions' states back to the embedding width."""

    def __init__(
        self, vocabulary: int, *, width: int = 4, hidden: int = 8, layers: int = 2, tied: bool = False
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=True)
        self.project = nn.Linear(2 * hidden, width)
        self.unembed = self.embed if tied else nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """``[batch, length], [batch] -> [batch, vocabulary]``"""
        hidden, _ = self.lstm(self.embed(tokens))  # [batch, length, 2 hidden]
        return self.logits(self.project(hidden), position)


class MixerBlock(nn.Module):
    """Token mixing, then channel mixing, each normed before and added to what it read (Tolstikhin et al. 2021)."""

    def __init__(self, length: int, width: int, token_feed_forward: int, feed_forward: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.token1 = nn.Linear(length, token_feed_forward)
        self.token2 = nn.Linear(token_feed_forward, length)
        self.norm2 = nn.LayerNorm(width)
        self.channel1 = nn.Linear(width, feed_forward)
        self.channel2 = nn.Linear(feed_forward, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, length, width] -> [batch, length, width]``"""
        mixed = self.token2(self.token1(self.norm1(x).transpose(1, 2)).relu()).transpose(1, 2)
        x = x + mixed
        return x + self.channel2(self.channel1(self.norm2(x)).relu())


class Mixer(MaskedLM):
    """MLP-Mixer without final norm or output bias."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        *,
        width: int = 4,
        token_feed_forward: int = 4,
        feed_forward: int = 8,
        layers: int = 1,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(
            *[MixerBlock(length, width, token_feed_forward, feed_forward) for _ in range(layers)]
        )
        self.unembed = self.embed if tied else nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """``[batch, length], [batch] -> [batch, vocabulary]``"""
        return self.logits(self.blocks(self.embed(tokens)), position)


ModelFactory = Callable[[RunConfig], nn.Module]


def factory(name: str) -> ModelFactory:
    """What makes a config's model, by its name: one of the lab's, or ``package.module:Class`` of your own.

    Raises:
        InputError: unknown, or it cannot be imported.
    """
    if name in MODELS:
        return _published
    check_model_name(name)
    path, _, attribute = name.partition(":")
    try:
        found = attrgetter(attribute)(import_module(path))
    except Exception as error:  # the user's module may raise anything
        raise InputError(f"model: {name!r} cannot be imported ({type(error).__name__}: {error})") from None
    if not callable(found):
        raise InputError(f"model: {name!r} is no class or function that makes a model of a config")
    return found


def build(config: RunConfig, make: ModelFactory | None = None) -> Any:
    """The initial model of a run, on the CPU in float32; its weights depend on the config and its seed alone.

    Args:
        make: makes it; by default what :func:`factory` finds.

    Raises:
        InputError: no such model, or one that lacks what the lab asks of it.
    """
    make = make or factory(config.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            model: Any = make(config)
        except Exception as error:
            raise InputError(f"model: {config.model!r} cannot be made ({type(error).__name__}: {error})") from error
    if make is not _published:
        _check_interface(model, config)
    model.order_free = bool(getattr(model, "order_free", False))
    return model


def _check_interface(model: Any, config: RunConfig) -> None:
    """See that a model of one's own has what the lab asks of it."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {config.model!r} makes a {type(model).__name__}, an nn.Module is accepted")
    vocabulary = len(config.language.vocabulary)
    for name in ("input_embedding", "output_embedding"):
        matrix = getattr(model, name, None)
        if not isinstance(matrix, Tensor) or matrix.ndim != 2 or len(matrix) != vocabulary:
            raise InputError(f"model: {type(model).__name__} needs a property {name}, a [{vocabulary}, width] tensor")
    if (model.input_embedding is model.output_embedding) != config.tied:
        raise InputError(
            f"model: {type(model).__name__} has to be {config.mode} for a config that says tied={config.tied}"
        )
    tokens = torch.full((2, config.language.length), config.language.mask_id)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            found = model(tokens, torch.zeros(2, dtype=torch.int64))
    except Exception as error:
        raise InputError(f"model: {type(model).__name__} fails ({type(error).__name__}: {error})") from error
    if not isinstance(found, Tensor) or found.shape != (2, vocabulary):
        told = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(
            f"model: {type(model).__name__} maps 2 sequences to {told}, logits [2, {vocabulary}] are accepted"
        )


def _published(config: RunConfig) -> nn.Module:
    symbols, length = len(config.language.vocabulary), config.language.length
    shared: dict[str, Any] = {"width": config.width, "layers": config.layers, "tied": config.tied}
    if config.model == "transformer":
        return Transformer(symbols, heads=config.heads, feed_forward=config.feed_forward, **shared)
    if config.model == "lstm":
        return LSTM(symbols, hidden=config.hidden, **shared)
    shared |= {"token_feed_forward": config.token_feed_forward, "feed_forward": config.feed_forward}
    return Mixer(symbols, length, **shared)
