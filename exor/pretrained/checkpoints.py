"""The embedding matrices of a model, read without loading the model.

Whether a model is tied is decided by its tensors: both matrices stored and equal, or one alone and the model said to be
tied. It is never learnt from a loaded model, because loading ties matrices again, or makes up a missing one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.architectures import WANTED, Names, find_names
from exor.pretrained.configs import kind_of, olmo_config, says_tied, scales, text_config
from exor.pretrained.embeddings import Embeddings, distance, tolerance
from exor.pretrained.places import ACCEPTED, Folder, Place, weights
from exor.pretrained.tensors import FLOATS, Stored

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(/[\w./-]+\.gguf)?")


@dataclass(frozen=True)
class Checkpoint:
    """A model whose tensors are known, but not read.

    Attributes:
        name: as shown.
        commit: of the Hub; None elsewhere.
        config: as in ``config.json``, under the same names where it comes from elsewhere; empty if there is none.
        input, output: the matrices; output is None if it is not stored.
        others: ``norm_gain``, ``norm_bias`` and ``head_bias``, those that are stored.
        notes: what a reader should know.
        tokens, token_types: the vocabulary inside a GGUF file; None elsewhere.
        gguf_path: a file with the metadata of the GGUF file (not always its tensors); None elsewhere.
    """

    name: str
    commit: str | None
    config: dict[str, Any]
    input: Stored
    output: Stored | None
    others: dict[str, Stored]
    place: Place = field(repr=False)
    tied_by: str = ""
    notes: tuple[str, ...] = ()
    tokens: list[str] | None = field(default=None, repr=False)
    token_types: list[int] | None = field(default=None, repr=False)
    gguf_path: Path | None = None

    @property
    def model_type(self) -> str:
        """As in ``config.json``; empty if unknown."""
        return str(self.config.get("model_type") or "")

    @property
    def rows(self) -> int:
        """Of each matrix: tokens and padding."""
        return self.input.shape[0]

    @property
    def width(self) -> int:
        """Of each matrix."""
        return self.input.shape[1]

    @property
    def stored(self) -> list[Stored]:
        """All that :meth:`read` reads."""
        return [self.input, *([self.output] if self.output else []), *self.others.values()]

    @property
    def bytes_to_fetch(self) -> int:
        """Bytes of weights that are not on this machine yet."""
        return sum(self.place.to_fetch(stored) for stored in self.stored)

    @property
    def memory(self) -> int:
        """Bytes of the float32 matrices, as far as it is known that they differ."""
        return (1 if self.output is None else 2) * 4 * self.rows * self.width

    def file(self, name: str) -> bytes | None:
        """A small file beside the weights; None where there is none.

        Raises:
            InputError: it cannot be read or fetched.
        """
        return self.place.file(name)

    def read(self, *, watch: Watch = unwatched) -> Embeddings:
        """Read the matrices.

        Args:
            watch: told bytes, as stored.

        Raises:
            InputError: unreadable, damaged, cannot be fetched, or larger than the memory.
        """
        _check_memory(self.name, self.memory)
        total = sum(stored.nbytes for stored in self.stored)
        begun = 0

        def tensor(stored: Stored) -> Tensor:
            nonlocal begun
            before = begun
            begun += stored.nbytes
            return self.place.tensor(stored, lambda done, _: watch(before + done, total))

        others = {role: tensor(stored) for role, stored in self.others.items()}
        matrix = tensor(self.input)
        notes = list(self.notes)
        output, why = matrix, f"no output matrix is stored, and {self.tied_by}"
        if self.output is not None:
            output = tensor(self.output)
            apart = distance(matrix, output)
            if apart <= tolerance(self.input.dtype, self.output.dtype):
                why = "both matrices are stored and equal"
                if apart:
                    why = f"both matrices are stored and equal up to rounding (relative distance {apart:.2g})"
                output = matrix
            else:
                why = f"both matrices are stored and differ (relative distance {apart:.2g})"
            said, by = says_tied(self.config)
            if said not in (None, output is matrix) and self.gguf_path is None:
                differ = "are equal: taken as tied" if output is matrix else "differ: taken as untied"
                notes.append(f"{by}, but the matrices {differ} (relative distance {apart:.2g})")
        if kind_of(self.config).gain and self.gguf_path is None and "norm_gain" in others:
            others["norm_gain"] += kind_of(self.config).gain
        inward, outward, cap = scales(self.config, self.width)
        norm = self._norm()
        if norm == "not found":
            notes.append("the final norm was not found")
        return Embeddings(
            self.name,
            matrix,
            output,
            output is matrix,
            why,
            tuple(notes),
            **others,
            norm=norm,
            logit_scale=outward,
            logit_cap=cap,
            input_scale=_rounded(inward, self.input.dtype),
        )

    def _norm(self) -> str:
        kind = kind_of(self.config)
        if "norm_bias" in self.others:
            return "LayerNorm"
        if "norm_gain" in self.others:
            name = self.others["norm_gain"].name
            return "LayerNorm" if kind.norm == "LayerNorm" or re.search(r"\bln_f\b|layer_?norm", name) else kind.norm
        if kind.bare:
            return "without parameters"
        # OPT of 350M parameters normalises after each block instead of before, and not at the end
        return "none" if text_config(self.config).get("do_layer_norm_before") is False else "not found"


def open_checkpoint(
    source: str | Path, *, revision: str | None = None, input_key: str | None = None, output_key: str | None = None
) -> Checkpoint:
    """Find the embedding matrices of a model, reading only its config, index and headers.

    Args:
        source: a folder, a weights file or its index, or an id of the Hub (``org/name``, or ``org/name/file.gguf``).
        revision: of the Hub: a branch, tag or commit.
        input_key, output_key: names of the tensors, if they are not those of a known architecture.

    Raises:
        InputError: no such model, no usable weights, damaged, an unknown architecture, no output matrix, matrices of
            different shapes; cannot be fetched.
    """
    place, file = _place(source, revision)
    wanted = WANTED | {key for key in (input_key, output_key) if key}
    content = weights(place, wanted, file)
    names = find_names(content.files.keys(), place.name, input_key, output_key)
    stored = {name: content.stored(name, wanted) for name in names.every()}
    held_in = content.files[names.input]
    gguf = place.gguf_content(held_in) if held_in.endswith(".gguf") else None
    config = gguf.config if gguf else _config(place)
    inward, outward = stored[names.input], stored[names.output] if names.output else None
    _check_shapes(place.name, inward, outward)
    roles = ("norm_gain", "norm_bias", "head_bias")
    return Checkpoint(
        name=place.name,
        commit=place.commit,
        config=config,
        input=inward,
        output=outward,
        others={role: stored[name] for role in roles if (name := getattr(names, role))},
        place=place,
        tied_by="" if outward else _check_tied(place.name, names, config, gguf is not None),
        tokens=gguf.tokens if gguf else None,
        token_types=gguf.token_types if gguf else None,
        gguf_path=place.gguf(held_in) if gguf else None,
    )


def available() -> int | None:
    """Bytes of memory that can still be used; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _place(source: str | Path, revision: str | None) -> tuple[Place, str | None]:
    path = Path(source).expanduser()
    if path.is_dir() or path.is_file():
        if revision is not None:
            raise InputError(f"{path}: a revision is of models of the Hub, and this is on this machine")
        return (Folder(path), None) if path.is_dir() else (Folder(path.parent, str(path)), path.name)
    text = str(source)
    if not HUB_ID.fullmatch(text) or (text.count("/") < 2 and path.suffix in (".safetensors", ".bin", ".pt", ".gguf")):
        raise InputError(
            f"{source}: no such file or folder, and no id of the Hub (org/name); accepted are {ACCEPTED}, or a folder"
        )
    from exor.pretrained.hub import Hub

    parts = text.split("/", 2)
    return Hub("/".join(parts[:2]), revision), parts[2] if len(parts) == 3 else None


def _config(place: Place) -> dict[str, Any]:
    """``config.json``, or OLMo's own; empty if there is neither."""
    if (config := place.json("config.json")) is not None:
        return config
    raw = place.file("config.yaml")
    return {} if raw is None else olmo_config(raw, place.shown("config.yaml"))


def _check_shapes(name: str, inward: Stored, outward: Stored | None) -> None:
    for stored in (inward, outward) if outward else (inward,):
        if len(stored.shape) != 2 or not prod(stored.shape):
            raise InputError(f"{name}: {stored.name} has shape {list(stored.shape)}; a matrix was expected")
    if outward and inward.shape != outward.shape:
        raise InputError(
            f"{name}: {inward.name} is {inward.shape[0]:,} × {inward.shape[1]:,} and {outward.name} "
            f"{outward.shape[0]:,} × {outward.shape[1]:,}; matrices of one shape were expected"
        )


def _check_tied(name: str, names: Names, config: dict[str, Any], gguf: bool) -> str:
    """What says that a model without a stored output matrix is tied.

    Raises:
        InputError: nothing does.
    """
    if names.masked and not names.has_head:
        raise InputError(f"{name}: has no output matrix (an encoder without a head for masked tokens)")
    if gguf:
        return "a GGUF file without one is tied"
    if not config:
        raise InputError(f"{name}: has no output matrix, and no config.json that says whether it is tied")
    tied, by = says_tied(config)
    if not tied:
        raise InputError(f"{name}: has no output matrix, but {by}")
    return by


def _check_memory(name: str, needed: int) -> None:
    free = available()
    if free is not None and needed > free:
        raise InputError(
            f"{name}: its matrices need {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are available"
        )


def _rounded(scale: float, dtype: str) -> float:
    """A factor in the type of the matrix, in which models keep it."""
    return float(torch.tensor(scale, dtype=FLOATS.get(dtype, torch.float32)))
