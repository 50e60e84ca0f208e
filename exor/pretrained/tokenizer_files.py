"""Files that tell a tokenizer's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from exor import InputError
from exor.pretrained.spellings import spelling_of

CONTROL, ADDED, UNUSED = 3, 4, 5  # types of tokens in a GGUF file
BERT = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}


class Source(Protocol):
    """What is needed of a checkpoint."""

    @property
    def name(self) -> str:
        """As shown."""

    @property
    def rows(self) -> int:
        """Of its embedding matrices."""

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``."""

    @property
    def tokens(self) -> Sequence[str] | None:
        """The vocabulary inside of a GGUF file."""

    @property
    def token_types(self) -> Sequence[int] | None:
        """Their types."""

    @property
    def gguf_path(self) -> Path | None:
        """The GGUF file, if it is one."""

    def file(self, name: str, /) -> bytes | None:
        """A small file beside the weights, None if there is none of that name."""


@dataclass(frozen=True)
class Found:
    """The tokens that a file tells of.

    Attributes:
        source: the file.
        tokens: by id.
        special, added, unused: ids of special tokens, of those added to the tokenizer's model, and of those said to be
            unused.
        spelling: see :mod:`exor.pretrained.spellings`.
    """

    source: str
    tokens: dict[int, str]
    special: set[int]
    added: set[int]
    spelling: str
    unused: set[int] = field(default_factory=set)


def read_tokens(checkpoint: Source) -> Found | None:
    """The tokens of a model, None where no file tells them.

    From ``tokenizer.json``, else ``vocab.json`` with ``added_tokens.json``, else ``vocab.txt``, else the vocabulary in
    a GGUF file, else ``added_tokens_decoder`` of ``tokenizer_config.json`` if most tokens are in there.

    Raises:
        InputError: a file is damaged; names it.
    """
    for read in (_tokenizer_json, _vocab_json, _vocab_txt, _gguf, _tokenizer_config):
        if found := read(checkpoint):
            return found
    return None


def _tokenizer_json(checkpoint: Source) -> Found | None:
    held = _json(checkpoint, "tokenizer.json")
    if held is None:
        return None
    try:
        vocab = held["model"]["vocab"]
        if isinstance(vocab, Mapping):
            tokens = {_id(i): str(token) for token, i in vocab.items()}
        else:  # Unigram: tokens with their scores, in order
            tokens = {i: str(token) for i, (token, _) in enumerate(vocab)}
        added = held.get("added_tokens") or []
        more = {_id(token["id"]): str(token["content"]) for token in added}
        special = {str(token["content"]) for token in added if token.get("special")}
        return _with_added("tokenizer.json", tokens, more, special, spelling_of(tokens.values(), held))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(checkpoint, "tokenizer.json", error) from error


def _vocab_json(checkpoint: Source) -> Found | None:
    held = _json(checkpoint, "vocab.json")
    if held is None:
        return None
    try:
        tokens = {_id(i): str(token) for token, i in held.items()}
    except (TypeError, ValueError) as error:
        raise _damaged(checkpoint, "vocab.json", error) from error
    return _with_added(
        "vocab.json", tokens, _more(checkpoint), _special_names(checkpoint), spelling_of(tokens.values())
    )


def _vocab_txt(checkpoint: Source) -> Found | None:
    raw = checkpoint.file("vocab.txt")
    if raw is None:
        return None
    try:
        lines = raw.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _damaged(checkpoint, "vocab.txt", error) from error
    tokens = {i: line.removesuffix("\r") for i, line in enumerate(lines)}
    special = _special_names(checkpoint) | BERT
    return _with_added("vocab.txt", tokens, _more(checkpoint), special, spelling_of(tokens.values()))


def _gguf(checkpoint: Source) -> Found | None:
    if not checkpoint.tokens:
        return None
    tokens = dict(enumerate(checkpoint.tokens))
    types = dict(zip(tokens, checkpoint.token_types or (), strict=False))
    control, added, unused = ({i for i, kind in types.items() if kind == wanted} for wanted in (CONTROL, ADDED, UNUSED))
    for i in unused:
        if tokens[i] == f"[PAD{i}]":  # the converter's name for a row without a token
            del tokens[i]
    return Found("GGUF", tokens, control, added, spelling_of(tokens.values()), unused)


def _tokenizer_config(checkpoint: Source) -> Found | None:
    tokens = _more(checkpoint)
    expected = vocab_size(checkpoint) or checkpoint.rows
    if 2 * len(tokens) <= expected:  # added tokens only: the others are in a format that is not read
        return None
    return _with_added("tokenizer_config.json", {}, tokens, _special_names(checkpoint), spelling_of(tokens.values()))


def _with_added(source: str, tokens: dict[int, str], more: dict[int, str], special: set[str], spelling: str) -> Found:
    """Tokens of the model, those added, and the names of special ones among both."""
    every = tokens | more
    return Found(source, every, {i for i, token in every.items() if token in special}, set(more), spelling)


def _more(checkpoint: Source) -> dict[int, str]:
    """Tokens added to the tokenizer's model, by id."""
    config = _json(checkpoint, "tokenizer_config.json") or {}
    try:
        found = {_id(i): str(token) for token, i in (_json(checkpoint, "added_tokens.json") or {}).items()}
        decoder = config.get("added_tokens_decoder") or {}
        return found | {_id(i): str(_content(token)) for i, token in decoder.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(checkpoint, "added_tokens.json or tokenizer_config.json", error) from error


def _special_names(checkpoint: Source) -> set[str]:
    """Special tokens, as the files beside a vocabulary name them."""
    config = _json(checkpoint, "tokenizer_config.json") or {}
    names = config | (_json(checkpoint, "special_tokens_map.json") or {})
    try:
        decoder = (config.get("added_tokens_decoder") or {}).values()
        found = [token["content"] for token in decoder if isinstance(token, Mapping) and token.get("special")]
        found += [_content(token) for key, token in names.items() if key.endswith("_token") and token]
        found += [_content(token) for token in names.get("additional_special_tokens") or []]
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(checkpoint, "special_tokens_map.json or tokenizer_config.json", error) from error
    return {name for name in found if isinstance(name, str)}


def _content(token: Any) -> Any:
    """Tokens are written as a string or with their properties."""
    return token["content"] if isinstance(token, Mapping) else token


def vocab_size(checkpoint: Source) -> int | None:
    """As the config says; often with padding rows."""
    config = checkpoint.config
    size = config.get("vocab_size", (config.get("text_config") or {}).get("vocab_size"))
    return size if isinstance(size, int) and size > 0 else None


def _id(value: Any) -> int:
    """A token's id.

    Raises:
        ValueError: none.
    """
    if isinstance(value, (bool, float)) or (number := int(value)) < 0:
        raise ValueError(f"{value!r} is not a token's id")
    return number


def _json(checkpoint: Source, name: str) -> dict[str, Any] | None:
    raw = checkpoint.file(name)
    if raw is None:
        return None
    try:
        held = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _damaged(checkpoint, name, error) from error
    if not isinstance(held, dict):
        raise InputError(f"{checkpoint.name}: {name}: damaged (not a JSON object)")
    return held


def _damaged(checkpoint: Source, name: str, error: Exception) -> InputError:
    why = f"{error} is missing" if isinstance(error, KeyError) else (str(error).splitlines() or ["unreadable"])[0]
    return InputError(f"{checkpoint.name}: {name}: damaged ({why[:200]})")
