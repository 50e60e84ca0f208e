"""Runs as tables: one number of all runs over training, at some steps, and when distances have vanished."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import inf

import numpy as np
import pandas as pd

from exor.findings import convergence_step

KEYS = ["mode", "seed", "step"]


def curve(table: pd.DataFrame, mode: str, column: str) -> pd.DataFrame:
    """One number of all runs in a mode, ``[steps, seeds]``; between two evaluations, the earlier one."""
    rows = table[table["mode"] == mode]
    return rows.pivot(index="step", columns="seed", values=column).ffill(limit_area="inside")


def at_steps(table: pd.DataFrame, steps: Iterable[int], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Mean and range over seeds at some steps.

    A step that is not logged gets the last logged one before it; steps beyond the end are left out.

    Args:
        table: mode, seed, step, and numbers.
        columns: the numbers wanted, all by default.

    Returns:
        A row per mode, column and step: mode, column, step, mean, low, high, seeds.
    """
    rows = []
    for mode in table["mode"].unique():
        for column in columns or [c for c in table.columns if c not in KEYS]:
            wide = curve(table, mode, column)
            between = max(np.diff(wide.index).max(initial=1) - 1, 0)  # steps in the longest gap
            for step, values in wide.reindex(list(steps), method="ffill", tolerance=between).iterrows():
                if known := values.dropna().tolist():
                    low, high = min(known), max(known)
                    mean = min(max(statistics.fmean(known), low), high)  # rounding may push it out
                    rows.append((mode, column, step, mean, low, high, len(known)))
    return pd.DataFrame(rows, columns=["mode", "column", "step", "mean", "low", "high", "seeds"])


def convergence_steps(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """When distances fell below 10 % of their start for good.

    Returns:
        A row per run and column: mode, seed, column, step (infinite where that has not happened).
    """
    rows = []
    for column in columns:
        for (mode, seed), run in table.groupby(["mode", "seed"], sort=False):
            step = convergence_step(run, column)
            rows.append((mode, seed, column, inf if step is None else float(step)))
    return pd.DataFrame(rows, columns=["mode", "seed", "column", "step"])
