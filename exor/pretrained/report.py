"""A report on real models: what was found, as figures, tidy tables, JSON, and one web page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from exor.page import Picture, Section, csv, picture, render
from exor.pretrained import pictures, sheets
from exor.pretrained.alignment import LINEAR
from exor.pretrained.analyses import arrow
from exor.pretrained.sheets import Lookup, no_published
from exor.pretrained.store import Finding
from exor.pretrained.subjects import INPUT, OUTPUT, TIED
from exor.runs import json_text, versions, write_file
from exor.sheets import Sheet, number, with_interval

TITLES = {
    "alignment": "Which role does the tied matrix resemble?",
    "neighbours": "Nearest neighbours",
    "spectral": "Neighbour graphs",
    "norms": "Norms",
    "isotropy": "Isotropy",
    "spectra": "Singular values",
    "subspaces": "Principal subspaces",
    "cka": "Kernel alignment",
    "frequency": "Norm and frequency",
    "parameters": "Parameters",
    "evolution": "Over training",
}
FORMAT = 1  # of results.json
LONGEST = 1000  # rows of a table in it; longer ones are in CSV files only


@dataclass(frozen=True)
class Report:
    """All that is told of a pair, a model, or checkpoints.

    Attributes:
        name: of what was looked at.
        facts: of each model, see :func:`exor.pretrained.subjects.facts_of`.
        findings: by analysis.
        notes: what a reader has to know, in sentences.
        published: where there are published numbers.
        curves: of published evolution, to be drawn beside ours.
    """

    name: str
    findings: Mapping[str, Finding]
    facts: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    published: Lookup = no_published
    curves: pd.DataFrame | None = field(default=None, compare=False)

    @property
    def answer(self) -> list[str]:
        """Which role the tied matrix resembles, a sentence for every way to look; empty where nothing tells."""
        return [line for line in (self._by_alignment(), self._by_neighbours(), self._by_graphs()) if line]

    @property
    def sheets(self) -> dict[str, list[Sheet]]:
        """The tables, by analysis."""
        return {name: sheets.sheets_of(name, finding, self.published) for name, finding in self.findings.items()}

    def _by_alignment(self) -> str:
        if "differences" not in self.findings:
            return ""
        t = self.findings["differences"].tables["differences"]
        r = t[(t["kind"] == LINEAR) & (t["band"] == "all")].iloc[0]
        s = _linear(self.findings["alignment"])["score"]
        which = "output" if r["low"] > 0 else "input" if r["high"] < 0 else "neither role"
        more = "more" if which == "neither role" else f"the untied {which} more"
        return (
            f"Linear alignment: the tied matrix resembles {'neither role ' if which == 'neither role' else ''}{more}; "
            f"output → tied {number(s[OUTPUT, TIED])}, input → tied {number(s[INPUT, TIED])}, difference "
            f"{with_interval(r['difference'], r['low'], r['high'])}."
        )

    def _by_neighbours(self) -> str:
        if "neighbours" not in self.findings:
            return ""
        t = self.findings["neighbours"].tables["knn-overlap"]
        found = {(r["a"], r["b"]): r for r in t.to_dict("records") if r["rows"] == "raw"}
        if (OUTPUT, TIED) not in found:
            return ""
        output, given = found[OUTPUT, TIED], found[INPUT, TIED]
        shares = f"output {_interval(output)}, input {_interval(given)}"
        if output["low"] <= given["high"] and given["low"] <= output["high"]:
            return f"Neighbours: it shares as many of them with either role; {shares}."
        which = "output" if output["overlap"] > given["overlap"] else "input"
        return f"Neighbours: it shares more of them with the untied {which}; {shares}."

    def _by_graphs(self) -> str:
        if "spectral" not in self.findings:
            return ""
        values = self.findings["spectral"].tables["spectral-distance"].set_index(["a", "b"])["distance"]
        if (OUTPUT, TIED) not in values.index:
            return ""
        output, given = values[OUTPUT, TIED], values[INPUT, TIED]
        which = "output" if output < given else "input"
        distances = f"output {number(output)}, input {number(given)}"
        return f"Neighbour graphs: its own is closer to that of the untied {which}; distances {distances}."


def write(report: Report, out: Path | str, *, command: str, date: str) -> list[Path]:
    """Write ``report.html``, ``results.json``, a CSV file for every table, and figures as PNG and PDF.

    Args:
        command, date: how and when the report was made, to be told in it.

    Returns:
        The files written.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for finding in report.findings.values():
        for name, table in finding.tables.items():
            if table.empty:
                continue
            written.append(out / f"{name}.csv")
            write_file(written[-1], csv(table))
    shown = sections(report, out)
    write_file(out / "results.json", json_text(results(report, command, date)))
    page = render(
        "sections.html.jinja",
        heading="Embeddings",
        name=report.name,
        about=about(report),
        sections=shown,
        command=command,
        date=date,
    )
    write_file(out / "report.html", page)
    return [out / "report.html", out / "results.json", *written]


def about(report: Report) -> str:
    """What the page is on, a sentence."""
    if len(report.facts) == 2:
        tied, untied = (fact["model"] for fact in report.facts)
        return f"{report.name}: {tied}, which is tied, and {untied}, which is not."
    return f"{report.name}."


def sections(report: Report, out: Path) -> list[Section]:
    """What the page shows; saves the figures."""
    told = report.sheets
    found = []
    if report.facts:
        found.append(Section("models", "Models", (*report.answer, sheets.of_facts(report.facts)), tuple(report.notes)))
    for name, title in TITLES.items():
        if name not in report.findings:
            continue
        parts: list[Sheet | Picture | str] = (
            [*told[name], *told.get("differences", [])] if name == "alignment" else [*told[name]]
        )
        for stem, heading, figure in figures_of(name, report):
            parts.append(picture(figure, out, stem, heading, out))
        found.append(Section(name, title, tuple(parts), report.findings[name].notes))
    return found


def figures_of(name: str, report: Report) -> list[tuple[str, str, Figure]]:
    """File name, title and figure of all that an analysis draws."""
    finding = report.findings[name]
    tables = finding.tables
    if name == "alignment":
        return _alignment_figures(report)
    if name == "neighbours":
        t = tables["knn-overlap"]
        if t.empty:
            return []
        pairs = zip(t["a"], t["b"], t["rows"], strict=True)
        was = [report.published("knn overlap", a, b, "") if rows == "raw" else None for a, b, rows in pairs]
        figure = pictures.neighbour_bars(t.assign(published=pd.Series(was, t.index, dtype=float)))
        return [("knn-overlap", "Common nearest neighbours", figure)]
    if name == "spectra":
        return [("singular-values", "Singular values", pictures.spectra(_spectra(tables["singular-values"])))]
    if name == "frequency":
        return [("norm-frequency", "Row norm and frequency", pictures.norm_frequency(tables["norm-frequency"]))]
    if name == "evolution":
        return [("evolution", "Cosine over training", pictures.evolution_curves(tables["evolution"], report.curves))]
    return []


def _alignment_figures(report: Report) -> list[tuple[str, str, Figure]]:
    arrays = report.findings["alignment"].arrays
    shown = [(INPUT, TIED), (OUTPUT, TIED)] if f"linear, {arrow(INPUT, TIED)}" in arrays else [(INPUT, OUTPUT)]
    cosines = {arrow(*pair): arrays[f"linear, {arrow(*pair)}"] for pair in shown}
    t = _linear(report.findings["alignment"])
    chance = {arrow(*pair): float(t["chance"][pair]) for pair in shown}
    title = "Tokens by their cosine after linear alignment"
    found = [("alignment", title, pictures.alignment_histogram(cosines, title=report.name, chance=chance))]
    if "differences" in report.findings:
        t = report.findings["differences"].tables["differences"]
        if t["band"].nunique() > 1:
            found.append(("differences", "Output minus input, by frequency", pictures.differences(t)))
    return found


def _interval(overlap: Mapping[Any, Any]) -> str:
    return with_interval(overlap["overlap"], overlap["low"], overlap["high"])


def _linear(alignment: Finding) -> pd.DataFrame:
    """Its linear maps, by source and target."""
    t = alignment.tables["alignment"]
    return t[t["kind"] == LINEAR].set_index(["source", "target"])


def _spectra(table: pd.DataFrame) -> dict[str, np.ndarray]:
    return {f"{m}, {r}": t["value"].to_numpy() for (m, r), t in table.groupby(["matrix", "rows"], sort=False)}


def results(report: Report, command: str, date: str) -> dict[str, Any]:
    """``results.json``: everything but the numbers of single tokens; numbers that are not finite are null."""
    analyses = {
        name: {
            "notes": finding.notes,
            "seconds": finding.seconds,
            "tables": {n: t.to_dict("records") for n, t in finding.tables.items() if len(t) <= LONGEST},
        }
        for name, finding in report.findings.items()
    }
    return {
        "format": FORMAT,
        "name": report.name,
        "answer": report.answer,
        "models": report.facts,
        "notes": report.notes,
        "analyses": analyses,
        "command": command,
        "date": date,
        "versions": versions(),
    }
