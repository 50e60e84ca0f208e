"""Where the tensors of a file of ``torch.save`` lie: its pickle is read, their bytes are not."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained.tensors import Stored, check_ends

LOCAL_HEADER = 30  # bytes before the name, in a zip file; the lengths of name and extra field are its last four


def torch_index(file: BinaryIO, name: str, size: int, wanted: Collection[str]) -> dict[str, Stored] | None:
    """Every tensor of a file of ``torch.save``; None for the format before torch 1.6, which is no zip file.

    Args:
        name: of the file.
        size: of the file, in bytes.
        wanted: tensors whose offset is looked up too, which takes a read for each.

    Raises:
        InputError: damaged; holds other things than tensors and plain values, which are never loaded.
    """
    if file.read(4) != b"PK\x03\x04":
        return None
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            pickled = next((entry for entry in entries if entry.endswith("/data.pkl")), None)
            if pickled is None:
                raise InputError(f"{name}: not a file of torch.save (there is no data.pkl in it)")
            prefix = pickled.removesuffix("data.pkl")
            order = archive.read(f"{prefix}byteorder") if f"{prefix}byteorder" in entries else b"little"
            if order != b"little":
                raise InputError(f"{name}: written by a big-endian machine; save it again on a little-endian one")
            tensors, records = _without_data(archive.read(pickled), prefix, list(entries), name)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise InputError(f"{name}: damaged ({str(error).lower()})") from error
    found = {}
    for key, tensor in tensors.items():
        kind, nbytes = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
        entry = entries[records[cast(int, tensor.untyped_storage()._checkpoint_offset)]]
        if tensor.untyped_storage().nbytes() > entry.file_size:
            raise InputError(f"{name}: damaged ({key} is longer than its record)")
        plain = tensor.is_contiguous() and not tensor.storage_offset() and entry.compress_type == zipfile.ZIP_STORED
        offset = _data_offset(file, entry.header_offset) if plain and key in wanted else None
        found[key] = Stored(key, tuple(tensor.shape), kind, name, nbytes, offset)
    check_ends(found, size)
    return found


def load_whole(path: Path, name: str) -> dict[str, Tensor]:
    """All tensors of a file of ``torch.save``, mapped into memory where its format allows.

    Raises:
        InputError: damaged; holds other things than tensors and plain values.
    """
    for mapped in (True, False):
        try:
            return _tensors(torch.load(path, map_location="cpu", weights_only=True, mmap=mapped), name)
        except pickle.UnpicklingError as error:
            raise _refused(name, error) from error
        except (RuntimeError, ValueError, EOFError, OSError, KeyError) as error:
            if not mapped:
                raise InputError(f"{name}: damaged ({_line(error)})") from error
    raise AssertionError


def _data_offset(file: BinaryIO, header: int) -> int:
    """Offset of a record's bytes, from that of its header: only the header knows the length of the padding between."""
    file.seek(header)
    raw = file.read(LOCAL_HEADER)
    return header + LOCAL_HEADER + int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")


def _without_data(
    pickled: bytes, prefix: str, entries: list[str], name: str
) -> tuple[dict[str, Tensor], dict[int, str]]:
    """The tensors on torch's device for shapes without data, and for each offset they know the record it stands for.

    Torch reads the pickle of an archive with the same records, all of them empty.
    """
    buffer, records = io.BytesIO(), {}
    with zipfile.ZipFile(buffer, "w") as archive:
        for entry in entries:
            if entry.startswith(f"{prefix}data/"):
                records[buffer.tell() + LOCAL_HEADER + len(entry.encode())] = entry
                archive.writestr(entry, b"")
        archive.writestr(f"{prefix}data.pkl", pickled)
        archive.writestr(f"{prefix}version", b"3\n")
    buffer.seek(0)
    try:
        return _tensors(torch.load(buffer, map_location="meta", weights_only=True), name), records
    except pickle.UnpicklingError as error:
        raise _refused(name, error) from error
    except (RuntimeError, ValueError, EOFError, KeyError) as error:
        raise InputError(f"{name}: damaged ({_line(error)})") from error


def _tensors(content: Any, name: str) -> dict[str, Tensor]:
    """The state dict, which some programs put below a key."""
    for key in ("state_dict", "model", "module"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    found = {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    if not found:
        raise InputError(f"{name}: holds no tensors by name; a state dict was expected")
    return found


def _refused(name: str, error: Exception) -> InputError:
    return InputError(f"{name}: cannot be loaded safely ({_line(error)}); a state dict of tensors was expected")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
