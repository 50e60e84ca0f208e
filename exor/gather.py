"""From run folders to experiments: which runs belong together, which can be used, and why the others cannot."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from exor import InputError
from exor.config import MODELS, SIZES, RunConfig
from exor.language import PRESETS, Relation
from exor.runs import RunFolder, find

log = logging.getLogger("exor")

Key = tuple[str, int]  # mode and seed
SHOWN = 3  # pairs of each bit, at most, that reports look at
LANGUAGE = ("bits", "zero", "one")


@dataclass(frozen=True)
class LeftOut:
    """A run that cannot be used.

    Attributes:
        name: of its experiment's folder.
        why: ``unfinished``, ``diverged``, …; for a damaged one the whole message, which names the file.
    """

    folder: RunFolder
    name: str
    why: str
    damaged: bool = False

    def __str__(self) -> str:
        run = f"{self.folder.path.parent.name} {self.folder.path.name.replace('seed-', 'seed ')}"
        return f"{run} ({self.why})"


@dataclass(frozen=True)
class Experiment:
    """Finished runs that differ in seed and mode only.

    Attributes:
        config: of one of them.
        table: a row per run and logged step: mode, seed, and the columns of ``metrics.csv``.
        left_out: runs that are not in the table, and why.
        sampled: whether loss and accuracy are estimates from a sample of the contexts.
        name: of the folder, and where runs of other settings lie in it, what distinguishes these.
        folders, summaries: of every run in the table, by mode and seed.
    """

    config: RunConfig
    table: pd.DataFrame
    left_out: tuple[LeftOut, ...] = ()
    sampled: bool = False
    name: str = ""
    folders: dict[Key, RunFolder] = field(default_factory=dict)
    summaries: dict[Key, dict[str, Any]] = field(default_factory=dict)

    @property
    def ceiling(self) -> float:
        """The best possible accuracy on the training strings."""
        return self.config.language.bayes_accuracy(self.config.language.split(self.config.split_seed)[0])

    @property
    def modes(self) -> list[str]:
        """Those that some run has, tied first."""
        return [mode for mode in ("tied", "untied") if any(mode == m for m, _ in self.folders)]

    def seeds(self, mode: str) -> list[int]:
        """Of the runs in a mode, in order."""
        return sorted(seed for m, seed in self.folders if m == mode)

    @property
    def telling(self) -> list[Relation]:
        """The pairs that theory has something to say about, those that write 1 first."""
        found = [r for r in self.config.language.relations() if r.semantically_equivalent or r.conditionally_equivalent]
        return sorted(found, key=lambda r: r.name[0], reverse=True)

    @property
    def relations(self) -> list[Relation]:
        """Of the telling pairs, those to look at: three of each bit, the smallest, middle and largest conditional gap.

        The choice depends on the language alone. Fifteen synonyms make 105 pairs, and in a table of so many no test
        could find anything.
        """
        every = self.telling
        kept = [r for bit in "10" for r in thin(_by_gap(r for r in every if r.name[0] == bit), SHOWN)]
        return [r for r in every if r in kept]

    @property
    def opposites(self) -> list[Relation]:
        """Pairs of symbols for different bits, which theory keeps apart: some, where they are many."""
        found = [r for r in self.config.language.relations() if r.name[0] != r.name.partition("-")[2][0]]
        return thin(found, 4 * SHOWN)


@dataclass(frozen=True)
class Gathered:
    """Whatever runs a folder holds.

    Attributes:
        experiments: those with a finished run; presets in their order, then architectures and sizes, then names.
        left_out: all runs that are in none of their tables.
    """

    root: Path
    experiments: tuple[Experiment, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def damaged(self) -> tuple[LeftOut, ...]:
        """Those of the left-out runs that are damaged."""
        return tuple(run for run in self.left_out if run.damaged)


def gather(root: Path | str) -> Gathered:
    """The experiments below a folder. An experiment is the runs under one name with equal settings.

    Unfinished, diverged and damaged runs are left out, and named.

    Raises:
        InputError: no run there, or runs of different languages under one name, or the same run twice.
    """
    groups: dict[str, dict[RunConfig, list[tuple[RunFolder, RunConfig]]]] = {}
    left_out: list[LeftOut] = []
    for folder in find(root):
        name = folder.path.absolute().parent.parent.name
        try:
            config = folder.config()
        except InputError as error:
            left_out.append(LeftOut(folder, name, str(error), damaged=True))
            continue
        assert config is not None  # find looks for config.yaml
        group = groups.setdefault(name, {})
        if group:
            _check_language(folder, next(iter(group)), config)
        group.setdefault(replace(config, seed=0, tied=False), []).append((folder, config))
    found = []
    for name, group in groups.items():
        every = [_experiment(name, runs) for runs in group.values()]
        left_out += [run for experiment in every for run in experiment.left_out]
        found += _named_apart([experiment for experiment in every if experiment.folders])
    return Gathered(Path(root), tuple(sorted(found, key=_place)), tuple(left_out))


def collect(root: Path | str) -> Experiment:
    """The finished runs below a folder that holds those of one experiment.

    Raises:
        InputError: no finished run there, runs of different experiments, the same run twice, or a damaged file.
    """
    gathered = gather(root)
    for run in gathered.damaged:
        raise InputError(run.why)
    require_some(gathered)
    first, *others = gathered.experiments
    for other in others:
        names = [n for n in first.config.differences(other.config) if n not in ("seed", "tied")]
        what = ", ".join(f"{n} {shown(getattr(other.config, n))} in {other.name}" for n in names) or other.name
        raise InputError(
            f"{root}: other settings than in {first.name} ({what}); the runs of one experiment are accepted"
        )
    return first


def require_some(gathered: Gathered) -> None:
    """Raise an InputError if there is no finished run."""
    if not gathered.experiments:
        for run in gathered.damaged:
            raise InputError(run.why)
        why = ", ".join(map(str, gathered.left_out))
        raise InputError(f"{gathered.root}: holds no finished run; left out: {why}")


def metrics_table(root: Path | str) -> pd.DataFrame:
    """All metrics of the finished runs below a folder; a warning names those left out. See :func:`collect`."""
    experiment = collect(root)
    if experiment.left_out:
        log.warning("%s: left out: %s", root, ", ".join(map(str, experiment.left_out)))
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


def thin(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spread, with the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def shown(value: Any) -> str:
    """A setting as it is printed."""
    if isinstance(value, tuple):
        return " ".join(f"{v:g}" for v in value)
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _experiment(name: str, runs: Sequence[tuple[RunFolder, RunConfig]]) -> Experiment:
    """Runs with equal settings."""
    where: dict[Key, RunFolder] = {}
    frames, left_out, summaries = [], [], {}
    for folder, config in runs:
        key = config.mode, config.seed
        if key in where:
            raise InputError(f"{folder}: {config.mode} seed {config.seed} is in {where[key]} too; leave one out")
        where[key] = folder
        try:
            summary = folder.summary() or {}
            if not isinstance(summary, dict):
                raise InputError(f"{folder.file('summary.json')}: damaged, it is no mapping")
            if why := _unusable(summary, config):
                left_out.append(LeftOut(folder, name, why))
                continue
            distances = [
                f"{m}/{config.language.pair_name(p)}" for m in ("input", "output") for p in config.language.pairs
            ]
            needed = ["accuracy_train", "accuracy_test", *distances]
            frame = _checked(folder.metrics(), folder.file("metrics.csv"), needed)
            if frame["step"].iloc[-1] != config.max_steps:
                end = f"it ends at step {frame['step'].iloc[-1]}, its run at {config.max_steps}"
                raise InputError(f"{folder.file('metrics.csv')}: damaged ({end})")
        except InputError as error:
            left_out.append(LeftOut(folder, name, str(error), damaged=True))
            continue
        frames.append(_labelled(frame, *key))
        summaries[key] = summary
    used = {key: folder for key, folder in where.items() if key in summaries}
    table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["mode", "seed", "step"])
    contexts = [summary.get("contexts") for summary in summaries.values()]
    sampled = any(isinstance(c, dict) and bool(c.get("sampled", False)) for c in contexts)
    return Experiment(runs[0][1], table, tuple(left_out), sampled, name, used, summaries)


def _named_apart(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Experiments of one folder; where they are several, their names say in which settings they differ."""
    configs = [e.config for e in experiments]
    names = [f.name for f in fields(RunConfig) if f.name not in ("seed", "tied")]
    names = [n for n in names if len({getattr(c, n) for c in configs}) > 1]
    if not names:
        return list(experiments)
    told = [", ".join(f"{n} {shown(getattr(e.config, n))}" for n in names) for e in experiments]
    return [replace(e, name=f"{e.name} ({what})") for e, what in zip(experiments, told, strict=True)]


def _unusable(summary: dict[str, Any], config: RunConfig) -> str:
    """Why a run cannot be used, as far as its summary knows; empty if it can."""
    step, state = summary.get("step", 0), str(summary.get("state", "unfinished"))
    if state == "finished" and step < config.max_steps:
        return f"stopped at step {step:,} of {config.max_steps:,}"
    return "" if state == "finished" else state


def _place(experiment: Experiment) -> tuple:
    """Where an experiment stands among others."""
    c = experiment.config
    published = any((p.zero, p.one) == (c.zero, c.one) for p in PRESETS.values())
    model = MODELS.index(c.model) if c.model in MODELS else len(MODELS)
    return list(PRESETS).index(c.preset), not published, model, SIZES.index(c.size), experiment.name


def _by_gap(relations: Any) -> list[Relation]:
    return sorted(relations, key=lambda r: r.conditional_gap)


def _check_language(folder: RunFolder, first: RunConfig, config: RunConfig) -> None:
    """Runs under one name have the same language."""
    if differing := [n for n in first.differences(config) if n in LANGUAGE]:
        what = ", ".join(f"{n} {shown(getattr(config, n))} instead of {shown(getattr(first, n))}" for n in differing)
        raise InputError(
            f"{folder}: another language than the runs before ({what}); under one name, runs of one are accepted"
        )


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
