"""Maps from the rows of one matrix to those of another over the same tokens, and how well they fit.

The score of a map is the mean over tokens of the cosine between mapped row and target row. It is high by chance alone
where there are few tokens for the width, so every score comes with that of shuffled rows, and with that of tokens which
the map was not fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import pi, sqrt

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.products import NEGLIGIBLE, Products, full_precision

IDENTITY, CENTRED, ORTHOGONAL, LINEAR = KINDS = ("identity", "identity, centred", "orthogonal", "linear")
FITTED = (ORTHOGONAL, LINEAR)
ILL_CONDITIONED = 1e4
BANDS = 5
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Alignment:
    """How well a map fits.

    Attributes:
        score: mean of ``cosines``.
        cosines: of each token's mapped row and target row, ``[tokens]`` float32 on the CPU; 0 where one is zero.
        held_out: the score on one half of the tokens of a map fitted to the other; NaN where nothing is fitted.
        chance: the score after the rows of the target are shuffled, of a map fitted to that.
        expected_chance: what unrelated Gaussian rows would give, from the shapes alone.
        rank: of the source (linear) or of the cross-Gram matrix (orthogonal), as far as it can be told.
        condition: largest over smallest singular value of the same, infinite if its rank is not full.
        notes: on rank and condition, sentences.
    """

    score: float
    cosines: Tensor
    held_out: float
    chance: float
    expected_chance: float
    rank: int
    condition: float
    notes: tuple[str, ...] = ()


def align(products: Products, source: str, target: str, kind: str) -> Alignment:
    """Fit a map, and score it.

    ``identity``: none, rows as they are. ``identity, centred``: none, the mean row removed. ``orthogonal``: rotation
    and reflection nearest in the Frobenius norm, ``U Vᵀ`` of ``AᵀB = U S Vᵀ`` (Schönemann 1966). ``linear``: least
    squares, ``(AᵀA)⁺ AᵀB``, the one of smallest norm if there are several. The last two on matrices with the mean row
    removed.

    Args:
        products: of the two matrices.
        source, target: their names.
        kind: one of :data:`KINDS`.

    Raises:
        InputError: unknown kind, or widths that differ where they may not.
    """
    shown = partial(cosines, products, source, target, centred=kind != IDENTITY)
    made = partial(fit, products, source, target, kind)
    fitted = made()
    found = shown(fitted)
    chance = shown(made(shuffle=True), shuffle=True)
    if kind not in FITTED:
        return Alignment(_mean(found), found, float("nan"), _mean(chance), 0.0, fitted.rank, fitted.condition)
    held_out = shown(made(half=True), fitted_to=True, half=False)
    expected = min(sqrt(fitted.rank / products.n), 1.0) * (1 if kind == LINEAR else 8 / (3 * pi))
    notes = list(fitted.notes)
    if kind == LINEAR and fitted.rank >= products.n - 1:
        notes.append(f"no fewer dimensions ({fitted.rank:,}) than tokens ({products.n:,}), so that any target is met")
    scores = _mean(found), found, _mean(held_out), _mean(chance)
    return Alignment(*scores, expected, fitted.rank, fitted.condition, tuple(notes))


# --- maps -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Map:
    """A map from rows to rows.

    Attributes:
        matrix: ``[width of source, width of target]`` float64; None for the identity.
        rank, condition, notes: see :class:`Alignment`.
    """

    matrix: Tensor | None
    rank: int
    condition: float = 1.0
    notes: tuple[str, ...] = ()


def fit(
    products: Products, source: str, target: str, kind: str, *, half: bool | None = None, shuffle: bool = False
) -> Map:
    """Fit a map, see :func:`align`.

    Args:
        products: of the two matrices.
        source, target: their names.
        kind: one of :data:`KINDS`.
        half: of the tokens, to which it is fitted; all by default.
        shuffle: the rows of the target first.

    Raises:
        InputError: unknown kind, or widths that differ where they may not.
    """
    widths = [products.widths[name] for name in (source, target)]
    if kind not in KINDS:
        raise InputError(f"kind: {kind!r} is unknown; {', '.join(KINDS)} are accepted")
    if kind != LINEAR and widths[0] != widths[1]:
        raise InputError(
            f"{source} and {target}: widths {widths[0]:,} and {widths[1]:,} differ; the {LINEAR} map accepts that"
        )
    if kind not in FITTED:
        return Map(None, widths[0])
    # an ill-conditioned Gram matrix was made in float64, and is of no use with a cross-Gram matrix that was not
    values, vectors = products.eigen(source, half) if kind == LINEAR else (None, None)
    exact = kind == LINEAR and products.exact(source)
    if shuffle:
        cross = products.shuffled(source, target, exact=exact)
    else:
        cross = products.gram(source, target, half, exact=exact)
    if values is None or vectors is None:
        return _orthogonal(cross)
    return _linear(source, values, vectors, products.rank(source, half), cross)


def _linear(source: str, values: Tensor, vectors: Tensor, rank: int, cross: Tensor) -> Map:
    kept = vectors[:, :rank]
    found = kept @ ((kept.T @ cross) / values[:rank, None])
    full = rank == len(values)
    condition = float((values[0] / values[-1]).sqrt()) if full else float("inf")
    notes: tuple[str, ...] = ()
    if not full:
        notes = (f"{source} has rank {rank:,} of {len(values):,}; the map of smallest norm is taken",)
    elif condition > ILL_CONDITIONED:
        notes = (f"{source} is ill-conditioned ({condition:.1e}); the map was fitted in float64",)
    return Map(found, rank, condition, notes)


def _orthogonal(cross: Tensor) -> Map:
    u, values, v = torch.linalg.svd(cross)
    rank = int((values > NEGLIGIBLE * values[0]).sum())
    full = rank == len(values)
    condition = float(values[0] / values[-1]) if full else float("inf")
    note = f"the cross-Gram matrix has rank {rank:,} of {len(values):,}; other maps fit equally well"
    return Map(u @ v, rank, condition, () if full else (note,))


# --- scores -----------------------------------------------------------------------------------------------------


def cosines(
    products: Products,
    source: str,
    target: str,
    fitted: Map,
    *,
    centred: bool = True,
    shuffle: bool = False,
    fitted_to: bool | None = None,
    half: bool | None = None,
) -> Tensor:
    """Cosine of each mapped row and target row, ``[tokens]`` float32 on the CPU; 0 where one is zero.

    Args:
        products: of the two matrices.
        source, target: their names.
        fitted: the map.
        centred: whether the mean rows are removed.
        shuffle: whether the rows of the target are shuffled.
        fitted_to: half of the tokens whose means are removed; all by default.
        half: half of the tokens to look at; all by default.
    """
    found_means = [products.mean(name, fitted_to) for name in (source, target)]  # refuses what is not finite
    means = found_means if centred else [None, None]
    exact = products.exact(source)  # an ill-conditioned source has a map with large entries that cancel
    matrix = fitted.matrix
    if matrix is not None and not exact:
        matrix = matrix.to(products.device, torch.float32)
    found = []
    with full_precision():
        for ids in products.blocks(max(products.widths[source], products.widths[target]), half):
            x = products.rows(source, ids, means[0], exact=exact)
            y = products.rows(target, products.shuffle[ids] if shuffle else ids, means[1])
            mapped = x if matrix is None else x @ matrix
            found.append(_row_cosines(mapped.to(y.device, torch.float32), y).cpu())
    return torch.cat(found)


def _row_cosines(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of each row to the same row of another matrix; 0 where one is zero."""
    lengths = x.norm(dim=1) * y.norm(dim=1)
    dots = torch.linalg.vecdot(x, y)
    return torch.where(lengths > 0, dots / lengths, 0).clamp(-1, 1)


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


# --- intervals over tokens --------------------------------------------------------------------------------------


def bootstrap(values: Tensor | np.ndarray, *, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the mean, by resampling tokens; what was fitted to all of them is kept.

    Args:
        values: ``[tokens]``.
        resamples: none gives NaN.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2 or not resamples:
        return float("nan"), float("nan")
    batch = max(2**22 // len(data), 1)
    found = stats.bootstrap(
        (data,),
        np.mean,
        n_resamples=resamples,
        batch=batch,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def refitted(
    products: Products,
    source: str,
    target: str,
    kind: str,
    *,
    resamples: int,
    seed: int = 0,
    watch: Watch = unwatched,
) -> tuple[float, float]:
    """95 % interval of a score, the map fitted again to every resample of the tokens.

    A resample holds only 63 % of the tokens, some of them several times, which raises its score as fewer tokens would.
    So the interval is the score ± 1.96 standard deviations of the resamples' scores, which that shift does not touch.

    Args:
        kind: ``orthogonal`` or ``linear``.
        resamples: each costs as much as a new fit; at least 2.

    Raises:
        InputError: another kind, or too few resamples.
    """
    if kind not in FITTED or resamples < 2:
        raise InputError(f"refits: {resamples} of the {kind} map; at least 2 of {' or '.join(FITTED)} are accepted")
    generator = torch.Generator().manual_seed(seed)
    scores = []
    for done in range(resamples):
        ids = torch.randint(products.n, (products.n,), generator=generator)
        drawn = {name: products.matrices[name][ids] for name in (source, target)}
        sample = Products(drawn, device=products.device)
        scores.append(_mean(cosines(sample, source, target, fit(sample, source, target, kind))))
        watch(done + 1, resamples)
    score = _mean(cosines(products, source, target, fit(products, source, target, kind)))
    reach = stats.norm.ppf((1 + CONFIDENCE) / 2) * np.std(scores, ddof=1)
    return score - reach, score + reach


def difference_by_band(
    output: np.ndarray,
    inward: np.ndarray,
    counts: np.ndarray | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """How much better one alignment fits than another, token by token, over all and by how often tokens occur.

    Args:
        output, inward: cosines of the two alignments, ``[tokens]``.
        counts: how often each token occurs, ``[tokens]``; without it only the row ``all``.

    Returns:
        ``band`` (``all``, ``unseen``, then fifths of those that occur from rare to frequent; tokens that occur equally
        often stay together, in the first fifth that they reach into), ``tokens``, ``lowest`` and ``highest`` count (NaN
        where unknown), ``difference`` (mean), and its interval ``low``, ``high`` by :func:`bootstrap`.
    """
    differences = np.asarray(output, np.float64) - np.asarray(inward, np.float64)
    bands = {"all": np.ones(len(differences), bool)}
    if counts is not None:
        bands["unseen"] = counts == 0
        seen = counts > 0
        fifth = np.full(len(counts), -1)
        rarer = stats.rankdata(counts[seen], method="min").astype(np.int64) - 1  # tokens that occur less often
        fifth[seen] = rarer * BANDS // max(len(rarer), 1)
        bands |= {f"fifth {i + 1}": fifth == i for i in range(BANDS)}
    rows = []
    for name, members in bands.items():
        if members.any():
            ends = (counts[members].min(), counts[members].max()) if counts is not None else (np.nan, np.nan)
            low, high = bootstrap(differences[members], resamples=resamples, seed=seed)
            rows.append((name, int(members.sum()), *map(float, ends), differences[members].mean(), low, high))
    return pd.DataFrame(rows, columns=["band", "tokens", "lowest", "highest", "difference", "low", "high"])
