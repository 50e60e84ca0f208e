"""How fast real models are compared, against the code that anyone would write.

Both sides get the same arrays, in one process, and as many threads as there are cores.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from exor.pretrained.alignment import LINEAR, cosines, fit
from exor.pretrained.neighbours import TIE, nearest, overlap
from exor.pretrained.products import Products, full_precision

TOKENS, WIDTH, K = 50_304, 2_048, 10  # OLMo-1B
BLOCK = 2048  # rows that the obvious search multiplies at a time


def geometry(share: float) -> list[dict[str, Any]]:
    """Linear alignment and overlap of neighbours, at the shape of OLMo-1B or a share of its tokens and of its width."""
    n, width = int(TOKENS * share), int(WIDTH * share**0.5)
    generator = torch.Generator().manual_seed(0)
    tied = torch.randn(n, width, generator=generator)
    noise = [torch.randn(n, width, generator=generator) for _ in range(2)]
    # related, as those of real models are; and well-conditioned
    matrices = {"tied": tied, "untied output": tied + noise[0], "untied input": tied + 3 * noise[1]}
    return [_alignment(matrices["untied output"], tied), _neighbours(matrices)]


def _alignment(a: Tensor, b: Tensor) -> dict[str, Any]:
    x, y = a.numpy(), b.numpy()

    def obvious() -> np.ndarray:
        p, q = x - x.mean(0), y - y.mean(0)
        mapped = p @ np.linalg.lstsq(p, q, rcond=None)[0]
        return (mapped * q).sum(1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(q, axis=1)

    def ours() -> Tensor:
        products = Products({"a": a, "b": b})
        return cosines(products, "a", "b", fit(products, "a", "b", LINEAR))

    def products() -> None:
        with full_precision():
            a.T @ a
            a.T @ b
            a @ b[: a.shape[1]]

    found, seconds = _timed(ours)
    expected, slow = _timed(obvious)
    _, bound = _timed(products)
    return {
        "what": "linear alignment, map and score",
        "against": "numpy.linalg.lstsq and scoring",
        "shape": list(a.shape),
        "goal": 5,
        "seconds": seconds,
        "obvious_seconds": slow,
        "ratio": slow / seconds,
        "largest_difference": float(np.abs(found.numpy() - expected).max()),
        "products_seconds": bound,  # of the three that any way through Gram matrices has to make
        "times_the_products": seconds / bound,
    }


def _neighbours(matrices: dict[str, Tensor]) -> dict[str, Any]:
    pairs = list(combinations(matrices, 2))

    def search(matrix: Tensor) -> list[set[int]]:
        rows = torch.nn.functional.normalize(matrix, dim=1)
        found: list[set[int]] = []
        for start in range(0, len(rows), BLOCK):
            ids = (rows[start : start + BLOCK] @ rows.T).topk(K + 1, dim=1).indices.tolist()
            found += [set([i for i in near if i != start + row][:K]) for row, near in enumerate(ids)]
        return found

    def obvious() -> tuple[list[float], dict[str, list[set[int]]]]:
        known, shares = {}, []
        for a, b in pairs:
            known[a], known[b] = search(matrices[a]), search(matrices[b])
            shares.append(float(np.mean([len(x & y) / K for x, y in zip(known[a], known[b], strict=True)])))
        return shares, known

    def ours() -> tuple[list[float], dict[str, Tensor]]:
        known = {name: nearest(matrix, K, centred=False).raw for name, matrix in matrices.items()}
        return [overlap(known[a], known[b]).double().mean().item() for a, b in pairs], known

    (found, ids), seconds = _timed(ours)
    (expected, sets), slow = _timed(obvious)
    apart = [_unlike(matrices[name], ids[name], sets[name]) for name in matrices]
    return {
        "what": f"three KNN@{K} overlaps",
        "against": "two searches by matmul and topk for each, then sets",
        "shape": list(next(iter(matrices.values())).shape),
        "goal": 3,
        "seconds": seconds,
        "obvious_seconds": slow,
        "ratio": slow / seconds,
        "largest_difference": max(abs(a - b) for a, b in zip(found, expected, strict=True)),
        "tokens_that_differ": sum(differ for differ, _ in apart),
        "of_these_no_tie": sum(wrong for _, wrong in apart),
    }


def _unlike(matrix: Tensor, ids: Tensor, sets: list[set[int]]) -> tuple[int, int]:
    """Tokens whose neighbours differ between the two searches, and those where it is not a matter of rounding."""
    differ = [row for row, near in enumerate(ids.tolist()) if set(near) != sets[row]]
    wrong = 0
    for row in differ:
        swapped = sorted(set(ids[row].tolist()) ^ sets[row])
        rows = torch.nn.functional.normalize(matrix[[row, *swapped]].double(), dim=1)
        values = rows[1:] @ rows[0]
        wrong += bool(values.max() - values.min() > 2 * TIE)
    return len(differ), wrong


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    found = work()
    return found, perf_counter() - start


def table(results: list[dict[str, Any]]) -> Table:
    """What was measured, for a terminal."""
    shown = Table(title="Comparing real models", title_justify="left", box=None)
    for heading in (
        "",
        "tokens × width",
        "lab",
        "obvious",
        "ratio",
        "goal",
        "largest difference",
        "times the products",
    ):
        shown.add_column(heading, justify="left" if not heading else "right")
    for row in results:
        bound = f"{row['times_the_products']:.2f}" if "times_the_products" in row else "–"
        shown.add_row(
            row["what"],
            f"{row['shape'][0]:,} × {row['shape'][1]:,}",
            f"{row['seconds']:.1f} s",
            f"{row['obvious_seconds']:.1f} s",
            f"{row['ratio']:.1f}×",
            f"{row['goal']}×",
            f"{row['largest_difference']:.1e}",
            bound,
        )
    return shown
