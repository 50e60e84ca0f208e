"""Where a model's files are: a folder. (The Hub is another place: :mod:`exor.pretrained.hub`.)"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.gguf_files import GGUF, read_gguf
from exor.pretrained.tensors import Stored, check_finite, read, safetensors_index
from exor.pretrained.torch_files import load_whole, torch_index

ACCEPTED = "model.safetensors, pytorch_model.bin (whole or sharded), OLMo's model.pt, a .gguf file"
PREFERRED = (  # the first that is there is read
    *("model.safetensors", "model.safetensors.index.json", "consolidated.safetensors", "*.safetensors"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "*.pt", "*.pth", "*.bin", "*.gguf"),
)
NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|rng_state.*|adapter_model|optim|train)\.\w+$|(^|/)\.")
SHARD = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.\w+)$")


class Place(ABC):
    """Files beside each other, with a name as shown and perhaps a commit."""

    name: str
    commit: str | None = None

    @abstractmethod
    def names(self) -> Collection[str]:
        """Of its files, not those in folders below."""

    @abstractmethod
    def has(self, file: str) -> bool:
        """Whether there is such a file, here or in a folder below."""

    @abstractmethod
    def size(self, file: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def open(self, file: str) -> BinaryIO:
        """A file, to seek and read."""

    @abstractmethod
    def file(self, name: str) -> bytes | None:
        """A small file; None where there is none.

        Raises:
            InputError: there is one, but it cannot be read.
        """

    @abstractmethod
    def gguf(self, file: str) -> Path:
        """A file that begins like this GGUF file and is as long, for those who read no tensors."""

    @abstractmethod
    def shown(self, file: str) -> str:
        """A file, in a message."""

    @abstractmethod
    def to_fetch(self, stored: Stored) -> int:
        """Bytes that reading a tensor would fetch from elsewhere."""

    @abstractmethod
    def tensor(self, stored: Stored, watch: Watch = unwatched) -> Tensor:
        """A tensor as float32.

        Raises:
            InputError: unreadable, or cannot be fetched.
        """

    def json(self, name: str) -> dict[str, Any] | None:
        """A small file of JSON; None where there is none.

        Raises:
            InputError: damaged.
        """
        if (raw := self.file(name)) is None:
            return None
        try:
            content = json.loads(raw)
        except ValueError as error:
            raise InputError(f"{self.shown(name)}: damaged (not JSON: {error})") from error
        if not isinstance(content, dict):
            raise InputError(f"{self.shown(name)}: damaged (an object was expected)")
        return content

    def index(self, file: str, wanted: Collection[str]) -> dict[str, Stored]:
        """Every tensor of a weights file, which is looked into once.

        Args:
            wanted: those that may be read.

        Raises:
            InputError: missing or damaged.
        """
        if file not in self._indices:
            self._indices[file] = self._index(file, wanted)
        return self._indices[file]

    def gguf_content(self, file: str) -> GGUF:
        """What the beginning of a GGUF file says.

        Raises:
            InputError: damaged.
        """
        if file not in self._ggufs:
            self._ggufs[file] = read_gguf(self.gguf(file), self.shown(file))
        return self._ggufs[file]

    @cached_property
    def _indices(self) -> dict[str, dict[str, Stored]]:
        return {}

    @cached_property
    def _ggufs(self) -> dict[str, GGUF]:
        return {}

    def _index(self, file: str, wanted: Collection[str]) -> dict[str, Stored]:
        shown = self.shown(file)
        if not self.has(file):
            raise InputError(f"{shown}: missing, though the model needs it")
        if file.endswith(".gguf"):
            found = self.gguf_content(file).tensors
        else:
            with self.open(file) as opened:
                if file.endswith(".safetensors"):
                    found = safetensors_index(opened, shown, self.size(file))
                else:
                    tensors = torch_index(opened, shown, self.size(file), wanted)
                    found = self._legacy(file) if tensors is None else tensors
        return {name: replace(stored, file=file) for name, stored in found.items()}

    @abstractmethod
    def _legacy(self, file: str) -> dict[str, Stored]:
        """Tensors of a file of torch.save that has to be loaded as a whole."""


class Folder(Place):
    """A folder on this machine."""

    def __init__(self, path: Path, name: str | None = None, commit: str | None = None) -> None:
        self.path = path
        self.name = name or str(path)
        self.commit = commit

    def names(self) -> Collection[str]:
        try:
            return {entry.name for entry in self.path.iterdir() if entry.is_file()}
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror})") from error

    def has(self, file: str) -> bool:
        return (self.path / file).is_file()

    def size(self, file: str) -> int:
        return (self.path / file).stat().st_size

    def open(self, file: str) -> BinaryIO:
        try:
            return (self.path / file).open("rb")
        except OSError as error:
            raise InputError(f"{self.shown(file)}: cannot be read ({error.strerror})") from error

    def file(self, name: str) -> bytes | None:
        if not (self.path / name).is_file():
            return None
        with self.open(name) as opened:
            return opened.read()

    def gguf(self, file: str) -> Path:
        return self.path / file

    def shown(self, file: str) -> str:
        return str(self.path / file)

    def to_fetch(self, stored: Stored) -> int:
        return 0

    def tensor(self, stored: Stored, watch: Watch = unwatched) -> Tensor:
        shown = replace(stored, file=self.shown(stored.file))
        if stored.offset is None:
            found = load_whole(self.path / stored.file, shown.file)[stored.name].float().contiguous().clone()
            check_finite(found, shown)
            watch(stored.nbytes, stored.nbytes)
            return found
        with self.open(stored.file) as opened:
            return read(opened, shown, watch)

    def _legacy(self, file: str) -> dict[str, Stored]:
        return {
            name: Stored(name, tuple(t.shape), str(t.dtype).removeprefix("torch."), file, t.nbytes, None)
            for name, t in load_whole(self.path / file, self.shown(file)).items()
        }


@dataclass(frozen=True)
class Weights:
    """The tensors of a model, in one file or several.

    Attributes:
        files: of the tensors, by name.
    """

    place: Place
    files: dict[str, str]

    def stored(self, tensor: str, wanted: Collection[str]) -> Stored:
        """A tensor.

        Raises:
            InputError: its file is missing or damaged, or does not hold it.
        """
        file = self.files[tensor]
        found = self.place.index(file, wanted)
        if tensor not in found:
            raise InputError(f"{self.place.shown(file)}: does not hold {tensor}, though the index says so")
        return found[tensor]


def weights(place: Place, wanted: Collection[str], file: str | None = None) -> Weights:
    """Which file holds which tensor.

    Args:
        wanted: those that may be read.
        file: the weights file or index to use, where the caller knows.

    Raises:
        InputError: there is none, or several of which none is to be preferred; missing or damaged.
    """
    file = file or _choose(place)
    if file.endswith(".index.json"):
        content = place.json(file)
        files = (content or {}).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(f, str) and "/" not in f for f in files.values()):
            raise InputError(f"{place.shown(file)}: damaged (no weight_map with the file of each tensor)")
        return Weights(place, files)
    found: dict[str, str] = {}
    for part in _shards(file):
        found |= dict.fromkeys(place.index(part, wanted), part)
    return Weights(place, found)


def _choose(place: Place) -> str:
    names = {name for name in place.names() if not NOT_WEIGHTS.search(name)}
    for wanted in PREFERRED:
        found = sorted(n for n in names if n == wanted or (wanted[0] == "*" and n.endswith(wanted[1:])))
        firsts = [n for n in found if not (m := SHARD.match(n)) or int(m[2]) == 1] or found[:1]
        if len(firsts) > 1:
            raise InputError(f"{place.name}: several weights files ({', '.join(firsts)}); name one of them")
        if firsts:
            return firsts[0]
    raise InputError(f"{place.name}: holds no weights; accepted are {ACCEPTED}")


def _shards(file: str) -> list[str]:
    """All parts of a file in several, by their numbers."""
    if not (match := SHARD.match(file)):
        return [file]
    stem, _, of, count, suffix = match.groups()
    return [f"{stem}{i:05d}{of}{count}{suffix}" for i in range(1, int(count) + 1)]
