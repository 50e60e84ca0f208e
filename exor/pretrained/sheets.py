"""Findings as tables of text, the published number beside ours where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, isnan, nan
from typing import Any

import pandas as pd

from exor.pretrained.analyses import arrow
from exor.pretrained.store import Finding
from exor.sheets import Number, Sheet, count, number, share, with_interval

Lookup = Callable[[str, str, str, str], float | None]
"""Published value of a quantity between two matrices (or of one and ""), of a kind (or ""); None if there is none."""


def no_published(quantity: str, a: str, b: str, kind: str) -> None:
    """For models that nothing has been published on."""


def sheets_of(name: str, finding: Finding, published: Lookup = no_published) -> list[Sheet]:
    """The tables of an analysis; without the columns ``published`` that nothing is known for."""
    made = MAKERS[name](finding.tables, published) if finding.tables else []
    return [_known(sheet) for sheet in made if sheet.rows]


def _known(sheet: Sheet) -> Sheet:
    unknown = {i for i, heading in enumerate(sheet.headings) if heading == "published"}
    unknown = {i for i in unknown if all(isnan(getattr(row[i], "value", 0)) for row in sheet.rows)}
    rows = tuple(tuple(cell for i, cell in enumerate(row) if i not in unknown) for row in sheet.rows)
    return replace(sheet, headings=tuple(h for i, h in enumerate(sheet.headings) if i not in unknown), rows=rows)


def of_facts(facts: Sequence[Mapping[str, Any]]) -> Sheet:
    """What is known of the models, a column each."""
    names = [name for name in facts[0] if name != "model"]
    rows = tuple((name, *(_shown(fact[name]) for fact in facts)) for name in names)
    return Sheet("Models", "As their checkpoints say.", ("", *(str(fact["model"]) for fact in facts)), rows)


def _alignment(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    t = tables["alignment"]
    rows = []
    for r in t.to_dict("records"):
        was = published("alignment", r["source"], r["target"], r["kind"])
        score = with_interval(r["score"], r["low"], r["high"])
        chance = [number(r["chance"]), _maybe(r["expected_chance"])]
        rows.append((arrow(r["source"], r["target"]), r["kind"], score, _maybe(was), _maybe(r["held_out"]), *chance))
    refits = t["refitted"].any()
    note = (
        "Mean over tokens of the cosine between mapped row and target row. Linear: least squares; orthogonal: "
        "Procrustes; both, and their scores, on matrices with the mean row removed. Interval: bootstrap over tokens, "
        f"{'the map fitted again to each sample' if refits else 'the map kept'}. Held out: fitted to one half of the "
        "tokens, scored on the other. Chance: the target's rows shuffled, the map fitted to that; expected: "
        "of Gaussian rows, √(width / tokens) if linear, 8/(3π) of that if orthogonal."
    )
    headings = ("source → target", "map", "score [95 %]", "published", "held out", "chance", "expected")
    return [Sheet("Alignment", note, headings, tuple(rows))]


def _differences(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["differences"].to_dict("records"):
        low, high = (Number("–" if v != v else f"{int(v):,}", v) for v in (r["lowest"], r["highest"]))
        difference = with_interval(r["difference"], r["low"], r["high"])
        rows.append((str(r["band"]), r["kind"], count(int(r["tokens"])), low, high, difference))
    note = (
        "Cosine of output → tied minus that of input → tied, mean over tokens; above zero the tied matrix resembles "
        "the output. Bands: tokens by how often they occur in the text, from the rarest to the most frequent."
    )
    headings = ("band", "map", "tokens", "fewest", "most", "difference [95 %]")
    return [Sheet("Output minus input, by frequency", note, headings, tuple(rows))]


def _neighbours(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    t = tables["knn-overlap"]
    for r in t.to_dict("records"):
        was = published("knn overlap", r["a"], r["b"], "") if r["rows"] == "raw" else None
        value = with_interval(r["overlap"], r["low"], r["high"])
        rows.append((f"{r['a']}, {r['b']}", r["rows"], value, _maybe(was), number(r["chance"])))
    k = int(t["k"].iloc[0]) if len(t) else 0
    note = (
        f"Share of common {k} nearest neighbours by cosine, mean over tokens. Interval: bootstrap over tokens. Chance: "
        "of two random sets."
    )
    overlap = Sheet(
        f"KNN@{k} overlap", note, ("matrices", "rows", "overlap [95 %]", "published", "chance"), tuple(rows)
    )
    hubs = []
    for r in tables["hubness"].to_dict("records"):
        values = (number(r["skewness"]), count(int(r["largest"])), share(r["never"]))
        hubs.append((r["matrix"], r["rows"], *values))
    note = (
        "How often a token is among the neighbours of others: skewness of that count, its largest value, and the share "
        "of tokens that are nobody's neighbour."
    )
    return [overlap, Sheet("Hubness", note, ("matrix", "rows", "skewness", "largest", "never"), tuple(hubs))]


def _spectral(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["spectral-distance"].to_dict("records"):
        was = published("spectral distance", r["a"], r["b"], "")
        rows.append((f"{r['a']}, {r['b']}", number(r["distance"]), _maybe(was)))
    note = "Of the neighbour graphs, by their omnibus embedding (Duderstadt et al. 2023); 0 for equal graphs."
    return [Sheet("Spectral distance", note, ("matrices", "distance", "published"), tuple(rows))]


def _norms(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows: list[tuple[str, ...]] = []
    for r in tables["norms"].to_dict("records"):
        was = published("frobenius norm", r["matrix"], "", "")
        values = [number(r[name]) for name in ("mean", "smallest", "median", "largest")]
        rows.append(
            (r["matrix"], r["rows"], number(r["frobenius"]), _maybe(was if r["rows"] == "raw" else None), *values)
        )
    headings = ("matrix", "rows", "Frobenius", "published", "mean row", "smallest", "median", "largest")
    note = "Frobenius norm of the matrix, and norms of its rows; norm folded in: the final norm's gain multiplied in."
    sheets = [Sheet("Norms", note, headings, tuple(rows))]
    rows = []
    for r in tables["norm-correlations"].to_dict("records"):
        was = published("norm correlation", r["a"], r["b"], "")
        rows.append((f"{r['a']}, {r['b']}", number(r["pearson"]), _maybe(was), number(r["spearman"])))
    note = "Between the norms of the same token's rows in two matrices."
    sheets.append(Sheet("Norm correlations", note, ("matrices", "Pearson", "published", "Spearman"), tuple(rows)))
    return sheets


def _isotropy(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["isotropy"].to_dict("records"):
        values = (number(r["mean_cosine"]), number(r["partition_ratio"]), number(r["log_ratio"]))
        rows.append((r["matrix"], r["rows"], *values))
    note = (
        "Mean cosine of two different rows (0 if they point everywhere alike), and the least over the largest value of "
        "the partition function along principal directions (1 if isotropic; Mu & Viswanath 2018), and its logarithm."
    )
    return [Sheet("Isotropy", note, ("matrix", "rows", "mean cosine", "partition ratio", "log"), tuple(rows))]


def _spectra(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows: list[tuple[str, ...]] = []
    for r in tables["ranks"].to_dict("records"):
        was = published("largest singular value", r["matrix"], "", "") if r["rows"] == "raw" else None
        values = (number(r["largest"]), _maybe(was), count(int(r["rank"])), number(r["effective"]), number(r["stable"]))
        rows.append((r["matrix"], r["rows"], *values, number(r["condition"])))
    headings = ("matrix", "rows", "largest", "published", "rank", "effective rank", "stable rank", "condition")
    note = (
        "Singular values. Rank: numerical; effective: exponential of the spectrum's entropy (Roy & Vetterli 2007); "
        "stable: squared Frobenius norm over squared largest; condition: largest over smallest."
    )
    sheets = [Sheet("Spectra", note, headings, tuple(rows))]
    rows = []
    for r in tables["spectrum-correlations"].to_dict("records"):
        was = published("spectrum correlation", r["a"], r["b"], "")
        rows.append((f"{r['a']}, {r['b']}", number(r["correlation"]), _maybe(was)))
    note = "Pearson correlation of the 50 largest singular values."
    sheets.append(Sheet("Spectrum correlations", note, ("matrices", "correlation", "published"), tuple(rows)))
    return sheets


def _subspaces(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["subspaces"].to_dict("records"):
        was = published("subspace overlap", r["a"], r["b"], "") if r["space"] == "features" else None
        canonical = (number(r["canonical"]), _maybe(was), number(r["canonical_chance"]))
        squared = (number(r["squared"]), number(r["squared_chance"]))
        rows.append((f"{r['a']}, {r['b']}", r["space"], count(int(r["k"])), *canonical, *squared))
    note = (
        "Of the leading principal subspaces, mean row removed: mean canonical correlation, and mean of its squares. "
        "Features: directions of the embedding space, which only means something for matrices of one model; tokens: of "
        "the token space, comparable between any two. Chance: of two random subspaces."
    )
    headings = ("matrices", "space", "dimensions", "overlap", "published", "chance", "squared", "chance")
    return [Sheet("Subspace overlap", note, headings, tuple(rows))]


def _cka(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = [(f"{r['a']}, {r['b']}", number(r["cka"]), number(r["chance"])) for r in tables["cka"].to_dict("records")]
    note = "Linear centred kernel alignment (Kornblith et al. 2019). Chance: the rows of one shuffled."
    return [Sheet("CKA", note, ("matrices", "linear CKA", "chance"), tuple(rows))]


def _frequency(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["frequency-correlations"].to_dict("records"):
        rows.append((r["matrix"], count(int(r["tokens"])), number(r["spearman"]), number(r["pearson"])))
    note = "Row norm against log10(frequency + 1), tokens that occur in the text."
    return [Sheet("Norm and frequency", note, ("matrix", "tokens", "Spearman", "Pearson"), tuple(rows))]


def _parameters(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["parameters"].to_dict("records"):
        shares = (share(r["share"]), share(r["share_tied"]), share(r["share_untied"]))
        rows.append((r["model"], count(int(r["total"])), count(int(r["embedding"])), *shares))
    headings = ("model", "parameters", "in embeddings", "share", "if tied", "if untied")
    return [Sheet("Parameters", "From the configuration alone.", headings, tuple(rows))]


def _evolution(tables: Mapping[str, pd.DataFrame], published: Lookup) -> list[Sheet]:
    rows = []
    for r in tables["evolution"].to_dict("records"):
        values = (count(int(r["step"])), r["matrix"], number(r["to_first"]), number(r["to_previous"]))
        rows.append((*values, _maybe(r.get("norm", nan))))
    note = "Cosine of a token's row to its row in the first and in the previous checkpoint, mean over tokens."
    headings = ("step", "matrix", "to the first", "to the previous", "Frobenius")
    return [Sheet("Evolution", note, headings, tuple(rows))]


MAKERS = {
    "alignment": _alignment,
    "differences": _differences,
    "neighbours": _neighbours,
    "spectral": _spectral,
    "norms": _norms,
    "isotropy": _isotropy,
    "spectra": _spectra,
    "subspaces": _subspaces,
    "cka": _cka,
    "frequency": _frequency,
    "parameters": _parameters,
    "evolution": _evolution,
}


def _maybe(value: float | None) -> Number:
    return number(nan if value is None else value)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return number(value) if isfinite(value) else "–"
    return str(value)
