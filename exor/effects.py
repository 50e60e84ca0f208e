"""What tying changed: tied and untied runs of one experiment compared seed by seed, tested, and put into words.

Where tying changes nothing, the two runs of a seed could be exchanged, which flips the signs of all of that seed's
differences (tied − untied) together. All tests here count over such flips. A table that compares many things finds
something by chance: at most 5 % of the tables contain any verdict if tying changes nothing. Of these, 4 % are for the
rows (:func:`holm`) and 1 % for differences that change sign during training (:func:`max_t`), by the union bound.

``comparisons, left_out = compare(table, relations)``, then ``effects(comparisons)`` and ``differences(comparisons)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, nan

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from exor import InputError
from exor.findings import convergence_step, last_mean
from exor.language import Floats, Relation
from exor.signflips import EXACT_SEEDS, MIN_SEEDS, holm, interval, max_t, sign_flip_p
from exor.tables import curve

HOLM = 0.04  # a row has a verdict where its Holm-adjusted p is at most this
MIXED = 0.01  # a band excludes zero where its max-T-adjusted p is at most this
MOMENTS = 10  # steps at which a change of sign is looked for
SIDE = {"": 0, "closer": -1, "farther": 1, "earlier": -1, "hurt or equal": -1}  # the sign that a prediction means

Flags = NDArray[np.bool_]

# --- what is compared -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """One number of the tied and the untied run of every seed.

    Attributes:
        quantity: ``accuracy`` or ``distance`` (means over the last 20,000 steps), or ``convergence``: the step from
            which the distance stays below 10 % of its start.
        pair: name of the pair of symbols; empty for accuracy.
        against: the untied matrix that the tied one is compared with, ``input`` or ``output``; empty for accuracy.
        predicted: what theory says of tied − untied, a key of ``SIDE``; empty where it says nothing.
        words: the verdicts for a negative and for a positive difference.
        seeds: in the order of the arrays.
        tied, untied: ``[seeds]``; a run that never converged counts with the last step, which all runs share, so that
            mean differences are those of restricted mean times (Royston & Parmar 2013).
        never_tied, never_untied: ``[seeds]`` whether a distance never converged.
        path: ``[seeds, 10]`` difference at ten equally spaced steps, zero for all seeds where it is not known for
            some; ``[seeds, 0]`` for convergence.
    """

    quantity: str
    pair: str
    against: str
    predicted: str
    words: tuple[str, str]
    seeds: tuple[int, ...]
    tied: Floats
    untied: Floats
    never_tied: Flags
    never_untied: Flags
    path: Floats

    @property
    def difference(self) -> Floats:
        """``[seeds]``: tied − untied; zero where neither run converged."""
        return self.tied - self.untied


def compare(table: pd.DataFrame, relations: Sequence[Relation]) -> tuple[list[Comparison], list[tuple[str, int, str]]]:
    """Accuracy, then for each pair its distances, and where both roles want it together, their convergence.

    Accuracy is predicted not to rise where the language has a pair that a tied matrix cannot serve in both roles, and
    a pair that meets in either role to meet earlier, since both roles pull on its rows ("tying helps"). Its distance
    has the same end in both modes, so nothing is predicted for that.

    Args:
        table: mode, seed, step, accuracy_train (NaN where it was not evaluated), ``input/1A-1B``, ``output/1A-1B``, …;
            a row per run and logged step.
        relations: the pairs wanted, each semantically or conditionally equivalent.

    Returns:
        The comparisons, and the runs that could not be used: mode, seed, why.

    Raises:
        InputError: a column is missing, or no seed has a usable run in both modes.
    """
    columns = ["accuracy_train", *(f"{matrix}/{r.name}" for r in relations for matrix in ("input", "output"))]
    if missing := [c for c in ("mode", "seed", "step", *columns) if c not in table]:
        raise InputError(f"the table of runs has no column {missing[0]!r}")
    table = table.sort_values("step")
    horizon = table["step"].max()
    runs, left_out = _usable(table, columns, horizon)
    seeds = tuple(seed for mode, seed in runs if mode == "tied")
    if not seeds:
        why = "".join(f"; {mode} seed {seed}: {reason}" for mode, seed, reason in left_out)
        raise InputError(f"no seed has a run to use in both modes{why}")
    table = table[table["seed"].isin(seeds)]

    def comparison(quantity: str, pair: str, against: str, predicted: str, words: tuple[str, str]) -> Comparison:
        columns = {"tied": f"input/{pair}", "untied": f"{against}/{pair}"}  # both matrices of a tied run are equal
        if quantity == "accuracy":
            columns = dict.fromkeys(columns, "accuracy_train")
        measure, path = _end, _path(table, columns, int(horizon))
        if quantity == "convergence":
            measure, path = _time, path[:, :0]
        values = [np.array([measure(runs[mode, s], column) for s in seeds]) for mode, column in columns.items()]
        tied, untied = (np.where(np.isinf(v), horizon, v) for v in values)
        never_tied, never_untied = map(np.isinf, values)
        return Comparison(
            quantity, pair, against, predicted, words, seeds, tied, untied, never_tied, never_untied, path
        )

    expected = "hurt or equal" if any(r.conflict for r in relations) else ""
    found = [comparison("accuracy", "", "", expected, ("hurt", "helped"))]
    for relation in relations:
        together = relation.meets("input", True) is True
        words = ("helped", "hurt") if together else ("closer", "farther")
        for matrix in ("input", "output"):
            expected = "farther" if relation.meets(matrix, False) else "closer"  # than the untied matrix, with one role
            found.append(comparison("distance", relation.name, matrix, expected if relation.conflict else "", words))
        if together:
            found += [comparison("convergence", relation.name, m, "earlier", words) for m in ("input", "output")]
    return found, left_out


def _usable(
    table: pd.DataFrame, columns: Sequence[str], horizon: int
) -> tuple[dict[tuple[str, int], pd.DataFrame], list[tuple[str, int, str]]]:
    """The runs that are whole and have a partner, by mode and seed, and (mode, seed, why) of the others."""
    keys = sorted(set(zip(table["mode"].tolist(), table["seed"].tolist(), strict=True)))
    runs = {(m, s): table.loc[(table["mode"] == m) & (table["seed"] == s), ["step", *columns]] for m, s in keys}
    broken = {key: problem for key, run in runs.items() if (problem := _problem(run, horizon))}
    left_out = []
    for mode, seed in keys:
        other = "untied" if mode == "tied" else "tied"
        if (mode, seed) in broken:
            left_out.append((mode, seed, broken[mode, seed]))
        elif (other, seed) not in runs or (other, seed) in broken:
            left_out.append((mode, seed, f"no {other} run of this seed to compare with"))
    for mode, seed, _ in left_out:
        del runs[mode, seed]
    return runs, left_out


def _problem(run: pd.DataFrame, horizon: int) -> str | None:
    """Why a run cannot be used, if so."""
    if (last := run["step"].iloc[-1]) < horizon:
        return f"ends at step {last:,}, the longest run at {horizon:,}"
    broken = run.isna() | run.isin([inf, -inf])
    broken["accuracy_train"] &= run["accuracy_train"].notna()
    for column in broken.columns[broken.any()]:
        return f"{column} is not finite at step {run['step'][broken[column]].iloc[0]:,}"
    return "accuracy_train is missing at the end" if np.isnan(_end(run, "accuracy_train")) else None


def _end(run: pd.DataFrame, column: str) -> float:
    return float(last_mean(run[["step", column]])[column])


def _time(run: pd.DataFrame, column: str) -> float:
    step = convergence_step(run, column)
    return inf if step is None else float(step)


def _path(table: pd.DataFrame, columns: dict[str, str], horizon: int) -> Floats:
    """``[seeds, 10]``: difference at the last logged step at or before L/10, 2L/10, …, L."""
    steps = [horizon * k // MOMENTS for k in range(1, MOMENTS + 1)]
    tied, untied = (curve(table, m, c).ffill().reindex(steps, method="ffill") for m, c in columns.items())
    path = (tied - untied).to_numpy().T
    return np.where(np.isnan(path).any(axis=0), 0.0, path)  # before the first evaluation


def fewest_seeds(rows: int) -> int:
    """With fewer seeds than this, no row of a table of so many can reach a verdict other than ``mixed``.

    The smallest p is 2 / 2^n, and Holm's step-down multiplies the smallest of a table by its number of rows.
    """
    return next(n for n in count(MIN_SEEDS) if rows * 2 / 2**n <= HOLM)


# --- tables -----------------------------------------------------------------------------------------------------


def effects(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """The effects table, a row per comparison.

    Returns:
        quantity, pair, against, n (seeds);
        tied, untied, difference: means over seeds;
        low, high: 95 % interval of the difference, see :func:`interval`, not adjusted for the other rows;
        p, p_holm: of the sign-flip test; exact: whether all flips were counted, or else a sample (Monte Carlo);
        never_tied, never_untied: runs that never converged, and
        median_tied, median_untied: Kaplan–Meier median times, infinite where they are not reached (all censored runs
        are at the same last step, so these are the medians with infinity for never); NaN for other quantities;
        bound: whether the difference is only a bound, since in some seed one of two runs never converged;
        predicted, agrees: what theory says, and whether all of the interval is on that side (True), all on the other
        (False), or neither (None);
        verdict: ``helped``, ``hurt``, ``closer``, ``farther``; ``mixed`` if the difference is above zero at one of the
        ten steps and below at another; ``no evidence``; ``too few seeds`` below 6;
        seeds: a tuple.
    """
    adjusted = holm(np.array([sign_flip_p(c.difference) for c in comparisons]))
    bands = max_t([c.path for c in comparisons])
    return pd.DataFrame([_row(c, p, band) for c, p, band in zip(comparisons, adjusted, bands, strict=True)])


def differences(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """What the effects table is made of: a row per comparison and seed.

    Returns:
        quantity, pair, against, seed, tied, untied, difference, never_tied, never_untied (the last step stands for the
        time of a run that never converged).
    """
    columns = ["quantity", "pair", "against", "seeds", "tied", "untied", "difference", "never_tied", "never_untied"]
    frames = [pd.DataFrame({name: getattr(c, name) for name in columns}) for c in comparisons]
    return pd.concat(frames, ignore_index=True).rename(columns={"seeds": "seed"})


def _row(c: Comparison, p_holm: float, band: Floats) -> dict[str, object]:
    low, high = interval(c.difference)
    timed = c.quantity == "convergence"
    return {
        "quantity": c.quantity,
        "pair": c.pair,
        "against": c.against,
        "n": len(c.seeds),
        "tied": c.tied.mean(),
        "untied": c.untied.mean(),
        "difference": c.difference.mean(),
        "low": low,
        "high": high,
        "p": sign_flip_p(c.difference),
        "p_holm": p_holm,
        "exact": len(c.seeds) <= EXACT_SEEDS,
        "never_tied": c.never_tied.sum(),
        "never_untied": c.never_untied.sum(),
        "median_tied": np.median(np.where(c.never_tied, inf, c.tied)) if timed else nan,
        "median_untied": np.median(np.where(c.never_untied, inf, c.untied)) if timed else nan,
        "bound": bool((c.never_tied != c.never_untied).any()),
        "predicted": c.predicted,
        "agrees": _agrees(c.predicted, low, high),
        "verdict": _verdict(c, p_holm, band),
        "seeds": c.seeds,
    }


def _agrees(predicted: str, low: float, high: float) -> bool | None:
    near, far = sorted((SIDE[predicted] * low, SIDE[predicted] * high))
    if near > 0 or (near == 0 and predicted == "hurt or equal"):
        return True
    return False if far < 0 else None


def _verdict(c: Comparison, p_holm: float, band: Floats) -> str:
    if len(c.seeds) < MIN_SEEDS:
        return "too few seeds"
    signs = np.sign(c.path.sum(axis=0))[band <= MIXED]
    if {-1, 1} <= set(signs):
        return "mixed"
    return c.words[int(c.difference.sum() > 0)] if p_holm <= HOLM else "no evidence"
