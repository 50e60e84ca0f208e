"""A report over experiments: what every one of them found, as figures, a table, Markdown and one web page.

``analyses = [analyse(e) for e in gather(root).experiments]``, then ``write(analyses, …)``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from exor import InputError, claims, comparisons, figures, planes, results, sheets
from exor.effects import compare, differences, effects
from exor.gather import Experiment, Gathered
from exor.misses import Found, of_experiment
from exor.page import Link, Picture, link, picture, render
from exor.page import csv as as_csv
from exor.runs import RunFolder, write_file
from exor.sheets import AGREES, Number, Sheet, number
from exor.theory import outcome_table, theory

Key = tuple[str, ...]
MODES = ("tied", "untied")


@dataclass(frozen=True)
class Analysis:
    """All that a report says of an experiment.

    Attributes:
        effects, differences: see :mod:`exor.effects`; empty where no seed ran in both modes.
        outcomes, theory: see :mod:`exor.theory`.
        misses: None where no weights can be looked at.
        notes: what a reader has to know about these numbers, in sentences.
    """

    experiment: Experiment
    effects: pd.DataFrame
    differences: pd.DataFrame
    outcomes: pd.DataFrame
    theory: pd.DataFrame
    misses: Found | None
    notes: tuple[str, ...]

    @property
    def sheets(self) -> list[Sheet]:
        """The tables that answer the question."""
        found = [] if self.effects.empty else [sheets.of_effects(self.effects)]
        return [*found, sheets.of_theory(self.theory, self.effects)]

    @property
    def verdict(self) -> str:
        """What became of accuracy."""
        return "no effects" if self.effects.empty else str(self.effects["verdict"].iloc[0])


def analyse(experiment: Experiment) -> Analysis:
    """Effects, theory and misses of one experiment."""
    notes = []
    table, parts = pd.DataFrame(), pd.DataFrame()
    try:
        compared, left_out = compare(experiment.table, experiment.relations)
        table, parts = effects(compared), differences(compared)
        notes += [f"Not among the effects: {mode} seed {seed}, {why}." for mode, seed, why in left_out]
    except InputError as error:
        notes.append(f"No effects table: {error}.")
    outcomes = outcome_table(experiment)
    found = None
    try:
        found = of_experiment(experiment)
        if found.skipped:
            notes.append(f"Of {len(found.skipped)} runs it is not known what they miss: {'; '.join(found.skipped)}.")
    except InputError as error:
        notes.append(f"Contexts that miss the ceiling are not known: {error}.")
    if (telling := len(experiment.telling)) > (some := len(experiment.relations)):
        notes.append(
            f"Of {telling} pairs of symbols for the same bit, {some} are looked at: of each bit those with the "
            "smallest, the middle and the largest conditional gap."
        )
    if experiment.sampled:
        notes.append("Loss and accuracy are estimates: a fixed random sample stands for the contexts.")
    notes += unlike(experiment)
    return Analysis(experiment, table, parts, outcomes, theory(outcomes, table), found, tuple(notes))


def unlike(experiment: Experiment) -> list[str]:
    """What differs between an experiment's runs besides seed and mode: versions and machines, a sentence each."""
    seen: dict[str, dict[str, list[str]]] = {}
    for (mode, seed), summary in experiment.summaries.items():
        software = summary.get("versions")
        facts = {**(software if isinstance(software, dict) else {})}
        facts |= {name: summary[name] for name in ("device", "compiled") if name in summary}
        for name, value in facts.items():
            seen.setdefault(name, {}).setdefault(str(value), []).append(f"{mode} seed {seed}")
    found = []
    for name, values in seen.items():
        if len(values) > 1:
            told = [f"{v} ({', '.join(r) if len(r) < 4 else f'{len(r)} runs'})" for v, r in values.items()]
            found.append(f"Runs differ in {name}: {', '.join(told)}.")
    return found


# --- files ------------------------------------------------------------------------------------------------------


def write(
    analyses: Sequence[Analysis],
    gathered: Gathered,
    out: Path | str,
    *,
    command: str,
    date: str,
    reference: pd.DataFrame | None = None,
) -> list[Path]:
    """Write ``report.html``, ``results.md``, ``effects.csv``, and a folder of figures for every experiment.

    Args:
        command, date: how and when the report was made, to be told in it.
        reference: curves to compare with, see :func:`exor.gather.reference_table`.

    Returns:
        The files written.
    """
    out = Path(out)
    written, sections = [], []
    for analysis, folder in zip(analyses, folder_names(analyses), strict=True):
        drawn, missing = _pictures(analysis)
        shown = []
        for stem, title, figure in drawn:
            shown.append(picture(figure, out / folder, stem, title, out))
            written += [out / folder / f"{stem}.{ending}" for ending in ("png", "pdf")]
        sections.append(_section(analysis, folder, shown, missing, reference, out))
    page = _page(sections, analyses, gathered, command, date, out)
    for name, text in (
        ("effects.csv", csv(analyses)),
        ("results.md", markdown(analyses, gathered, command, reference)),
        ("report.html", page),
    ):
        out.mkdir(parents=True, exist_ok=True)
        write_file(out / name, text)
        written.append(out / name)
    return written


def folder_names(analyses: Sequence[Analysis]) -> list[str]:
    """A folder name, also fit for an address, for every experiment."""
    names: list[str] = []
    for analysis in analyses:
        name = re.sub(r"[^\w.=+-]+", "-", analysis.experiment.name).strip("-.") or "experiment"
        names.append(name if name not in names else f"{name}-{len(names) + 1}")
    return names


def csv(analyses: Sequence[Analysis]) -> str:
    """``effects.csv``: the effects of all experiments, a row each.

    Columns: experiment, runs (its folder), and those of :func:`exor.effects.effects`.
    """
    frames = []
    for analysis in analyses:
        if not analysis.effects.empty:
            frame = analysis.effects.assign(seeds=[" ".join(map(str, s)) for s in analysis.effects["seeds"]])
            frame.insert(0, "experiment", analysis.experiment.name)
            frame.insert(1, "runs", ", ".join(map(str, roots(analysis.experiment))))
            frames.append(frame)
    if not frames:
        return "experiment,runs\n"
    return as_csv(pd.concat(frames, ignore_index=True))


def roots(experiment: Experiment) -> list[Path]:
    """The folders that hold an experiment's runs."""
    return list(dict.fromkeys(folder.path.parent.parent for folder in experiment.folders.values()))


def markdown(
    analyses: Sequence[Analysis], gathered: Gathered, command: str, reference: pd.DataFrame | None = None
) -> str:
    """``results.md``: all tables as Markdown."""
    parts = [f"Made by `{command.replace('`', '')}`.\n"]
    if len(analyses) > 1:
        parts += [overview(analyses).markdown(), published(analyses).markdown()]
        parts.append(sheets.of_settings([a.experiment for a in analyses]).markdown())
    for analysis in analyses:
        parts.append(f"## {sheets.plain(analysis.experiment.name)}\n")
        parts += [f"{sheets.plain(note)}\n" for note in analysis.notes]
        parts += [sheet.markdown() for sheet in analysis.sheets]
        parts += [f"{line}\n" for line in [sheets.opposites_line(analysis.theory)] if line]
        if analysis.misses:
            parts.append(sheets.of_misses(analysis.misses).markdown())
        parts += [sheet.markdown() for sheet in results.of_curves(analysis.experiment, reference) if sheet.rows]
    if gathered.left_out:
        parts.append("## Left out\n")
        parts.append("\n".join(f"* {sheets.plain(f'{run.name}: {run}')}" for run in gathered.left_out) + "\n")
    return "\n".join(parts)


def overview(analyses: Sequence[Analysis]) -> Sheet:
    """A row per experiment."""
    rows, keys = [], []
    for a, folder in zip(analyses, folder_names(analyses), strict=True):
        e = a.experiment
        runs = [sheets.count(len(e.seeds(mode))) for mode in MODES]
        change = number(nan)
        if not a.effects.empty:
            first = a.effects.iloc[0]
            change = sheets.with_interval(first["difference"], first["low"], first["high"])
        said = [row[-1] for row in sheets.of_theory(a.theory, a.effects).rows]
        counts = [sheets.count(said.count(word)) for word in AGREES.values()]
        rows.append((e.name, *runs, sheets.count(len(e.left_out)), change, a.verdict, *counts))
        keys.append((folder,))
    headings = ("experiment", "tied runs", "untied runs", "left out", "accuracy, tied − untied [95 %]", "verdict")
    note = "The last three columns count the rows of the table of theory and observation."
    return Sheet("Experiments", note, (*headings, *AGREES.values()), tuple(rows), tuple(keys))


def published(analyses: Sequence[Analysis]) -> Sheet:
    """What the experiments say of the published claims."""
    return claims.sheet(claims.claims(a.experiment.name, a.effects, a.theory) for a in analyses)


# --- figures ----------------------------------------------------------------------------------------------------


def _pictures(analysis: Analysis) -> tuple[list[tuple[str, str, Figure]], list[str]]:
    """The figures of an experiment (file name, title, figure), and a sentence for each that cannot be drawn."""
    e = analysis.experiment
    pairs = [relation.name for relation in e.relations]
    makers: list[tuple[str, str, Any]] = [
        (
            "training-curves",
            "Distances and accuracy over training",
            lambda: figures.training_curves(e.table, pairs=pairs, ceiling=e.ceiling, exact=not e.sampled),
        ),
        (
            "effects",
            "Effects of tying with 95 % intervals",
            lambda: comparisons.effects_forest(analysis.effects, mean="difference"),
        ),
        (
            "convergence-times",
            "When the two rows of a pair have met",
            lambda: figures.convergence_times(e.table, pairs=pairs),
        ),
        (
            "differences-over-training",
            "Tied minus untied over training",
            lambda: figures.differences_over_training(e.table, pairs=pairs),
        ),
        ("embedding-plane", "Embeddings in the plane", lambda: _plane(e)),
    ]
    found, missing = [], []
    for stem, title, make in makers:
        try:
            found.append((stem, title, make()))
        except InputError as error:
            missing.append(f"No figure “{title}”: {error}.")
    return found, missing


def _plane(experiment: Experiment) -> Figure:
    """Of the lowest seed that has both modes, or else of the lowest."""
    modes = experiment.modes
    common = set.intersection(*(set(experiment.seeds(mode)) for mode in modes))
    seed = min(common or experiment.seeds(modes[0]))
    tracks = {}
    for mode in modes:
        if (mode, seed) not in experiment.folders:
            continue
        path = experiment.folders[mode, seed].file("embeddings.npz")
        try:
            with np.load(path) as held:
                step, matrices = held["step"], {name: held[name] for name in ("input", "output")}
        except (OSError, ValueError, KeyError, BadZipFile):
            raise InputError(f"{path}: missing or damaged") from None
        for name in ("input",) if mode == "tied" else ("input", "output"):
            tracks["tied" if mode == "tied" else f"untied {name}"] = (step, matrices[name])
    return planes.embedding_plane(tracks, experiment.config.language.vocabulary)


# --- the page ---------------------------------------------------------------------------------------------------


def _run(folder: RunFolder, text: str, out: Path) -> Link:
    return Link(text, link(folder.path, out).href + "/")


def _section(
    analysis: Analysis,
    folder: str,
    pictures: list[Picture],
    missing: list[str],
    reference: pd.DataFrame | None,
    out: Path,
) -> dict[str, Any]:
    """What the page shows of one experiment."""
    e = analysis.experiment
    runs = {mode: [_run(e.folders[mode, s], f"seed {s}", out) for s in e.seeds(mode)] for mode in e.modes}
    table = None if analysis.effects.empty else sheets.of_effects(analysis.effects)
    return {
        "id": folder,
        "name": e.name,
        "config": e.config,
        "roots": [link(path, out) for path in roots(e)],
        "runs": runs,
        "notes": [*analysis.notes, *missing],
        "effects": table,
        "effect_seeds": {} if table is None else {key: _effect_seeds(analysis, key, out) for key in table.keys},
        "theory": sheets.of_theory(analysis.theory, analysis.effects),
        "opposites": sheets.of_theory(analysis.theory, opposite=True),
        "opposites_line": sheets.opposites_line(analysis.theory),
        "theory_seeds": _theory_seeds(analysis, out),
        "pictures": pictures,
        "misses": sheets.of_misses(analysis.misses) if analysis.misses else None,
        "curves": [sheet for sheet in results.of_curves(e, reference) if sheet.rows],
    }


def _effect_seeds(analysis: Analysis, key: Key, out: Path) -> Sheet:
    """What a row of the effects table is made of."""
    d = analysis.differences
    quantity, pair, against = key
    rows = []
    for v in d[(d["quantity"] == quantity) & (d["pair"] == pair) & (d["against"] == against)].to_dict("records"):
        folders = [_run(analysis.experiment.folders[m, v["seed"]], f"{m}/seed-{v['seed']}", out) for m in MODES]
        values = [Number("never" if v[f"never_{m}"] else number(v[m]), v[m]) for m in MODES]
        rows.append((Number(str(v["seed"]), v["seed"]), *values, number(v["difference"]), *folders))
    return Sheet("", "", ("seed", "tied", "untied", "tied − untied", "runs", ""), tuple(rows))


def _theory_seeds(analysis: Analysis, out: Path) -> dict[Key, Sheet]:
    """What the rows of the theory table are made of, by their keys."""
    found: dict[Key, Sheet] = {}
    for key, runs in analysis.outcomes.groupby(["mode", "matrix", "pair"], sort=False):
        mode, matrix, pair = map(str, key)
        rows = []
        for o in runs.to_dict("records"):
            step = Number(f"{o['step']:,.0f}" if isfinite(o["step"]) else "never", o["step"])
            folder = _run(analysis.experiment.folders[mode, o["seed"]], f"{mode}/seed-{o['seed']}", out)
            seed = Number(str(o["seed"]), o["seed"])
            rows.append((seed, number(o["start"]), number(o["end"]), sheets.share(o["share"]), step, folder))
        headings = ("seed", "start", "end", "% of start", "met at step", "run")
        found[mode, matrix, pair] = Sheet("", "", headings, tuple(rows))
    if not analysis.effects.empty:
        found["accuracy", "", ""] = _effect_seeds(analysis, ("accuracy", "", ""), out)
    return found


def _page(
    sections: list[dict[str, Any]],
    analyses: Sequence[Analysis],
    gathered: Gathered,
    command: str,
    date: str,
    out: Path,
) -> str:
    """``report.html``."""
    return render(
        "report.html.jinja",
        heading="What tying changed",
        name=str(gathered.root),
        sections=sections,
        command=command,
        date=date,
        closing="Links to runs are relative to this page.",
        overview=overview(analyses),
        published=published(analyses),
        settings=sheets.of_settings([a.experiment for a in analyses]),
        runs=sum(len(a.experiment.folders) for a in analyses),
        left_out=[(run, link(run.folder.path, out)) for run in gathered.left_out],
        root=str(gathered.root),
    )
