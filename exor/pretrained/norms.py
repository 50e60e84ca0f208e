"""Lengths of embedding rows: their distribution, and what they go with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

BLOCK = 2**24  # numbers of a matrix that are worked on at a time


class Summary(NamedTuple):
    """Frobenius norm of a matrix, and mean, smallest, median and largest norm of its rows."""

    frobenius: float
    mean: float
    smallest: float
    median: float
    largest: float


def row_norms(matrix: Tensor, gain: Tensor | None = None) -> np.ndarray:
    """Euclidean norm of every row, ``[tokens]`` float64.

    Args:
        matrix: ``[tokens, width]``.
        gain: of the final norm, ``[width]``, multiplied into each row first.
    """
    found = []
    for rows in matrix.split(max(BLOCK // matrix.shape[1], 1)):
        rows = rows.float() if gain is None else rows.float() * gain.to(rows.device)
        found.append(torch.linalg.vector_norm(rows, dim=1).cpu())
    return torch.cat(found).double().numpy()


def summary(norms: np.ndarray) -> Summary:
    """Of norms of rows, ``[tokens]``."""
    return Summary(float(np.sqrt((norms**2).sum())), *(float(f(norms)) for f in (np.mean, np.min, np.median, np.max)))


def correlations(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Pearson's and Spearman's correlation; NaN where one of them is constant, or there are fewer than two."""
    if len(x) < 2 or not (np.ptp(x) and np.ptp(y)):
        return float("nan"), float("nan")
    return float(stats.pearsonr(x, y).statistic), float(stats.spearmanr(x, y).statistic)
