"""Figures of real models, in the one style of all figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from exor import InputError
from exor.figures import ALONE, DOTTED, GREY, MATRICES, PAIRS, SMALL, Look, caption, grid, style

BINS = 80  # of a histogram
FEW = 1000  # tokens; fewer are drawn one by one
MEDIANS = 40  # points of a running median, at most
KINDS = {"orthogonal": Look(PAIRS[1].color, DOTTED, "D"), "linear": Look(ALONE.color, "-", "o")}
ROLES = {"input": "untied input", "output": "untied output", "tied": "tied"}


def alignment_histogram(
    cosines: Mapping[str, np.ndarray], *, title: str = "", chance: Mapping[str, float] | None = None
) -> Figure:
    """How many tokens have which cosine after alignment: the published figure 1.

    Args:
        cosines: ``[tokens]`` for each comparison, such as ``untied input → tied``; what is not finite is left out.
        title: above the figure.
        chance: the score of shuffled rows, for some of the comparisons.

    Raises:
        InputError: no cosine to show.
    """
    values = {name: np.asarray(c, float)[np.isfinite(c)] for name, c in cosines.items()}
    values = {name: c for name, c in values.items() if len(c)}
    if not values:
        raise InputError("no cosines to show; at least one finite value is accepted")
    every = np.concatenate(list(values.values()))
    low, high = every.min(), every.max()
    if high - low < 1e-3:  # all equal
        low, high = low - 0.05, high + 0.05
    edges = np.linspace(low, high, BINS + 1).tolist()
    with style():
        figure, (ax,) = grid(1, height=3.0)
        for name, c in values.items():
            look = _look(name)
            label = f"{name}: mean {_short(c.mean())}"
            ax.hist(c, edges, color=look.color, alpha=0.35, label=label)
            ax.hist(c, edges, histtype="step", color=look.color, linewidth=0.9)
            ax.axvline(c.mean(), color=look.color, linestyle="--", linewidth=1.4, label=f"_mean {name}")
            if chance is not None and name in chance and np.isfinite(chance[name]):
                label = f"{name}: chance {_short(chance[name])}"
                ax.axvline(chance[name], color=look.color, linestyle=DOTTED, linewidth=1.4, label=label)
        ax.set(title=_literal(title), xlabel="cosine of the mapped row to the target row", ylabel="tokens")
        ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        sns.despine(ax=ax)
        figure.legend(loc="outside upper center", ncols=2)
        caption(figure, f"Histograms of {_counted(values)} tokens; dashed: means; dotted: rows shuffled.")
    return figure


def neighbour_bars(table: pd.DataFrame) -> Figure:
    """The share of common nearest neighbours in each comparison, of raw rows and with the mean removed.

    Args:
        table: a row per comparison and kind of rows: ``a``, ``b``, ``rows``, ``k``, ``overlap``, ``low``, ``high``,
            ``chance``; ``published`` may be there.

    Raises:
        InputError: no rows.
    """
    _refuse_empty(table, "comparisons")
    pairs = list(dict.fromkeys(zip(table["a"], table["b"], strict=True)))
    kinds = list(dict.fromkeys(table["rows"]))
    width = 0.8 / len(kinds)
    with style():
        figure, (ax,) = grid(1, height=2.8)
        for r in table.to_dict("records"):
            kind = kinds.index(r["rows"])
            at = pairs.index((r["a"], r["b"])) + (kind - (len(kinds) - 1) / 2) * width
            color = _compared(r["a"], r["b"])
            looks: dict[str, Any] = (
                {"facecolor": color, "alpha": 0.9} if kind == 0 else {"facecolor": "w", "hatch": "////"}
            )
            ax.bar(at, r["overlap"], 0.9 * width, edgecolor=color, linewidth=1, **looks)
            _whisker(ax, at, r["overlap"], r["low"], r["high"])
            was = _number(r.get("published"))
            top = np.nanmax([0, r["overlap"], r["high"], was])
            if np.isfinite(was):
                ax.plot(at, was, "D", color="k", markerfacecolor="w", markersize=5.5, zorder=5)
            if np.isfinite(r["overlap"]):
                place: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL}
                ax.annotate(_short(r["overlap"]), (at, top), (0, 5), **place)
        chance = table["chance"].max()
        if np.isfinite(chance):
            ax.axhline(chance, color=GREY, linestyle=DOTTED, linewidth=1.2, zorder=4)
        ax.set(xticks=range(len(pairs)), xticklabels=[f"{a}\n{b}" for a, b in pairs], xlim=(-0.6, len(pairs) - 0.4))
        highest = np.nanmax([0.01, chance, table["high"].max(), table["overlap"].max(), _published(table).max()])
        ax.set(ylabel="share of common neighbours", ylim=(0, 1.15 * highest))
        ax.tick_params(axis="x", length=0)
        sns.despine(ax=ax)
        fills: list[dict[str, Any]] = [{"facecolor": "0.6"}, {"facecolor": "w", "hatch": "////"}]
        shown: list[Any] = [
            Patch(edgecolor="0.4", label=kind, **fill)
            for kind, fill in zip(kinds, [*fills, *fills[1:] * len(kinds)], strict=False)
        ]
        if _published(table).notna().any():
            shown.append(Line2D([], [], color="k", marker="D", markerfacecolor="w", linestyle="", label="published"))
        if np.isfinite(chance):
            shown.append(Line2D([], [], color=GREY, linestyle=DOTTED, label=f"chance: {chance:.2g}"))
        figure.legend(handles=shown, loc="outside upper center", ncols=len(shown))
        caption(figure, f"{_neighbours(table)} in both matrices, mean over tokens; whiskers: 95 % interval.")
    return figure


def norm_frequency(table: pd.DataFrame) -> Figure:
    """Row norms against how often tokens occur: a panel per matrix, with a running median.

    Many tokens are shown by their density, few as dots.

    Args:
        table: a row per token and matrix: ``matrix``, ``count``, ``norm``; tokens that do not occur are left out.

    Raises:
        InputError: no token that occurs.
    """
    seen = table[(table["count"] > 0) & np.isfinite(table["norm"])]
    _refuse_empty(seen, "tokens that occur in the text")
    names = list(dict.fromkeys(seen["matrix"]))
    with style():
        figure, axes = grid(len(names), height=2.6, columns=3)
        for ax, name in zip(axes, names, strict=True):
            rows = seen[seen["matrix"] == name]
            x, y = np.log10(rows["count"].to_numpy(float) + 1), rows["norm"].to_numpy(float)
            look = _look(name)
            low, high = _limits(y)
            if len(rows) < FEW:
                ax.plot(x, y, "o", color=look.color, markersize=3, alpha=0.5, label=name)
            else:
                left, right = _widened(x.min(), x.max())
                colors = sns.light_palette(look.color, as_cmap=True)
                extent = (left, right, low, high)
                ax.hexbin(x, y, gridsize=(45, 30), bins="log", mincnt=1, extent=extent, cmap=colors, linewidths=0.1)
            middle = running_median(x, y)
            if len(middle) > 1:
                ax.plot(middle["x"], middle["y"], color="w", linewidth=3)  # stands out from the dots
                ax.plot(middle["x"], middle["y"], color="k", linewidth=1.5, label="median")
            ax.set(title=name, ylim=(low, high), xlabel="log10(frequency + 1)", ylabel="row norm")
            ax.xaxis.set_major_locator(MaxNLocator(5))
            sns.despine(ax=ax)
        few = (seen["matrix"].value_counts() < FEW).all()
        what = "Dots: tokens" if few else "Darker: more tokens (the outermost in a thousand are cut off)"
        caption(figure, f"{what}; line: running median. Tokens that do not occur are left out.")
    return figure


def running_median(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    """Medians ``x``, ``y`` of some 40 groups of as many points each, by ascending x; 20 points at least are a group."""
    groups = min(MEDIANS, len(x) // 20)
    if groups < 2:
        return pd.DataFrame({"x": [], "y": []}, dtype=float)
    group = pd.qcut(pd.Series(x), groups, labels=False, duplicates="drop")  # equal x stay together
    return pd.DataFrame({"x": x, "y": y}).groupby(group).median().reset_index(drop=True)


def spectra(values: Mapping[str, np.ndarray]) -> Figure:
    """Singular values as shares of the largest, both axes logarithmic: a panel for raw rows, one for centred ones.

    Args:
        values: singular values, descending, by name: the matrix, a comma, and what was done to its rows, such as
            ``tied, raw`` and ``tied, mean removed``. Zeros, which have no logarithm, are left out.

    Raises:
        InputError: no value above zero.
    """
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, given in values.items():
        matrix, _, rows = name.partition(", ")
        s = np.asarray(given, float)
        if (s > 0).any():
            panels.setdefault(rows, {})[matrix] = s
    if not panels:
        raise InputError("no singular values to show; at least one above zero is accepted")
    with style():
        figure, axes = grid(len(panels), height=2.6)
        for ax, (rows, matrices) in zip(axes, panels.items(), strict=True):
            for matrix, s in matrices.items():
                x, look = np.arange(1, len(s) + 1), _look(matrix)
                shown = s > 0
                marker = look.marker if shown.sum() < 10 else ""
                ax.plot(
                    x[shown],
                    s[shown] / np.nanmax(s),
                    color=look.color,
                    linestyle=look.line,
                    marker=marker,
                    label=matrix,
                )
            title = rows[:1].upper() + rows[1:]
            ax.set(title=title, xscale="log", yscale="log", xlabel="index", ylabel="singular value / largest")
            sns.despine(ax=ax)
        handles = {label: line for ax in axes for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=3)
        caption(figure, "Singular values of the embedding matrices, each as a share of the largest of its matrix.")
    return figure


def evolution_curves(table: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure:
    """Cosine of embedding rows to the first checkpoint, and to the previous one, over training.

    Args:
        table: of :func:`exor.pretrained.evolution.evolution`, or read by
            :func:`exor.pretrained.evolution.read_published`; ``attrs["model"]`` may name the model.
        published: another one, drawn over it as hollow markers.

    Raises:
        InputError: no checkpoints.
    """
    _refuse_empty(table, "checkpoints")
    last = max(t["step"].max() for t in (table, published) if t is not None)
    unit, name = (1000, "step / 1,000") if last >= 10_000 else (1, "step")
    titles = {"to_first": "To the first checkpoint", "to_previous": "To the previous checkpoint"}
    with style():
        figure, axes = grid(2, height=2.6)
        for ax, (column, title) in zip(axes, titles.items(), strict=True):
            for matrix, rows in table.groupby("matrix", sort=False):
                _curve(ax, rows, column, unit, str(matrix))
            if published is not None:
                for matrix, rows in published.groupby("matrix", sort=False):
                    _hollow(
                        ax, rows, column, unit, _literal(f"{matrix}, {published.attrs.get('model') or 'published'}")
                    )
            ax.set(title=title, xlabel=name, ylabel="cosine, mean over tokens")
            ax.set_xlim(*_widened(0, last / unit))
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=unit == 1))
            sns.despine(ax=ax)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
        bands = "to_first_low" in table and table["to_first_low"].notna().any()
        model = _literal(table.attrs.get("model") or "")
        words = [f"{model}: cosine" if model else "Cosine", "of each token's row to its row in another checkpoint"]
        caption(figure, " ".join(words) + ("; bands: the middle 80 % of tokens." if bands else "."))
    return figure


def differences(table: pd.DataFrame) -> Figure:
    """Output → tied minus input → tied, by how often tokens occur, and over all of them at the left.

    Args:
        table: a row per band and kind of map: ``kind``, ``band`` (``all``, then from rare to frequent), ``lowest`` and
            ``highest`` counts in it (may be NaN), ``difference``, ``low``, ``high``.

    Raises:
        InputError: no rows.
    """
    _refuse_empty(table, "bands")
    bands = list(dict.fromkeys(table["band"].astype(str)))
    bands = [b for b in bands if b == "all"] + [b for b in bands if b != "all"]
    kinds = list(dict.fromkeys(table["kind"]))
    labels = {}
    for r in table.to_dict("records"):
        ends = [_number(r.get(end)) for end in ("lowest", "highest")]
        span = "–".join(dict.fromkeys(f"{end:,.0f}" for end in ends)) if np.isfinite(ends).all() else ""
        labels[str(r["band"])] = "all" if r["band"] == "all" else span or str(r["band"])
    with style():
        figure, (ax,) = grid(1, height=2.6)
        for kind, rows in table.groupby("kind", sort=False):
            look = KINDS.get(str(kind), ALONE)
            offset = 0.16 * (kinds.index(kind) - (len(kinds) - 1) / 2)
            at = rows["band"].astype(str).map(bands.index).to_numpy(float) + offset
            for x, r in zip(at, rows.to_dict("records"), strict=True):
                _whisker(ax, x, r["difference"], r["low"], r["high"], color=look.color)
            ax.plot(at, rows["difference"], look.marker, color=look.color, label=str(kind), zorder=4)
        ax.axhline(0, color=GREY, linewidth=0.8, zorder=1)
        if bands[0] == "all" and len(bands) > 1:
            ax.axvline(0.5, color="0.8", linewidth=0.8, zorder=1)
        ax.set(xticks=range(len(bands)), xlim=(-0.5, len(bands) - 0.5), xticklabels=[labels[band] for band in bands])
        ax.set(xlabel="how often a token occurs in the text", ylabel="output → tied minus input → tied")
        sns.despine(ax=ax)
        ax.legend(loc="best")
        caption(
            figure, "Difference of the cosines, mean over tokens, with its 95 % interval; above 0: like the output."
        )
    return figure


# --- parts of figures -------------------------------------------------------------------------------------------


def _curve(ax: Axes, rows: pd.DataFrame, column: str, unit: int, matrix: str) -> None:
    rows = _from_second(rows, column)
    look = MATRICES.get(ROLES.get(matrix, matrix), ALONE)
    x = rows["step"].to_numpy(float) / unit
    if f"{column}_low" in rows:
        low, high = (rows[f"{column}_{end}"].to_numpy(float) for end in ("low", "high"))
        ax.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
    ax.plot(x, rows[column], color=look.color, linestyle=look.line, marker=look.marker, markersize=3.5, label=matrix)


def _hollow(ax: Axes, rows: pd.DataFrame, column: str, unit: int, label: str) -> None:
    rows = _from_second(rows, column)
    look = MATRICES.get(ROLES.get(str(rows["matrix"].iloc[0]) if len(rows) else "", ""), ALONE)
    dots: dict[str, Any] = {"marker": look.marker, "markerfacecolor": "none", "markersize": 7, "linestyle": ""}
    ax.plot(rows["step"].to_numpy(float) / unit, rows[column], color=look.color, label=label, zorder=5, **dots)


def _from_second(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Without the first checkpoint where there is no previous one, though published files say 1 there."""
    return rows[rows["step"] > rows["step"].min()] if column == "to_previous" else rows


def _whisker(ax: Axes, at: float, middle: float, low: float, high: float, color: Any = "k") -> None:
    """An interval, if it is known."""
    if np.isfinite([low, high]).all():
        ax.add_collection(LineCollection([[(at, low), (at, high)]], colors=[color], linewidths=1.3, zorder=3))
        ax.update_datalim([(at, low), (at, high)])


def _look(name: str) -> Look:
    """Of a matrix, or of a comparison by its source."""
    return MATRICES.get(name.partition(" → ")[0], ALONE)


def _compared(a: str, b: str) -> Any:
    """The colour of a comparison: that of the matrix which is compared with the tied one."""
    others = [name for name in (a, b) if name != "tied"]
    return MATRICES[others[0]].color if len(others) == 1 and others[0] in MATRICES else ALONE.color


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Those of an axis that leaves out the outermost in a thousand, if there are many."""
    ends = np.quantile(values, (0.0005, 0.9995)) if len(values) >= FEW else (values.min(), values.max())
    return _widened(*ends)


def _widened(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low) or max(0.05 * abs(high), 1e-3)
    return float(low - margin), float(high + margin)


def _published(table: pd.DataFrame) -> pd.Series:
    return pd.to_numeric(table.get("published", pd.Series(np.nan, table.index)))


def _neighbours(table: pd.DataFrame) -> str:
    ks = sorted({int(k) for k in table["k"]})
    return f"Share of the {' or '.join(map(str, ks))} nearest neighbours that are the same"


def _counted(values: Mapping[str, np.ndarray]) -> str:
    return " and ".join(f"{n:,}" for n in sorted({len(c) for c in values.values()}))


def _number(value: Any) -> float:
    return np.nan if value is None else float(value)


def _literal(text: str) -> str:
    """A name, in which a dollar sign begins no formula."""
    return text.replace("$", r"\$")


def _short(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _refuse_empty(table: pd.DataFrame, what: str) -> None:
    if table.empty:
        raise InputError(f"no {what} to show; at least one is accepted")
