"""What a look at some models costs: bytes to fetch, memory, and time. Rough, and before anything is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import combinations
from time import perf_counter

import torch

from exor import InputError
from exor.pretrained.subjects import Plan

FLOAT = 4  # bytes
BLOCKS = 1 << 30  # bytes of blocks of products, and of what else is needed
SORTED = 100  # multiply-adds in the time that finding the largest takes for one similarity
MAPS = 7  # products of a matrix with a map, for one comparison: maps, held-out and shuffled ones
SOLVE = 30  # multiply-adds for one of width³ in decompositions, in units of those of a product


def memory(plan: Plan) -> int:
    """Bytes that the matrices and the work on them need, at most."""
    widths = plan.widths
    read = max(model.checkpoint.rows * model.checkpoint.width * 2 * FLOAT for model in plan.models)
    return len(plan.tokens) * (sum(widths) + max(widths)) * FLOAT + read + BLOCKS


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
    a @ a
    start = perf_counter()
    (a @ a)[0, 0].item()
    return size**3 / (perf_counter() - start)


def available_memory() -> int | None:
    """Bytes that are free for use, None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            known = dict(line.split(":", 1) for line in file)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def require_memory(plan: Plan) -> None:
    """Refuse what does not fit.

    Raises:
        InputError: names what is needed, what there is, and what would do with less.
    """
    needed, free = memory(plan), available_memory()
    if free is not None and needed > free:
        names = " and ".join(model.checkpoint.name for model in plan.models)
        raise InputError(
            f"{names}: about {needed / 1e9:.1f} GB of memory needed, {free / 1e9:.1f} GB are free; "
            "--limit-tokens needs less"
        )
