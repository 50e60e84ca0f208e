"""Every analysis of some matrices over the same tokens, in one pass: each Gram matrix and each search is made once.

``Geometry({"tied": …, "untied input": …, "untied output": …}, comparisons).find("alignment")``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exor.pretrained import Watch, unwatched
from exor.pretrained.analyses import ANALYSES
from exor.pretrained.neighbours import CENTRED, RAW, nearest
from exor.pretrained.products import Products
from exor.pretrained.store import Finding, Store, digest

Pair = tuple[str, str]


@dataclass(frozen=True)
class Settings:
    """What decides the numbers besides the matrices.

    Attributes:
        k: neighbours whose overlap is counted.
        graph: neighbours of a token in the graphs of the spectral distance.
        components: eigenpairs of the spectral distance.
        subspace: principal directions whose subspaces are compared.
        resamples: bootstrap samples of the tokens, the map kept.
        refits: bootstrap samples with the map fitted again to each; for intervals instead of the former if not 0.
        seed: of halves, shuffles and bootstrap.
    """

    k: int = 10
    graph: int = 64
    components: int = 128
    subspace: int = 100
    resamples: int = 1000
    refits: int = 0
    seed: int = 0


class Geometry:
    """Analyses of matrices, sharing what they have in common."""

    def __init__(
        self,
        matrices: Mapping[str, Tensor],
        comparisons: Sequence[Pair],
        *,
        counts: np.ndarray | None = None,
        gains: Mapping[str, Tensor] | None = None,
        settings: Settings = Settings(),
        store: Store | None = None,
        device: torch.device | str | None = None,
        watch: Callable[[str], Watch] = lambda _: unwatched,
    ) -> None:
        """Look at nothing yet.

        Args:
            matrices: ``[tokens, width]`` by name; the tokens are the same, widths may differ.
            comparisons: source and target of each alignment.
            counts: how often each token occurs in some text, ``[tokens]``.
            gains: of the final norm behind an output matrix, ``[width]``, by its name.
            store: where findings are kept, if anywhere.
            device: where to compute; where the matrices lie by default.
            watch: for the name of a long piece of work, whom to tell of its progress.
        """
        self.matrices, self.comparisons, self.counts = dict(matrices), list(comparisons), counts
        self.settings, self.store, self.device, self.watch = settings, store or Store(None), device, watch
        self.gains = dict(gains or {})
        self._found: dict[str, Finding] = {}
        self._nearest: dict[str, Finding] = {}

    @property
    def analyses(self) -> list[str]:
        """Names of the analyses that make sense for these matrices."""
        return [name for name, analysis in ANALYSES.items() if analysis.fits(self)]

    def find(self, name: str) -> Finding:
        """One of :attr:`analyses`, from the store if it has been made before."""
        if name not in self._found:
            analysis = ANALYSES[name]
            made_from: dict[str, Any] = {
                "matrices": self._digests,
                "comparisons": self.comparisons,
                "settings": {key: asdict(self.settings)[key] for key in analysis.settings},
            }
            if analysis.counts:
                made_from["counts"] = None if self.counts is None else digest(torch.from_numpy(self.counts))
            if analysis.gains:
                made_from["gains"] = {name: digest(gain) for name, gain in self.gains.items()}
            self._found[name] = self.store.get(name, made_from, lambda: analysis.make(self))
        return self._found[name]

    # --- what analyses share ------------------------------------------------------------------------------------

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: digest(matrix) for name, matrix in self.matrices.items()} if self.store.folder else {}

    @property
    def tokens(self) -> int:
        """Their number."""
        return len(next(iter(self.matrices.values())))

    @cached_property
    def products(self) -> Products:
        """Gram matrices."""
        watch = self.watch("products of rows")
        return Products(self.matrices, seed=self.settings.seed, device=self.device, watch=watch)

    def nearest(self, name: str, rows: str, k: int) -> Tensor:
        """``[tokens, k]`` ids of the nearest neighbours of every token, of ``raw`` or ``centred`` rows."""
        if name not in self._nearest:
            graph = self.settings.graph if self.comparisons else 0
            most = min(max(self.settings.k, graph), self.tokens - 1)

            def search() -> Finding:
                found = nearest(self.matrices[name], most, device=self.device, watch=self.watch(f"neighbours, {name}"))
                ids = {RAW: found.raw, CENTRED: found.centred}
                return Finding({}, found.notes, {way: i.int().numpy() for way, i in ids.items() if i is not None})

            self._nearest[name] = self.store.get("nearest", {"matrix": self._digests.get(name), "k": most}, search)
        return torch.from_numpy(self._nearest[name].arrays[rows])[:, :k].long()

    def notes_of_search(self, name: str) -> tuple[str, ...]:
        """What a reader has to know of the neighbours in a matrix, once they are known."""
        return self._nearest[name].notes

    @property
    def pairs(self) -> list[Pair]:
        """Every two matrices once: as compared, then the others."""
        known = {frozenset(pair) for pair in self.comparisons}
        return [*self.comparisons, *(p for p in combinations(self.matrices, 2) if frozenset(p) not in known)]

    @property
    def opposed(self) -> tuple[Pair, Pair] | None:
        """The two comparisons whose difference answers the question: output against tied and input against tied."""
        asked = (("untied output", "tied"), ("untied input", "tied"))
        return asked if set(asked) <= set(self.comparisons) else None
