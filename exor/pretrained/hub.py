"""A model of the Hugging Face Hub: only the bytes that are needed are fetched, and kept.

What huggingface-hub has in its own cache is read from there. Everything else goes through it, so its settings hold
(``HF_HOME``, ``HF_TOKEN``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, require, unwatched
from exor.pretrained.gguf_files import read_gguf
from exor.pretrained.hub_errors import Unreachable, told
from exor.pretrained.places import Folder, Place
from exor.pretrained.tensors import BLOCK, SAFETENSORS, Stored
from exor.program import cache_folder
from exor.runs import write_file

COMMIT = re.compile(r"[0-9a-f]{40}")
FIRST_TRY = 4 << 20  # bytes of a GGUF file that are fetched at first, in search of the end of its metadata
WEIGHTS = {".safetensors", ".bin", ".pt", ".gguf"}
CODES = {str(dtype).removeprefix("torch."): code for code, dtype in SAFETENSORS.items()}


class Hub(Place):
    """A model at one commit.

    Attributes:
        repository: ``org/name``, as the Hub calls it.
    """

    commit: str

    def __init__(self, repository: str, revision: str | None = None) -> None:
        """Find out which commit is meant, and which files there are.

        Raises:
            InputError: no such model or revision; no access; neither reachable nor fetched before.
        """
        require("huggingface_hub")
        self.name = repository if revision is None else f"{repository}@{revision}"
        self.repository, self.commit, self._sizes = _look_up(repository, revision or "main")

    @cached_property
    def _kept(self) -> Path:
        """Where what was fetched is kept."""
        return _shelf(self.repository) / self.commit

    def names(self) -> Collection[str]:
        return {name for name in self._sizes if "/" not in name}

    def has(self, file: str) -> bool:
        return file in self._sizes

    def size(self, file: str) -> int:
        return self._sizes[file]

    def shown(self, file: str) -> str:
        return f"{self.name}/{file}"

    def file(self, name: str) -> bytes | None:
        if name not in self._sizes:
            return None
        from huggingface_hub import hf_hub_download

        with told(self.name, f"{name} ({_mib(self.size(name))})"):
            return Path(hf_hub_download(self.repository, name, revision=self.commit)).read_bytes()

    def open(self, file: str) -> BinaryIO:
        if cached := self._cached(file):
            return cached.open(Path(file).name)
        from huggingface_hub import HfFileSystem

        with told(self.name, file):
            # without read-ahead: what is not asked for is not fetched
            path = f"{self.repository}@{self.commit}/{file}"
            return cast(BinaryIO, HfFileSystem().open(path, "rb", cache_type="none"))

    def _index(self, file: str, wanted: Collection[str]) -> dict[str, Stored]:
        if cached := self._cached(file):
            found = cached.index(Path(file).name, wanted)
            return {name: replace(stored, file=file) for name, stored in found.items()}
        kept = self._kept / file / "index.json"
        if (content := _read_json(kept)) is not None:
            found = {name: Stored(**entry | {"shape": tuple(entry["shape"])}) for name, entry in content.items()}
            if all(found[name].offset is not None for name in found.keys() & set(wanted)):
                return found
        with told(self.name, f"the header of {file}"):
            found = super()._index(file, wanted)
        _write(kept, json.dumps({name: asdict(stored) for name, stored in found.items()}))
        return found

    def to_fetch(self, stored: Stored) -> int:
        return 0 if self._cached(stored.file) or self._tensor_file(stored).is_file() else stored.nbytes

    def tensor(self, stored: Stored, watch: Watch = unwatched) -> Tensor:
        if cached := self._cached(stored.file):
            return cached.tensor(replace(stored, file=Path(stored.file).name), watch)
        kept = self._tensor_file(stored)
        if not kept.is_file():
            with told(self.name, f"{stored.name} of {stored.file} ({_mib(stored.nbytes)})"):
                self._fetch(stored, kept, watch)
            watch = unwatched  # reading it from there takes no time beside
        folder = Folder(kept.parent)
        found = folder.index(kept.name, ())[stored.name]
        return folder.tensor(replace(found, shape=stored.shape, dtype=stored.dtype), watch)

    def gguf(self, file: str) -> Path:
        """A file with its metadata, in which there is nothing, and no disk space is taken, where tensors would be."""
        if cached := self._cached(file):
            return cached.gguf(Path(file).name)
        kept = self._kept / file / "metadata.gguf"
        if not kept.is_file():
            with self.open(file) as remote, _partial(kept) as partial, partial.open("wb") as local:
                local.truncate(self.size(file))
                length, done = min(FIRST_TRY, self.size(file)), 0
                while True:
                    with told(self.name, f"the metadata of {file}"):
                        local.write(remote.read(length - done))
                    local.flush()
                    done = length
                    # Where bytes are missing they read as zeros, so whatever it takes them for ends beyond them
                    if (whole := _metadata(partial, self.shown(file), done)) or done == self.size(file):
                        break
                    length = min(4 * done, self.size(file))
                if not whole:
                    read_gguf(partial, self.shown(file))  # says what is wrong
        return kept

    def _legacy(self, file: str) -> dict[str, Stored]:
        raise InputError(
            f"{self.shown(file)}: in torch's format from before 1.6, which can only be read whole "
            f"({_mib(self.size(file))}); fetch it first: hf download {self.repository} {file} --revision {self.commit}"
        )

    def _cached(self, file: str) -> Folder | None:
        """The folder of huggingface-hub's cache with this file, if it is there."""
        from huggingface_hub import try_to_load_from_cache

        path = try_to_load_from_cache(self.repository, file, revision=self.commit)
        if not isinstance(path, str):
            return None
        return Folder(Path(path).parent, self.name, self.commit)

    def _tensor_file(self, stored: Stored) -> Path:
        return self._kept / stored.file / f"{quote(stored.name, safe='')}.safetensors"

    def _fetch(self, stored: Stored, kept: Path, watch: Watch) -> None:
        """Write a tensor's bytes, as they are, into a safetensors file; quantised ones as nothing but bytes."""
        if stored.offset is None:
            raise InputError(
                f"{self.shown(stored.file)}: {stored.name} is a view of another tensor, which takes the whole file to "
                f"read; fetch it first: hf download {self.repository} {stored.file} --revision {self.commit}"
            )
        code, shape = CODES.get(stored.dtype, "U8"), stored.shape if stored.dtype in CODES else (stored.nbytes,)
        header = json.dumps({stored.name: {"dtype": code, "shape": shape, "data_offsets": [0, stored.nbytes]}})
        header += " " * (-len(header.encode()) % 8)
        with self.open(stored.file) as remote, _partial(kept) as partial, partial.open("wb") as local:
            local.write(len(header.encode()).to_bytes(8, "little") + header.encode())
            remote.seek(stored.offset)
            for done in range(0, stored.nbytes, BLOCK):
                part = min(BLOCK, stored.nbytes - done)
                if len(raw := remote.read(part)) != part:
                    raise InputError(f"{self.shown(stored.file)}: ended within {stored.name}; try again")
                local.write(raw)
                watch(done + part, stored.nbytes)


def _look_up(repository: str, revision: str) -> tuple[str, str, dict[str, int]]:
    """Id, commit and the sizes of all files: from the Hub, or, where it is not reachable, as it last was."""
    from huggingface_hub import HfApi

    kept = _kept_look_up(repository, revision)
    if kept and COMMIT.fullmatch(revision):
        return kept
    try:
        with told(repository, "the list of its files", revision):
            info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Unreachable:
        if found := kept or _snapshot(repository, revision):
            return found
        raise
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    commit = str(info.sha)
    _write(_shelf(info.id) / commit / "files.json", json.dumps(sizes))
    _write(_reference(repository, revision), json.dumps({"repository": info.id, "commit": commit}))
    return info.id, commit, sizes


def _kept_look_up(repository: str, revision: str) -> tuple[str, str, dict[str, int]] | None:
    known = _read_json(_reference(repository, revision))
    if known is None and COMMIT.fullmatch(revision):
        known = {"repository": repository, "commit": revision}
    if known is None:
        return None
    sizes = _read_json(_shelf(known["repository"]) / known["commit"] / "files.json")
    return None if sizes is None else (known["repository"], known["commit"], sizes)


def _snapshot(repository: str, revision: str) -> tuple[str, str, dict[str, int]] | None:
    """What huggingface-hub has in its cache, if there are weights among it."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    files = [path for path in snapshot.rglob("*") if path.is_file()] if snapshot.is_dir() else []
    sizes = {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files}
    return (repository, commit, sizes) if any(path.suffix in WEIGHTS for path in files) else None


def _shelf(repository: str) -> Path:
    return cache_folder() / "pretrained" / repository.replace("/", "--")


def _reference(repository: str, revision: str) -> Path:
    return _shelf(repository) / "revisions" / f"{quote(revision, safe='')}.json"


def _read_json(path: Path) -> dict[str, Any] | None:
    """None where there is no such file, or it is damaged: then it is fetched again."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _write(path: Path, text: str) -> None:
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A file beside it that takes its place at the end, if all went well."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with _writing(path):
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); EXOR_CACHE names another folder") from error


def _metadata(path: Path, name: str, length: int) -> bool:
    """Whether the metadata of a GGUF file end within so many bytes."""
    try:
        return read_gguf(path, name).length <= length
    except InputError:
        return False


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 1e5 else f"{size:,} bytes"
