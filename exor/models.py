"""The models as a reader expects them: plain PyTorch modules, tied or untied. They are the specification.

A model that the lab trains maps ``tokens [batch, length]`` (int64) and the masked ``position [batch]`` to logits
``[batch, vocabulary]``, and has the properties ``input_embedding`` and ``output_embedding`` (``[vocabulary, width]``
parameters, one and the same when tied).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from exor import InputError
from exor.config import MODELS, RunConfig


@runtime_checkable
class MaskedLM(Protocol):
    """What the lab asks of a model besides being an ``nn.Module``."""

    @property
    def input_embedding(self) -> Tensor:
        """``[vocabulary, width]``"""

    @property
    def output_embedding(self) -> Tensor:
        """``[vocabulary, width]``"""

    def __call__(self, tokens: Tensor, position: Tensor) -> Tensor:
        """``[batch, length], [batch] -> [batch, vocabulary]``"""


class Transformer(nn.Module):
    """Post-norm transformer encoder without positional encoding, final norm or output bias.

    The layers start as copies of one initial layer, as ``nn.TransformerEncoder`` makes them.
    """

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
        # made last: a tied and an untied model of one seed start equal in everything that both have
        self.unembed = self.embed if tied else nn.Embedding(vocabulary, width)

    @property
    def input_embedding(self) -> Tensor:
        """``[vocabulary, width]``"""
        return self.embed.weight

    @property
    def output_embedding(self) -> Tensor:
        """``[vocabulary, width]``, the input embedding itself when tied."""
        return self.unembed.weight

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """``[batch, length], [batch] -> [batch, vocabulary]``: logits of the symbol at the masked position."""
        hidden = self.encoder(self.embed(tokens))  # [batch, length, width]
        masked = hidden[torch.arange(len(tokens), device=tokens.device), position]  # [batch, width]
        return masked @ self.output_embedding.T


def build(config: RunConfig) -> Transformer:
    """The initial model of a run, on the CPU in float32; its weights depend on the config and its seed alone.

    Raises:
        InputError: a model that the lab does not have.
    """
    if config.model not in MODELS:
        raise InputError(f"model: {config.model!r} is unknown, {', '.join(MODELS)} is accepted")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Transformer(
            len(config.language.vocabulary),
            width=config.width,
            feed_forward=config.feed_forward,
            heads=config.heads,
            layers=config.layers,
            tied=config.tied,
        )
