"""Train EXor models, tied and untied.

Prints what theory predicts for the language, trains, and says what happened. Every run gets a folder
<out>/exor/<name>/<tied|untied>/seed-<n>; started again, the same command continues what is unfinished.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from exor import InputError
from exor.config import MODELS, SIZES, RunConfig, check_model_name, from_options, parse_seeds, read_yaml, with_seeds
from exor.language import PRESETS
from experiments.command import main, optional, whole

RUNS, TASK, MODEL, TRAINING, WHERE = (
    Group(name, sort_key=i) for i, name in enumerate(("Runs", "Task", "Model", "Training", "Where and how"))
)
GROUPS = (
    dict.fromkeys(("bits", "zero", "one", "split_seed"), TASK)
    | dict.fromkeys(("model", "width", "layers", "heads", "feed_forward", "hidden", "token_feed_forward"), MODEL)
    | dict.fromkeys(("tied", "seed"), RUNS)
)
HINTS = typing.get_type_hints(RunConfig)

# every setting of a run, as an option that is None unless given
Settings: Any = make_dataclass(
    "Settings",
    [optional(f.name, HINTS[f.name], f, GROUPS.get(f.name, TRAINING)) for f in fields(RunConfig)],
    namespace={"__module__": __name__},
)
NOTHING = Settings()

app = App(name="python -m experiments.exor", help=__doc__, help_format="plaintext", version_flags=[])


@app.default
def exor(
    *,
    settings: Annotated[Settings, Parameter(name="*")] = NOTHING,
    both: Annotated[bool, Parameter(group=RUNS, negative="", help="Tied and untied; overrides --tied.")] = False,
    seeds: Annotated[str | None, Parameter(group=RUNS, help="Several seeds: 42-46 or 1,5,9.")] = None,
    preset: Annotated[
        Literal["main", "hypothesis-holds", "hypothesis-fails"] | None,
        Parameter(group=TASK, help="A published language; --zero and --one win over it."),
    ] = None,
    size: Annotated[
        Literal["small", "medium"] | None,
        Parameter(group=MODEL, help="The published settings of the model; single ones win over it. [default: small]"),
    ] = None,
    config: Annotated[Path | None, Parameter(group=WHERE, help="YAML file of settings; options win over it.")] = None,
    name: Annotated[str | None, Parameter(group=WHERE, help="Folder name of the runs.")] = None,
    out: Annotated[Path, Parameter(group=WHERE, help="Where the runs go.")] = Path("runs"),
    accelerator: Annotated[Literal["auto", "cpu", "gpu"], Parameter(group=WHERE, help="Device to train on.")] = "auto",
    compile: Annotated[bool, Parameter(group=WHERE, help="Compile the training step.")] = True,
    workers: Annotated[
        int | None, Parameter(group=WHERE, converter=whole, help="Processes on a CPU; as many as cores by default.")
    ] = None,
    checkpoint_every: Annotated[float, Parameter(group=WHERE, help="Seconds between checkpoints, at most.")] = 20,
    overwrite: Annotated[bool, Parameter(group=WHERE, negative="", help="Train again what is there.")] = False,
    dry_run: Annotated[bool, Parameter(group=WHERE, negative="", help="Say what would run, and stop.")] = False,
    quiet: Annotated[bool, Parameter(group=WHERE, negative="", help="Print problems only.")] = False,
) -> int:
    """Train EXor models, tied and untied."""
    options = vars(settings) | {"preset": preset, "size": size}
    given = {k: v for k, v in options.items() if v is not None}
    configs = plan_configs(given, both=both, seeds=seeds, file=config)
    if workers is not None and workers < 1:
        raise InputError(f"workers: {workers} is out of range, at least 1 is accepted")
    if not checkpoint_every >= 0:
        raise InputError(f"checkpoint_every: {checkpoint_every:g} is out of range, at least 0 is accepted")
    if name is not None and (not name.strip() or "/" in name or name in (".", "..") or "\0" in name):
        raise InputError(f"name: {name!r} is no folder name")

    from experiments import train_and_tell  # rich, torch and lightning are slow to import, and --help is not

    return train_and_tell.main(
        configs,
        out=out,
        name=name,
        accelerator=accelerator,
        compiled=compile,
        workers=workers,
        checkpoint_every=checkpoint_every,
        overwrite=overwrite,
        dry_run=dry_run,
        quiet=quiet,
    )


def plan_configs(
    given: dict[str, Any], *, both: bool = False, seeds: str | None = None, file: Path | None = None
) -> list[RunConfig]:
    """One config for each seed and mode; options win over the file.

    Raises:
        InputError: contradictory or not accepted.
    """
    if seeds is not None and "seed" in given:
        raise InputError("seeds: --seed and --seeds exclude each other")
    values = read_yaml(file) if file else {}
    try:
        base = from_options(given, values)
    except InputError as error:
        culprit = str(error).split(":")[0]
        from_file = file and culprit not in given and (culprit in values or culprit.startswith("unknown"))
        raise InputError(f"{file}: {error}" if from_file else error) from None
    check_model_name(base.model)
    numbers = parse_seeds(seeds) if seeds is not None else (base.seed,)
    return with_seeds(base, numbers, (True, False) if both else (base.tied,))


def arguments(config: RunConfig, seeds: Sequence[int] = ()) -> list[str]:
    """The fewest options of this command that ask for a run, or for several that differ in their seeds."""
    found = []
    for preset in (None, *PRESETS):
        for size in (None, *SIZES) if config.model in MODELS else (None,):
            groups = {"model": config.model, "preset": preset, "size": size}
            given = {k: v for k, v in groups.items() if v is not None and (k, v) != ("model", "transformer")}
            missing = set(from_options(given).differences(config)) - {"seed", "tied", "model"}
            given |= {name: getattr(config, name) for name in sorted(missing)}
            if None not in given.values():  # which no option can say
                found.append([word for name, value in given.items() for word in _option(name, value)])
    fewest = min(found, key=len)
    several = ["--seeds", ",".join(_ranges(seeds))] if len(seeds) > 1 else ["--seed", str([*seeds, config.seed][0])]
    return [*fewest, *(["--tied"] if config.tied else []), *several]


def _option(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, tuple) else (value,)
    return ["--" + name.replace("_", "-"), *map(str, values)]


def _ranges(seeds: Sequence[int]) -> Iterator[str]:
    """``[1, 2, 3, 7]`` as ``1-3, 7``."""
    ordered = sorted(seeds)
    starts = [s for i, s in enumerate(ordered) if i == 0 or s != ordered[i - 1] + 1]
    ends = [s for i, s in enumerate(ordered) if i == len(ordered) - 1 or ordered[i + 1] != s + 1]
    for first, last in zip(starts, ends, strict=True):
        yield str(first) if first == last else f"{first}-{last}"


if __name__ == "__main__":
    main(app)()
