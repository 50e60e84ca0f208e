"""What is computed from matrices over the same tokens: a function for each analysis, from a geometry to a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from exor.pretrained.alignment import FITTED, KINDS, LINEAR, align, bootstrap, difference_by_band, refitted
from exor.pretrained.isotropy import isotropy as isotropy_of
from exor.pretrained.neighbours import CENTRED, RAW, hubness, overlap
from exor.pretrained.norms import correlations, row_norms, summary
from exor.pretrained.omnibus import spectral_distance
from exor.pretrained.spectra import correlation, feature_overlap, linear_cka, spectrum, token_overlap
from exor.pretrained.store import Finding

if TYPE_CHECKING:
    from exor.pretrained.geometry import Geometry

WAYS = {"raw": RAW, "mean removed": CENTRED}
LEADING = 50  # singular values whose correlation is taken


def arrow(source: str, target: str) -> str:
    """A comparison, as it is printed and as its arrays are called."""
    return f"{source} → {target}"


def alignment(g: Geometry) -> Finding:
    """How well a map takes the rows of one matrix to those of another; the cosines of all tokens as arrays."""
    s = g.settings
    rows, notes, cosines = [], [], {}
    for source, target in g.comparisons:
        widths = [g.matrices[name].shape[1] for name in (source, target)]
        kinds = KINDS if widths[0] == widths[1] else (LINEAR,)
        if kinds != KINDS:
            notes.append(
                f"{arrow(source, target)}: identity and orthogonal maps need one width, and these are {widths[0]} and "
                f"{widths[1]}; the linear map, neighbours and spectra remain."
            )
        for kind in kinds:
            found = align(g.products, source, target, kind)
            again = bool(s.refits and kind in FITTED)
            if again:
                watch = g.watch(f"refits, {kind}, {arrow(source, target)}")
                asked: dict[str, Any] = {"resamples": s.refits, "seed": s.seed, "watch": watch}
                low, high = refitted(g.products, source, target, kind, **asked)
            else:
                low, high = bootstrap(found.cosines, resamples=s.resamples, seed=s.seed)
            rows.append(
                {
                    "source": source,
                    "target": target,
                    "kind": kind,
                    "score": found.score,
                    "low": low,
                    "high": high,
                    "refitted": again,
                    "held_out": found.held_out,
                    "chance": found.chance,
                    "expected_chance": found.expected_chance,
                    "rank": found.rank,
                    "condition": found.condition,
                    "tokens": g.products.n,
                }
            )
            notes += [f"{arrow(source, target)}, {kind}: {note}." for note in found.notes]
            if kind in FITTED:
                cosines[f"{kind}, {arrow(source, target)}"] = found.cosines.numpy()
    return Finding({"alignment": pd.DataFrame(rows)}, tuple(notes), cosines)


def differences(g: Geometry) -> Finding:
    """Output against tied minus input against tied, all tokens and by how often they occur."""
    cosines = g.find("alignment").arrays
    frames = []
    for kind in FITTED:
        output, inward = (cosines.get(f"{kind}, {arrow(*comparison)}") for comparison in g.opposed or ())
        if output is not None and inward is not None:
            frame = difference_by_band(output, inward, g.counts, resamples=g.settings.resamples, seed=g.settings.seed)
            frame.insert(0, "kind", kind)
            frames.append(frame)
    return Finding({"differences": pd.concat(frames, ignore_index=True)})


def neighbours(g: Geometry) -> Finding:
    """Common nearest neighbours of every token in two matrices, and how unevenly tokens are neighbours."""
    s, n = g.settings, g.tokens
    k = min(s.k, n - 1)
    shared, hubs, notes = [], [], []
    for a, b in g.comparisons:
        for rows, way in WAYS.items():
            common = overlap(g.nearest(a, way, k), g.nearest(b, way, k))
            low, high = bootstrap(common, resamples=s.resamples, seed=s.seed)
            found = {"overlap": common.double().mean().item(), "low": low, "high": high, "chance": k / (n - 1)}
            shared.append({"a": a, "b": b, "rows": rows, "k": k} | found | {"tokens": n})
    for name in g.matrices:
        for rows, way in WAYS.items():
            hubs.append({"matrix": name, "rows": rows, "k": k, **hubness(g.nearest(name, way, k))._asdict()})
        notes += [f"{name}: {note}" for note in g.notes_of_search(name)]
    columns = ["a", "b", "rows", "k", "overlap", "low", "high", "chance", "tokens"]
    tables = {"knn-overlap": pd.DataFrame(shared, columns=columns), "hubness": pd.DataFrame(hubs)}
    return Finding(tables, tuple(notes))


def spectral(g: Geometry) -> Finding:
    """Spectral distance of the matrices' neighbour graphs."""
    s = g.settings
    k, components = min(s.graph, g.tokens - 1), min(s.components, 2 * g.tokens - 1)
    rows = []
    for a, b in g.comparisons:
        graphs = [g.nearest(name, RAW, k) for name in (a, b)]
        watch = g.watch(f"spectral distance, {a} and {b}")
        distance = spectral_distance(*graphs, components=components, watch=watch)
        rows.append({"a": a, "b": b, "distance": distance, "k": k, "components": components})
    return Finding({"spectral-distance": pd.DataFrame(rows)})


def norms(g: Geometry) -> Finding:
    """Norms of matrices and of their rows, and how the latter go together."""
    rows = {name: row_norms(matrix) for name, matrix in g.matrices.items()}
    table = [{"matrix": name, "rows": "raw", **summary(lengths)._asdict()} for name, lengths in rows.items()]
    for name, gain in g.gains.items():
        folded = summary(row_norms(g.matrices[name], gain))
        table.append({"matrix": name, "rows": "norm folded in", **folded._asdict()})
    together = []
    for a, b in g.pairs:
        pearson, spearman = correlations(rows[a], rows[b])
        together.append({"a": a, "b": b, "pearson": pearson, "spearman": spearman})
    columns = ["a", "b", "pearson", "spearman"]
    return Finding({"norms": pd.DataFrame(table), "norm-correlations": pd.DataFrame(together, columns=columns)})


def isotropy(g: Geometry) -> Finding:
    """How evenly the rows of each matrix are spread over directions."""
    rows = []
    for name in g.matrices:
        for way in WAYS:
            found = isotropy_of(g.products, name, centred=WAYS[way] == CENTRED)
            rows.append({"matrix": name, "rows": way, **found._asdict()})
    return Finding({"isotropy": pd.DataFrame(rows)})


def spectra(g: Geometry) -> Finding:
    """Singular values of each matrix, and how alike they are."""
    found = {(n, way): spectrum(g.products, n, centred=WAYS[way] == CENTRED) for n in g.matrices for way in WAYS}
    ranks, values = [], []
    for (name, way), s in found.items():
        known = {"largest": s.values[0], "rank": s.rank, "effective": s.effective, "stable": s.stable}
        ranks.append({"matrix": name, "rows": way} | known | {"condition": s.condition})
        index = np.arange(1, len(s.values) + 1)
        values.append(pd.DataFrame({"matrix": name, "rows": way, "index": index, "value": s.values}))
    alike = []
    for a, b in g.pairs:
        how = correlation(found[a, "raw"], found[b, "raw"], leading=LEADING)
        alike.append({"a": a, "b": b, "leading": LEADING, "correlation": how})
    tables = {
        "ranks": pd.DataFrame(ranks),
        "spectrum-correlations": pd.DataFrame(alike, columns=["a", "b", "leading", "correlation"]),
        "singular-values": pd.concat(values, ignore_index=True),
    }
    return Finding(tables)


def subspaces(g: Geometry) -> Finding:
    """Overlap of principal subspaces, in the space of tokens, and in that of features where the widths are equal."""
    rows = []
    for a, b in g.comparisons:
        k = min(g.settings.subspace, *(g.products.rank(name) for name in (a, b)))
        ways = {"tokens": token_overlap}
        if g.products.widths[a] == g.products.widths[b]:
            ways = {"features": feature_overlap} | ways
        for space, overlap_of in ways.items():
            found = overlap_of(g.products, a, b, k, seed=g.settings.seed)
            rows.append({"a": a, "b": b, "space": space, "k": k, **found._asdict()})
    return Finding({"subspaces": pd.DataFrame(rows)})


def cka(g: Geometry) -> Finding:
    """Linear centred kernel alignment."""
    rows = []
    for a, b in g.comparisons:
        chance = linear_cka(g.products, a, b, shuffle=True)
        rows.append({"a": a, "b": b, "cka": linear_cka(g.products, a, b), "chance": chance})
    return Finding({"cka": pd.DataFrame(rows)})


def frequency(g: Geometry) -> Finding:
    """Row norms against how often tokens occur."""
    counts = np.asarray(g.counts)
    seen = counts > 0
    tables, rows = [], []
    for name, matrix in g.matrices.items():
        lengths = row_norms(matrix)
        tables.append(pd.DataFrame({"matrix": name, "count": counts, "norm": lengths}))
        pearson, spearman = correlations(np.log10(counts[seen] + 1), lengths[seen])
        rows.append({"matrix": name, "tokens": int(seen.sum()), "pearson": pearson, "spearman": spearman})
    every = pd.concat(tables, ignore_index=True)
    return Finding({"frequency-correlations": pd.DataFrame(rows), "norm-frequency": every})


@dataclass(frozen=True)
class Analysis:
    """An analysis, and what decides its numbers besides the matrices.

    Attributes:
        make: the function.
        fits: whether it can be made of these matrices.
        settings: names of the settings that matter.
        counts, gains: whether those matter.
    """

    make: Callable[[Geometry], Finding]
    fits: Callable[[Geometry], bool]
    settings: tuple[str, ...] = ()
    counts: bool = False
    gains: bool = False


def _always(g: Geometry) -> bool:
    return True


def _compared(g: Geometry) -> bool:
    return bool(g.comparisons)


def _opposed(g: Geometry) -> bool:
    return g.opposed is not None


def _counted(g: Geometry) -> bool:
    return g.counts is not None


ANALYSES = {
    "alignment": Analysis(alignment, _compared, ("resamples", "refits", "seed")),
    "differences": Analysis(differences, _opposed, ("resamples", "seed"), counts=True),
    "neighbours": Analysis(neighbours, _always, ("k", "resamples", "seed")),
    "spectral": Analysis(spectral, _compared, ("graph", "components")),
    "norms": Analysis(norms, _always, gains=True),
    "isotropy": Analysis(isotropy, _always),
    "spectra": Analysis(spectra, _always),
    "subspaces": Analysis(subspaces, _compared, ("subspace", "seed")),
    "cka": Analysis(cka, _compared, ("seed",)),
    "frequency": Analysis(frequency, _counted, counts=True),
}
