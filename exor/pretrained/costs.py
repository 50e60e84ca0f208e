"""What a look at some models costs: bytes to fetch, memory, and time. Rough, and before anything is read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from time import perf_counter

import torch

from exor import InputError
from exor.pretrained.checkpoints import Checkpoint, available
from exor.pretrained.neighbours import TILE
from exor.pretrained.products import BLOCK_BYTES
from exor.pretrained.subjects import Plan
from exor.sheets import Number, Sheet, number

FLOAT = 4  # bytes
KEPT = 2 * 72 * 12  # bytes of a token's neighbours while they are searched: two kinds, value and id
WORK = 2**30  # bytes of whatever else is needed
SORTED = 250  # multiply-adds in the time that finding the largest takes for one cosine
MAPS = 7  # products of a matrix with a map, for one comparison: maps, held-out and shuffled ones
NOTE = "Nothing was fetched but configurations and the beginnings of files."
SOLVE = 30  # multiply-adds for one of width³ in decompositions, in units of those of a product


def memory(plan: Plan) -> int:
    """Bytes that the matrices and the work on them need on this machine, at most."""
    read = max(model.checkpoint.rows * model.checkpoint.width * 2 * FLOAT for model in plan.models)
    return len(plan.tokens) * sum(plan.widths) * FLOAT + max(read, device_memory(plan))


def device_memory(plan: Plan) -> int:
    """Bytes that the work needs on the device: a matrix to search in, and products of blocks."""
    width = max(plan.widths)
    search = len(plan.tokens) * (width * FLOAT + KEPT) + 4 * TILE**2 * FLOAT
    return max(search, 8 * BLOCK_BYTES + 12 * width**2 * 8) + WORK


def operations(plan: Plan, analyses: Sequence[str]) -> float:
    """Multiply-adds of some analyses, or of all if none is named."""
    n, widths = len(plan.tokens), plan.widths

    def asked(*names: str) -> bool:
        return not analyses or not set(names).isdisjoint(analyses)

    total = 0.0
    if asked("alignment", "differences", "spectra", "subspaces", "cka", "isotropy"):
        total += n * sum(w * w for w in widths) + sum(SOLVE * w**3 for w in widths)
        total += sum(2 * n * a * b for a, b in combinations(widths, 2))
    if asked("alignment", "differences"):
        total += sum(MAPS * n * a * b for a, b in combinations(widths, 2))
    if asked("neighbours", "spectral"):
        total += sum(n * n * (w / 2 + SORTED) for w in widths)
    return total


def speed(device: torch.device | str) -> float:
    """Multiply-adds a second, measured on a product of two matrices."""
    size = 2048
    a = torch.randn(size, size, device=device)
    (a @ a)[0, 0].item()
    start = perf_counter()
    (a @ a)[0, 0].item()
    return size**3 / (perf_counter() - start)


def sheet(plan: Plan, analyses: Sequence[str], device: torch.device) -> Sheet:
    """What would be fetched and needed."""
    rows = [_to_fetch(model.checkpoint) for model in plan.models]
    rows += [
        ("tokens looked at", Number(f"{len(plan.tokens):,}", len(plan.tokens))),
        ("memory", _size(memory(plan))),
        (f"memory of {device}", _size(device_memory(plan))),
        ("minutes of computing, roughly", number(operations(plan, analyses) / speed(device) / 60, 2)),
    ]
    if device.type == "cpu":
        del rows[-2]
    return Sheet(
        "To be done", "Nothing was fetched but configurations and the beginnings of files.", ("", ""), tuple(rows)
    )


def sheet_of_checkpoints(checkpoints: Sequence[Checkpoint]) -> Sheet:
    """What would be fetched for several checkpoints of a model, and the memory that following it takes."""
    rows = [_to_fetch(checkpoint) for checkpoint in checkpoints]
    if len(rows) > 1:
        rows.append(("to fetch, in all", _size(sum(checkpoint.bytes_to_fetch for checkpoint in checkpoints))))
    rows.append(("memory", _size(4 * max(checkpoint.memory for checkpoint in checkpoints))))
    return Sheet(
        "To be done", "Nothing was fetched but configurations and the beginnings of files.", ("", ""), tuple(rows)
    )


def require_memory(plan: Plan, device: torch.device) -> None:
    """Refuse what does not fit.

    Raises:
        InputError: says what is needed, what there is, and what would do with less.
    """
    places = [("memory", memory(plan), available())]
    if device.type == "cuda":
        places.append((f"memory of {device}", device_memory(plan), torch.cuda.mem_get_info(device)[0]))
    for where, needed, free in places:
        if free is not None and needed > free:
            names = " and ".join(model.checkpoint.name for model in plan.models)
            raise InputError(
                f"{names}: about {_size(needed)} of {where} needed, {_size(free)} are free; --limit-tokens needs less"
            )


def _to_fetch(checkpoint: Checkpoint) -> tuple[str, Number]:
    return f"to fetch, {checkpoint.name}", _size(checkpoint.bytes_to_fetch)


def _size(size: int) -> Number:
    return Number(f"{size / 1e9:,.2f} GB" if size >= 1e8 else f"{size / 1e6:,.2f} MB", size)
