"""Gram and cross-Gram matrices of matrices over the same tokens: what maps, spectra and CKA are all made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched

BLOCK_BYTES = 2**24  # of float32 rows that are worked on at a time: memory that large is reused, larger is fetched anew
TOGETHER = 8  # blocks whose products are summed in float32 before they are added in float64
STRIPS = 8  # a symmetric product in so many strips takes 9/16 of the time
STRIP_FROM = 512  # narrower matrices are multiplied at once
RELIABLE = 1e-5  # smallest over largest eigenvalue down to which a Gram matrix from float32 products is good enough
NEGLIGIBLE = 1e-6  # singular values below this share of the largest are rounding, and taken for zero


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 matrices in float32, even if the program allows coarser ones (TF32, bfloat16)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def home_of(device: torch.device) -> torch.device:
    """Where float64 numbers of a device are kept: there, or on the CPU where it has none (Apple's MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


def block_rows(width: int) -> int:
    """How many rows make a block."""
    return max(BLOCK_BYTES // (4 * max(width, 1)), 1)


def check_matrix(name: str, matrix: Tensor) -> None:
    """Refuse what is no matrix of numbers.

    Raises:
        InputError: names the matrix.
    """
    if matrix.ndim != 2 or not matrix.is_floating_point():
        kind = f"{str(matrix.dtype).removeprefix('torch.')} of shape {list(matrix.shape)}"
        raise InputError(f"{name}: {kind}; a floating-point matrix [tokens, width] is accepted")
    if len(matrix) < 2 or not matrix.shape[1]:
        raise InputError(f"{name}: has shape {list(matrix.shape)}; at least two rows and one column are accepted")


class Products:
    """Centred Gram and cross-Gram matrices of several matrices over the same tokens, each computed once.

    Rows are centred before they are multiplied (a large mean would drown the rest), in float32 blocks whose sums are
    kept in float64. Two random halves of the tokens are summed apart, about the mean of all; the whole, and each half
    about its own mean, follow from the same pass.

    Attributes:
        matrices: ``[tokens, width]`` by name.
        n: number of tokens.
        widths: by name.
        half: ``[n]`` bool, a random half of the tokens (the smaller one if n is odd), on the CPU.
        shuffle: ``[n]``, a random permutation of the tokens, on the CPU.
        device, home: where blocks are multiplied, and where the results are kept in float64.
        passes: how often each product was computed, by ``(a, b)``, and ``(a, b, "float64")`` or ``(a, b, "shuffled")``.
    """

    def __init__(
        self,
        matrices: Mapping[str, Tensor],
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        watch: Watch = unwatched,
    ) -> None:
        """Look at the shapes only; everything else is computed when it is first asked for.

        Args:
            matrices: ``[tokens, width]``, any floating-point type; widths may differ.
            seed: of ``half`` and ``shuffle``.
            device: where to multiply; where the first matrix lies by default.
            watch: told of rows within each pass.

        Raises:
            InputError: no matrices, or not over the same number of tokens.
        """
        if not matrices:
            raise InputError("matrices: none given; one or more over the same tokens are accepted")
        for name, matrix in matrices.items():
            check_matrix(name, matrix)
        (first, *others) = matrices
        for name in others:
            if len(matrices[name]) != len(matrices[first]):
                raise InputError(
                    f"{name}: has {len(matrices[name]):,} rows, and {first} {len(matrices[first]):,}; "
                    "matrices over the same tokens are accepted"
                )
        self.matrices = dict(matrices)
        self.n = len(matrices[first])
        self.widths = {name: matrix.shape[1] for name, matrix in matrices.items()}
        self.device = matrices[first].device if device is None else torch.device(device)
        self.home = home_of(self.device)
        self.watch = watch
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(self.n, generator=generator)[: self.n // 2]
        self.half = torch.zeros(self.n, dtype=torch.bool)
        self.half[chosen] = True
        self.shuffle = torch.randperm(self.n, generator=generator)
        self.passes: Counter[tuple[str, ...]] = Counter()
        self._sums: dict[str, dict[bool, Tensor]] = {}
        self._parts: dict[tuple[str, str, bool], dict[bool, Tensor]] = {}
        self._shuffled: dict[tuple[str, str, bool], Tensor] = {}
        self._eigen: dict[tuple[str, bool | None], tuple[Tensor, Tensor]] = {}

    def members(self, half: bool | None = None) -> Tensor:
        """Ids of all tokens, or of those in a half, ascending, on the CPU."""
        return torch.arange(self.n) if half is None else (self.half == half).nonzero()[:, 0]

    def rows(self, name: str, ids: Tensor, mean: Tensor | None = None, *, exact: bool = False) -> Tensor:
        """``[len(ids), width]``: some rows less a mean, in float32 on the device, or ``exact`` in float64 at home.

        Without a mean they may be those of the matrix itself, not to be changed.
        """
        matrix = self.matrices[name]
        first, last = int(ids[0]), int(ids[-1]) + 1
        in_a_row = last - first == len(ids) and bool((ids.diff() == 1).all())
        found = matrix[first:last] if in_a_row else matrix[ids.to(matrix.device)]
        found = found.to(self.home, torch.float64) if exact else found.to(self.device).float()
        return found if mean is None else found - mean.to(found.device, found.dtype)

    def mean(self, name: str, half: bool | None = None) -> Tensor:
        """``[width]`` float64: the mean row over all tokens, or over a half.

        Raises:
            InputError: the matrix holds numbers that are not finite.
        """
        if name not in self._sums:
            self._sums[name] = {part: self._sum(name, part) for part in (True, False)}
        sums = self._sums[name]
        return sum(sums.values(), torch.zeros(())) / self.n if half is None else sums[half] / self.size(half)

    def size(self, half: bool | None = None) -> int:
        """Number of tokens, of all or in a half."""
        return self.n if half is None else (self.n // 2 if half else self.n - self.n // 2)

    def gram(self, a: str, b: str | None = None, half: bool | None = None, *, exact: bool = False) -> Tensor:
        """Products of the columns of a with those of b, both centred by their means over the same tokens.

        Args:
            a, b: names; b is a by default.
            half: which half of the tokens; all by default.
            exact: multiply in float64. Once that is done, it is used also where it is not asked for.

        Returns:
            ``[width of a, width of b]`` float64.
        """
        b = a if b is None else b
        for known in (
            ((a, b, True), (b, a, True)) if exact else ((a, b, True), (b, a, True), (a, b, False), (b, a, False))
        ):
            if known in self._parts:
                found = self._centre(known[0], known[1], self._parts[known], half)
                return found if known[:2] == (a, b) else found.T
        self._parts[a, b, exact] = {part: self._product(a, b, exact, part) for part in (True, False)}
        self.passes[(a, b, "float64") if exact else (a, b)] += 1
        return self._centre(a, b, self._parts[a, b, exact], half)

    def shuffled(self, a: str, b: str, *, exact: bool = False) -> Tensor:
        """``[width of a, width of b]`` float64: as :meth:`gram`, the rows of b shuffled: what chance makes of it."""
        if (a, b, exact) not in self._shuffled:
            self._shuffled[a, b, exact] = self._product(a, b, exact, None, self.shuffle)
            self.passes[a, b, "shuffled"] += 1
        return self._shuffled[a, b, exact]

    def eigen(self, name: str, half: bool | None = None) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``[width]``, descending, and eigenvectors (columns) ``[width, width]`` of a Gram matrix, float64.

        If the smallest is below 1e-5 of the largest, the products are made again in float64: float32 products blur
        eigenvalues by some 1e-7 of the largest, float64 ones by 1e-15, singular values by the roots of that.
        """
        if (name, half) not in self._eigen:
            values, vectors = torch.linalg.eigh(self.gram(name, half=half))
            if values[0] < RELIABLE * values[-1] and not self.exact(name):
                values, vectors = torch.linalg.eigh(self.gram(name, half=half, exact=True))
            self._eigen[name, half] = values.flip(0).clamp(min=0), vectors.flip(1)
        return self._eigen[name, half]

    def exact(self, name: str) -> bool:
        """Whether a Gram matrix has been made in float64, because it had to be."""
        return (name, name, True) in self._parts

    def rank(self, name: str, half: bool | None = None) -> int:
        """Number of singular values of a centred matrix above 1e-6 of its largest (or of the size of its mean)."""
        values = self.eigen(name, half)[0]
        mean = self.size(half) * self.mean(name, half).square().sum()  # what centring has rounded is below its share
        return int((values > NEGLIGIBLE**2 * torch.maximum(values[0], mean)).sum())

    # --- passes over the rows -----------------------------------------------------------------------------------

    def blocks(self, width: int, half: bool | None = None) -> Iterator[Tensor]:
        """Ids of tokens, a block after the other; tells of its progress."""
        done = 0 if half in (None, True) else self.size(True)  # both halves make a pass
        for ids in self.members(half).split(block_rows(width)):
            yield ids
            done += len(ids)
            self.watch(done, self.n)

    def _sum(self, name: str, half: bool) -> Tensor:
        total = torch.zeros(self.widths[name], dtype=torch.float64, device=self.home)
        for ids in self.blocks(2 * self.widths[name], half):
            total += self.rows(name, ids, exact=True).sum(0)  # float32 would cost the halves' smallest singular values
        if not total.isfinite().all():
            finite = torch.cat([self.matrices[name][ids].isfinite().all(1).cpu() for ids in self.blocks(1)])
            row = int((~finite).nonzero()[0]) if not finite.all() else 0
            raise InputError(f"{name}: row {row} holds numbers that are not finite; only finite ones are accepted")
        return total

    def _product(self, a: str, b: str, exact: bool, half: bool | None, shuffle: Tensor | None = None) -> Tensor:
        """Products over some tokens, centred by the means over all."""
        total = torch.zeros(self.widths[a], self.widths[b], dtype=torch.float64, device=self.home)
        part = torch.zeros_like(total) if exact else total.to(self.device, torch.float32)
        symmetric = a == b and shuffle is None
        with full_precision():
            for i, ids in enumerate(self.blocks(max(self.widths[a], self.widths[b]), half), 1):
                x = self.rows(a, ids, self.mean(a), exact=exact)
                if symmetric:
                    _add_upper(part, x)
                else:
                    y = self.rows(b, ids if shuffle is None else shuffle[ids], self.mean(b), exact=exact)
                    part.addmm_(x.T, y)
                if i % TOGETHER == 0:
                    total += part.to(self.home)
                    part.zero_()
        total += part.to(self.home)
        return total.triu() + total.triu(1).T if symmetric else total

    def _centre(self, a: str, b: str, parts: dict[bool, Tensor], half: bool | None) -> Tensor:
        if half is None:
            return parts[True] + parts[False]
        shifts = [self.mean(name, half) - self.mean(name) for name in (a, b)]
        return parts[half] - self.size(half) * torch.outer(*shifts)


def _add_upper(total: Tensor, x: Tensor) -> None:
    """Add xᵀx to a matrix, of which only what is on and above the diagonal counts."""
    width = x.shape[1]
    step = -(-width // STRIPS) if width >= STRIP_FROM else width
    for start in range(0, width, step):
        total[start : start + step, start:].addmm_(x[:, start : start + step].T, x[:, start:])
