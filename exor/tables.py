"""From run folders to tables: every logged number, their spread over seeds, and the text of a report."""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path

import numpy as np
import pandas as pd

from exor import InputError
from exor.config import RunConfig
from exor.findings import convergence_step
from exor.language import Relation
from exor.runs import RunFolder, find

log = logging.getLogger("exor")

KEYS = ["mode", "seed", "step"]
STEPS = (10_000, 20_000, 50_000, 100_000, 150_000)
MARKERS = re.compile(
    r"(?P<begin><!-- results: python -m experiments\.report\b[^\n]*-->\n).*?(?P<end><!-- /results -->)", re.DOTALL
)


@dataclass(frozen=True)
class Experiment:
    """Finished runs that differ in seed and mode only.

    Attributes:
        config: of one of them.
        table: a row per run and logged step: mode, seed, and the columns of ``metrics.csv``.
        left_out: runs that are not in the table, and why.
        sampled: whether loss and accuracy are estimates from a sample of the contexts.
    """

    config: RunConfig
    table: pd.DataFrame
    left_out: tuple[str, ...] = ()
    sampled: bool = False

    @property
    def ceiling(self) -> float:
        """The best possible accuracy on the training strings."""
        return self.config.language.bayes_accuracy(self.config.language.split(self.config.split_seed)[0])

    @property
    def relations(self) -> list[Relation]:
        """The pairs that theory has something to say about, those that write 1 first."""
        found = [r for r in self.config.language.relations() if r.semantically_equivalent or r.conditionally_equivalent]
        return sorted(found, key=lambda r: r.name[0], reverse=True)


def collect(root: Path | str) -> Experiment:
    """The finished runs below a folder.

    Raises:
        InputError: no finished run there, runs of different experiments, the same run twice, or a damaged file.
    """
    first: RunConfig | None = None
    where: dict[tuple[str, int], RunFolder] = {}
    frames, left_out, sampled = [], [], False
    for folder in find(root):
        config = folder.config()
        assert config is not None  # find looks for config.yaml
        first = first or config
        _check_same(folder, first, config)
        key = config.mode, config.seed
        if key in where:
            raise InputError(f"{folder}: {config.mode} seed {config.seed} is in {where[key]} too; leave one out")
        where[key] = folder
        summary = folder.summary() or {}
        step, state = summary.get("step", 0), summary.get("state", "unfinished")
        if state == "finished" and step < config.max_steps:
            state = f"stopped at step {step:,} of {config.max_steps:,}"
        if state != "finished":
            left_out.append(f"{config.mode} seed {config.seed} ({state})")
            continue
        sampled |= bool(summary.get("contexts", {}).get("sampled", False))
        distances = [f"{m}/{config.language.pair_name(p)}" for m in ("input", "output") for p in config.language.pairs]
        needed = ["accuracy_train", "accuracy_test", *distances]
        frame = _checked(folder.metrics(), folder.file("metrics.csv"), needed)
        if frame["step"].iloc[-1] != config.max_steps:
            end = f"it ends at step {frame['step'].iloc[-1]}, its run at {config.max_steps}"
            raise InputError(f"{folder.file('metrics.csv')}: damaged ({end})")
        frames.append(_labelled(frame, *key))
    if first is None or not frames:
        raise InputError(f"{root}: holds no finished run; left out: {', '.join(left_out)}")
    return Experiment(first, pd.concat(frames, ignore_index=True), tuple(left_out), sampled)


def metrics_table(root: Path | str) -> pd.DataFrame:
    """All metrics of the finished runs below a folder; a warning names those left out. See :func:`collect`."""
    experiment = collect(root)
    if experiment.left_out:
        log.warning("%s: left out: %s", root, ", ".join(experiment.left_out))
    return experiment.table


def reference_table(root: Path | str) -> pd.DataFrame:
    """The same for curves from elsewhere: files ``<tied|untied>-seed-<n>.csv``, accuracy as ``accuracy_sampled``.

    Raises:
        InputError: no such file there, or a damaged one.
    """
    frames = []
    for path in sorted(Path(root).glob("*tied-seed-*.csv")):
        match = re.fullmatch(r"(tied|untied)-seed-(\d+)", path.stem)
        if not match:
            continue
        try:
            frame = pd.read_csv(path, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({str(error).splitlines()[0]})") from None
        frames.append(_labelled(_checked(frame, path, ["accuracy_sampled"]), match[1], int(match[2])))
    if not frames:
        raise InputError(f"{root}: holds no reference curves; files such as tied-seed-42.csv are accepted")
    return pd.concat(frames, ignore_index=True)


def curve(table: pd.DataFrame, mode: str, column: str) -> pd.DataFrame:
    """One number of all runs in a mode, ``[steps, seeds]``; between two evaluations, the earlier one."""
    rows = table[table["mode"] == mode]
    return rows.pivot(index="step", columns="seed", values=column).ffill(limit_area="inside")


def at_steps(table: pd.DataFrame, steps: Iterable[int], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Mean and range over seeds at some steps.

    A step that is not logged gets the last logged one before it; steps beyond the end are left out.

    Args:
        table: mode, seed, step, and numbers.
        columns: the numbers wanted, all by default.

    Returns:
        A row per mode, column and step: mode, column, step, mean, low, high, seeds.
    """
    rows = []
    for mode in table["mode"].unique():
        for column in columns or [c for c in table.columns if c not in KEYS]:
            wide = curve(table, mode, column)
            between = max(np.diff(wide.index).max(initial=1) - 1, 0)  # steps in the longest gap
            for step, values in wide.reindex(list(steps), method="ffill", tolerance=between).iterrows():
                if known := values.dropna().tolist():
                    low, high = min(known), max(known)
                    mean = min(max(statistics.fmean(known), low), high)  # rounding may push it out
                    rows.append((mode, column, step, mean, low, high, len(known)))
    return pd.DataFrame(rows, columns=["mode", "column", "step", "mean", "low", "high", "seeds"])


def convergence_steps(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """When distances fell below 10 % of their start for good.

    Returns:
        A row per run and column: mode, seed, column, step (infinite where that has not happened).
    """
    rows = []
    for column in columns:
        for (mode, seed), run in table.groupby(["mode", "seed"], sort=False):
            step = convergence_step(run, column)
            rows.append((mode, seed, column, inf if step is None else float(step)))
    return pd.DataFrame(rows, columns=["mode", "seed", "column", "step"])


# --- reports ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sheet:
    """A table of text, ready to show."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """As Markdown, title and note above."""
        lines = [self.headings, ("---",) * len(self.headings), *self.rows]
        return f"**{self.title}.** {self.note}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def sheets(experiment: Experiment, reference: pd.DataFrame | None = None) -> list[Sheet]:
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
            column, label = f"{matrix}/{relation.name}", _label(mode, matrix, relation.name)
            for source, table, _ in _having(sources, mode, column):
                name = f"{source}, {_seeds(table, mode)}"
                distances.append((label, name, *_cells(table, mode, column, steps)))
                if relation.meets(matrix, mode == "tied"):
                    meetings.append((label, name, *_meeting(table, mode, column)))
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


def report(experiment: Experiment, reference: pd.DataFrame | None = None) -> str:
    """The sheets as Markdown."""
    parts = [sheet.markdown() for sheet in sheets(experiment, reference) if sheet.rows]
    if experiment.left_out:
        parts.append(f"Left out: {', '.join(experiment.left_out)}.\n")
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


def _check_same(folder: RunFolder, first: RunConfig, config: RunConfig) -> None:
    """Runs of one report have the same language and settings."""
    other = replace(config, seed=first.seed, tied=first.tied)
    if differing := first.differences(other):
        what = ", ".join(f"{n} {getattr(config, n)} instead of {getattr(first, n)}" for n in differing)
        kind = "another language" if {"bits", "zero", "one"} & set(differing) else "other settings"
        raise InputError(f"{folder}: {kind} than the runs before ({what}); the runs of one experiment are accepted")


def _checked(frame: pd.DataFrame, path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """The frame, if it can be the metrics of a run."""
    problem = None
    missing = [c for c in ("step", *needed) if c not in frame]
    words = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    if missing:
        problem = f"no column {missing[0]!r}"
    elif words:
        problem = f"column {words[0]!r} holds other things than numbers"
    elif frame.empty:
        problem = "no rows"
    elif not frame["step"].is_monotonic_increasing or not frame["step"].is_unique or frame["step"].iloc[0] != 0:
        problem = "steps do not run upwards from 0"
    elif (gaps := frame.filter(regex="^(input|output)/").isna().any(axis=1)).any():
        problem = f"distances are missing at step {frame['step'][gaps].iloc[0]:.0f}"
    if problem:
        raise InputError(f"{path}: damaged ({problem})")
    return frame


def _labelled(frame: pd.DataFrame, mode: str, seed: int) -> pd.DataFrame:
    return pd.concat([pd.DataFrame({"mode": mode, "seed": seed}, index=frame.index), frame], axis=1)


def _having(
    sources: list[tuple[str, pd.DataFrame, str]], mode: str, column: str = "step"
) -> list[tuple[str, pd.DataFrame, str]]:
    return [s for s in sources if column in s[1] and (s[1]["mode"] == mode).any()]


def _label(mode: str, matrix: str, pair: str) -> str:
    return f"{'tied' if mode == 'tied' else f'untied {matrix}'} {pair.replace('-', '–')}"


def _seeds(table: pd.DataFrame, mode: str) -> str:
    count = table["seed"][table["mode"] == mode].nunique()
    return f"{count} seed{'s' if count > 1 else ''}"


def _cells(table: pd.DataFrame, mode: str, column: str, steps: Sequence[int], digits: int | None = None) -> list[str]:
    found = at_steps(table[table["mode"] == mode], steps, [column])
    cells = dict.fromkeys(steps, "–")
    for row in found.to_dict("records"):
        mean, low, high = (_number(float(row[key]), digits) for key in ("mean", "low", "high"))
        cells[int(row["step"])] = f"{mean} [{low}–{high}]" if row["seeds"] > 1 else mean
    return list(cells.values())


def _meeting(table: pd.DataFrame, mode: str, column: str) -> tuple[str, str]:
    steps = convergence_steps(table[table["mode"] == mode], [column])["step"].tolist()
    middle, low, high = (_thousands(s) for s in (statistics.median(steps), min(steps), max(steps)))
    met = f"{sum(map(isfinite, steps))} of {len(steps)}"
    return met, f"{middle} [{low}–{high}]" if len(steps) > 1 else middle


def _number(value: float, digits: int | None) -> str:
    """With so many digits; for None, two, or three where two would leave only one that counts."""
    return f"{value:.{digits or (2 if value >= 0.0995 else 3)}f}"


def _thousands(step: float) -> str:
    return f"{step / 1000:.0f}k" if isfinite(step) else "never"
