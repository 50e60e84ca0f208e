"""Embeddings seen in a plane: principal components with one fixed basis, and their picture over training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike, NDArray

from exor import InputError
from exor.figures import DPI, PAIRS, WIDTH, caption, settle, style

Floats = NDArray[np.float64]
TEXT = 7  # points: names of symbols


@dataclass(frozen=True)
class Plane:
    """A plane through a space of some width.

    Attributes:
        center: ``[width]``, what is drawn at the origin.
        basis: ``[2, width]``, two orthonormal directions (the second is zero where the width is 1).
        share: ``[2]``, how much of the variance around the center lies in each.
    """

    center: Floats
    basis: Floats
    share: Floats

    def __call__(self, points: ArrayLike) -> Floats:
        """``[..., width] -> [..., 2]``."""
        return (np.asarray(points, float) - self.center) @ self.basis.T


def principal_plane(points: ArrayLike, towards: ArrayLike) -> Plane:
    """The plane that holds most of the variance of ``points [..., width]``.

    The components leave the sign of an axis open: each is turned so that ``towards [width]`` does not point down it.
    """
    flat = np.asarray(points, float).reshape(-1, np.shape(points)[-1])
    center = flat.mean(axis=0)
    _, scales, rows = np.linalg.svd(flat - center, full_matrices=False)
    basis, share = np.zeros((2, flat.shape[1])), np.zeros(2)
    basis[: len(rows)] = rows[:2] * np.where(rows[:2] @ np.asarray(towards, float) < 0, -1, 1)[:, None]
    share[: len(rows)] = scales[:2] ** 2 / max((scales**2).sum(), np.finfo(float).tiny)
    return Plane(center, basis, share)


def embedding_plane(
    embeddings: Mapping[str, tuple[ArrayLike, ArrayLike]],
    vocabulary: Sequence[str],
    *,
    steps: Iterable[int] | None = None,
) -> Figure:
    """Where the symbols of one seed lie over training: a row per matrix, a column per step.

    A row has one plane, the two principal components of its bit symbols at all its snapshots, so that its panels can
    be compared; the other symbols are seen in that plane, in grey. Both axes point from the zeros to the ones at the
    end. Distances in the plane are at most the true ones. Lines are the way so far.

    Args:
        embeddings: for each matrix its steps ``[S]`` and its snapshots ``[S, vocabulary, width]``.
        vocabulary: the symbols, ``0A``, ``1B``, ``=0``, …
        steps: those to show, each at the nearest snapshot that all matrices have; by default the first, and four up
            to the last, each about three times the one before.

    Raises:
        InputError: no matrix, no step that all have, shapes that do not fit, or numbers that are not finite.
    """
    tracks = {label: _checked(label, *track, len(vocabulary)) for label, track in embeddings.items()}
    if not tracks:
        raise InputError("no embeddings to show; at least one matrix is accepted")
    common = reduce(np.intersect1d, (at for at, _ in tracks.values()))
    if not len(common):
        raise InputError("the matrices have no step in common; snapshots of the same steps are accepted")
    wanted = list(steps) if steps is not None else [common[0], *common[-1] / 30 ** np.linspace(1, 0, 4)]
    shown = sorted({int(common[np.abs(common - step).argmin()]) for step in wanted})
    colors = [PAIRS["10".index(s[0])].color if s[0] in "01" else (0.55,) * 3 for s in vocabulary]
    zeros, ones, others = ([i for i, s in enumerate(vocabulary) if s[0] in kind] for kind in ("0", "1", "=["))
    bits = zeros + ones
    with style():
        figure = Figure(figsize=(WIDTH, 0.6 + 6.3 / len(shown) * len(tracks)), dpi=DPI, layout="constrained")
        axes = figure.subplots(len(tracks), len(shown), squeeze=False)
        panels = []
        for row, (label, (at, track)) in zip(axes, tracks.items(), strict=True):
            plane = principal_plane(track[:, bits], track[-1, ones].mean(axis=0) - track[-1, zeros].mean(axis=0))
            seen = plane(track)
            low, high = seen[:, bits].min(axis=(0, 1)), seen[:, bits].max(axis=(0, 1))
            middle, reach = (low + high) / 2, 0.62 * (high - low).max() or 1.0
            for ax, step in zip(row, shown, strict=True):
                now = int(np.searchsorted(at, step))
                for symbol, color in enumerate(colors):
                    ax.plot(*seen[: now + 1, symbol].T, color=color, linewidth=0.6, alpha=0.4, zorder=1)
                ax.scatter(*seen[now, others].T, s=12, color="w", edgecolors=[colors[i] for i in others], zorder=2)
                ax.scatter(*seen[now, bits].T, s=14, color=[colors[i] for i in bits], linewidths=0, zorder=3)
                ax.set(xlim=middle[0] + [-reach, reach], ylim=middle[1] + [-reach, reach], aspect="equal")
                ax.set(xticks=[])
                ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
                ax.tick_params(left=ax is row[0], labelleft=ax is row[0])
                panels.append((ax, seen[now]))
            row[0].set_ylabel(f"{label}\n{100 * plane.share.sum():.0f} % of variance")
        for ax, step in zip(axes[0], shown, strict=True):
            ax.set_title(f"step {step:,}")
        lines = "In a row all panels show one plane, with that share of the variance of its bit symbols over training."
        caption(figure, f"{lines}\nLines: the way so far; other symbols in grey, unless beyond the frame.")
        settle(figure)  # names find free places once it is known where the panels are
        figure.set_layout_engine("none")
        for ax, places in panels:
            _names(ax, places, vocabulary, colors)
    return figure


def _names(ax: Axes, places: Floats, names: Sequence[str], colors: Sequence[Any]) -> None:
    """Write each name beside its place ``[names, 2]``, where it covers as little as possible; far ones on a thread."""
    dots, frame = ax.transData.transform(places), ax.bbox
    point = ax.figure.dpi / 72  # in pixels
    circle = np.exp(1j * np.pi / 8 * np.arange(1, 16, 2))
    ways = np.stack([circle.real, circle.imag], axis=1)
    ways /= np.abs(ways).max(axis=1, keepdims=True)  # on a square, as names have corners
    taken: list[Bbox] = []

    def cost(box: Bbox) -> int:
        room = box.padded(2 * point)
        outside = not (frame.contains(*room.min) and frame.contains(*room.max))
        return 10 * (box.count_overlaps(taken) + outside) + room.count_contains(dots)

    for name, place, dot, color in zip(names, places, dots, colors, strict=True):
        if not frame.contains(*dot):
            continue
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": TEXT, "color": [0.75 * c for c in color]}
        text = ax.annotate(name, place, (0, 0), textcoords="offset points", **look)
        size = np.array(text.get_window_extent().size)
        centers = [dot + way * (size / 2 + far * point) for far in (3, 9, 16) for way in ways]
        boxes = [Bbox.from_bounds(*(center - size / 2), *size) for center in centers]
        best = min(range(len(boxes)), key=lambda i: cost(boxes[i]))
        text.set_position(tuple((centers[best] - dot) / point))
        if best >= len(ways):
            ends = ax.transData.inverted().transform([dot, np.clip(dot, boxes[best].min, boxes[best].max)])
            ax.plot(*ends.T, color=color, linewidth=0.4, zorder=1)
        taken.append(boxes[best])


def _checked(label: str, steps: ArrayLike, track: ArrayLike, symbols: int) -> tuple[NDArray[np.int64], Floats]:
    at, snapshots = np.asarray(steps), np.asarray(track, float)
    if snapshots.ndim != 3 or snapshots.shape[:2] != (len(at), symbols):
        raise InputError(f"{label}: shape {snapshots.shape}, [{len(at)} steps, {symbols} symbols, width] is accepted")
    if not np.isfinite(snapshots).all():
        raise InputError(f"{label}: holds numbers that are not finite; a run that has not diverged is accepted")
    return at, snapshots
