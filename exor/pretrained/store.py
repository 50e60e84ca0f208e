"""What an analysis found, and a store of it: nothing is computed twice from the same numbers."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from exor.runs import write_file

VERSION = 1  # of what is stored; raised when an analysis comes to mean something else


@dataclass(frozen=True)
class Finding:
    """What an analysis found.

    Attributes:
        tables: tidy, by name.
        notes: what a reader has to know about these numbers, in sentences.
        arrays: numbers for each token, by name.
        seconds: that it took.
        reused: whether it was in the store.
    """

    tables: Mapping[str, pd.DataFrame]
    notes: tuple[str, ...] = ()
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    seconds: float = 0.0
    reused: bool = False


class Store:
    """Findings in a folder, by what they were made from; one that cannot be read is made again."""

    def __init__(self, folder: Path | None, *, fresh: bool = False) -> None:
        """Open a store.

        Args:
            folder: made when something is kept; None keeps nothing.
            fresh: whether to make everything again, and keep that.
        """
        self.folder = folder
        self.fresh = fresh

    def get(self, name: str, made_from: Mapping[str, Any], make: Callable[[], Finding]) -> Finding:
        """A finding from the store, else a new one, kept from now on.

        Args:
            name: of the analysis.
            made_from: all that decides the finding, such as :func:`digest` of its matrices; fit for JSON.
            make: makes it.
        """
        if self.folder is None:
            return _timed(make)
        text = json.dumps([VERSION, name, made_from], sort_keys=True)
        path = self.folder / f"{name}-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.npz"
        if not self.fresh and (found := _read(path)):
            return found
        made = _timed(make)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, _bytes(made))
        return made


def digest(tensor: Tensor) -> str:
    """A fingerprint of a matrix, over its shape and every one of its bits."""
    hashed = hashlib.blake2b(repr((tuple(tensor.shape), str(tensor.dtype))).encode(), digest_size=16)
    for block in tensor.contiguous().split(4096):
        hashed.update(block.view(torch.uint8).numpy())  # NumPy has no bfloat16
    return hashed.hexdigest()


def _timed(make: Callable[[], Finding]) -> Finding:
    start = perf_counter()
    made = make()
    return replace(made, seconds=perf_counter() - start)


def _bytes(finding: Finding) -> bytes:
    tables = {name: table.to_dict("split", index=False) for name, table in finding.tables.items()}
    told = {"tables": tables, "notes": finding.notes, "seconds": finding.seconds}
    buffer = io.BytesIO()
    np.savez(buffer, finding=np.array(json.dumps(told, default=_plain)), **dict(finding.arrays))  # type: ignore[arg-type]
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _read(path: Path) -> Finding | None:
    try:
        with np.load(path, allow_pickle=False) as held:
            told = json.loads(held["finding"].item())
            arrays = {name: held[name] for name in held.files if name != "finding"}
        tables = {name: pd.DataFrame(**table) for name, table in told["tables"].items()}
        return Finding(tables, tuple(told["notes"]), arrays, float(told["seconds"]), reused=True)
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return None
