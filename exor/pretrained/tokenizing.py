"""A model's tokenizer, from whatever files it has."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from exor import InputError
from exor.pretrained import require
from exor.pretrained.parameters import quiet
from exor.pretrained.tokenizer_files import Source

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARIES = ("vocab.json", "vocab.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
BESIDE = ("merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
ACCEPTED = f"tokenizer.json, {', '.join(VOCABULARIES)} beside the weights, or a vocabulary in a GGUF file are accepted"


def tokenizer_of(checkpoint: Source) -> Tokenizer:
    """A model's tokenizer.

    From ``tokenizer.json``, else from the files of slow tokenizers, else from a GGUF file; the last two are converted
    by transformers. Code that comes with a tokenizer is never run.

    Raises:
        InputError: there is none, or it is damaged or of a kind that cannot be converted.
    """
    require("tokenizers")
    if (raw := checkpoint.file("tokenizer.json")) is not None:
        from tokenizers import Tokenizer

        try:
            return Tokenizer.from_buffer(raw)
        except Exception as error:  # the library raises nothing more special
            raise InputError(f"{checkpoint.name}: tokenizer.json: damaged ({_line(error)}); {ACCEPTED}") from error
    found = {name: raw for name in VOCABULARIES if (raw := checkpoint.file(name)) is not None}
    if found:
        found |= {name: raw for name in BESIDE if (raw := checkpoint.file(name)) is not None}
        with TemporaryDirectory() as folder:
            for name, raw in found.items():
                Path(folder, name).write_bytes(raw)
            return _converted(checkpoint.name, next(iter(found)), Path(folder))
    if checkpoint.gguf_path is not None and checkpoint.tokens:
        path = checkpoint.gguf_path
        return _converted(checkpoint.name, "the vocabulary in the GGUF file", path.parent, gguf_file=path.name)
    raise InputError(f"{checkpoint.name}: no tokenizer found, to count tokens with; {ACCEPTED}")


def _converted(name: str, what: str, folder: Path, **options: Any) -> Tokenizer:
    """What transformers makes of it."""
    require("transformers")
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    try:
        with quiet():
            made = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **options)
    except Exception as error:  # any: each kind of tokenizer has a converter of its own
        raise InputError(f"{name}: {what} cannot be read as a tokenizer ({_line(error)}); {ACCEPTED}") from error
    tokenizer = getattr(made, "backend_tokenizer", None)
    if not isinstance(tokenizer, Tokenizer):
        raise InputError(
            f"{name}: {what} makes a tokenizer that cannot be converted ({type(made).__name__}); {ACCEPTED}"
        )
    return tokenizer


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
