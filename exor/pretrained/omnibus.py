"""Distance of two neighbour graphs over the same tokens, by their omnibus embedding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched


def spectral_distance(a: Tensor, b: Tensor, *, components: int = 128, watch: Watch = unwatched) -> float:
    """Distance of two graphs with the same vertices, 0 for equal ones (Duderstadt et al. 2023, arXiv 2305.05126).

    ``‖Z_A − Z_B‖ / min(‖Z_A‖, ‖Z_B‖)``, spectral norms, where Z are the halves of ``U √|Λ|``, the eigenpairs largest in
    magnitude of ``[[A, (A + B)/2], [(A + B)/2, B]]``, and A and B the symmetrised adjacency matrices ``½(W + Wᵀ)``.

    Args:
        a, b: neighbours of every token, itself left out, ``[tokens, k]`` ids; what W joins.
        components: number of eigenpairs; below twice the number of tokens.
        watch: told of products with the matrix, whose number nobody knows.

    Raises:
        InputError: different numbers of tokens, or too many components.
    """
    n = len(a)
    if len(b) != n:
        raise InputError(f"neighbours: of {n:,} and {len(b):,} tokens; those of the same tokens are accepted")
    if not 1 <= components < 2 * n:
        raise InputError(f"components: {components} of two graphs of {n:,} tokens; 1 to {2 * n - 1:,} are accepted")
    graphs = [adjacency(neighbours) for neighbours in (a, b)]
    done = 0

    with ThreadPoolExecutor() as pool:  # SciPy multiplies with one core, and lets others go on

        def multiply(x: np.ndarray) -> np.ndarray:
            nonlocal done
            done += 1
            watch(done, 0)
            p, q = x.ravel()[:n], x.ravel()[n:]
            ap, bq, aq, bp = pool.map(csr_matrix.dot, 2 * graphs, (p, q, q / 2, p / 2))
            return np.concatenate([ap + aq + bq / 2, bq + bp + ap / 2])

        start = np.random.default_rng(0).standard_normal(2 * n)  # else eigsh takes another one each time
        if 2 * n <= 4 * components:  # eigsh wants fewer, and dense is fast enough
            values, vectors = np.linalg.eigh(np.stack([multiply(unit) for unit in np.eye(2 * n)], axis=1))
            largest = np.argsort(-np.abs(values), kind="stable")[:components]
            values, vectors = values[largest], vectors[:, largest]
        else:
            operator = LinearOperator((2 * n, 2 * n), matvec=multiply, dtype=np.float64)
            values, vectors = eigsh(operator, k=components, which="LM", v0=start)
    embedded = vectors * np.sqrt(np.abs(values))
    lengths = [np.linalg.norm(part, 2) for part in (embedded[:n], embedded[n:])]
    return float(np.linalg.norm(embedded[:n] - embedded[n:], 2) / min(lengths))


def adjacency(neighbours: Tensor) -> csr_matrix:
    """``½(W + Wᵀ)``, W 1 where the column is a neighbour of the row, from ``[tokens, k]`` ids."""
    n, k = neighbours.shape
    joined = csr_matrix((np.ones(n * k), neighbours.flatten().numpy(), np.arange(n + 1) * k), shape=(n, n))
    return ((joined + joined.T) / 2).tocsr()
