"""What is computed from matrices over the same tokens: one function for each analysis, from a ``Geometry`` to a ``Finding``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from exor.pretrained import alignment as alignments
from exor.pretrained import isotropy as isotropies
from exor.pretrained import norms, omnibus, spectra
from exor.pretrained.store import Finding
from exor.pretrained.neighbours import hubness, overlap

if TYPE_CHECKING:
    from exor.pretrained.geometry import Geometry

SAME_WIDTH = ("identity", "identity, centred", "orthogonal")


def arrow(source: str, target: str) -> str:
    """A comparison, as it is printed and as its arrays are called."""
    return f"{source} → {target}"


def alignment(g: Geometry) -> Finding:
    """How well a map takes the rows of one matrix to those of another; the cosines of all tokens as arrays."""
    s = g.settings
    rows, notes, cosines = [], [], {}
    for source, target in g.comparisons:
        widths = [g.matrices[name].shape[1] for name in (source, target)]
        kinds = ("linear",) if widths[0] != widths[1] else (*SAME_WIDTH, "linear")
        if len(kinds) == 1:
            notes.append(
                f"{arrow(source, target)}: identity and orthogonal maps need one width, and these are {widths[0]} and "
                f"{widths[1]}; the linear map, neighbours and spectra remain."
            )
        for kind in kinds:
            found = alignments.align(g.products, source, target, kind)
            if s.refits and kind in ("orthogonal", "linear"):
                low, high = alignments.refitted(g.products, source, target, kind, resamples=s.refits, seed=s.seed)
            else:
                low, high = alignments.bootstrap(found.cosines, resamples=s.resamples, seed=s.seed)
            rows.append(
                {
                    "source": source,
                    "target": target,
                    "kind": kind,
                    "score": found.score,
                    "low": low,
                    "high": high,
                    "refitted": bool(s.refits and kind in ("orthogonal", "linear")),
                    "held_out": found.held_out,
                    "chance": found.chance,
                    "expected_chance": found.expected_chance,
                    "rank": found.rank,
                    "condition": found.condition,
                    "tokens": g.products.n,
                }
            )
            notes += [f"{arrow(source, target)}, {kind}: {note}" for note in found.notes]
            if kind in ("orthogonal", "linear"):
                cosines[f"{kind}, {arrow(source, target)}"] = found.cosines.cpu().numpy()
    return Finding({"alignment": pd.DataFrame(rows)}, tuple(notes), cosines)


def differences(g: Geometry) -> Finding:
    """Output against tied minus input against tied, all tokens and by how often they occur."""
    cosines = g.find("alignment").arrays
    frames = []
    for kind in ("orthogonal", "linear"):
        pair = [cosines.get(f"{kind}, {arrow(*comparison)}") for comparison in g.opposed]
        if all(p is not None for p in pair):
            frame = alignments.difference_by_band(*pair, g.counts, resamples=g.settings.resamples, seed=g.settings.seed)
            frame.insert(0, "kind", kind)
            frames.append(frame)
    return Finding({"differences": pd.concat(frames, ignore_index=True)})


def neighbours(g: Geometry) -> Finding:
    """Common nearest neighbours of every token in two matrices, and how unevenly tokens are neighbours."""
    s = g.settings
    found = {name: g.nearest(name) for name in g.matrices}
    n = len(next(iter(g.matrices.values())))
    k = min(s.k, n - 1)
    shared, hubs, notes = [], [], []
    for a, b in g.comparisons:
        for rows in ("raw", "mean removed"):
            share = overlap(found[a], found[b], k, centred=rows != "raw")
            low, high = alignments.bootstrap(share, resamples=s.resamples, seed=s.seed)
            chance = k / (n - 1)
            shared.append(
                {"a": a, "b": b, "rows": rows, "k": k, "overlap": share.mean().item(), "low": low, "high": high}
                | {"chance": chance, "tokens": n}
            )
    for name, near in found.items():
        for rows, ids in (("raw", near.raw), ("mean removed", near.centred)):
            hubs.append({"matrix": name, "rows": rows, "k": k, **hubness(ids[:, :k])._asdict()})
        notes += [f"{name}: {note}" for note in near.notes]
    return Finding({"knn-overlap": pd.DataFrame(shared), "hubness": pd.DataFrame(hubs)}, tuple(notes))


def spectral(g: Geometry) -> Finding:
    """Spectral distance of the matrices' neighbour graphs."""
    s = g.settings
    rows = []
    for a, b in g.comparisons:
        near = [g.nearest(name) for name in (a, b)]
        k = min(s.graph, near[0].raw.shape[1])
        watch = g.watch(f"spectral distance, {a} and {b}")
        distance = omnibus.spectral_distance(*near, k=k, components=s.components, watch=watch)
        rows.append({"a": a, "b": b, "distance": distance, "k": k, "components": s.components})
    return Finding({"spectral-distance": pd.DataFrame(rows)})
