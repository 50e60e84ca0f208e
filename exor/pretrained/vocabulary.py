"""Which row of an embedding matrix belongs to which token, and which rows of two models belong to the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained.spellings import SPELLINGS, utf8
from exor.pretrained.tokenizer_files import Source, read_tokens, vocab_size

UNUSED = re.compile(
    r"[<\[]\|?(unused|(reserved|extra|dummy|placeholder|special|control)(_special)?(_token|_id)?)_?\d+\|?[>\]]"
    r"|madeupword\d+",
    re.IGNORECASE,
)
"""Names of places that were kept free, such as ``[unused12]``, ``<unused0>``, ``<|reserved_special_token_3|>``,
``<extra_id_1>``, ``<|extra_0|>``, ``<SPECIAL_20>``, ``[control_8]``, ``<|placeholder1|>``, ``madeupword0002``. The
whole name has to be brackets, one of these words and a number: ``|||PHONE_NUMBER|||`` and ``<|im_start|>`` are not."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, by row of its embedding matrices.

    Attributes:
        tokens: as the tokenizer spells them; None where a row belongs to no token (padding). ``#<row>`` where only the
            number of tokens is known. As many as the matrix has rows.
        special: rows of special tokens, such as ``<|endoftext|>``.
        unused: rows of tokens kept free, see :data:`UNUSED`.
        source: where the tokens are from, such as ``tokenizer.json``.
        notes: what a reader has to know, in sentences.
        spelling: ``byte-level``, ``SentencePiece``, ``WordPiece`` or ``plain``.
        added: rows of tokens added to the tokenizer's model, whose strings are plain text.
        named: whether the strings of the tokens are known.
        name: of the model.
    """

    tokens: tuple[str | None, ...]
    special: frozenset[int]
    unused: frozenset[int]
    source: str
    notes: tuple[str, ...] = ()
    spelling: str = "plain"
    added: frozenset[int] = frozenset()
    named: bool = True
    name: str = "the model"


@dataclass(frozen=True)
class Matched:
    """Rows of two matrices that belong to the same tokens.

    Attributes:
        rows_a, rows_b: ``[tokens]`` int64, ascending in ``rows_a``.
        tokens: as the first spells them.
        how: they were found, the end of a sentence.
        notes: what a reader has to know, in sentences.
    """

    rows_a: Tensor
    rows_b: Tensor
    tokens: tuple[str | None, ...]
    how: str
    notes: tuple[str, ...]


def read_vocabulary(checkpoint: Source) -> Vocabulary:
    """The tokens of a model.

    From the tokenizer's files (:func:`exor.pretrained.tokenizer_files.read_tokens`). If there are none, the config's
    ``vocab_size`` says how many there are. That comes last, as it often counts padding rows too: OLMo's says 50,304
    for 50,280 tokens.

    Raises:
        InputError: a file is damaged; names it.
    """
    found = read_tokens(checkpoint)
    rows, name = checkpoint.rows, checkpoint.name
    if found is None:
        return _from_config(checkpoint)
    notes = []
    if beyond := sum(i >= rows for i in found.tokens):
        notes.append(f"{beyond:,} tokens of the tokenizer have no row ({rows:,} rows) and are left out.")
    tokens = tuple(found.tokens.get(i) for i in range(rows))
    known = range(rows)
    return Vocabulary(
        tokens,
        frozenset(i for i in found.special if i in known),
        frozenset(i for i, t in enumerate(tokens) if t is not None and (UNUSED.fullmatch(t) or i in found.unused)),
        found.source,
        tuple(notes),
        found.spelling,
        frozenset(i for i in found.added if i in known),
        name=name,
    )


def _from_config(checkpoint: Source) -> Vocabulary:
    rows, size = checkpoint.rows, vocab_size(checkpoint)
    count = rows if size is None else min(size, rows)
    notes = ["No tokenizer found: only the number of tokens is known, and padding may be among them."]
    source = "config.json" if size is not None else "the number of rows"
    tokens = tuple(f"#{i}" if i < count else None for i in range(rows))
    return Vocabulary(tokens, frozenset(), frozenset(), source, tuple(notes), named=False, name=checkpoint.name)


def keep(vocabulary: Vocabulary, *, padding: bool = False, special: bool = True, unused: bool = True) -> Tensor:
    """The rows to look at, ascending, ``[rows kept]`` int64.

    Args:
        padding: whether rows without a token are kept.
        special: whether special tokens are.
        unused: whether tokens kept free are.
    """
    dropped = (frozenset() if special else vocabulary.special) | (frozenset() if unused else vocabulary.unused)
    kept = [i for i, t in enumerate(vocabulary.tokens) if (padding or t is not None) and i not in dropped]
    return torch.tensor(kept, dtype=torch.int64)


def match(
    a: Vocabulary,
    b: Vocabulary,
    *,
    padding: bool = False,
    special: bool = True,
    unused: bool = True,
    raw: bool = False,
) -> Matched:
    """The rows that belong to the same tokens in two models.

    Where all tokens kept are the same at the same rows, that is by row. Otherwise tokens are the same if they stand for
    the same bytes (:func:`bytes_of`); of several rows for the same bytes the first counts.

    Args:
        padding, special, unused: as in :func:`keep`. Padding rows can be matched by row only.
        raw: compare strings as they are spelled, as published comparisons do.

    Raises:
        InputError: no token in common; or no strings are known, and the numbers of tokens differ.
    """
    options = {"padding": padding, "special": special, "unused": unused}
    kept_a, kept_b = keep(a, **options).tolist(), keep(b, **options).tolist()
    both = sorted({*kept_a} & {*kept_b})
    if not (a.named and b.named):
        return _matched(a if a.named else b, both, both, "by row, as both have as many", (_blind(a, b),))
    if both and all(_at(a, i) == _at(b, i) for i in {*kept_a, *kept_b}):
        return _matched(a, both, both, "by row, as the tokenizers are the same", ())
    return _by_text(a, kept_a, b, kept_b, raw)


def _at(vocabulary: Vocabulary, row: int) -> str | None:
    return vocabulary.tokens[row] if row < len(vocabulary.tokens) else None


def _blind(a: Vocabulary, b: Vocabulary) -> str:
    """What has to be said where no strings are known.

    Raises:
        InputError: the numbers of tokens differ.
    """
    names = " and ".join(v.name for v in (a, b) if not v.named)
    counts = [sum(token is not None for token in v.tokens) for v in (a, b)]
    if counts[0] != counts[1]:
        raise InputError(
            f"{names}: no tokenizer found, and the numbers of tokens differ ({counts[0]:,} and {counts[1]:,}); a "
            "tokenizer.json beside the weights is accepted"
        )
    return f"No tokenizer found for {names}: that a row is the same token in both is taken for granted."


def _by_text(a: Vocabulary, kept_a: Sequence[int], b: Vocabulary, kept_b: Sequence[int], raw: bool) -> Matched:
    first_a, first_b = _first(a, kept_a, raw), _first(b, kept_b, raw)
    common = [(row, first_b[text]) for text, row in first_a.items() if text in first_b]
    if not common:
        raise InputError(
            f"{a.name} and {b.name}: no token in common ({_example(a, kept_a)} and {_example(b, kept_b)} are some of "
            "theirs); models whose tokenizers share tokens are accepted"
        )
    notes = []
    for v, kept, first in ((a, kept_a, first_a), (b, kept_b, first_b)):
        real = sum(v.tokens[i] is not None for i in kept)
        if twice := real - len(first):
            notes.append(f"{v.name}: {twice:,} tokens mean the same as an earlier one, which counts.")
        if real < len(kept):
            notes.append(f"{v.name}: rows without a token are left out, as only rows of one tokenizer can be matched.")
    if not raw and "WordPiece" in (a.spelling, b.spelling):
        notes.append("WordPiece: the first piece of a word is taken with a space before it.")
    if 2 * len(common) < (smaller := min(len(first_a), len(first_b))):
        notes.append(f"Fewer than half of the smaller vocabulary's {smaller:,} tokens are in the other.")
    rows_a, rows_b = ([pair[side] for pair in common] for side in (0, 1))
    return _matched(a, rows_a, rows_b, "by their strings" if raw else "by the bytes they stand for", tuple(notes))


def _matched(named: Vocabulary, rows_a: list[int], rows_b: list[int], how: str, notes: tuple[str, ...]) -> Matched:
    rows = [torch.tensor(r, dtype=torch.int64) for r in (rows_a, rows_b)]
    return Matched(rows[0], rows[1], tuple(named.tokens[i] for i in rows_a), how, notes)


def _first(vocabulary: Vocabulary, kept: Iterable[int], raw: bool) -> dict[str | bytes, int]:
    """The first row of each text, in the order of rows."""
    texts = vocabulary.tokens if raw else bytes_of(vocabulary)
    found: dict[str | bytes, int] = {}
    for i in kept:
        if (text := texts[i]) is not None:
            found.setdefault(text, i)
    return found


def _example(vocabulary: Vocabulary, kept: Sequence[int]) -> str:
    names = [token for i in kept if (token := vocabulary.tokens[i]) is not None]
    return repr(names[len(names) // 2]) if names else "none"


def bytes_of(vocabulary: Vocabulary) -> list[bytes | None]:
    """What each token stands for; None for padding.

    Special tokens stand for their name, and those added to a byte-level tokenizer for their text. The others are
    spelled as :mod:`exor.pretrained.spellings` says.
    """
    spell = SPELLINGS[vocabulary.spelling]
    plain = vocabulary.special | (vocabulary.added if vocabulary.spelling == "byte-level" else frozenset())
    return [
        None if token is None else utf8(token) if i in plain else spell(token)
        for i, token in enumerate(vocabulary.tokens)
    ]
