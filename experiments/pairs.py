"""Which of its two roles does a tied embedding matrix resemble? Real models, from the Hub or from disk.

Compares the matrix of a tied model with the input and the output matrix of an untied one: a pair by its name, or
--tied X --untied Y. --model X looks at one model, --evolution at checkpoints of one. A model is a Hub id (org/name or
org/name@revision), a folder, or a file (.safetensors, .bin, .pt, .gguf); only its embedding matrices are read or
fetched. Writes report.html, results.json, CSV files and figures; what has been computed from the same matrices before
is not computed again.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from exor import InputError
from experiments.command import main, whole

MODELS, TOKENS, WHAT, WHERE = (
    Group(name, sort_key=i) for i, name in enumerate(("Models", "Tokens", "Analyses", "Where and how"))
)
Analysis = Literal[
    "alignment",
    "differences",
    "neighbours",
    "spectral",
    "norms",
    "isotropy",
    "spectra",
    "subspaces",
    "cka",
    "frequency",
    "parameters",
]

app = App(
    name="python -m experiments.pairs",
    help=__doc__,
    help_format="markdown",
    version_flags=[],
    default_parameter=Parameter(show_default=False, negative_iterable=""),
)


@app.default
def pairs(
    name: Annotated[str | None, Parameter(help="A pair that has been published on; --list shows them.")] = None,
    /,
    *,
    tied: Annotated[str | None, Parameter(group=MODELS, help="A tied model, to compare with --untied.")] = None,
    untied: Annotated[str | None, Parameter(group=MODELS, help="An untied model, to compare with --tied.")] = None,
    model: Annotated[str | None, Parameter(group=MODELS, help="One model: is it tied, and what is in it?")] = None,
    evolution: Annotated[
        tuple[str, ...],
        Parameter(
            group=MODELS,
            consume_multiple=True,
            help="Checkpoints of one model, in any order: models, org/name@step* for all revisions of that pattern, or "
            "JSON files of published curves.",
        ),
    ] = (),
    input_key: Annotated[str | None, Parameter(group=MODELS, help="Tensor name of the input matrix.")] = None,
    output_key: Annotated[str | None, Parameter(group=MODELS, help="Tensor name of the output matrix.")] = None,
    list: Annotated[bool, Parameter(group=MODELS, negative="", help="Show the published pairs, and stop.")] = False,
    published_convention: Annotated[
        bool,
        Parameter(
            group=TOKENS,
            negative="",
            help="Choose rows as the second paper does: padding kept, tokens matched by their raw strings.",
        ),
    ] = False,
    drop: Annotated[
        tuple[Literal["special", "unused"], ...],
        Parameter(group=TOKENS, consume_multiple=True, help="Tokens to leave out."),
    ] = (),
    limit_tokens: Annotated[
        int | None, Parameter(group=TOKENS, converter=whole, help="At most so many tokens, a fixed random sample.")
    ] = None,
    fold_norm: Annotated[
        bool,
        Parameter(group=TOKENS, negative="", help="Multiply the final norm's gain into the rows of output matrices."),
    ] = False,
    text: Annotated[
        tuple[Path, ...],
        Parameter(
            group=TOKENS,
            consume_multiple=True,
            help="Text files to count tokens in: for differences by frequency, and norm and frequency.",
        ),
    ] = (),
    dataset: Annotated[
        str | None,
        Parameter(group=TOKENS, help="A data set of the Hub to count tokens in, streamed: org/name[:config[:split]]."),
    ] = None,
    column: Annotated[str | None, Parameter(group=TOKENS, help="The data set's column of text.")] = None,
    count_limit: Annotated[
        int, Parameter(group=TOKENS, converter=whole, help="Tokens of text to count, at most; 100 million by default.")
    ] = 100_000_000,
    analyses: Annotated[
        tuple[Analysis, ...],
        Parameter(group=WHAT, consume_multiple=True, help="Only these; all by default."),
    ] = (),
    refits: Annotated[
        int,
        Parameter(
            group=WHAT,
            converter=whole,
            help="Bootstrap samples with the map fitted again to each, for intervals of alignment; 0 keeps the map.",
        ),
    ] = 0,
    seed: Annotated[int, Parameter(group=WHAT, converter=whole, help="Of halves, shuffles and samples.")] = 0,
    device: Annotated[
        str, Parameter(group=WHERE, help="cpu, cuda, cuda:1, mps; by default the best there is.")
    ] = "auto",
    out: Annotated[
        Path | None, Parameter(group=WHERE, help="Where the files go; report/pairs/NAME by default.")
    ] = None,
    fresh: Annotated[bool, Parameter(group=WHERE, negative="", help="Compute again what is known.")] = False,
    dry_run: Annotated[
        bool, Parameter(group=WHERE, negative="", help="Say what would be fetched and computed, and stop.")
    ] = False,
    quiet: Annotated[bool, Parameter(group=WHERE, negative="", help="Print problems only.")] = False,
) -> int:
    """Which of its two roles does a tied embedding matrix resemble?"""
    ways = {
        "a pair's name": name,
        "--tied with --untied": tied or untied,
        "--model": model,
        "--evolution": evolution,
        "--list": list,
    }
    if (given := sum(bool(way) for way in ways.values())) != 1:
        what = "nothing to look at" if not given else "too much to look at"
        raise InputError(f"{what}: one of {', '.join(ways)} is accepted")
    if bool(tied) != bool(untied):
        raise InputError(f"{'--untied' if tied else '--tied'}: missing; --model takes one model")
    if limit_tokens is not None and limit_tokens < 2:
        raise InputError(f"limit_tokens: {limit_tokens} is out of range, at least 2 is accepted")
    for option, value, least in (("refits", refits, 0), ("count_limit", count_limit, 1)):
        if value < least:
            raise InputError(f"{option}: {value} is out of range, at least {least} is accepted")
    if refits == 1:
        raise InputError("refits: 1 gives no interval; 0, or at least 2, is accepted")
    if text and dataset:
        raise InputError("--text and --dataset: too much; one of them is accepted")

    from exor.pretrained.geometry import Settings  # torch is slow to import, and --help is not
    from exor.pretrained.pairs import find
    from exor.pretrained.subjects import Choice
    from experiments import read_and_compare as steps
    from experiments.terminal import console, silent

    if list:
        return steps.show_pairs(console)
    command = shlex.join(["python", "-m", "experiments.pairs", *sys.argv[1:]])
    where = steps.Where(out, device, fresh, dry_run, command, silent if quiet else console)
    choice = Choice(published_convention, "special" not in drop, "unused" not in drop, limit_tokens, fold_norm)
    keys = {"input_key": input_key, "output_key": output_key}
    if evolution:
        return steps.follow(evolution, where, choice=choice, keys=keys)
    preset = find(name) if name else None
    sources = {"tied": tied, "untied": untied} if tied and untied else {"model": model or ""}
    if preset:
        sources = {"tied": preset.tied, "untied": preset.untied}
    return steps.compare(
        sources,
        where,
        preset=preset,
        choice=choice,
        settings=Settings(refits=refits, seed=seed),
        keys=keys,
        analyses=analyses,
        counting=steps.Counting(text, dataset, column, count_limit),
    )


if __name__ == "__main__":
    main(app)()
