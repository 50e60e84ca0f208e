"""Text of a data set, streamed from the Hub or read from disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from exor import InputError
from exor.pretrained import require
from exor.pretrained.hub_errors import Unreachable

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv", ".txt": "text"}
ACCEPTED = (
    f"org/name[:config[:split]] of the Hub is accepted, or a folder or file of data here ({', '.join(READERS)}, some "
    "also .gz)"
)


def open_data_set(name: str, column: str | None = None) -> tuple[Iterator[str], str]:
    """The texts of a data set, one after the other, and what to call it. Code that comes with it is never run.

    Args:
        name: ``org/name[:config[:split]]`` of the Hub, or a folder or file here; split ``train`` by default.
        column: of text; ``text`` by default, else the only column of strings.

    Raises:
        InputError: no such data set, config, split or column; gated; damaged. Also while texts are read.
        Unreachable: no network, or offline.
    """
    require("datasets")
    where, config, split = _parts(name)
    rows = _rows(name, where, config, split)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{name}: an empty data set; {ACCEPTED}")
    column = _column(name, column, first)
    return _texts(name, column, chain([first], rows)), f"{name}, column {column}"


def _parts(name: str) -> tuple[str, str | None, str]:
    """Where a data set is, its config and its split."""
    if Path(name).expanduser().exists():
        return name, None, "train"
    where, *rest = name.split(":")
    if not where or len(rest) > 2:
        raise InputError(f"{name}: not the name of a data set; {ACCEPTED}")
    config, split = (*rest, "", "")[:2]
    return where, config or None, split or "train"


def _rows(name: str, where: str, config: str | None, split: str) -> Iterator[Mapping[str, Any]]:
    """Rows, in their order.

    Raises:
        InputError: they cannot be had.
    """
    import datasets

    path = Path(where).expanduser()
    wanted: dict[str, Any] = {"split": split, "streaming": True}
    suffix = next((s for s in reversed(path.suffixes) if s != ".gz"), "")
    if path.is_file() and suffix not in READERS:
        raise InputError(f"{name}: files that end in {suffix or 'nothing'} are not read; {ACCEPTED}")
    try:
        if path.is_file():
            yield from datasets.load_dataset(READERS[suffix], data_files=str(path), **wanted)
        else:
            if not path.exists():
                _check_reachable(where)
            yield from datasets.load_dataset(str(path) if path.exists() else where, config, **wanted)
    except InputError:
        raise
    except Exception as error:  # any: each format has a reader of its own, each with errors of its own
        raise _explained(name, where, error) from error


def _check_reachable(where: str) -> None:
    """Ask for the data set itself first: ``datasets`` would try for half a minute to reach the Hub.

    Raises:
        Exception: of huggingface-hub.
    """
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:
        HfApi().dataset_info(where, timeout=20)


def _explained(name: str, where: str, error: Exception) -> InputError:
    """What went wrong, in one line."""
    from huggingface_hub import constants, errors

    chained: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        chained.append(link)
        link = link.__cause__ or link.__context__

    def any_of(*kinds: type) -> bool:
        return any(isinstance(e, kinds) for e in chained)

    site = f"{constants.ENDPOINT}/datasets/{where}"
    if any_of(errors.GatedRepoError):
        return InputError(f"{name}: gated; ask for access at {site}, then set HF_TOKEN or run `hf auth login`")
    if any_of(errors.RepositoryNotFoundError, errors.HFValidationError):
        return InputError(f"{name}: no such data set at {constants.ENDPOINT}, and nothing here; {ACCEPTED}")
    if any_of(errors.OfflineModeIsEnabled) or (constants.HF_HUB_OFFLINE and not Path(where).exists()):
        return Unreachable(f"{name}: cannot be fetched, HF_HUB_OFFLINE is set; unset it, or name a folder or file here")
    network: type = errors.HfHubHTTPError.__bases__[0]
    if any_of(network, ConnectionError, TimeoutError):
        hint = (
            "is there a network? HF_ENDPOINT names another server, HTTPS_PROXY a proxy; a folder or file here would do"
        )
        return Unreachable(f"{name}: cannot be fetched from {constants.ENDPOINT} ({_line(chained[0])}); {hint}")
    return InputError(f"{name}: cannot be read as a data set ({_line(error)}); {ACCEPTED}")


def _column(name: str, asked: str | None, first: Mapping[str, Any]) -> str:
    """The column of text.

    Raises:
        InputError: there is no such column, or not just one.
    """
    strings = [column for column, value in first.items() if isinstance(value, str)]
    known = f"columns of strings are {', '.join(strings)}" if strings else "no column has strings"
    if asked is not None:
        if asked not in first:
            raise InputError(f"{name}: no column {asked!r}; {known}")
        return asked
    if "text" in first or len(strings) == 1:
        return "text" if "text" in first else strings[0]
    raise InputError(f"{name}: --column is needed to say which column to read; {known}")


def _texts(name: str, column: str, rows: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """A column's texts; rows without one are passed over.

    Raises:
        InputError: it is no column of text.
    """
    for row in rows:
        text = row.get(column)
        if isinstance(text, str):
            yield text
        elif text is not None:
            raise InputError(
                f"{name}: column {column} holds {type(text).__name__}, not text; a column of strings is accepted"
            )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
