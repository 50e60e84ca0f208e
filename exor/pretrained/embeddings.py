"""The matrices between a model and its tokens, once read; and when two of them are one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import inf
from sys import float_info

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained.gguf_files import rounding
from exor.pretrained.tensors import BLOCK, FLOATS

SLACK = 2.0  # matrices closer than so many times the error of their quantisation are equal
FARTHEST = 0.5  # but never at this relative distance


@dataclass(frozen=True)
class Embeddings:
    """The matrices of a model and what lies between them and its tokens.

    Attributes:
        input, output: ``[rows, width]``, float32, on the CPU; the same tensor if tied.
        why: what decides that it is tied or not.
        notes: what a reader should know.
        head_bias: ``[rows]``, added to logits.
        norm_gain, norm_bias: ``[width]``, of the norm before the output matrix, as they multiply and add.
        norm: ``RMSNorm``, ``LayerNorm``, ``without parameters``, ``none`` or ``not found``.
        logit_scale, logit_cap: logits are ``scale · (h · outputᵀ + bias)``, then ``cap · tanh(logit / cap)``.
        input_scale: factor of the looked-up rows, rounded as the model rounds it.
    """

    name: str
    input: Tensor
    output: Tensor
    tied: bool
    why: str
    notes: tuple[str, ...] = ()
    head_bias: Tensor | None = None
    norm_gain: Tensor | None = None
    norm_bias: Tensor | None = None
    norm: str = "not found"
    logit_scale: float = 1.0
    logit_cap: float | None = None
    input_scale: float = 1.0

    def folded(self) -> Tensor:
        """The output matrix, the final norm's gain multiplied into its columns; the same tensor if there is no gain.

        Raises:
            InputError: the final norm was not found.
        """
        if self.norm == "not found":
            raise InputError(f"{self.name}: its final norm was not found, so its gain cannot be folded in")
        return self.output if self.norm_gain is None else self.output * self.norm_gain

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of both matrices: shapes and float32 values."""
        digest = blake2b(digest_size=16)
        for matrix in (self.input,) if self.tied else (self.input, self.output):
            digest.update(repr(tuple(matrix.shape)).encode())
            digest.update(matrix.contiguous().numpy().data.cast("B"))
        return digest.hexdigest()


def distance(a: Tensor, b: Tensor) -> float:
    """``‖a − b‖ / ‖a‖`` of two matrices, block by block; 0 only if they are equal."""
    if torch.equal(a, b):
        return 0.0
    rows = max(BLOCK // (4 * a.shape[1]), 1)
    apart = sum(float((x - y).norm()) ** 2 for x, y in zip(a.split(rows), b.split(rows), strict=True))
    size = sum(float(x.norm()) ** 2 for x in a.split(rows))
    return max((apart / size) ** 0.5, float_info.min) if size else inf


def tolerance(a: str, b: str) -> float:
    """Relative distance up to which two matrices stored as these types count as equal: 0 for one type of floats."""
    if a == b and a in FLOATS:
        return 0.0
    return min(SLACK * (rounding(a) ** 2 + rounding(b) ** 2) ** 0.5, FARTHEST)
