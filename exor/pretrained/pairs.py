"""Pairs of models that numbers have been published on, and those numbers.

Sources: the second paper, Lopardo et al. 2026, and its public code, github.com/AntonioLopardo/weight-tying-bias at
commit d94ddee. From the code are the Frobenius norms, the largest singular values, and all that has four digits or
more; the rest is printed in the paper. All are single runs. Quantities are named as they are asked for in
:mod:`exor.pretrained.sheets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from exor import InputError
from exor.pretrained.subjects import INPUT, OUTPUT, TIED

Values = Mapping[tuple[str, str, str, str], float]
"""By quantity, matrix, other matrix or "", and kind or ""."""


@dataclass(frozen=True)
class Pair:
    """A tied model and an untied one.

    Attributes:
        name: short, to be asked for.
        tied, untied: ids of the Hub.
        note: what a reader has to know of the pair.
        published: numbers, without a unit, by (quantity, a, b, kind).
    """

    name: str
    tied: str
    untied: str
    note: str
    published: Values = field(repr=False)

    def value(self, quantity: str, a: str, b: str, kind: str) -> float | None:
        """A published number, None if there is none.

        Args:
            quantity: such as ``knn overlap``.
            a, b: names of matrices; ``b`` is "" for a quantity of one matrix. Their order counts for alignment only.
            kind: of map, for alignment; else "".
        """
        found = self.published.get((quantity, a, b, kind))
        if found is None and quantity != "alignment":
            found = self.published.get((quantity, b, a, kind))
        return found


def find(name: str) -> Pair:
    """The pair of that name.

    Raises:
        InputError: there is none.
    """
    if name in PAIRS:
        return PAIRS[name]
    near = get_close_matches(name.lower(), PAIRS, 1, 0.4)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(f"{name}: no such pair{meant}; {', '.join(PAIRS)} are accepted, and --model, --tied and --untied")


def _maps(source: str, target: str, **scores: float) -> Values:
    """Alignment scores by kind of map."""
    return {("alignment", source, target, kind): score for kind, score in scores.items()}


def _between(quantity: str, tied_input: float | None, tied_output: float | None, input_output: float | None) -> Values:
    """A symmetric quantity, for each two of the three matrices."""
    values = {(TIED, INPUT): tied_input, (TIED, OUTPUT): tied_output, (INPUT, OUTPUT): input_output}
    return {(quantity, a, b, ""): value for (a, b), value in values.items() if value is not None}


def _of(quantity: str, input: float, output: float, tied: float | None = None) -> Values:
    """A quantity of one matrix."""
    values = {INPUT: input, OUTPUT: output, TIED: tied}
    return {(quantity, matrix, "", ""): value for matrix, value in values.items() if value is not None}


_OLMO = Pair(
    "olmo-1b",
    "allenai/OLMo-1B-hf",
    "allenai/OLMo-1B-0724-hf",
    "One tokenizer; 50,304 rows, 50,280 real tokens, width 2048. Trained on different data as well.",
    {
        **_maps(INPUT, OUTPUT, identity=0.012, orthogonal=0.440, linear=0.574),
        **_maps(OUTPUT, TIED, identity=0.014, orthogonal=0.669, linear=0.719),
        **_maps(INPUT, TIED, identity=0.001, orthogonal=0.420, linear=0.525),
        **_between("knn overlap", 0.496, 0.733, 0.455),
        **_between("spectral distance", 1.372574, 0.587576, 1.349170),
        **_between("spectrum correlation", None, None, 0.944843),
        **_between("subspace overlap", None, None, 0.179548),
        **_of("frobenius norm", 45.5171, 203.4804, 531.7175),
        **_of("largest singular value", 9.38, 31.70, 99.17),
    },
)

_QWEN = Pair(
    "qwen3",
    "Qwen/Qwen3-4B",
    "Qwen/Qwen3-8B",
    "One tokenizer; widths 2560 and 4096: between the two models only linear maps, neighbours and spectra.",
    {
        **_maps(INPUT, OUTPUT, identity=0.004137, orthogonal=0.256734),
        **_between("knn overlap", 0.366, 0.710, 0.366),
        **_between("spectral distance", 1.440570, 0.809454, 1.421029),
        **_between("norm correlation", 0.690, 0.973, 0.732),
        **_between("spectrum correlation", None, None, 0.928017),
        **_of("frobenius norm", 489.4881, 572.2631, 402.0878),
    },
)

_NEO = Pair(
    "gpt-neo-pythia",
    "EleutherAI/gpt-neo-2.7B",
    "EleutherAI/pythia-2.8b",
    "Different tokenizers; about 36,938 tokens in common, matched by string.",
    {
        # over the common tokens; over all rows of Pythia, input → output is .417858 when orthogonal
        **_maps(INPUT, OUTPUT, identity=-0.001, orthogonal=0.456, linear=0.518),
        **_maps(OUTPUT, TIED, identity=0.001, orthogonal=0.507, linear=0.637),
        **_maps(INPUT, TIED, identity=0.000, orthogonal=0.376, linear=0.507),
        **_between("knn overlap", 0.372, 0.408, 0.611),
        **_between("spectral distance", 1.462022, 1.034541, 0.948573),
        **_between("norm correlation", -0.0413, -0.0017, 0.2291),
        **_between("spectrum correlation", None, None, 0.694145),
        **_of("frobenius norm", 219.3107, 219.8994, 984.9922),  # each over all rows of its model
    },
)

PAIRS: dict[str, Pair] = {pair.name: pair for pair in (_OLMO, _QWEN, _NEO)}
