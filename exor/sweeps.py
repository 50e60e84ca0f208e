"""Sweeps: many settings × modes × seeds, from a short YAML file or a list of configs, to runs and one tidy table.

A *cell* is a set of settings, whatever the seed and the mode. In a file::

    seeds: 42-51               # this is the default
    modes: [tied, untied]      # this too
    settings: {bits: 6}        # for all cells: any setting of a run, and the groups preset and size
    list:                      # alternatives ...
      - {model: lstm}
      - {model: transformer, size: medium}
    grid:                      # ... each of them with every combination of these
      zero: [[.5, .5], [.4, .6]]
      learning_rate: [5e-4, 1e-3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, partial
from itertools import product
from math import nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from exor import InputError
from exor.config import BY_MODEL, GROUPS, OWN, PUBLISHED, RunConfig, from_options, parse_seeds, read_yaml, with_seeds
from exor.findings import convergence_step
from exor.language import PRESETS, Language, Relation
from exor.runs import RunFolder, run_path

if TYPE_CHECKING:
    from exor.board import Board
    from exor.plan import Planned

KEYS = ("seeds", "modes", "settings", "list", "grid")
MODES = {"tied": True, "untied": False}
GIVEN_BY = {"seed": "seeds", "tied": "modes"}
SEEDS = "42-51"
WIDTH = 2  # runs per compiled program on a CPU, however many there are: a cluster's bytes equal one machine's
MOST_RUNS = 1_000_000
SCORES_SHOWN = ("accuracy_train", "accuracy_test", "loss_train", "loss_test")


@dataclass(frozen=True)
class Failure:
    """A run that was not trained to its end, and why."""

    config: RunConfig
    reason: str


# --- from a file to configs -----------------------------------------------------------------------------------


def read(path: Path) -> list[RunConfig]:
    """The runs that a sweep file asks for: cells in the order of ``list``, then ``grid``; seeds and modes within.

    Raises:
        InputError: names the file, the culprit in it, and what is accepted.
    """
    try:
        return expand(read_yaml(path, "seeds: 42-51"))
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None


def expand(sweep: dict[str, Any]) -> list[RunConfig]:
    """The runs that the content of a sweep file asks for.

    Raises:
        InputError: names the culprit, and what is accepted.
    """
    for key in sweep:
        if key not in KEYS:
            raise InputError(f"unknown key {key!r}, {_advice(str(key))}")
    seeds = _seeds(sweep.get("seeds", SEEDS))
    modes = _modes(sweep.get("modes", list(MODES)))
    settings = _mapping("settings", sweep.get("settings", {}))
    choices = [_mapping(f"list, item {i + 1}", c) for i, c in enumerate(_values("list", sweep.get("list", [{}])))]
    grid = {name: _values(f"grid: {name}", v) for name, v in _mapping("grid", sweep.get("grid", {})).items()}
    if "grid" in sweep and not grid:
        raise InputError("grid: is empty, a list of values for at least one setting is accepted")
    for name in grid:
        if any(name in choice for choice in choices):
            raise InputError(f"{name}: is in 'list' and in 'grid', one of them is accepted")
    runs = len(choices) * prod(map(len, grid.values())) * len(seeds) * len(modes)
    if runs > MOST_RUNS:
        raise InputError(f"grid: {runs:,} runs, at most {MOST_RUNS:,} are accepted")

    found: list[tuple[str, RunConfig]] = []
    for choice, values in product(choices, product(*grid.values())):
        cell = choice | dict(zip(grid, values, strict=True))
        name = f"cell {len(found) + 1}" + (f" ({told(cell)})" if cell else "")
        try:
            found.append((name, from_options(settings | cell)))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    _check_distinct(found)
    return [config for _, cell in found for config in with_seeds(cell, seeds, modes)]


def told(settings: dict[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{name} {text(value)}" for name, value in settings.items())


def text(value: Any) -> str:
    """A setting's value as people write it."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _advice(key: str) -> str:
    if key in GIVEN_BY:
        return f"did you mean {GIVEN_BY[key]!r}?"
    if key in GROUPS or key in {f.name for f in fields(RunConfig)}:
        return "settings of runs belong under 'settings', 'list' or 'grid'"
    near = get_close_matches(key, KEYS, 1)
    return f"did you mean {near[0]!r}?" if near else f"{', '.join(KEYS)} are accepted"


def _seeds(value: Any) -> tuple[int, ...]:
    return parse_seeds(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _modes(value: Any) -> tuple[bool, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or any(n not in MODES for n in names) or len(set(names)) < len(names):
        raise InputError(f"modes: {text(value)!r} is not accepted, tied, untied or a list of both is")
    return tuple(MODES[name] for name in names)


def _values(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{name}: {text(value)!r} is not a list")
    if not value:
        raise InputError(f"{name}: is empty, at least one item is accepted")
    return value


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name}: {text(value)!r} is no mapping, settings such as 'bits: 7' are accepted")
    for key in value:
        if key in GIVEN_BY:
            raise InputError(f"{name}: {key} is given by {GIVEN_BY[key]!r}")
    return value


def _check_distinct(named: Iterable[tuple[str, RunConfig]]) -> None:
    seen: dict[Path, tuple[str, RunConfig]] = {}
    for name, config in named:
        path = run_path("", config)
        if path in seen:
            other, there = seen[path]
            differing = ", ".join(there.differences(config))
            shared = f"would share the folder {path.parent.parent}, whose name does not tell {differing}"
            raise InputError(f"{other} and {name} {shared if differing else 'are the same'}")
        seen[path] = name, config


# --- running --------------------------------------------------------------------------------------------------


def run(
    configs: Sequence[RunConfig],
    out: Path | str = "runs",
    *,
    ray: bool | str = False,
    workers: int | None = None,
    watch: Callable[[Board], None] | None = None,
    **options: Any,
) -> list[Failure]:
    """Train runs, or continue them, in the folders of the run command; one that fails does not stop the others.

    Args:
        configs: any mixture; see :func:`exor.config.with_seeds`.
        out: where the runs go.
        ray: train on a Ray cluster: its address ``host:port``, or true for the one that runs here (started if there
            is none).
        workers: processes, by default one for each core; with ``ray``, most tasks at a time.
        watch: called now and then with the progress.
        options: ``callbacks``, ``accelerator``, ``compiled``, ``overwrite``, ``checkpoint_every`` as in
            :func:`exor.training.train`.

    Returns:
        The runs that failed or diverged, in the order of ``configs``.

    Raises:
        InputError: nothing can be trained: no such accelerator or cluster, or two runs in one folder.
        Interrupted: asked to stop by a signal; everything is saved.
    """
    from exor import training
    from exor.workers import describe

    _check_distinct((f"{c.default_name} {c.mode} seed {c.seed}", c) for c in configs)
    found: dict[RunConfig, str] = {}

    def failed(config: RunConfig, error: Exception) -> None:
        found[config] = describe(error)

    if ray is False:
        count = workers or training.cores()
        training.train(configs, out, workers=count, width=WIDTH, watch=watch, on_failure=failed, **options)
    else:
        from exor import cluster

        address = None if ray is True else ray
        cluster.train(configs, out, address, width=WIDTH, most=workers, watch=watch, on_failure=failed, **options)
    for config in configs:
        if config not in found and (reason := _diverged(RunFolder(run_path(out, config)))):
            found[config] = reason
    return [Failure(config, found[config]) for config in configs if config in found]


def plan(
    configs: Sequence[RunConfig], out: Path | str = "runs", *, overwrite: bool = False
) -> tuple[list[Planned], list[Failure]]:
    """Where runs stand, without writing anything; and those that cannot be trained."""
    from exor import training
    from exor.plan import Planned

    failures: list[Failure] = []
    runs = [Planned(config, RunFolder(run_path(out, config))) for config in configs]
    for check in (partial(training.check_model, None, {}), partial(Planned.look, overwrite=overwrite)):
        runs = training.succeeding(runs, check, lambda c, error: failures.append(Failure(c, str(error))))
    return runs, failures


def _diverged(folder: RunFolder) -> str | None:
    try:
        summary = folder.summary()
    except InputError as error:
        return str(error)
    if summary is None or summary["state"] != "diverged":
        return None
    return f"diverged: its loss at step {summary['step']} is not finite; a lower learning rate may help"


# --- the table ------------------------------------------------------------------------------------------------


def cells(configs: Sequence[RunConfig]) -> dict[RunConfig, list[RunConfig]]:
    """The runs of each cell; the cells as configs of one seed and mode."""
    found: dict[RunConfig, list[RunConfig]] = {}
    for config in configs:
        found.setdefault(replace(config, seed=0, tied=False), []).append(config)
    return found


def varied(configs: Sequence[RunConfig]) -> list[str]:
    """The settings in which the cells differ: ``preset`` where it says enough, ``model``, ``size``, and single ones."""
    different = list(cells(configs))
    language = ["preset"] if all(named(c) for c in different) else ["zero", "one"]
    names = ["bits", *language, "model", "size"]
    names += [f.name for f in fields(RunConfig) if f.name not in ("zero", "one", "seed", "tied", *names)]

    def values(name: str) -> set[Any]:
        published = name in BY_MODEL and all(getattr(c, name) == _published(c).get(name) for c in different)
        return set() if published else {getattr(c, name) for c in different}

    return [name for name in names if len(values(name)) > 1]


def named(config: RunConfig) -> bool:
    """Whether its language is that of a preset."""
    preset = PRESETS[config.preset]
    return (preset.zero, preset.one) == (config.zero, config.one)


def _published(config: RunConfig) -> dict[str, Any]:
    return PUBLISHED[config.model][config.size] if config.model in PUBLISHED else OWN


def table(configs: Sequence[RunConfig], out: Path | str = "runs") -> pd.DataFrame:
    """One row for each run; numbers for the finished ones, empty for all others.

    Columns: ``preset`` (empty if it is none), ``model``, ``size``, the settings that vary (``zero`` and ``one`` also
    as a column for each symbol's probability, ``P(0A)``); ``mode``, ``seed``, ``state``, ``step``; means over the
    last 20,000 steps of accuracies, losses and distances; the best possible of the first two (``ceiling_…``); the
    step from which a distance stays below 10 % of its start (``met/…``, empty if it does not); the language's gaps
    (``semantic_gap/…``, ``conditional_gap/…``); ``folder``.
    """
    names = [n for n in varied(configs) if n not in ("preset", "model", "size")]
    languages = {name for name in ("zero", "one") if len({getattr(c, name) for c in configs}) > 1}
    names += [n for n in ("zero", "one") if n in languages and n not in names]
    groups: list[list[dict[str, Any]]] = []
    for config in configs:
        folder = RunFolder(run_path(out, config))
        state, step, values = _results(config, folder)
        groups.append(
            [
                {"preset": config.preset if named(config) else None, "model": config.model, "size": config.size},
                {n: text(v) if isinstance(v := getattr(config, n), tuple) else v for n in names},
                _probabilities(config, languages),
                {"mode": config.mode, "seed": config.seed, "state": state, "step": step},
                *values,
                _gaps(config.language),
                {"folder": str(folder)},
            ]
        )
    # languages have different symbols: columns are collected group by group, so that like stands by like
    return pd.concat([pd.DataFrame(list(group)) for group in zip(*groups, strict=True)], axis=1)


def _results(config: RunConfig, folder: RunFolder) -> tuple[str, int, list[dict[str, float]]]:
    """State, step, and the numbers of a finished run: scores, ceilings, distances, and when they vanished."""
    pairs = [config.language.pair_name(pair) for pair in config.language.pairs]
    distances = [f"{matrix}/{pair}" for matrix in ("input", "output") for pair in pairs]
    names = [[*SCORES_SHOWN], [f"ceiling_{name}" for name in SCORES_SHOWN], distances, [f"met/{d}" for d in distances]]
    nothing = [dict.fromkeys(group, nan) for group in names]
    try:
        there, summary = folder.config(), folder.summary()
        if there != config:
            return ("new" if there is None else "another run"), 0, nothing
        if summary is None:
            return "unfinished", 0, nothing
        if summary["state"] != "finished":
            return summary["state"], summary["step"], nothing
        frame = folder.metrics()
        mean, ceilings = summary["mean_last_20000_steps"], summary["ceilings"]
        values = [
            {name: mean[name] for name in SCORES_SHOWN},
            {f"ceiling_{name}": ceilings[name] for name in SCORES_SHOWN},
            {name: mean[name] for name in distances},
            {f"met/{name}": convergence_step(frame, name) for name in distances},
        ]
        numbers = [{k: nan if v is None else float(v) for k, v in group.items()} for group in values]
        return "finished", summary["step"], numbers
    except (InputError, KeyError):
        return "damaged", 0, nothing


def _probabilities(config: RunConfig, names: set[str]) -> dict[str, float]:
    language = config.language
    chances = zip(language.bit_symbols, language.zero + language.one, strict=True)
    wanted = {"0": "zero" in names, "1": "one" in names}
    return {f"P({symbol})": chance for symbol, chance in chances if wanted[symbol[0]]}


def _gaps(language: Language) -> dict[str, float]:
    relations = _relations(language)
    semantic = {f"semantic_gap/{r.name}": r.semantic_gap for r in relations}
    return semantic | {f"conditional_gap/{r.name}": r.conditional_gap for r in relations}


@cache
def _relations(language: Language) -> tuple[Relation, ...]:
    return language.relations()
