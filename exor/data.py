"""Batches of the EXor task as a pure function of (seed, step), on every device.

A counter-based generator replaces random state: every draw is a hash of its seed, step, string and position, kept
as separate 32-bit words. Nothing has to be saved or synchronised, and any batch can be made at any time, alone or
in company. All arithmetic is int32 with wrap-around, which CPUs, GPUs and compiled code do alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from exor.config import RunConfig
from exor.language import Language

UNIFORM_BITS = 30  # of a draw that picks a synonym; probabilities are rounded to 2^-30
SECOND = 2**20  # above the bits of any string: marks its second occurrence in a batch
POSITION_BITS = 24  # of a draw that picks the masked position


def words(values: list[int]) -> Tensor:
    """Whole numbers below 2^32 as int32 words (the upper half wraps to negative numbers)."""
    return torch.tensor(values, dtype=torch.int64).to(torch.int32)


def mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit flips every output bit half of the time.

    Shifts and multipliers: Wellons' hash-prospector, best known two-round function (bias 0.107).
    """
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x21F0AAAD
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * 0x735A2D97
    return x ^ ((x >> 15) & 0x1FFFF)


def key(seed: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Two words for a seed and a step: a four-round Feistel network, so no two (seed, step) share a key."""
    a, b = seed, step
    b = b ^ mix(a + 0x3C6EF372)
    a = a ^ mix(b + 0x1B873593)
    b = b ^ mix(a + 0x2545F491)
    a = a ^ mix(b + 0x5851F42D)
    return a, b


def uniform(k: tuple[Tensor, Tensor], cell: Tensor) -> Tensor:
    """A random word for each cell (a string and a position) under a key; broadcasts."""
    return mix(mix(mix(cell) ^ k[0]) + k[1])


class Batch(NamedTuple):
    """What one step sees. R replicas (seeds), B strings, n bits.

    Attributes:
        symbols: n tensors ``[R, B]`` (int32): the symbol at each bit position before masking.
        position: ``[R, B]`` the masked position.
        parity: ``[R or 1, B]`` parity of the bits, 0 or 1.
        target: ``[R, B]`` the symbol at the masked position.
    """

    symbols: list[Tensor]
    position: Tensor
    parity: Tensor
    target: Tensor

    def counts(self, language: Language) -> Tensor:
        """``[R, vocabulary, B]`` (float32): how often each symbol occurs once the position is masked."""
        visible = [self.position != p for p in range(language.bits)]
        rows = []
        for v in range(len(language.bit_symbols)):
            seen = [torch.where((s == v) & ok, 1.0, 0.0) for s, ok in zip(self.symbols, visible, strict=True)]
            rows.append(torch.stack(seen).sum(0) if len(seen) > 32 else sum(seen[1:], seen[0]))
        odd = self.parity.float().expand_as(rows[0])
        return torch.stack([*rows, 1 - odd, odd, torch.ones_like(odd)], 1)

    def sequences(self, language: Language) -> Tensor:
        """``[R, bits + 1, B]`` (int32): the sequences as a model reads them, the batch last."""
        rows = [torch.where(self.position == p, language.mask_id, s) for p, s in enumerate(self.symbols)]
        rows.append((self.parity + language.parity_id(0)).expand_as(rows[0]))
        return torch.stack(rows, 1)

    def tokens(self, language: Language) -> Tensor:
        """``[R, B, bits + 1]`` (int64): the same, the batch first."""
        return self.sequences(language).transpose(1, 2).long()


def thresholds(language: Language) -> Tensor:
    """``[2, most synonyms - 1]`` (int32): a draw at or above entry j of its bit's row has synonym j + 1 or later."""
    size = 2**UNIFORM_BITS
    rows = []
    for p in (language.zero, language.one):
        edges = torch.tensor(p, dtype=torch.float64).cumsum(0)[:-1].mul(size).round().clamp(max=size).long().tolist()
        # probability beyond the last synonym that can occur must not leak into synonyms of probability zero
        last = max(i for i, q in enumerate(p) if q > 0)
        rows.append([e if j < last else size for j, e in enumerate(edges)])
    width = max(map(len, rows))
    return torch.tensor([r + [size] * (width - len(r)) for r in rows], dtype=torch.int32).reshape(2, width)


def draw(language: Language, edges: Tensor, strings: Tensor, seed: Tensor, step: Tensor) -> Batch:
    """The synonyms and masked positions of a step.

    Args:
        language: decides shapes only; the probabilities are in ``edges``.
        edges: see :func:`thresholds`.
        strings: ``[R or 1, B]`` (int32) the strings of the batch.
        seed: ``[R]`` (int32).
        step: ``[R]`` (int32).
    """
    n = language.bits
    k0, k1 = key(seed, step)
    k = (k0[:, None], k1[:, None])
    cell = strings * 32
    where = (uniform(k, cell + n) >> 8) & (2**POSITION_BITS - 1)
    position = (where * n) >> POSITION_BITS
    symbols = []
    parity = torch.zeros_like(strings)
    target = torch.zeros_like(position)
    for p in range(n):
        bit = (strings >> (n - 1 - p)) & 1
        u = (uniform(k, cell + p) >> (32 - UNIFORM_BITS)) & (2**UNIFORM_BITS - 1)
        symbol = bit * len(language.zero) + torch.zeros_like(position)
        for j in range(edges.shape[1]):
            symbol = symbol + (u >= torch.where(bit == 1, edges[1, j], edges[0, j])).int()
        symbols.append(symbol)
        parity = parity ^ bit
        target = torch.where(position == p, symbol, target)
    return Batch(symbols, position, parity, target)


def batch_strings(strings: Tensor, size: int, seed: Tensor, step: Tensor) -> Tensor:
    """``[R, size]``: the strings of a step that does not see them all.

    Each epoch is a permutation seeded by (seed, epoch); batches cut the endless row of permutations into equal
    pieces, so a batch may hold the end of one epoch and the start of the next.

    A string that occurs in both parts is spelled independently: those of the later epoch carry ``SECOND``, which
    gives them other draws and leaves their bits alone.

    Args:
        strings: ``[N]`` (int32) the training strings, N ≥ size.
        size: strings in a batch.
        seed: ``[R]`` (int32).
        step: ``[R]`` (int32).
    """
    total = len(strings)
    start = step.long() * size
    epoch = (start // total).int()
    orders = []
    for e in (epoch, epoch + 1):
        k0, k1 = key(seed, e)
        # cell 31 of a string belongs to no position, so these draws are not those of any step
        orders.append(uniform((k0[:, None], k1[:, None]), strings[None] * 32 + 31).argsort(dim=1, stable=True))
    index = (start % total)[:, None] + torch.arange(size, device=strings.device)
    chosen = strings[torch.cat(orders, 1).gather(1, index)]
    return torch.where(index < total, chosen, chosen + SECOND)


class Source:
    """Batches of one run configuration for any seeds and steps, on one device."""

    def __init__(self, config: RunConfig, device: torch.device | str = "cpu") -> None:
        self.language = config.language
        train, _ = self.language.split(config.split_seed)
        self.strings = torch.tensor(train, dtype=torch.int32, device=device)
        self.size = config.batch_size or len(train)
        self.edges = thresholds(self.language).to(device)

    def batch(self, seeds: list[int], step: int) -> Batch:
        """The batch of a step for each of R seeds."""
        seed = words(seeds).to(self.strings.device)
        steps = torch.full_like(seed, step)
        full = self.size == len(self.strings)
        strings = self.strings[None] if full else batch_strings(self.strings, self.size, seed, steps)
        return draw(self.language, self.edges, strings, seed, steps)


class ExorDataset(IterableDataset):
    """The task alone: item t is the batch of step t, ``(tokens [B, bits + 1], position [B], target [B])``, all int64.

    Wrap it in ``DataLoader(dataset, batch_size=None)``; worker processes share the steps among them.

    Args:
        config: language, split, batch size and seed; the other settings are not used.
        steps: how many batches; ``config.max_steps`` by default.
    """

    def __init__(self, config: RunConfig | None = None, steps: int | None = None) -> None:
        self.config = config or RunConfig()
        self.steps = self.config.max_steps if steps is None else steps
        self.source = Source(self.config)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for step in range(first, self.steps, stride):
            batch = self.source.batch([self.config.seed], step)
            yield batch.tokens(self.source.language)[0], batch.position[0].long(), batch.target[0].long()
