"""Curves over training as text: the tables of an experiment beside a reference, and where they go in a README."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from math import isfinite

import pandas as pd

from exor import InputError
from exor.gather import Experiment
from exor.sheets import Sheet, label, thousands
from exor.tables import at_steps, convergence_steps

STEPS = (10_000, 20_000, 50_000, 100_000, 150_000)
MARKERS = re.compile(
    r"(?P<begin><!-- results: python -m experiments\.report\b[^\n]*-->\n).*?(?P<end><!-- /results -->)", re.DOTALL
)


def of_curves(experiment: Experiment, reference: pd.DataFrame | None = None) -> list[Sheet]:
    """Distances, when they vanish, and accuracy; where there is a reference, its numbers stand below ours."""
    last = experiment.config.max_steps
    steps = sorted({*(s for s in STEPS if s < last), last})
    sources = [("here", experiment.table, "accuracy_train")]
    if reference is not None:
        sources.append(("reference", reference, "accuracy_sampled"))
    modes = [m for m in ("tied", "untied") if m in set(experiment.table["mode"])]
    matrices = [(m, x) for m in modes for x in (("input",) if m == "tied" else ("input", "output"))]

    distances, meetings, accuracies = [], [], []
    for mode, matrix in matrices:
        for relation in experiment.relations:
            column, what = f"{matrix}/{relation.name}", label(mode, matrix, relation.name)
            for source, table, _ in _having(sources, mode, column):
                name = f"{source}, {_seeds(table, mode)}"
                distances.append((what, name, *_cells(table, mode, column, steps)))
                if relation.meets(matrix, mode == "tied"):
                    meetings.append((what, name, *_meeting(table, mode, column)))
    for mode in modes:
        for source, table, column in _having(sources, mode):
            name = f"{source}, {_seeds(table, mode)}"
            accuracies.append((f"{mode}, training strings", name, *_cells(table, mode, column, steps, 3)))
        if not experiment.table["accuracy_test"].isna().all():
            cells = _cells(experiment.table, mode, "accuracy_test", steps, 3)
            accuracies.append((f"{mode}, test strings", f"here, {_seeds(experiment.table, mode)}", *cells))

    at = tuple(f"step {s:,}" for s in steps)
    exact = "Estimated from a sample of the contexts" if experiment.sampled else "Exact"
    drawn = "; the reference's is measured on samples" if reference is not None else ""
    test = experiment.config.language.split(experiment.config.split_seed)[1]
    best = f"{experiment.ceiling:.3f} on training strings"
    best += f", {experiment.config.language.bayes_accuracy(test):.3f} on test strings" if len(test) else ""
    return [
        Sheet(
            "Distance of the two rows",
            "Mean [smallest–largest] over seeds.",
            ("matrix, pair", "runs", *at),
            tuple(distances),
        ),
        Sheet(
            "Steps until the two rows have met",
            "First step from which their distance stays below 10 % of its start, for the pairs that should meet.",
            ("matrix, pair", "runs", "met", "median [first–last]"),
            tuple(meetings),
        ),
        Sheet(
            "Accuracy",
            f"{exact}{drawn}; mean [smallest–largest] over seeds. Best possible: {best}.",
            ("mode, strings", "runs", *at),
            tuple(accuracies),
        ),
    ]


def results(experiment: Experiment, reference: pd.DataFrame | None = None) -> str:
    """The sheets as Markdown."""
    parts = [sheet.markdown() for sheet in of_curves(experiment, reference) if sheet.rows]
    if experiment.left_out:
        parts.append(f"Left out: {', '.join(map(str, experiment.left_out))}.\n")
    return "\n".join(parts)


def replace_results(text: str, results: str) -> str:
    """A text with new results between its markers.

    Raises:
        InputError: not exactly one pair of markers.
    """
    if len(MARKERS.findall(text)) != 1:
        raise InputError(
            "exactly one line '<!-- results: python -m experiments.report … -->' is accepted, "
            "with a line '<!-- /results -->' after it"
        )
    return MARKERS.sub(lambda found: f"{found['begin']}\n{results}\n{found['end']}", text)


def _having(
    sources: list[tuple[str, pd.DataFrame, str]], mode: str, column: str = "step"
) -> list[tuple[str, pd.DataFrame, str]]:
    return [s for s in sources if column in s[1] and (s[1]["mode"] == mode).any()]


def _seeds(table: pd.DataFrame, mode: str) -> str:
    count = table["seed"][table["mode"] == mode].nunique()
    return f"{count} seed{'s' if count > 1 else ''}"


def _cells(table: pd.DataFrame, mode: str, column: str, steps: Sequence[int], digits: int | None = None) -> list[str]:
    found = at_steps(table[table["mode"] == mode], steps, [column])
    cells = dict.fromkeys(steps, "–")
    for row in found.to_dict("records"):
        mean, low, high = (_rounded(float(row[key]), digits) for key in ("mean", "low", "high"))
        cells[int(row["step"])] = f"{mean} [{low}–{high}]" if row["seeds"] > 1 else mean
    return list(cells.values())


def _meeting(table: pd.DataFrame, mode: str, column: str) -> tuple[str, str]:
    steps = convergence_steps(table[table["mode"] == mode], [column])["step"].tolist()
    middle, low, high = (thousands(s) for s in (statistics.median(steps), min(steps), max(steps)))
    met = f"{sum(map(isfinite, steps))} of {len(steps)}"
    return met, f"{middle} [{low}–{high}]" if len(steps) > 1 else middle


def _rounded(value: float, digits: int | None) -> str:
    """With so many digits; for None, two, or three where two would leave only one that counts."""
    return f"{value:.{digits or (2 if value >= 0.0995 else 3)}f}"
