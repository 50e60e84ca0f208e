"""How often each token occurs in text files or in a data set."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.text_data_sets import open_data_set

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECE = 2**16  # characters that are read at a time
LONGEST = 4  # times that, if there is no good place to cut before
BATCH = 2**20  # characters that are encoded together, by all cores
BINARY = 0.3  # share of bad bytes at the beginning of a file that is taken for one of text
GZIP = b"\x1f\x8b"
GOOD_CUT = re.compile(r"(?<=\S)\n(?=\S)")
BAD_BYTES = re.compile("[\udc80-\udcff]")  # as Python's "surrogateescape" reads them
TEXTS = "UTF-8 text, also compressed as .gz, is accepted"


@dataclass(frozen=True)
class Counts:
    """How often each token occurs.

    Attributes:
        counts: ``[rows]`` int64, by row of the embedding matrices.
        tokens: that were read.
        source: of the text.
        notes: what a reader has to know, in sentences.
    """

    counts: np.ndarray
    tokens: int
    source: str
    notes: tuple[str, ...] = ()


def count_text(
    paths: Sequence[Path], tokenizer: Tokenizer, rows: int, *, limit: int | None = None, watch: Watch = unwatched
) -> Counts:
    """Count tokens in text files, without special tokens between them.

    Files are read piece by piece. They are cut at ends of lines, wherever the text is long enough, if the line is not
    empty and the next one does not begin with a space. There the usual byte-level tokenizers never merge across, so
    that the counts are those of the whole text. Where no such place comes in 256 Ki characters, the last end of a line
    is one, or the last space. Tokenizers that put a space before all text (Llama's) do so once for each piece. Ends of
    lines are read as ``\\n``. Text that spells a special token counts as that token.

    Args:
        paths: of UTF-8 text, also compressed by gzip.
        tokenizer: such as :func:`exor.pretrained.tokenizing.tokenizer_of` gives.
        rows: of the embedding matrices.
        limit: tokens to read, at most.
        watch: told bytes of the files.

    Raises:
        InputError: a file cannot be read, or is not text; no text in them.
    """
    if not paths:
        raise InputError("text: no files; at least one is accepted")
    reader = _Files(paths, watch)
    source = str(paths[0]) if len(paths) == 1 else f"{len(paths)} text files"
    counts = _count(reader.pieces(), tokenizer, rows, limit, source)
    if not reader.bad_bytes:
        return counts
    note = f"{source}: {reader.bad_bytes:,} bytes are not UTF-8; each was read as U+FFFD."
    return Counts(counts.counts, counts.tokens, source, (*counts.notes, note))


def count_dataset(
    name: str,
    tokenizer: Tokenizer,
    rows: int,
    *,
    column: str | None = None,
    limit: int | None = None,
    watch: Watch = unwatched,
) -> Counts:
    """Count tokens in a data set that is streamed: no more is fetched than the limit needs.

    Args:
        name: ``org/name[:config[:split]]`` of the Hub (split ``train`` by default), or a folder or file of data.
        tokenizer: such as :func:`exor.pretrained.tokenizing.tokenizer_of` gives.
        rows: of the embedding matrices.
        column: of text; ``text`` by default, else the only column of strings.
        limit: tokens to read, at most.
        watch: told tokens, and the limit.

    Raises:
        InputError: no such data set, config, split or column; gated, unreachable, or damaged; no text in it.
    """
    texts, source = open_data_set(name, column)
    return _count(texts, tokenizer, rows, limit, source, watch)


def _count(
    texts: Iterable[str],
    tokenizer: Tokenizer,
    rows: int,
    limit: int | None,
    source: str,
    watch: Watch = unwatched,
) -> Counts:
    """Count in text that does not belong together.

    Raises:
        InputError: there is none.
    """
    tokenizer = _whole(tokenizer)
    counts = np.zeros(max(rows, tokenizer.get_vocab_size()), dtype=np.int64)
    read, reached = 0, False
    for batch in _batches(texts):
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            ids = np.asarray(encoding.ids if limit is None else encoding.ids[: limit - read], dtype=np.int64)
            if ids.size and ids.max() >= len(counts):  # ids with holes between them
                counts = np.pad(counts, (0, int(ids.max()) + 1 - len(counts)))
            counts += np.bincount(ids, minlength=len(counts))
            read += len(ids)
        watch(read, limit or 0)
        if reached := limit is not None and read >= limit:
            break
    if not read:
        raise InputError(f"{source}: no text to count tokens in; some is needed")
    notes = [f"{source}: counting stopped at the limit of {read:,} tokens."] if reached else []
    if beyond := int(counts[rows:].sum()):
        notes.append(f"{source}: {beyond:,} of the tokens read have no row in the embedding matrices.")
    return Counts(counts[:rows], read, source, tuple(notes))


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer that neither cuts off text nor pads it, as the files of some say."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts together, as many as have some length."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Files:
    """Text files, one after the other.

    Attributes:
        bad_bytes: that were found so far.
    """

    def __init__(self, paths: Sequence[Path], watch: Watch) -> None:
        self.paths, self.watch, self.bad_bytes = paths, watch, 0
        self.done = 0  # bytes of the files before this one
        self.total = sum(_size(path) for path in paths)

    def pieces(self) -> Iterator[str]:
        """Their text in pieces, each of one file."""
        for path in self.paths:
            try:
                with path.open("rb") as raw, _text(raw) as text:
                    for piece in _cut(self._blocks(text, path)):
                        yield piece
                        self.watch(self.done + (raw.tell() if raw.seekable() else 0), self.total)
                self.done += _size(path)
            except (OSError, EOFError, zlib.error) as error:
                what = "a folder" if path.is_dir() else f"cannot be read ({_line(error)})"
                raise InputError(f"{path}: {what}; {TEXTS}") from error

    def _blocks(self, text: TextIOWrapper, path: Path) -> Iterator[str]:
        """Blocks of a file, bad bytes replaced.

        Raises:
            InputError: it is not text.
        """
        first = True
        while block := text.read(PIECE):
            block, bad = BAD_BYTES.subn("\ufffd", block)
            if first and ("\0" in block or bad > BINARY * len(block)):
                raise InputError(f"{path}: not UTF-8 text; {TEXTS}")
            first = False
            self.bad_bytes += bad
            yield block


def _text(raw: BufferedReader) -> TextIOWrapper:
    """A file as text; whether it is compressed, its first bytes say."""
    packed = raw.peek(len(GZIP))[: len(GZIP)] == GZIP
    unpacked = cast("BufferedReader", gzip.GzipFile(fileobj=raw)) if packed else raw
    return TextIOWrapper(unpacked, encoding="utf-8-sig", errors="surrogateescape")


def _cut(blocks: Iterable[str]) -> Iterator[str]:
    """Text in pieces that begin and end where tokens do, as far as possible."""
    held = ""
    for block in blocks:
        held += block
        end = max((found.end() for found in GOOD_CUT.finditer(held)), default=0)
        if not end and len(held) >= LONGEST * PIECE:
            end = held.rfind("\n") + 1 or max(held.rfind(" "), 0) or len(held)
        if end:
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _size(path: Path) -> int:
    """Of a file; 0 for pipes and what is not there."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _line(error: BaseException) -> str:
    why = getattr(error, "strerror", None) or str(error)
    return " ".join(why.split())[:160] or type(error).__name__
