"""How tokenizers spell bytes: the same text is ``Ġthe`` in one vocabulary and ``▁the`` in another.

* ``byte-level``: each character is a byte, a space is ``Ġ`` (GPT-2's table).
* ``SentencePiece``: ``▁`` is a space, and ``<0x0A>`` is that byte.
* ``WordPiece``: ``##ing`` is "ing". Any other piece begins a word, and is taken with the space before it, as a word has
  one in the other spellings; but not if the piece begins with a sign or an ideograph, which need no space.
* ``plain``: the text itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any


def utf8(token: str) -> bytes:
    """As UTF-8; halves of surrogate pairs, which damaged vocabularies hold, as they are."""
    return token.encode("utf-8", "surrogatepass")


def _byte_table() -> dict[str, int]:
    """GPT-2's characters for bytes: printable ones are themselves, others count up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_table()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:  # not in that spelling
        return utf8(token)


def _sentence_piece(token: str) -> bytes:
    if re.fullmatch(r"<0x[0-9A-Fa-f]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return utf8(token.replace("▁", " "))


def _word_piece(token: str) -> bytes:
    if token.startswith("##") and len(token) > 2:
        return utf8(token[2:])
    ideograph = "\u3400" <= token[:1] <= "\u9fff" or token[:1] >= "\U00020000"
    return utf8(" " + token if token[:1].isalnum() and not ideograph else token)


SPELLINGS = {
    "byte-level": _byte_level,
    "SentencePiece": _sentence_piece,
    "WordPiece": _word_piece,
    "plain": utf8,
}


def spelling_of(tokens: Iterable[str | None], tokenizer: Mapping[str, Any] | None = None) -> str:
    """By the parts of a tokenizer.json that say so, else by the mark that most tokens begin with."""
    if tokenizer:
        parts = [part for name in ("pre_tokenizer", "decoder", "normalizer") for part in _parts(tokenizer.get(name))]
        types = {part.get("type") for part in parts}
        if "ByteLevel" in types:
            return "byte-level"
        if "WordPiece" in types or (tokenizer.get("model") or {}).get("type") == "WordPiece":
            return "WordPiece"
        if types & {"Metaspace", "ByteFallback"} or any("▁" in json.dumps(p, ensure_ascii=False) for p in parts):
            return "SentencePiece"
    marks = {"byte-level": "Ġ", "SentencePiece": "▁", "WordPiece": "##"}
    text = [t for t in tokens if t]
    counts = {spelling: sum(t.startswith(mark) for t in text) for spelling, mark in marks.items()}
    best = max(counts, key=lambda spelling: counts[spelling])
    return best if counts[best] else "plain"


def _parts(part: Any) -> Iterable[dict[str, Any]]:
    """A part of a tokenizer, and those in it."""
    if isinstance(part, Mapping):
        yield dict(part)
        for inner in chain(*(part.get(name) or [] for name in ("pretokenizers", "decoders", "normalizers"))):
            yield from _parts(inner)
