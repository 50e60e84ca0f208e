"""Every plot, in one style: figures of 7 inches, the width of a two-column page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import stats

from exor.runs import write_file
from exor.tables import curve

WIDTH = 7.0  # inches
DPI = 200
POINTS = 500  # of a line, at most

PALETTE = sns.color_palette("colorblind")
MODES = {"tied": PALETTE[1], "untied": PALETTE[0]}
PAIRS = [PALETTE[i] for i in (2, 4, 5, 9, 3, 8)]


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures, for the time of a ``with``."""
    sizes = {"axes.titlesize": 9, "axes.labelsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}
    with ExitStack() as stack:
        stack.enter_context(sns.axes_style("ticks"))
        stack.enter_context(sns.plotting_context("paper", rc=sizes))
        stack.enter_context(mpl.rc_context({"axes.titlelocation": "left", "pdf.fonttype": 42, "legend.frameon": False}))
        yield


def training_curves(
    table: pd.DataFrame, *, pairs: Sequence[str] | None = None, ceiling: float | None = None, exact: bool = True
) -> Figure:
    """The published figure: distances in each matrix and accuracy on the training strings, over training.

    Thick lines are means over seeds with the 95 % t-interval of the mean around them, thin lines are single seeds.

    Args:
        table: a row per run and step: mode, seed, step, accuracy_train, and distances such as ``input/0A-0B``.
        pairs: the pairs to show; by default all that write the same bit.
        ceiling: the best possible accuracy.
        exact: whether accuracy is exact, or an estimate.
    """
    names = list(pairs) if pairs is not None else same_bit(table)
    modes = [mode for mode in MODES if (table["mode"] == mode).any()]
    panels = [("tied", "input", "Tied: the one matrix")] if "tied" in modes else []
    if "untied" in modes:
        panels += [("untied", "input", "Untied: input embedding"), ("untied", "output", "Untied: output embedding")]
    columns = 2
    rows = -(-(len(panels) + 1) // columns)
    with style():
        figure = Figure(figsize=(WIDTH, 2.15 * rows + 0.35), dpi=DPI, layout="constrained")
        axes = figure.subplots(rows, columns, sharex=True).flat
        used = [next(axes) for _ in range(len(panels) + 1)]
        for rest in axes:
            rest.remove()
        highest = 1.05 * max((table[f"{m}/{p}"].max() for _, m, _ in panels for p in names), default=1.0)
        for ax, (mode, matrix, title) in zip(used, panels, strict=False):
            for pair, color in zip(names, PAIRS * len(names), strict=False):
                spread(ax, curve(table, mode, f"{matrix}/{pair}"), color, pair.replace("-", "–"))
            ax.set(title=title, ylabel="distance", ylim=(0, highest))
        for mode in modes:
            spread(used[-1], curve(table, mode, "accuracy_train"), MODES[mode], mode)
        early = table["step"].max() / 20  # before that, accuracy climbs from chance and would only squeeze the rest
        low = table["accuracy_train"][table["step"] >= early].quantile(0.01)  # nor do rare dips
        top = max(ceiling or 0, table["accuracy_train"].max())
        accuracy = "accuracy" if exact else "accuracy (estimate)"
        span = top - low
        used[-1].set(title="Training strings", ylabel=accuracy, ylim=(low - 0.35 * span, top + 0.15 * span))
        if ceiling is not None:
            label = f"best possible: {ceiling:.3f}"
            used[-1].axhline(ceiling, color="0.25", linestyle="--", linewidth=1, zorder=3)
            look = {"ha": "right", "va": "bottom", "fontsize": 8, "color": "0.25"}
            place = used[-1].get_yaxis_transform()
            used[-1].annotate(label, (0.99, ceiling), (0, 2), xycoords=place, textcoords="offset points", **look)
        for ax in used:
            ax.set_xlim(0, table["step"].max() / 1000)
            ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            ax.tick_params(labelbottom=True)
            sns.despine(ax=ax)
        for ax in used[-columns:]:
            ax.set_xlabel("step / 1,000")
        for ax, where in ((used[0], "upper right"), (used[-1], "lower right")):
            ax.legend(loc=where, handlelength=1.4, borderaxespad=0.2)
        figure.supxlabel(_caption(table, modes), fontsize=8, color="0.25")
    return figure


def spread(ax: Axes, wide: pd.DataFrame, color: tuple[float, float, float], label: str) -> None:
    """Curves ``[steps, seeds]``: single seeds thin, their mean thick, and its 95 % t-interval as a band."""
    wide = wide.dropna(how="all")
    kept = wide.iloc[np.unique(np.linspace(0, len(wide) - 1, min(len(wide), POINTS)).round().astype(int))]
    x, count = kept.index.to_numpy() / 1000, kept.shape[1]
    mean = kept.mean(axis=1).to_numpy()
    if count > 1:
        ax.plot(x, kept.to_numpy(), color=color, linewidth=0.5, alpha=0.35, label="_single seeds", zorder=1)
        half = stats.t.ppf(0.975, count - 1) * stats.sem(kept.to_numpy(), axis=1)
        ax.fill_between(x, mean - half, mean + half, color=color, alpha=0.22, linewidth=0, zorder=2)
    ax.plot(x, mean, color=color, linewidth=1.6, label=label, zorder=4)


def same_bit(table: pd.DataFrame) -> list[str]:
    """The pairs in a table whose symbols write the same bit, ones first."""
    found = [c.partition("/")[2] for c in table.columns if c.startswith("input/")]
    return sorted((p for p in found if p[0] == p.partition("-")[2][0]), key=lambda p: p[0], reverse=True)


def save(figure: Figure, path: Path | str) -> tuple[Path, Path]:
    """Write ``<path>.png`` and ``<path>.pdf``, each either whole or not at all; a suffix of theirs is replaced."""
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".png", ".pdf") else path
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.pdf")
    for target, metadata in zip(paths, ({"Software": None}, {"CreationDate": None}), strict=True):
        buffer = io.BytesIO()
        with style():
            figure.savefig(buffer, format=target.suffix[1:], metadata=metadata)
        write_file(target, buffer.getvalue())
    return paths


def _caption(table: pd.DataFrame, modes: Sequence[str]) -> str:
    counts = [table["seed"][table["mode"] == mode].nunique() for mode in modes]
    if max(counts) == 1:
        return "One seed."
    if len(set(counts)) == 1:
        seeds = f"{counts[0]} seeds"
    else:
        seeds = ", ".join(f"{count} {mode} seeds" for count, mode in zip(counts, modes, strict=True))
    return f"Thick: mean over {seeds}; band: 95 % t-interval of the mean; thin: single seeds."
