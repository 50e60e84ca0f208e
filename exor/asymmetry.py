"""How tying fares as two synonyms occur less alike: a sweep over languages, ordered by their conditional gap."""

from __future__ import annotations

import numpy as np
import pandas as pd

from exor import InputError
from exor.sheets import Sheet, dash, number, probability, with_interval
from exor.signflips import MIN_SEEDS, holm, interval, sign_flip_p

LEVEL = 0.05  # of the Holm-adjusted p, over the languages


def along_gap(table: pd.DataFrame, pair: str = "0A-0B") -> pd.DataFrame:
    """Accuracy and a pair's distance, tied and untied, in every language of a sweep.

    Args:
        table: of :func:`exor.sweeps.table`: a row per run with its mode and seed, accuracy on the training strings and
            distances (means over the last 20,000 steps), the ceiling, and the conditional gaps of its language. Seeds
            that are finished in one mode only are left out.

    Returns:
        A row per gap, in order: gap; n (seeds); ceiling; tied, untied: mean accuracies; difference, low, high: tied −
        untied, paired by seed, with its 95 % interval; p: sign-flip test; distance_tied, distance_input,
        distance_output: mean distances of the pair; p_holm: adjusted over the languages; verdict: ``helped``, ``hurt``,
        ``no evidence``, or ``too few seeds``.

    Raises:
        InputError: no seed is finished in both modes, or the table has no such pair.
    """
    needed = [f"conditional_gap/{pair}", f"input/{pair}", f"output/{pair}"]
    if missing := [c for c in needed if c not in table]:
        raise InputError(
            f"pair: the sweep has no column {missing[0]!r}; a pair of symbols of all its languages is accepted"
        )
    rows = []
    done = table[table["state"] == "finished"]
    for gap, runs in done.groupby(done[needed[0]].round(9)):
        tied, untied = (runs[runs["mode"] == mode].set_index("seed") for mode in ("tied", "untied"))
        seeds = tied.index.intersection(untied.index)
        if not len(seeds):
            continue
        tied, untied = tied.loc[seeds], untied.loc[seeds]
        difference = (tied["accuracy_train"] - untied["accuracy_train"]).to_numpy()
        low, high = interval(difference)
        rows.append(
            {
                "gap": gap,
                "n": len(seeds),
                "ceiling": tied["ceiling_accuracy_train"].iloc[0],
                "tied": tied["accuracy_train"].mean(),
                "untied": untied["accuracy_train"].mean(),
                "difference": difference.mean(),
                "low": low,
                "high": high,
                "p": sign_flip_p(difference),
                "distance_tied": tied[needed[1]].mean(),
                "distance_input": untied[needed[1]].mean(),
                "distance_output": untied[needed[2]].mean(),
            }
        )
    if not rows:
        raise InputError("no seed of the sweep is finished in both modes; train it first")
    found = pd.DataFrame(rows)
    found["p_holm"] = holm(found["p"].to_numpy())
    words = np.where(found["difference"] > 0, "helped", "hurt")
    verdict = np.where(found["p_holm"] <= LEVEL, words, "no evidence")
    found["verdict"] = np.where(found["n"] < MIN_SEEDS, "too few seeds", verdict)
    return found


def trend(table: pd.DataFrame, pair: str = "0A-0B") -> tuple[float, float, float, float]:
    """Whether tying costs more as the gap grows: slope of tied − untied accuracy over the gap, fitted in every seed.

    Least squares in each seed that is finished in both modes in every language; accuracy as a share of the best
    possible, so that languages compare.

    Returns:
        Mean slope per unit of gap, its 95 % interval, and the p of the sign-flip test over seeds.
    """
    done = table[table["state"] == "finished"]
    parts = done.assign(
        gap=done[f"conditional_gap/{pair}"].round(9), share=done["accuracy_train"] / done["ceiling_accuracy_train"]
    )
    wide = parts.pivot_table(index=["seed", "gap"], columns="mode", values="share")
    change = (wide["tied"] - wide["untied"]).unstack("gap").dropna()
    slopes = np.polyfit(change.columns.to_numpy(float), change.to_numpy().T, 1)[0]
    return float(slopes.mean()), *interval(slopes), sign_flip_p(slopes)


def sheet(found: pd.DataFrame, slope: tuple[float, float, float, float], pair: str = "0A-0B") -> Sheet:
    """The table of :func:`along_gap` as text, with the result of :func:`trend` in its note."""
    rows = [
        (
            number(r["gap"]),
            number(r["ceiling"]),
            number(r["tied"]),
            number(r["untied"]),
            with_interval(r["difference"], r["low"], r["high"]),
            probability(r["p_holm"]),
            r["verdict"],
            number(r["distance_tied"]),
            number(r["distance_input"]),
            number(r["distance_output"]),
        )
        for r in found.to_dict("records")
    ]
    middle, low, high, p = slope
    note = (
        f"Means over {found['n'].min()} seeds and the last 20,000 steps; accuracy on the training strings; tied − "
        "untied is paired by seed, with 95 % intervals and a sign-flip test, Holm-adjusted over the languages. Its "
        f"slope over the gap, as share of the best possible: {with_interval(middle, low, high)}, p = {probability(p)}."
    )
    distances = (f"{matrix} {dash(pair)}" for matrix in ("tied", "input", "output"))
    headings = ("gap", "best possible", "tied", "untied", "tied − untied", "p (Holm)", "tying", *distances)
    return Sheet(f"Accuracy and distance against the conditional gap of {dash(pair)}", note, headings, tuple(rows))
