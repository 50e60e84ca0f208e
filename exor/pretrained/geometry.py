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
import pandas as pd
import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, isotropy, norms, omnibus, spectra, unwatched
from exor.pretrained import alignment as alignments
from exor.pretrained.store import Finding, Store, digest
from exor.pretrained.neighbours import Neighbours, hubness, nearest, overlap
from exor.pretrained.products import Products

Pair = tuple[str, str]
KINDS = ("identity", "identity, centred", "orthogonal", "linear")


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
        settings: Settings = Settings(),
        store: Store = Store(None),
        device: torch.device | str | None = None,
        watch: Callable[[str], Watch] = lambda _: unwatched,
    ) -> None:
        """Look at nothing yet.

        Args:
            matrices: ``[tokens, width]`` by name; the tokens are the same, widths may differ.
            comparisons: source and target of each alignment.
            counts: how often each token occurs in some text, ``[tokens]``.
            store: where findings are kept.
            device: where to compute; where the matrices lie by default.
            watch: for the name of a long piece of work, whom to tell of its progress.
        """
        self.matrices, self.comparisons, self.counts = dict(matrices), list(comparisons), counts
        self.settings, self.store, self.device, self.watch = settings, store, device, watch
        self._found: dict[str, Finding] = {}
        self._nearest: dict[str, Neighbours] = {}

    @property
    def analyses(self) -> list[str]:
        """Names of the analyses that make sense for these matrices."""
        some = {"alignment", "neighbours", "spectral", "subspaces", "cka"} if self.comparisons else set()
        some |= {"norms", "isotropy", "spectra"} | ({"differences"} if self._opposed else set())
        some |= {"frequency"} if self.counts is not None else set()
        return [name for name in ANALYSES if name in some]

    def find(self, name: str) -> Finding:
        """An analysis, from the store if it has been made before.

        Raises:
            InputError: it cannot be made of these matrices.
        """
        if name not in self._found:
            analysis = ANALYSES[name]
            needs = {key: asdict(self.settings)[key] for key in analysis.settings}
            made_from = {"matrices": self._digests, "comparisons": self.comparisons, "settings": needs}
            if analysis.counts:
                made_from["counts"] = None if self.counts is None else digest(torch.from_numpy(self.counts))
            self._found[name] = self.store.get(name, made_from, lambda: analysis.make(self))
        return self._found[name]

    # --- what analyses share ------------------------------------------------------------------------------------

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: digest(matrix) for name, matrix in self.matrices.items()} if self.store.folder else {}

    @cached_property
    def products(self) -> Products:
        """Gram matrices."""
        watch = self.watch("Gram matrices")
        return Products(self.matrices, seed=self.settings.seed, device=self.device, watch=watch)

    def nearest(self, name: str) -> Neighbours:
        """The nearest neighbours of every token in a matrix, as many as any analysis needs."""
        if name not in self._nearest:
            tokens = len(self.matrices[name])
            k = min(max(self.settings.k, self.settings.graph), tokens - 1)

            def search() -> Finding:
                found = nearest(self.matrices[name], k, device=self.device, watch=self.watch(f"neighbours, {name}"))
                return Finding({}, found.notes, {"raw": found.raw.cpu().numpy(), "centred": found.centred.cpu().numpy()})

            kept = self.store.get("nearest", {"matrix": self._digests.get(name), "k": k}, search)
            ids = {rows: torch.from_numpy(kept.arrays[rows]) for rows in ("raw", "centred")}
            self._nearest[name] = Neighbours(**ids, notes=kept.notes)
        return self._nearest[name]

    @property
    def pairs(self) -> list[Pair]:
        """Every two matrices once: as compared, then the others."""
        known = {frozenset(pair) for pair in self.comparisons}
        return [*self.comparisons, *(p for p in combinations(self.matrices, 2) if frozenset(p) not in known)]

    @property
    def _opposed(self) -> tuple[Pair, Pair] | None:
        """The two comparisons whose difference answers the question: output against tied and input against tied."""
        asked = (("untied output", "tied"), ("untied input", "tied"))
        return asked if set(asked) <= set(self.comparisons) else None
