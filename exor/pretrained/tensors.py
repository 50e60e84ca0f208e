"""Tensors inside weights files: which there are, and reading one without the others.

A file is anything that can be sought and read: one on this machine, or one of the Hub, of which then only the bytes
that are read are fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched

BLOCK = 16 << 20  # bytes read at a time: memory beside the matrix itself, and a request to the Hub
LONGEST_HEADER = 100 << 20  # bytes; the limit of the safetensors format

SAFETENSORS = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    "BOOL": torch.bool,
}
FLOATS = {str(dtype).removeprefix("torch."): dtype for dtype in SAFETENSORS.values() if dtype.is_floating_point}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        shape: rows first, as torch would show it.
        dtype: torch's name of it, or that of a quantised type of GGUF (``Q4_1``).
        file: its name, in the model's folder.
        nbytes: as stored.
        offset: of its first byte; None where the file can only be loaded as a whole.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    nbytes: int
    offset: int | None


def safetensors_index(file: BinaryIO, name: str, size: int) -> dict[str, Stored]:
    """Every tensor of a safetensors file, from its header.

    Args:
        name: of the file.
        size: of the file, in bytes.

    Raises:
        InputError: damaged.
    """
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, LONGEST_HEADER):
        raise InputError(f"{name}: damaged (its header would be {length:,} bytes long, the file is {size:,})")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        found = {}
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = SAFETENSORS.get(entry["dtype"])
            kind = str(dtype).removeprefix("torch.") if dtype else str(entry["dtype"])
            found[tensor] = Stored(tensor, tuple(entry["shape"]), kind, name, end - begin, 8 + length + begin)
            if dtype and prod(entry["shape"]) * dtype.itemsize != end - begin:
                raise InputError(f"{name}: damaged (the bytes of {tensor} do not fit its shape {entry['shape']})")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{name}: damaged (its header cannot be read: {error})") from error
    check_ends(found, size)
    return found


def check_ends(found: Mapping[str, Stored], size: int) -> None:
    """Refuse a file that ends before one of its tensors does.

    Raises:
        InputError: names the tensor.
    """
    for stored in found.values():
        if stored.offset is not None and not 0 <= stored.offset <= stored.offset + stored.nbytes <= size:
            end = stored.offset + stored.nbytes
            raise InputError(
                f"{stored.file}: damaged ({stored.name} should end at byte {end:,}, but the file is {size:,} long)"
            )


def read(file: BinaryIO, stored: Stored, watch: Watch = unwatched) -> Tensor:
    """A tensor as float32 on the CPU, block by block: little more memory than it needs itself.

    Args:
        watch: told bytes of this tensor.

    Raises:
        InputError: not of floating point; not finite; the file ends too early.
    """
    from exor.pretrained.gguf_files import dequantise

    if stored.offset is None:
        raise ValueError(f"{stored.file}: has to be loaded as a whole")
    rows, width = (1, *stored.shape)[-2:]
    if stored.dtype not in FLOATS and not stored.dtype.isupper():
        raise InputError(f"{stored.file}: {stored.name} is stored as {stored.dtype}; floating point was expected")
    out = torch.empty(rows, width)
    row = stored.nbytes // rows
    step = min(max(BLOCK // row, 1), rows)
    buffer = bytearray(step * row)
    file.seek(stored.offset)
    for first in range(0, rows, step):
        part = out[first : first + step]
        raw = memoryview(buffer)[: len(part) * row]
        if file.readinto(raw) != len(raw):  # type: ignore[attr-defined]
            raise InputError(f"{stored.file}: damaged (it ends within {stored.name})")
        if stored.dtype in FLOATS:
            part.copy_(torch.frombuffer(raw, dtype=FLOATS[stored.dtype]).view(part.shape))
        else:
            part.copy_(dequantise(raw, stored, part.shape))
        check_finite(part, stored, first)
        watch((first + len(part)) * row, stored.nbytes)
    return out.view(stored.shape)


def check_finite(block: Tensor, stored: Stored, first: int = 0) -> None:
    """Refuse rows that are not numbers: they would spoil whatever is computed from a matrix.

    Raises:
        InputError: names the row.
    """
    if not block.sum().isfinite() and not block.isfinite().all():  # a sum is faster, and seldom overflows
        bad = first + int((~block.isfinite().all(dim=-1)).nonzero()[0])
        raise InputError(f"{stored.file}: row {bad} of {stored.name} is not finite")
