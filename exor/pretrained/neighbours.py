"""Nearest neighbours of every token by cosine, exactly, and how far two matrices agree on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.products import check_matrix, full_precision

TIE = 1e-6  # cosines closer than this are equal, and the lower id comes first
SPARE = 8  # candidates beyond those asked for, to see where a tie ends
TILE = 4096  # tokens whose cosines to as many others are looked at together
GROUP = 16  # cosines of which at first only the largest is looked at
TINY = torch.finfo(torch.float32).tiny
SMALL = 8  # rows shorter than the mean row by this factor cancel in a product of centred rows
RAW, CENTRED = "raw", "centred"


@dataclass(frozen=True)
class Neighbours:
    """The nearest neighbours of every token, nearest first, themselves left out.

    Attributes:
        raw: ids by cosine of the rows as they are, ``[tokens, k]``.
        centred: the same with the mean row removed; None if that was not asked for.
        notes: what a reader has to know, sentences.
    """

    raw: Tensor
    centred: Tensor | None
    notes: tuple[str, ...] = ()


class Hubness(NamedTuple):
    """How unevenly tokens are neighbours of others: of that count, skewness, largest value, and share of zeros."""

    skewness: float
    largest: int
    never: float


def nearest(
    matrix: Tensor,
    k: int,
    *,
    centred: bool = True,
    device: torch.device | str | None = None,
    watch: Watch = unwatched,
) -> Neighbours:
    """Find the k nearest neighbours of every row.

    Cosines within 1e-6 of the next are ties, which go to the lower id; a row of zeros has cosine 0 to all. Each pair of
    tokens is multiplied once, in float32, for the neighbours of both, and for both kinds of cosines. Needs one float32
    copy of the matrix, 12 bytes for each neighbour, and about 0.3 GB.

    Args:
        matrix: ``[tokens, width]``.
        k: below the number of tokens.
        centred: whether to search with the mean row removed too.
        device: where to search; where the matrix lies by default.
        watch: told of pairs of tokens.

    Raises:
        InputError: k is out of range, or the matrix is none, or holds numbers that are not finite.
    """
    check_matrix("matrix", matrix)
    n = len(matrix)
    if not 1 <= k < n:
        raise InputError(f"k: {k} neighbours of {n:,} tokens; 1 to {n - 1:,} are accepted")
    rows = matrix.to(device or matrix.device, torch.float32, copy=True)
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    if not largest.isfinite().all():
        row = int((~largest.isfinite()).nonzero()[0])
        raise InputError(f"matrix: row {row} holds numbers that are not finite; only finite ones are accepted")
    rows.div_(largest.max().clamp(min=TINY))  # so that no square is too large or too small for float32
    lengths = rows.norm(dim=1)
    if not centred:
        raw, without_mean = _search(_unit(rows), k, watch, None)[0], None
    else:
        mean = rows.mean(dim=0)
        if ((largest > 0) & (lengths <= mean.norm() / SMALL)).any():  # these would drown in the mean
            raw = _search(_unit(rows.clone()), k, watch, None)[0]
            without_mean = _search(_unit(rows.sub_(mean)), k, watch, None)[0]
        else:
            with full_precision():
                shift = _Shift.of(rows, mean, lengths)
            without_mean, raw = _search(_unit(rows.sub_(mean)), k, watch, None, shift)
    zeros = int((largest == 0).sum())
    notes = (f"{zeros:,} rows of zeros, whose cosines are taken for 0.",) if zeros else ()
    return Neighbours(raw, without_mean, notes)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Share of neighbours in common, of every token, ``[tokens]`` float32; for two ``[tokens, k]`` of ids."""
    shared = [(x[:, :, None] == y[:, None, :]).sum((1, 2)) for x, y in zip(a.split(TILE), b.split(TILE), strict=True)]
    return torch.cat(shared).float() / a.shape[1]


def hubness(ids: Tensor) -> Hubness:
    """How often tokens are among the neighbours ``[tokens, k]`` of others (Radovanović et al. 2010)."""
    counts = np.bincount(ids.flatten().numpy(), minlength=len(ids))
    skewness = float(stats.skew(counts)) if counts.min() < counts.max() else 0.0
    return Hubness(skewness, int(counts.max()), float((counts == 0).mean()))


@dataclass(frozen=True)
class _Shift:
    """What makes cosines of rows as they are from those of centred ones: ``(x + m)·(y + m) = x·y + x·m + y·m + m·m``.

    Attributes:
        scale: length of the centred row over that of the row, 0 for a row of zeros.
        inverse: one over the length of the row, 0 for a row of zeros.
        along: ``x·m + m·m / 2`` over that length.
    """

    scale: Tensor
    inverse: Tensor
    along: Tensor

    @classmethod
    def of(cls, rows: Tensor, mean: Tensor, lengths: Tensor) -> _Shift:
        """From rows as they are."""
        inverse = torch.where(lengths > 0, 1 / lengths, 0)
        centred = torch.cat([(part - mean).norm(dim=1) for part in rows.split(TILE)])
        return cls(centred * inverse, inverse, (rows @ mean - mean @ mean / 2) * inverse)

    def apply(self, cosines: Tensor, a: slice | Tensor, b: slice) -> Tensor:
        """Change cosines ``[rows a, rows b]`` of centred rows in place."""
        left = torch.stack([self.along[a], self.inverse[a]], dim=1)
        right = torch.stack([self.inverse[b], self.along[b]])
        return cosines.mul_(self.scale[a, None]).mul_(self.scale[b]).addmm_(left, right)


def _unit(rows: Tensor) -> Tensor:
    """Rows divided by their length in place."""
    largest = torch.linalg.vector_norm(rows, torch.inf, dim=1, keepdim=True)
    rows.div_(torch.where(largest > 0, largest, 1))  # as the squares of small numbers are 0 in float32
    lengths = rows.norm(dim=1, keepdim=True)
    return rows.mul_(torch.where(lengths > 0, 1 / lengths, 0))


class _Best:
    """The largest cosines of every row so far, and whose they are."""

    def __init__(self, n: int, k: int, device: torch.device) -> None:
        self.values = torch.full((n, k), -torch.inf, device=device)
        self.ids = torch.zeros(n, k, dtype=torch.int64, device=device)

    def take(self, cosines: Tensor, i: int, j: int) -> None:
        """Look at those of rows that begin at i to rows that begin at j; of both, if they are others."""
        for dim, rows, columns in ((1, i, j), (0, j, i)) if i != j else ((1, i, j),):
            here = slice(rows, rows + cosines.shape[1 - dim])
            k = self.values.shape[1]
            values, ids = _largest(cosines, min(k, cosines.shape[dim]), dim)
            self.values[here], places = torch.cat([self.values[here], values], dim=1).topk(k, dim=1)
            self.ids[here] = torch.cat([self.ids[here], ids + columns], dim=1).gather(1, places)


def _search(rows: Tensor, k: int, watch: Watch, *shifts: _Shift | None) -> list[Tensor]:
    """``[tokens, k]`` ids of the nearest neighbours of unit rows, after each of some shifts (None first)."""
    n, kept = len(rows), min(k + SPARE, len(rows) - 1)
    best = [_Best(n, kept, rows.device) for _ in shifts]
    done, total = 0, n * (n + 1) // 2
    buffer = rows.new_empty(TILE * TILE)  # fresh memory for every product would cost more than the search
    with full_precision():
        for i in range(0, n, TILE):
            for j in range(i, n, TILE):
                a, b = slice(i, i + TILE), slice(j, j + TILE)
                shape = len(rows[a]), len(rows[b])
                cosines = torch.mm(rows[a], rows[b].T, out=buffer[: shape[0] * shape[1]].view(shape))
                for held, shift in zip(best, shifts, strict=True):
                    if shift:
                        shift.apply(cosines, a, b)
                    if i == j:
                        cosines.fill_diagonal_(-torch.inf)
                    held.take(cosines, i, j)
                done += cosines.numel() if i != j else len(cosines) * (len(cosines) + 1) // 2
                watch(done, total)
        return [_settle(rows, held, k, shift).cpu() for held, shift in zip(best, shifts, strict=True)]


def _largest(values: Tensor, k: int, dim: int) -> tuple[Tensor, Tensor]:
    """As ``values.topk(k, dim)``, rows first; faster, as the k largest lie in the k groups with the largest maxima."""
    length = values.shape[dim]
    groups = length // GROUP
    across = values if dim else values.T
    if groups < 2 * k:
        return across.topk(k, dim=1)
    even = groups * GROUP
    maxima = values.narrow(dim, 0, even).unflatten(dim, (GROUP, groups)).amax(dim)
    some = (maxima if dim else maxima.T).topk(k, dim=1, sorted=False).indices
    places = (some[:, None] + groups * torch.arange(GROUP, device=values.device)[:, None]).flatten(1)
    rest = torch.arange(even, length, device=values.device).expand(len(some), -1)
    places = torch.cat([places, rest], dim=1)
    found, where = across.gather(1, places).topk(k, dim=1, sorted=False)
    return found, places.gather(1, where)


def _settle(rows: Tensor, best: _Best, k: int, shift: _Shift | None = None) -> Tensor:
    """``[tokens, k]`` ids, ties in the order of ids; rows whose ties go on beyond the candidates are searched again."""
    n, kept = best.ids.shape
    tie = _ties(best.values)
    found = _in_order(tie, best.ids)[:, :k].clone()
    again = (tie[:, k - 1] == tie[:, -1]).nonzero()[:, 0]
    if kept == n - 1 or not len(again):
        return found
    for some in again.split(max(TILE * TILE // (4 * n), 1)):
        cosines = rows[some] @ rows.T
        if shift:
            shift.apply(cosines, some, slice(None))
        cosines.scatter_(1, some[:, None], -torch.inf)
        values, order = cosines.sort(dim=1, descending=True)
        found[some] = _in_order(_ties(values), order)[:, :k]
    return found


def _ties(values: Tensor) -> Tensor:
    """Of values in descending order, the number of the group of ties that each belongs to."""
    return torch.nn.functional.pad((values[:, :-1] - values[:, 1:] > TIE).cumsum(dim=1), (1, 0))


def _in_order(tie: Tensor, ids: Tensor) -> Tensor:
    return ids.gather(1, (tie * (int(ids.max()) + 1) + ids).argsort(dim=1))
