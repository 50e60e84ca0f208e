"""Tests and intervals for differences between two runs of a seed, by flipping signs, and their adjustment for many."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import floor, nan, sqrt

import numpy as np
from scipy import stats

from exor.language import Floats

MIN_SEEDS = 6  # with 5 pairs the smallest two-sided p is 2 / 2^5, more than .05
EXACT_SEEDS = 16  # up to here all flips are counted, beyond a sample of them
DRAWS = 49_999
TIE = 1e-9  # sums closer than this share of Σ|d| are equal: rounding must not decide


@lru_cache(maxsize=2)
def sign_flips(n: int) -> Floats:
    """``[flips, n]`` of ±1: the ways to flip the signs of n seeds; the first flips none.

    The statistics here do not change if all signs are flipped, so one of each two opposite ways is enough: all 2^(n-1)
    up to 16 seeds. Beyond that, 49,999 random ones from a fixed seed. With their opposites, and the opposite of none,
    they are N = 99,999 flips besides the identity, and a share of them is the Monte Carlo p (1 + count) / (1 + N).
    """
    if n <= EXACT_SEEDS:
        flipped = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) & 1
    else:
        flipped = np.random.default_rng(0).integers(2, size=(DRAWS + 1, n))
        flipped[0] = 0
    flips = np.where(flipped, -1.0, 1.0)
    flips.setflags(write=False)
    return flips


def sign_flip_p(differences: Floats) -> float:
    """Two-sided p of the sign-flip test: the share of flips with ``|Σ ±d| >= |Σ d|``."""
    sums = np.abs(sign_flips(len(differences)) @ differences)
    return float((sums >= sums[0] - TIE * np.abs(differences).sum()).mean())


def interval(differences: Floats) -> tuple[float, float]:
    """95 % interval for the centre of the differences.

    From 6 seeds on, all centres c that the sign-flip test of d − c does not reject (p > .05): from the K-th smallest
    to the K-th largest of the 2^n − 1 means of non-empty subsets, K = floor(.025 · 2^n) (Hartigan 1969, *Using
    subsample values as typical values*). Both ends belong to it, so also with ties zero is outside exactly where
    ``sign_flip_p`` is at most .05. With fewer seeds Student's t; with one, NaN.
    """
    n, total = len(differences), differences.sum()
    if n < MIN_SEEDS:
        spread = stats.t.ppf(0.975, n - 1) * differences.std(ddof=1) / sqrt(n) if n > 1 else nan
        return total / n - spread, total / n + spread
    flipped, kept = sign_flips(n) @ differences, sign_flips(n).sum(axis=1)
    sums = np.concatenate([total - flipped, total + flipped]) / 2  # over the flipped seeds, over the others
    sizes = np.concatenate([n - kept, n + kept]) / 2
    sums[np.abs(sums) <= TIE / 2 * np.abs(differences).sum()] = 0.0
    means = np.sort(sums[sizes > 0] / sizes[sizes > 0])
    rank = floor(0.025 * len(sums)) - np.count_nonzero(sizes == 0)  # K - 1; a sample may hold the empty set again
    return float(means[rank]), float(means[-1 - rank])


def holm(p: Floats) -> Floats:
    """``[tests]``: p adjusted for all tests together (Holm 1979, step-down)."""
    order = np.argsort(p)
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return adjusted


def max_t(paths: Sequence[Floats]) -> list[Floats]:
    """p at each step of each row, adjusted for all of them together (Westfall & Young 1993, single-step max-T).

    The statistic is ``|Σ d| / √(Σ d²)``, a monotone function of \\|t\\|, and 0 where all d are. A flip changes the
    sign of a seed in all rows and steps, and so keeps the correlations between them.

    Args:
        paths: ``[seeds, steps]`` for each row; the number of steps may differ.

    Returns:
        ``[steps]`` for each row.
    """
    flips = sign_flips(len(paths[0]))
    highest, observed = np.zeros(len(flips)), []
    for path in paths:
        size = np.sqrt((path**2).sum(axis=0))
        t = np.abs(flips @ (path / np.where(size > 0, size, 1.0)))  # [flips, steps]
        highest = np.maximum(highest, t.max(axis=1, initial=0.0))
        observed.append(t[0])
    return [(highest[:, None] >= t - TIE).mean(axis=0) for t in observed]
