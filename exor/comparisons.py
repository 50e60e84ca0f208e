"""Means with their intervals: a table of effects as a forest, and what the gap of a pair does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from exor import InputError
from exor.figures import ALONE, DPI, GREY, MATRICES, MODES, SMALL, WIDTH, Look, caption, dash, grid, half_width, style

SILENT = ("", "no evidence", "too few seeds")  # verdicts that decide nothing
TITLES = {"distance": "Distance of the two rows", "convergence": "Steps until the two rows have met"}


def effects_forest(effects: pd.DataFrame, *, mean: str = "mean") -> Figure:
    """A table of effects of tying: a panel per quantity, as units differ, and in it a line per row, with its verdict.

    A filled marker has a verdict, a hollow one has none. An interval without an end is an arrow.

    Args:
        effects: ``quantity``; ``pair`` and ``against`` (an untied matrix), which may be empty; ``mean``, ``low`` and
            ``high`` of tied minus untied, which may be missing or infinite; ``verdict``.
        mean: the name of that column.

    Raises:
        InputError: no rows.
    """
    if effects.empty:
        raise InputError("no effects to show; a table with at least one row is accepted")
    panels = [(str(name), rows) for name, rows in effects.groupby("quantity", sort=False)]
    lengths = [len(rows) for _, rows in panels]
    with style():
        size = (WIDTH, 0.22 * sum(lengths) + 0.55 * len(panels) + 0.3)
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        axes = figure.subplots(len(panels), height_ratios=[n + 0.5 for n in lengths], squeeze=False)[:, 0]
        for ax, (name, rows) in zip(axes, panels, strict=True):
            _forest(ax, rows, mean)
            ax.set_title(TITLES.get(name, name[:1].upper() + name[1:]))
        caption(figure, "Tied − untied: mean and 95 % interval; hollow: no verdict.")
    return figure


def against_gap(
    frame: pd.DataFrame,
    pair: str = "0A-0B",
    *,
    gap: str = "gap",
    mode: str = "mode",
    seed: str = "seed",
    accuracy: str = "accuracy",
    ceiling: str = "ceiling",
) -> Figure:
    """What becomes of accuracy and of a pair's distance as its symbols differ more in where they occur.

    Panels: accuracy as a share of the best possible; the pair's distance in each matrix; the accuracy of tied minus
    untied, paired by seed (left out where no seed ran in both modes). Means with 95 % t-intervals; dots are seeds.

    Args:
        frame: a row per run: the pair's conditional gap, mode, seed, accuracy, best possible accuracy, and the
            distances ``input/<pair>`` and ``output/<pair>`` at the end.
        pair: the pair.
        gap, mode, seed, accuracy, ceiling: the names of the columns.

    Raises:
        InputError: no runs, or one of the same gap, mode and seed as another.
    """
    if frame.empty:
        raise InputError("no runs to show; a table with at least one run is accepted")
    data = frame.assign(gap=frame[gap].round(9), share=frame[accuracy] / frame[ceiling])  # gaps that differ by rounding

    if (twice := data.duplicated(["gap", mode, seed])).any():
        first = data[twice].iloc[0]
        where = f"{first[mode]} seed {first[seed]} at gap {first['gap']:g}"
        raise InputError(f"two runs are {where}; one for each gap, mode and seed is accepted")

    def wide(which: str, column: str) -> pd.DataFrame:
        """``[gaps, seeds]``"""
        return data[data[mode] == which].pivot(index="gap", columns=seed, values=column)

    matrices = {"tied": ("tied", "input"), "untied input": ("untied", "input"), "untied output": ("untied", "output")}
    present = set(data[mode])
    change = wide("tied", accuracy) - wide("untied", accuracy)  # pandas pairs by gap and seed
    compared = bool(change.notna().any(axis=None))
    reach = max(np.ptp(data["gap"]), 0.1)
    with style():
        figure, axes = grid(2 + compared, height=2.5, columns=3)
        for place, label in enumerate(m for m in MODES if m in present):
            estimates(axes[0], wide(label, "share"), MODES[label], label, (place - 0.5) * 0.015 * reach)
        axes[0].axhline(1, color=GREY, linestyle="--", linewidth=1, zorder=1)
        axes[0].set(title="Accuracy", ylabel="share of the best possible")
        for place, (label, (which, matrix)) in enumerate((k, v) for k, v in matrices.items() if v[0] in present):
            offset = (place - 1) * 0.015 * reach
            estimates(axes[1], wide(which, f"{matrix}/{pair}"), MATRICES[label], label, offset)
        axes[1].set(title=f"Distance {dash(pair)}", ylabel="distance at the end")
        if compared:
            estimates(axes[2], change, ALONE, "tied − untied", 0)
            axes[2].axhline(0, color=GREY, linewidth=0.8, zorder=1)
            axes[2].set(title="Accuracy, paired by seed", ylabel="tied − untied accuracy")
        for ax in axes:
            ax.set_xlabel(f"conditional gap of {dash(pair)}")
            ax.xaxis.set_major_locator(MaxNLocator(5))
            sns.despine(ax=ax)
        lines, labels = axes[1].get_legend_handles_labels()
        labels = ["untied, or untied input" if label == "untied input" else label for label in labels]
        figure.legend(lines, labels, loc="outside upper center", ncols=3)
        count = data[seed].nunique()
        caption(
            figure, f"Mean and 95 % t-interval over {count} seeds; dots: single seeds." if count > 1 else "One seed."
        )
    return figure


def estimates(ax: Axes, wide: pd.DataFrame, look: Look, label: str, offset: float) -> None:
    """Values ``[places, seeds]``: means with 95 % t-intervals, joined by a line, and single seeds as faint dots."""
    for at, row in zip(wide.index.to_numpy(float) + offset, wide.to_numpy(float), strict=True):
        values = row[~np.isnan(row)]
        if len(values) > 1:
            kwargs: dict[str, Any] = {"color": look.color, "s": 5, "alpha": 0.35, "linewidths": 0, "zorder": 2}
            ax.scatter(np.full(len(values), at), values, marker=look.marker, **kwargs)
            ax.errorbar(at, values.mean(), half_width(values), color=look.color, linewidth=1.2, capsize=2, zorder=3)
    means = wide.mean(axis=1).dropna()
    line: dict[str, Any] = {"color": look.color, "linestyle": look.line, "linewidth": 1.2, "label": label}
    dots: dict[str, Any] = {"marker": look.marker, "markersize": 4.5, "markeredgecolor": "w", "markeredgewidth": 0.4}
    ax.plot(means.index + offset, means, zorder=4, **line, **dots)


def _forest(ax: Axes, rows: pd.DataFrame, mean: str) -> None:
    """A panel of a forest: rows from top to bottom, verdicts at the right."""
    numbers = rows[[mean, "low", "high"]].to_numpy(float)
    words = rows[["pair", "against", "verdict"]].fillna("").astype(str).to_numpy()
    known = np.append(numbers[np.isfinite(numbers)], 0.0)
    margin = 0.06 * (np.ptp(known) or 1.0)
    left, right = known.min() - margin, known.max() + margin
    names = []
    for y, ((middle, low, high), (pair, against, verdict)) in enumerate(zip(numbers, words, strict=True)):
        matrix = against.removeprefix("untied").strip()
        names.append(f"{dash(pair)}: tied − untied {matrix}".removeprefix(": ").rstrip())
        color = GREY if verdict in SILENT else "k"
        ax.plot(np.clip([low, high], left, right), [y, y], color=color, linewidth=1.4, zorder=2)
        for end, edge, arrow in ((low, left, "<"), (high, right, ">")):
            if np.isinf(end):
                ax.plot(edge, y, arrow, color=color, markersize=5, clip_on=False, zorder=2)
        ax.plot(
            middle, y, "D", markersize=5, color=color, markerfacecolor="w" if verdict in SILENT else color, zorder=3
        )
        ax.text(1.02, y, verdict or "–", transform=ax.get_yaxis_transform(), va="center", fontsize=SMALL, color=color)
    ax.set(xlim=(left, right), ylim=(len(rows) - 0.5, -0.5), yticks=range(len(rows)), yticklabels=names)
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    ax.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    ax.tick_params(axis="y", length=0)
    sns.despine(ax=ax, left=True)
