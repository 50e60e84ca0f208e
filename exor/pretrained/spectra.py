"""Singular values, principal subspaces and centred kernel alignment, from Gram matrices alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from exor import InputError
from exor.pretrained.products import NEGLIGIBLE, Products

DRAWS = 8  # random pairs of subspaces for a chance level


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a matrix.

    Attributes:
        values: descending, ``[width]`` float64.
        rank: values above 1e-6 of the largest; smaller ones are rounding.
        effective: exponential of the entropy of the values as shares of their sum (Roy & Vetterli 2007).
        stable: squared Frobenius norm over the square of the largest (Rudelson & Vershynin 2007).
        condition: largest over smallest value, infinite if the rank is not full.
    """

    values: np.ndarray
    rank: int
    effective: float
    stable: float
    condition: float


class Overlap(NamedTuple):
    """Of two subspaces of equal dimension: mean of the canonical correlations, of their squares, and both by chance."""

    canonical: float
    squared: float
    canonical_chance: float
    squared_chance: float


def spectrum(products: Products, name: str, *, centred: bool) -> Spectrum:
    """The singular values of a matrix, as it is or with the mean row removed."""
    values = products.eigen(name)[0]
    if not centred:
        mean = products.mean(name)
        values = torch.linalg.eigvalsh(products.gram(name) + products.n * torch.outer(mean, mean)).flip(0)
    found = values.clamp(min=0).sqrt().cpu().numpy()[: products.n]
    largest = found[0]
    rank = products.rank(name) if centred else int((found > NEGLIGIBLE * largest).sum())
    if not rank:  # what is left of equal rows is rounding
        return Spectrum(found, 0, 0.0, 0.0, float("inf"))
    shares = found[:rank] / found[:rank].sum()
    condition = float(largest / found[-1]) if rank == len(found) else float("inf")
    effective = float(np.exp(-(shares * np.log(shares)).sum()))
    return Spectrum(found, rank, effective, float((found**2).sum() / largest**2), condition)


def correlation(a: Spectrum, b: Spectrum, *, leading: int = 50) -> float:
    """Pearson correlation of the largest singular values; NaN where one has all of them equal."""
    k = min(leading, len(a.values), len(b.values))
    if k < 2 or not (np.ptp(a.values[:k]) and np.ptp(b.values[:k])):
        return float("nan")
    return float(np.corrcoef(a.values[:k], b.values[:k])[0, 1])


def feature_overlap(products: Products, a: str, b: str, k: int, *, seed: int = 0) -> Overlap:
    """Of the leading principal directions of two centred matrices, in the embedding space that they share.

    Args:
        k: dimensions.

    Raises:
        InputError: the widths differ, or k exceeds a rank.
    """
    if products.widths[a] != products.widths[b]:
        raise InputError(
            f"{a} and {b}: widths {products.widths[a]:,} and {products.widths[b]:,} differ; one width is accepted"
        )
    _check_rank(products, (a, b), k)
    directions = [products.eigen(name)[1][:, :k] for name in (a, b)]
    return _overlap(torch.linalg.svdvals(directions[0].T @ directions[1]), products.widths[a], k, seed)


def token_overlap(products: Products, a: str, b: str, k: int, *, seed: int = 0) -> Overlap:
    """Of the leading left singular subspaces of two centred matrices, in the space of tokens.

    Comparable between matrices of any widths and models. ``UᵀU = Λ⁻½ Vᵀ (AᵀB) V Λ⁻½``, so it needs no more than Gram
    matrices.

    Raises:
        InputError: k exceeds a rank.
    """
    _check_rank(products, (a, b), k)
    (values_a, left), (values_b, right) = (products.eigen(name) for name in (a, b))
    inner = left[:, :k].T @ products.gram(a, b) @ right[:, :k]
    inner = inner / values_a[:k, None].sqrt() / values_b[:k].sqrt()
    return _overlap(torch.linalg.svdvals(inner).clamp(max=1), products.n - 1, k, seed)  # no column has a mean


def linear_cka(products: Products, a: str, b: str, *, shuffle: bool = False) -> float:
    """``‖AᵀB‖² / (‖AᵀA‖ ‖BᵀB‖)`` of centred matrices (Kornblith et al. 2019); 0 if one is constant.

    Args:
        shuffle: the rows of b, for the chance level.
    """
    cross = products.shuffled(a, b) if shuffle else products.gram(a, b)
    sizes = products.gram(a).norm() * products.gram(b).norm()
    return float(cross.square().sum() / sizes) if sizes else 0.0


def _check_rank(products: Products, names: tuple[str, str], k: int) -> None:
    for name in names:
        rank = products.rank(name)
        if not 1 <= k <= rank:
            raise InputError(f"{name}: no subspace of {k:,} dimensions at rank {rank:,}; 1 to {rank:,} are accepted")


def _overlap(correlations: Tensor, dimensions: int, k: int, seed: int) -> Overlap:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(DRAWS):  # of a random subspace and the first k axes, as only their position to each other counts
        frame = torch.linalg.qr(torch.randn(dimensions, k, dtype=torch.float64, generator=generator)).Q
        drawn.append(torch.linalg.svdvals(frame[:k]).mean().item())
    means = correlations.mean().item(), correlations.square().mean().item()
    return Overlap(*means, float(np.mean(drawn)), k / dimensions)
