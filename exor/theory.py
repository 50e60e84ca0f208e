"""Theory against observation: for every pair in every matrix, what is predicted and what came of it over seeds."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pandas as pd

from exor.findings import MET, outcomes
from exor.gather import Experiment
from exor.signflips import interval

PREDICTED = {True: "→ 0", False: "apart", None: "both ways"}


def outcome_table(experiment: Experiment) -> pd.DataFrame:
    """What :func:`exor.findings.outcomes` says of all runs.

    Returns:
        A row per run, matrix and pair: mode, seed, matrix, pair, opposite (whether its symbols write different bits),
        semantic_gap, conditional_gap, meets (what theory predicts, None where a tied matrix is pulled both ways),
        start, end (mean over the last 20,000 steps), share (end / start), step (when they met for good, infinite if
        they did not).
    """
    rows = []
    numbers = experiment.table.drop(columns="mode")
    for mode in experiment.modes:
        config = replace(experiment.config, tied=mode == "tied")
        for seed, run in numbers[experiment.table["mode"] == mode].groupby("seed"):
            for relations, opposite in ((experiment.relations, False), (experiment.opposites, True)):
                for o in outcomes(config, run, relations):
                    rows.append(
                        {
                            "mode": mode,
                            "seed": seed,
                            "matrix": o.matrix,
                            "pair": o.relation.name,
                            "opposite": opposite,
                            "semantic_gap": o.relation.semantic_gap,
                            "conditional_gap": o.relation.conditional_gap,
                            "meets": o.predicted,
                            "start": o.start,
                            "end": o.end,
                            "share": o.end / o.start if o.start else nan,
                            "step": inf if o.step is None else float(o.step),
                        }
                    )
    return pd.DataFrame(rows)


def theory(outcomes: pd.DataFrame, effects: pd.DataFrame | None = None) -> pd.DataFrame:
    """The theory table: what becomes of each pair in each matrix, over seeds.

    A pair has come together where its distance at the end is below 10 % of its start. The 95 % interval of this share
    over seeds (:func:`exor.signflips.interval`) decides, if all of it lies on one side of 10 %. A tied matrix that is
    pulled both ways should end between the two untied ones, and the pair's two distances in the effects table decide.

    Args:
        outcomes: see :func:`outcome_table`.
        effects: see :func:`exor.effects.effects`.

    Returns:
        A row per mode, matrix and pair: mode, matrix, pair, opposite, semantic_gap, conditional_gap, predicted (a
        value of ``PREDICTED``), n (seeds); means over seeds: start, end with its 95 % interval low to high, share
        with share_low to share_high; met: runs that met for good; median: the Kaplan–Meier median step of that,
        infinite if not reached; agrees: True, False, or None for undecided; seeds: a tuple.
    """
    groups = outcomes.sort_values(["opposite", "mode", "matrix"], kind="stable").groupby(
        ["opposite", "mode", "matrix", "pair"], sort=False
    )
    return pd.DataFrame([_row(runs, effects) for _, runs in groups])


def _row(runs: pd.DataFrame, effects: pd.DataFrame | None) -> dict[str, Any]:
    """Runs of one mode, one matrix and one pair."""
    first = runs.iloc[0].to_dict()
    meets = None if first["meets"] is None else bool(first["meets"])
    low, high = interval(runs["end"].to_numpy())
    share_low, share_high = interval(runs["share"].to_numpy())
    if meets is None:
        agrees = _between(effects, first["pair"])
    elif share_high < MET:
        agrees = meets
    else:
        agrees = not meets if share_low >= MET else None
    return {
        **{k: first[k] for k in ("mode", "matrix", "pair", "opposite", "semantic_gap", "conditional_gap")},
        "predicted": PREDICTED[meets],
        "n": len(runs),
        "start": runs["start"].mean(),
        "end": runs["end"].mean(),
        "low": low,
        "high": high,
        "share": runs["share"].mean(),
        "share_low": share_low,
        "share_high": share_high,
        "met": int(np.isfinite(runs["step"]).sum()),
        "median": float(np.median(runs["step"])),
        "agrees": agrees,
        "seeds": tuple(runs["seed"]),
    }


def _between(effects: pd.DataFrame | None, pair: str) -> bool | None:
    """Whether a tied distance lies between the two untied ones, as far as the effects table knows."""
    if effects is None or effects.empty:
        return None
    sides = effects["agrees"][(effects["quantity"] == "distance") & (effects["pair"] == pair)].tolist()
    return False if False in sides else None if None in sides else True
