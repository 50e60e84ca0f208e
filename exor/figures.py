"""What happens over training, in one style: figures of 7 inches, the width of a two-column page."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy import stats

from exor import InputError
from exor.runs import write_file
from exor.tables import convergence_steps, curve

WIDTH = 7.0  # inches
DPI = 200
POINTS = 500  # of a line, at most
SMALL = 8  # points: captions and notes
GREY = "0.25"  # captions and reference lines


class Look(NamedTuple):
    """How something is drawn in every figure: two of them differ without colour too."""

    color: tuple[float, float, float]
    line: Any
    marker: str


PALETTE = sns.color_palette("colorblind")
SOLID, DASHED, DOTTED, MIXED = "-", (0, (4, 1.3)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2))
MODES = {"tied": Look(PALETTE[1], SOLID, "o"), "untied": Look(PALETTE[0], DASHED, "s")}
MATRICES = {"tied": MODES["tied"], "untied input": MODES["untied"], "untied output": Look(PALETTE[9], MIXED, "^")}
ALONE = Look((0.25,) * 3, SOLID, "D")
PAIRS = [
    Look(PALETTE[color], line, marker)
    for color, line, marker in zip((2, 4, 5, 9, 3, 8), 2 * (SOLID, DASHED, DOTTED), "osDv^P", strict=True)
]


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures, for the time of a ``with``."""
    sizes = {"axes.titlesize": 9, "axes.labelsize": 8, "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8}
    looks: dict[Any, Any] = {
        "axes.titlelocation": "left",
        "pdf.fonttype": 42,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
    }
    with ExitStack() as stack:
        stack.enter_context(sns.axes_style("ticks"))
        stack.enter_context(sns.plotting_context("paper", rc=sizes))
        stack.enter_context(mpl.rc_context(looks))
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
    panels = _matrices(table)
    titles = {"tied": "Tied: the one matrix", "untied input": "Untied: input embedding"}
    titles |= {"untied output": "Untied: output embedding"}
    with style():
        figure, used = grid(len(panels) + 1)
        columns = [f"{matrix}/{pair}" for _, matrix in panels.values() for pair in names]
        highest = 1.05 * table[columns].max().max() if columns else 1.0
        for ax, (label, (mode, matrix)) in zip(used, panels.items(), strict=False):
            for pair, look in zip(names, PAIRS * len(names), strict=False):
                spread(ax, curve(table, mode, f"{matrix}/{pair}"), look, dash(pair))
            ax.set(title=titles[label], ylabel="distance", ylim=(0, highest))
        for mode in modes:
            spread(used[-1], curve(table, mode, "accuracy_train"), MODES[mode], mode)
        early = table["step"].max() / 20  # before that, accuracy climbs from chance and would only squeeze the rest
        low = table["accuracy_train"][table["step"] >= early].quantile(0.01)  # nor do rare dips
        top = max(ceiling or 0, table["accuracy_train"].max())
        accuracy = "accuracy" if exact else "accuracy (estimate)"
        span = top - low or 0.1
        used[-1].set(title="Training strings", ylabel=accuracy, ylim=(low - 0.35 * span, top + 0.15 * span))
        if ceiling is not None:
            label = f"best possible: {ceiling:.3f}"
            used[-1].axhline(ceiling, color=GREY, linestyle="--", linewidth=1, zorder=3)
            text: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": SMALL, "color": GREY}
            place = used[-1].get_yaxis_transform()
            used[-1].annotate(label, (0.99, ceiling), (0, 2), xycoords=place, textcoords="offset points", **text)
        _step_axes(used, table["step"].max())
        used[0].legend(loc="upper right", borderaxespad=0.2)
        used[-1].legend(loc="lower right", borderaxespad=0.2)
        counts = {mode: table["seed"][table["mode"] == mode].nunique() for mode in modes}
        caption(figure, thick_and_thin(counts))
    return figure


def convergence_times(
    table: pd.DataFrame, *, pairs: Sequence[str] | None = None, horizon: float | None = None
) -> Figure:
    """When the two rows of a pair have met: a panel per pair, a curve per matrix.

    A curve is the share of runs whose distance has fallen below 10 % of its start for good by a step (one minus the
    Kaplan-Meier estimate); a marker is a run that met, an upright tick a run that had not met when its record ended.

    Args:
        table: a row per run and step: mode, seed, step, and distances such as ``input/0A-0B``.
        pairs: the pairs to show; by default all that write the same bit.
        horizon: the last step to count; what meets later counts as not met. By default the end of each run.

    Raises:
        InputError: no pair to show.
    """
    names = list(pairs) if pairs is not None else same_bit(table)
    if not names:
        raise InputError("no pair of symbols writes the same bit, so none can meet; name the pairs to show")
    panels = _matrices(table)
    last = table.groupby(["mode", "seed"])["step"].max().clip(upper=horizon).rename("last")
    end = last.max()
    columns = dict.fromkeys(f"{matrix}/{pair}" for pair in names for _, matrix in panels.values())
    met = convergence_steps(table, columns)
    met = met.join(last, on=["mode", "seed"]).set_index(["mode", "column"]).sort_index()
    with style():
        figure, used = grid(len(names), height=2.5)
        for ax, pair in zip(used, names, strict=True):
            for level, (label, (mode, matrix)) in enumerate(panels.items()):
                runs, look = met.loc[[(mode, f"{matrix}/{pair}")]], MATRICES[label]
                done = runs["step"] <= runs["last"]
                steps, unmet = runs["step"][done].to_numpy(), runs["last"][~done].to_numpy(float)
                share = stats.ecdf(stats.CensoredData(uncensored=steps, right=unmet)).cdf
                x = np.array([0, *share.quantiles, end]) / 1000
                y = [0, *share.probabilities, share.probabilities[-1]]
                line: dict[str, Any] = {
                    "color": look.color,
                    "linestyle": look.line,
                    "linewidth": 2.2 - 0.6 * level,
                }  # all are seen
                dots: dict[str, Any] = {
                    "marker": look.marker,
                    "markersize": 5,
                    "markeredgecolor": "w",
                    "markeredgewidth": 0.4,
                }
                # markers on the frame are whole; the layout leaves them out, as lines without points confuse it
                above: dict[str, Any] = {"clip_on": False, "in_layout": False, "zorder": 3 + level}
                ax.plot(x, y, drawstyle="steps-post", **line, **above)
                ax.plot(steps / 1000, share.evaluate(steps), color=look.color, linestyle="", **dots, **above)
                ax.plot(unmet / 1000, share.evaluate(unmet), "|", color=look.color, ms=9, mew=1.2, **above)
                ax.plot([], [], label=f"{label}: {done.sum()} of {len(runs)} met", **line, **dots)
            ax.set_ylabel("runs that have met", y=1 / 3)
            ax.set(title=dash(pair), ylim=(0, 1.5), yticks=np.linspace(0, 1, 5))
            ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
            ax.legend(loc="upper left", borderaxespad=0)  # above 100 % there are no data
        _step_axes(used, end)
        for ax in used:
            ax.spines["left"].set_bounds(0, 1)
        caption(
            figure,
            "Marker: a run that has met, below 10 % of the first distance for good; upright tick: one that has not.",
        )
    return figure


def differences_over_training(
    table: pd.DataFrame, *, pairs: Sequence[str] | None = None, accuracy: str = "accuracy_train"
) -> Figure:
    """When tying helps or hurts: tied minus untied, paired by seed, over training.

    A panel per pair with the tied distance minus that in either untied matrix, and one with accuracy. Lines as in
    :func:`training_curves`. Seeds that ran in one mode only are left out.

    Args:
        table: a row per run and step: mode, seed, step, accuracy, and distances such as ``input/0A-0B``.
        pairs: the pairs to show; by default all that write the same bit.
        accuracy: the column of the accuracy.

    Raises:
        InputError: no seed ran in both modes.
    """
    names = list(pairs) if pairs is not None else same_bit(table)
    seeds = sorted(set.intersection(*(set(table["seed"][table["mode"] == mode]) for mode in MODES)))
    if not seeds:
        raise InputError("no seed ran both tied and untied, so nothing can be compared; run a seed in both modes")

    def difference(column: str, other: str) -> pd.DataFrame:
        tied, untied = curve(table, "tied", column)[seeds], curve(table, "untied", other)[seeds]
        return (tied - untied).loc[tied.index.intersection(untied.index)]  # pandas pairs by step and seed

    last = table["step"].max()
    with style():
        figure, used = grid(len(names) + 1, height=2.3, columns=3)
        for ax, pair in zip(used, names, strict=False):
            for matrix in ("input", "output"):
                wide, look = difference(f"input/{pair}", f"{matrix}/{pair}"), MATRICES[f"untied {matrix}"]
                spread(ax, wide, look, f"tied − untied {matrix}")
            ax.set(title=dash(pair), ylabel="tied − untied distance")
        spread(used[-1], difference(accuracy, accuracy), ALONE, "tied − untied")
        used[-1].set(title="Accuracy", ylabel="tied − untied accuracy")
        for ax in used:
            _zoom(ax)
            ax.axhline(0, color=GREY, linewidth=0.8, zorder=3)
        _step_axes(used, last, columns=3)
        if names:
            figure.legend(*used[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
        below = f"Below 0: tied is {'closer, or ' if names else ''}less accurate."
        cut = " The axes cut off the widest single seeds." if len(seeds) > 1 else ""
        caption(figure, f"{thick_and_thin({'': len(seeds)})}\n{below}{cut}")
    return figure


def spread(ax: Axes, wide: pd.DataFrame, look: Look, label: str) -> None:
    """Curves ``[steps, seeds]``: single seeds thin, their mean thick, and its 95 % t-interval as a band."""
    wide = wide.dropna(how="all")
    kept = wide.iloc[np.unique(np.linspace(0, len(wide) - 1, min(len(wide), POINTS)).round().astype(int))]
    x, count = kept.index.to_numpy() / 1000, kept.shape[1]
    mean = kept.mean(axis=1).to_numpy()
    if count > 1:
        ax.plot(x, kept.to_numpy(), color=look.color, linewidth=0.5, alpha=0.35, label="_single seeds", zorder=1)
        half = half_width(kept.to_numpy())
        ax.fill_between(x, mean - half, mean + half, color=look.color, alpha=0.22, linewidth=0, zorder=2)
    ax.plot(x, mean, color=look.color, linestyle=look.line, linewidth=1.6, label=label, zorder=4)


def half_width(values: np.ndarray) -> np.ndarray:
    """``[..., seeds] -> [...]``: half the 95 % t-interval of the mean; NaN for one seed."""
    count = values.shape[-1]
    return (
        stats.t.ppf(0.975, count - 1) * stats.sem(values, axis=-1) if count > 1 else np.full(values.shape[:-1], np.nan)
    )


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
    with style():
        settle(figure)
        for target, metadata in zip(paths, ({"Software": None}, {"CreationDate": None}), strict=True):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=target.suffix[1:], metadata=metadata)
            write_file(target, buffer.getvalue())
    return paths


def settle(figure: Figure) -> None:
    """Find the place of every panel: ticks depend on it and need room themselves, so once is not enough."""
    for _ in range(3):
        figure.draw_without_rendering()


def caption(figure: Figure, text: str) -> None:
    """What the marks mean, in a line or two below all panels."""
    figure.supxlabel(text, fontsize=SMALL, color=GREY)


def thick_and_thin(counts: dict[str, int]) -> str:
    """What :func:`spread` draws, for so many seeds in each mode."""
    if max(counts.values()) == 1:
        return "One seed."
    if len(set(counts.values())) == 1:
        seeds = f"{max(counts.values())} seeds"
    else:
        seeds = ", ".join(f"{count} {mode} seeds" for mode, count in counts.items())
    return f"Thick: mean over {seeds}; band: 95 % t-interval of the mean; thin: single seeds."


def _matrices(table: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """The matrices of the runs in a table, by label: mode, and the prefix of their columns."""
    modes = set(table["mode"])
    every = {"tied": ("tied", "input"), "untied input": ("untied", "input"), "untied output": ("untied", "output")}
    return {label: place for label, place in every.items() if place[0] in modes}


def grid(panels: int, *, height: float = 2.15, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """So many panels, row by row, each ``height`` inches high, and room for a caption."""
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.35), dpi=DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for rest in axes[panels:]:
        rest.remove()
    return figure, axes[:panels]


def dash(pair: str) -> str:
    """A pair as it is printed."""
    return pair.replace("-", "–")


def _step_axes(axes: Sequence[Axes], last: float, columns: int = 2) -> None:
    """The same axis of steps below all panels, named at the lowest ones."""
    for ax in axes:
        ax.set_xlim(0, last / 1000)
        ax.xaxis.set_major_locator(MaxNLocator(6 if columns < 3 else 4, steps=[1, 2, 2.5, 5, 10]))
        sns.despine(ax=ax)
    for ax in axes[-columns:]:
        ax.set_xlabel("step / 1,000")


def _zoom(ax: Axes) -> None:
    """Limits that hold every band and 95 % of the points of the lines: early extremes would squeeze the rest."""
    lines = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
    bands = [np.asarray(path.vertices)[:, 1] for band in ax.collections for path in band.get_paths()]
    every = np.concatenate([np.nanquantile(lines, (0.025, 0.975)), *bands, [0.0]])
    low, high = np.nanmin(every), np.nanmax(every)
    margin = 0.05 * (high - low) or 0.05
    ax.set_ylim(low - margin, high + margin)
