"""What a run is: every setting that decides its numbers, in one flat dataclass that is also the YAML file."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from math import cos, isfinite, pi
from pathlib import Path
from typing import Any, Literal

import yaml

from exor import InputError
from exor.language import PRESETS, Language

Schedule = Literal["cyclic-cosine", "cosine", "constant"]

# the published settings of each architecture (B24); where the papers are silent, one head
_SMALL = {"width": 4, "learning_rate": 5e-4, "max_steps": 150_000}
_MEDIUM = {"width": 32, "learning_rate": 5e-4, "max_steps": 300_000}
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {
        "small": {**_SMALL, "layers": 1, "heads": 1, "feed_forward": 4},
        "medium": {**_MEDIUM, "layers": 2, "heads": 1, "feed_forward": 32, "learning_rate": 1e-4},
    },
    "lstm": {
        "small": {**_SMALL, "layers": 2, "hidden": 8},
        "medium": {**_MEDIUM, "layers": 4, "hidden": 32, "max_steps": 150_000},
    },
    "mixer": {
        "small": {**_SMALL, "layers": 1, "feed_forward": 8, "token_feed_forward": 4},
        "medium": {**_MEDIUM, "layers": 2, "feed_forward": 32, "token_feed_forward": 32},
    },
}
MODELS = tuple(PUBLISHED)
SIZES = ("small", "medium")
BY_MODEL = ("width", "layers", "heads", "feed_forward", "hidden", "token_feed_forward", "learning_rate", "max_steps")
OWN = {**_SMALL, "layers": 1}  # of a user's own model
MAX_SEED = 2**32 - 1
MAX_STEPS = 2**31 - 1
BLOCK = {"least": 1, "most": 65536}
GROUPS = {"preset": "A published language: zero and one.", "size": "A published size of the model: small or medium."}


def _option(default: Any, help: str, short: str = "", **limits: float) -> Any:
    """A field with its help text, its abbreviation in default run names, and its limits (above, least, most)."""
    return field(default=default, metadata={"help": help, "short": short, **limits})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The identity of a run: two runs with equal configs have equal numbers (up to float rounding).

    Raises:
        InputError: a value out of its range; the message names it and what is accepted.
    """

    model: str = _option("transformer", "transformer, lstm, mixer, or your own as package.module:Class.")
    bits: int = _option(7, "Bits in a string, 2 to 16.", "bits")
    zero: tuple[float, ...] = _option((0.1, 0.9), "Probabilities of the synonyms 0A, 0B, … of bit 0.", "zero")
    one: tuple[float, ...] = _option((0.5, 0.5), "Probabilities of the synonyms 1A, 1B, … of bit 1.", "one")
    # those that are None get the small published value; the last three stay None where the model has no such part
    width: int = _option(None, "Width of embeddings (and a transformer's states).", "width", least=1, most=4096)
    layers: int = _option(None, "Layers.", "layers", least=1, most=64)
    heads: int = _option(None, "Attention heads; must divide the width.", "heads", least=1, most=4096)
    feed_forward: int = _option(None, "Width of the feed-forward block (mixer: of channel mixing).", "ff", **BLOCK)
    hidden: int = _option(None, "Width of an LSTM's hidden state, each direction.", "hidden", **BLOCK)
    token_feed_forward: int = _option(None, "Width of a mixer's token mixing.", "tokenff", **BLOCK)
    learning_rate: float = _option(None, "Highest learning rate.", "lr", above=0)
    final_learning_rate: float = _option(1e-5, "Lowest learning rate of the cosine schedules.", "final", least=0)
    period: int = _option(10_000, "Steps from crest to trough of the cyclic cosine.", "period", least=1, most=MAX_STEPS)
    schedule: Schedule = _option("cyclic-cosine", "Learning rate over time; cosine falls once, over the whole run.")
    weight_decay: float = _option(0.1, "AdamW's decoupled weight decay.", "wd", least=0)
    betas: tuple[float, float] = _option((0.9, 0.999), "AdamW's averaging coefficients.", "betas")
    eps: float = _option(1e-12, "AdamW's epsilon.", "eps", above=0)
    batch_size: int | None = _option(None, "Strings per step; all training strings if not given.", "batch", least=1)
    max_steps: int = _option(None, "Optimiser steps.", least=1, most=MAX_STEPS)
    log_every: int = _option(100, "Steps between rows of metrics.", "log", least=1, most=MAX_STEPS)
    eval_every: int | None = _option(
        None,
        "Steps between exact evaluations, rounded up to logged steps; by default each logged step, or rarer where "
        "that would cost more than a tenth of the training.",
        "eval",
        least=1,
        most=MAX_STEPS,
    )
    split_seed: int = _option(0, "Seed of the split into training and test strings.", "split", least=0, most=MAX_SEED)
    tied: bool = _option(False, "Tie the output embedding to the input embedding.")
    seed: int = _option(42, "Seed of initial weights and data.", least=0, most=MAX_SEED)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(RunConfig)
        own = PUBLISHED[self.model]["small"] if self.model in MODELS else OWN
        for name in BY_MODEL:
            if getattr(self, name) is None:
                object.__setattr__(self, name, own.get(name))
            elif self.model in MODELS and name not in own:
                raise InputError(f"{name}: is no setting of the {self.model}; {', '.join(own)} are")
        for f in fields(self):
            if f.name in BY_MODEL and getattr(self, f.name) is None:
                continue
            object.__setattr__(self, f.name, _checked(f.name, getattr(self, f.name), hints[f.name], dict(f.metadata)))
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise InputError(f"betas: {beta:g} is out of range, at least 0 and less than 1 is accepted")
        if self.model not in MODELS and not re.fullmatch(r"[\w.]+(:[\w.]+)?", self.model):
            accepted = f"{', '.join(MODELS)}, or an import path such as package.module:Class are accepted"
            raise InputError(f"model: {self.model!r} is unknown; {accepted}")
        if self.heads and self.width % self.heads:
            raise InputError(f"heads: {self.heads} does not divide the width {self.width}")
        strings = round(0.9 * 2**self.language.bits)
        if self.batch_size is not None and self.batch_size > strings:
            raise InputError(f"batch_size: {self.batch_size} is more than the {strings} training strings")

    @cached_property
    def language(self) -> Language:
        """The language of the run."""
        return Language(self.bits, self.zero, self.one)

    @property
    def mode(self) -> str:
        """``tied`` or ``untied``."""
        return "tied" if self.tied else "untied"

    def rate(self, step: int) -> float:
        """Learning rate of update ``step`` (the first is 0).

        The cyclic cosine is the closed form of ``CosineAnnealingLR(T_max=period)`` left running to the end.
        """
        if self.schedule == "constant":
            return self.learning_rate
        half = self.period if self.schedule == "cyclic-cosine" else self.max_steps
        low = self.final_learning_rate
        return low + (self.learning_rate - low) * (1 + cos(pi * step / half)) / 2

    @property
    def preset(self) -> str:
        """Name of the preset with these synonym probabilities, ``main`` if there is none."""
        same = [name for name, p in PRESETS.items() if (p.zero, p.one) == (self.zero, self.one)]
        return same[0] if same else "main"

    @property
    def size(self) -> str:
        """The published size that these settings are closest to."""

        def distance(size: str) -> int:
            return sum(getattr(self, n) != v for n, v in PUBLISHED[self.model][size].items() if n != "max_steps")

        return min(SIZES, key=distance) if self.model in MODELS else "small"

    @property
    def default_name(self) -> str:
        """The preset, the model and its size, and a readable suffix for every setting that is not the published one."""
        size = {"size": self.size} if self.model in MODELS else {}
        published = from_options({"model": self.model, "preset": self.preset, **size})
        parts = [self.preset]
        if self.model != "transformer":
            parts.append(self.model.replace(":", "."))
        if self.size != "small":
            parts.append(self.size)
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("seed", "tied", "max_steps", "model") or value == getattr(published, f.name):
                continue
            text = "_".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value}"
            parts.append(f.metadata["short"] + text)
        if self.schedule == "cosine" and self.max_steps != published.max_steps:
            parts.append(f"steps{self.max_steps}")
        return "-".join(parts)

    def differences(self, other: RunConfig) -> list[str]:
        """Names of the fields in which two configs differ."""
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]


def from_options(options: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> RunConfig:
    """A config from settings by name, and the groups of settings ``preset`` (a language) and ``size`` (of the model).

    Args:
        options: settings; single ones win over the groups.
        base: settings below them, from a file say. A model or a size among the options replaces all settings of
            ``base`` that depend on the model.

    Raises:
        InputError: an unknown setting, preset or size; or a value that is not accepted.
    """
    values = dict(base or {})
    if {"model", "size"} & options.keys():
        values = {k: v for k, v in values.items() if k not in BY_MODEL}
    values |= options
    known = [f.name for f in fields(RunConfig)]
    for name in values:
        if name not in known and name not in GROUPS:
            near = get_close_matches(str(name), [*known, *GROUPS], 1)
            raise InputError(f"unknown setting {name!r}" + (f", did you mean {near[0]!r}?" if near else ""))
    groups: dict[str, Any] = {}
    size, preset = values.pop("size", None), values.pop("preset", None)
    if size is not None:
        model = values.get("model", "transformer")
        groups |= PUBLISHED[_one_of("model", model, MODELS)][_one_of("size", size, SIZES)]
    if preset is not None:
        language = PRESETS[_one_of("preset", preset, tuple(PRESETS))]
        groups |= {"zero": language.zero, "one": language.one}
        if "preset" in options:  # wins over the probabilities of the base
            values = {k: v for k, v in values.items() if k not in ("zero", "one") or k in options}
    return RunConfig(**(groups | values))


def check_model_name(name: str) -> None:
    """Whether a name is one of the lab's models or may be the import path of another.

    Raises:
        InputError: it is neither.
    """
    if name not in MODELS and ":" not in name:
        near = get_close_matches(name, MODELS, 1)
        accepted = f"{', '.join(MODELS)}, or package.module:Class are accepted"
        raise InputError(f"model: {name!r} is unknown, " + (f"did you mean {near[0]!r}?" if near else accepted))


def to_yaml(config: RunConfig, **extra: Any) -> str:
    """The config as YAML, fields in order, followed by ``extra`` (say, versions)."""
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
    return yaml.safe_dump(values | extra, sort_keys=False, allow_unicode=True, default_flow_style=None)


def read_yaml(path: Path, like: str = "bits: 7") -> dict[str, Any]:
    """The mapping in a YAML file, say of settings for :func:`from_options`. ``versions`` is ignored.

    Raises:
        InputError: unreadable, or not a mapping.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8 text'})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise InputError(f"{path}: not valid YAML{where}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: holds no settings; lines such as {like!r} are accepted")
    values.pop("versions", None)
    return values


def from_yaml(path: Path) -> RunConfig:
    """The config in a run's ``config.yaml``.

    Raises:
        InputError: see :func:`read_yaml`; or a value that is not accepted.
    """
    values = read_yaml(path)
    try:
        return from_options(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_seeds(text: str) -> tuple[int, ...]:
    """``42``, ``42-46``, ``1,5,9`` or a mixture, in the order given.

    Raises:
        InputError: not of that form, a range that runs backwards, or a seed given twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isascii() and first.isdigit()) or (dash and not (last.isascii() and last.isdigit())):
            raise InputError(f"seeds: {part.strip()!r} does not parse, '42', '42-46' or '1,5,9' are accepted")
        low, high = int(first), int(last or first)
        if high < low:
            raise InputError(f"seeds: {part.strip()!r} runs backwards, did you mean '{high}-{low}'?")
        if high > MAX_SEED:
            raise InputError(f"seeds: {high} is out of range, 0 to {MAX_SEED} are accepted")
        if high - low >= 1_000_000:
            raise InputError(f"seeds: {part.strip()!r} names {high - low + 1} seeds, at most a million are accepted")
        seeds.extend(range(low, high + 1))
    if len(set(seeds)) < len(seeds):
        twice = next(s for s in seeds if seeds.count(s) > 1)
        raise InputError(f"seeds: {twice} is given more than once in {text!r}")
    return tuple(seeds)


def with_seeds(config: RunConfig, seeds: tuple[int, ...], modes: tuple[bool, ...]) -> list[RunConfig]:
    """One config for each seed and mode (tied or not), seeds in order."""
    return [replace(config, seed=seed, tied=tied) for seed in seeds for tied in modes]


def _one_of(name: str, value: Any, options: tuple[str, ...]) -> str:
    """The value, or an InputError that suggests the nearest option."""
    if value in options:
        return value
    near = get_close_matches(str(value), options, 1)
    accepted = f"did you mean {near[0]!r}?" if near else f"{', '.join(options)} are accepted"
    raise InputError(f"{name}: {value!r} is unknown, {accepted}")


def _checked(name: str, value: Any, hint: Any, limits: dict[str, Any]) -> Any:
    """The value in its declared type, or an InputError that says what is accepted."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return _one_of(name, value, options)
    if type(None) in options:
        if value is None:
            return None
        return _checked(name, value, options[0], limits)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)) or (options[-1] is not Ellipsis and len(value) != len(options)):
            raise InputError(f"{name}: {value!r} is not a list of numbers")
        return tuple(_checked(name, v, float, {}) for v in value)
    if hint is float:
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise InputError(f"{name}: {value!r} is not a number")
        if not isfinite(number) and limits:
            raise InputError(f"{name}: {value!r} is not a finite number")
        value = number
    elif not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        kind = {int: "a whole number", bool: "true or false", str: "a text"}[hint]
        raise InputError(f"{name}: {value!r} is not {kind}")
    bounds = [("above", "more than"), ("least", "at least"), ("most", "at most")]
    accepted = " and ".join(f"{word} {limits[key]}" for key, word in bounds if key in limits)
    low = value <= limits["above"] if "above" in limits else "least" in limits and value < limits["least"]
    if low or ("most" in limits and value > limits["most"]):
        raise InputError(f"{name}: {value} is out of range, {accepted} is accepted")
    return value
