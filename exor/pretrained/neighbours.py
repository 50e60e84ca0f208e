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
        InputError: k is out of range, or the matrix is none.
    """
    check_matrix("matrix", matrix)
    n = len(matrix)
    if not 1 <= k < n:
        raise InputError(f"k: {k} neighbours of {n:,} tokens; 1 to {n - 1:,} are accepted")
    rows = matrix.to(device or matrix.device, torch.float32, copy=True)
    lengths = rows.norm(dim=1)
    found = {}
    if centred:
        mean = torch.stack([part.sum(0) for part in rows.split(64)]).sum(0) / n
        short = (lengths > 0) & (lengths < mean.norm() / SMALL)
        together = not short.any()
        if not together:
            found = _search(_Rows(rows, {RAW: _inverse(lengths)}), k, watch)
        rows -= mean
        inverse = {RAW: _inverse(lengths)} if together else {}
        inverse[CENTRED] = _inverse(rows.norm(dim=1))
        found |= _search(_Rows(rows, inverse, rows @ mean, mean @ mean), k, watch)
    else:
        found = _search(_Rows(rows, {RAW: _inverse(lengths)}), k, watch)
    zeros = int((lengths == 0).sum())
    notes = (f"{zeros:,} rows of zeros, whose cosines are taken for 0.",) if zeros else ()
    return Neighbours(found[RAW], found.get(CENTRED), notes)


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
class _Rows:
    """Rows, and what makes cosines of their products.

    Attributes:
        rows: ``[tokens, width]``, as they are or with the mean removed.
        inverse: one over the length of each, by way; 0 for a row of zeros.
        along, mean: of centred rows, their products with the mean row, and that of the mean row with itself.
    """

    rows: Tensor
    inverse: dict[str, Tensor]
    along: Tensor | None = None
    mean: Tensor | None = None

    def cosines(self, way: str, product: Tensor, a: slice | Tensor, b: slice) -> Tensor:
        """``[rows a, rows b]``, from their products."""
        x = self.inverse[way]
        if way == RAW and self.along is not None and self.mean is not None:  # (x + m)·(y + m) = x·y + x·m + y·m + m·m
            left = torch.stack([self.along[a] + self.mean, torch.ones_like(self.along[a])], dim=1)
            right = torch.stack([torch.ones_like(self.along[b]), self.along[b]])
            return torch.addmm(product, left, right).mul_(x[a, None]).mul_(x[b])
        return (product * x[a, None]).mul_(x[b])


def _inverse(lengths: Tensor) -> Tensor:
    return torch.where(lengths > 0, 1 / lengths, 0)


def _search(held: _Rows, k: int, watch: Watch) -> dict[str, Tensor]:
    """``[tokens, k]`` ids on the CPU, for every way there is."""
    n, device = len(held.rows), held.rows.device
    kept = min(k + SPARE, n - 1)
    best = {way: torch.full((n, kept), -torch.inf, device=device) for way in held.inverse}
    ids = {way: torch.zeros(n, kept, dtype=torch.int64, device=device) for way in held.inverse}
    done, total = 0, n * (n + 1) // 2
    with full_precision():
        for i in range(0, n, TILE):
            for j in range(i, n, TILE):
                a, b = slice(i, i + TILE), slice(j, j + TILE)
                product = held.rows[a] @ held.rows[b].T
                for way in held.inverse:
                    cosines = held.cosines(way, product, a, b)
                    if i == j:
                        cosines.fill_diagonal_(-torch.inf)
                    _merge(best[way], ids[way], cosines, i, j)
                    if i != j:
                        _merge(best[way], ids[way], cosines.T, j, i)
                done += product.numel() if i != j else len(product) * (len(product) + 1) // 2
                watch(done, total)
        return {way: _settle(held, way, best[way], ids[way], k).cpu() for way in held.inverse}


def _merge(best: Tensor, ids: Tensor, cosines: Tensor, i: int, j: int) -> None:
    """Take the largest cosines of rows that begin at i to columns that begin at j among the best so far."""
    rows = slice(i, i + len(cosines))
    values, columns = _largest(cosines, min(best.shape[1], cosines.shape[1]))
    best[rows], places = torch.cat([best[rows], values], dim=1).topk(best.shape[1], dim=1)
    ids[rows] = torch.cat([ids[rows], columns + j], dim=1).gather(1, places)


def _largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As ``values.topk(k)``, faster: the k largest lie in the k groups whose largest are the largest."""
    groups = values.shape[1] // GROUP
    if groups < 2 * k:
        return values.topk(k, dim=1)
    even = groups * GROUP
    some = values[:, :even].unflatten(1, (GROUP, groups)).amax(dim=1).topk(k, dim=1, sorted=False).indices
    places = (some[:, None] + groups * torch.arange(GROUP, device=values.device)[:, None]).flatten(1)
    rest = torch.arange(even, values.shape[1], device=values.device).expand(len(values), -1)
    places = torch.cat([places, rest], dim=1)
    found, where = values.gather(1, places).topk(k, dim=1, sorted=False)
    return found, places.gather(1, where)


def _settle(held: _Rows, way: str, best: Tensor, ids: Tensor, k: int) -> Tensor:
    """``[tokens, k]`` ids, ties in the order of ids; rows whose ties go on beyond the candidates are searched again."""
    n, kept = ids.shape
    tie = _ties(best)
    found = _in_order(tie, ids)[:, :k].clone()
    again = (tie[:, k - 1] == tie[:, -1]).nonzero()[:, 0]
    if kept == n - 1 or not len(again):
        return found
    for rows in again.split(max(TILE * TILE // (4 * n), 1)):
        cosines = held.cosines(way, held.rows[rows] @ held.rows.T, rows, slice(None))
        cosines[torch.arange(len(rows)), rows] = -torch.inf
        values, order = cosines.sort(dim=1, descending=True)
        found[rows] = _in_order(_ties(values), order)[:, :k]
    return found


def _ties(values: Tensor) -> Tensor:
    """Of values in descending order, the number of the group of ties that each belongs to."""
    return torch.nn.functional.pad((values[:, :-1] - values[:, 1:] > TIE).cumsum(dim=1), (1, 0))


def _in_order(tie: Tensor, ids: Tensor) -> Tensor:
    return ids.gather(1, (tie * (int(ids.max()) + 1) + ids).argsort(dim=1))
