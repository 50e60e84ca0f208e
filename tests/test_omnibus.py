"""Spectral distance against the definition, written densely."""

import numpy as np
import pytest
import torch

from exor import InputError
from exor.pretrained.omnibus import adjacency, spectral_distance


def graph(n, k, seed):
    generator = np.random.default_rng(seed)
    return torch.tensor([generator.permutation([j for j in range(n) if j != i])[:k].tolist() for i in range(n)])


def clustered(n, k, seed, groups=6):
    """Neighbours are mostly of one's own group, so that some eigenvalues stand out."""
    generator = np.random.default_rng(seed)
    found = []
    for i in range(n):
        liked = np.array([1.0 + 40 * (j % groups == i % groups) if j != i else 0.0 for j in range(n)])
        found.append(generator.choice(n, k, replace=False, p=liked / liked.sum()))
    return torch.tensor(np.array(found))


def joined(neighbours):
    n = len(neighbours)
    w = np.zeros((n, n))
    for i, row in enumerate(neighbours.tolist()):
        for j in row:
            w[i, j] = 1
    return (w + w.T) / 2


def by_definition(a, b, components):
    a, b = joined(a), joined(b)
    values, vectors = np.linalg.eigh(np.block([[a, (a + b) / 2], [(a + b) / 2, b]]))
    order = np.argsort(np.abs(values))[::-1]
    assert np.abs(values[order[components - 1]]) - np.abs(values[order[components]]) > 1e-6  # else it is not defined
    z = vectors[:, order[:components]] * np.sqrt(np.abs(values[order[:components]]))
    za, zb = z[: len(a)], z[len(a) :]
    size = {name: np.linalg.svd(m, compute_uv=False)[0] for name, m in (("a", za), ("b", zb), ("apart", za - zb))}
    return size["apart"] / min(size["a"], size["b"])


CASES = [(20, 3, 12), (40, 5, 39), (60, 8, 13), (90, 6, 128), (150, 10, 20), (200, 16, 40)]


@pytest.mark.parametrize("make", [graph, clustered])
@pytest.mark.parametrize(("n", "k", "components"), CASES)
def test_the_definition(make, n, k, components):
    a, b = make(n, k, 1), make(n, k, 2)
    assert spectral_distance(a, b, components=components) == pytest.approx(by_definition(a, b, components), rel=1e-8)


def test_both_ways_of_solving_are_tested():
    dense = [2 * n <= 4 * components for n, _, components in CASES]
    assert dense.count(True) == dense.count(False) == 3


@pytest.mark.parametrize("components", [10, 60])  # by Lanczos, and densely
class TestDistance:
    def test_of_equal_graphs_is_0(self, components):
        a = clustered(100, 8, 1)
        assert spectral_distance(a, a, components=components) == pytest.approx(0, abs=1e-7)

    def test_is_symmetric(self, components):
        a, b = clustered(100, 8, 1), clustered(100, 8, 2)
        there, back = (spectral_distance(*pair, components=components) for pair in ((a, b), (b, a)))
        assert there == pytest.approx(back, rel=1e-8) and there > 0.05

    def test_does_not_depend_on_the_order_of_tokens(self, components):
        a, b = clustered(100, 8, 1), clustered(100, 8, 2)
        order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
        rank = order.argsort()
        moved = [rank[neighbours[order]] for neighbours in (a, b)]
        before, after = (spectral_distance(*pair, components=components) for pair in ((a, b), moved))
        assert before == pytest.approx(after, rel=1e-8)
        alone = spectral_distance(a, moved[1], components=components)
        assert abs(alone - before) > 0.01

    def test_grows_with_the_share_of_other_neighbours(self, components):
        a, b = clustered(100, 8, 1), graph(100, 8, 2)
        mixed = [torch.cat([a[:cut], b[cut:]]) for cut in (90, 60, 0)]
        distances = [spectral_distance(a, m, components=components) for m in mixed]
        assert distances == sorted(distances) and distances[0] > 0

    def test_is_the_same_each_time(self, components):
        a, b = clustered(100, 8, 1), clustered(100, 8, 2)
        assert len({spectral_distance(a, b, components=components) for _ in range(3)}) == 1


def test_of_graphs_with_different_numbers_of_neighbours():
    a, b = graph(60, 5, 1), graph(60, 9, 2)
    assert spectral_distance(a, b, components=11) == pytest.approx(by_definition(a, b, 11), rel=1e-8)


def test_adjacency():
    found = adjacency(torch.tensor([[1], [0], [0]])).toarray()
    np.testing.assert_array_equal(found, [[0, 1, 0.5], [1, 0, 0], [0.5, 0, 0]])


def test_what_is_refused():
    with pytest.raises(InputError, match="neighbours: of 30 and 31 tokens; those of the same tokens are accepted"):
        spectral_distance(graph(30, 3, 1), graph(31, 3, 1))
    for components in (0, 60):
        with pytest.raises(InputError, match=f"components: {components} of two graphs of 30 tokens; 1 to 59 are"):
            spectral_distance(graph(30, 3, 1), graph(30, 3, 2), components=components)


def test_progress_is_told():
    told = []
    spectral_distance(graph(100, 5, 1), graph(100, 5, 2), components=10, watch=lambda *now: told.append(now))
    assert told and told == [(i + 1, 0) for i in range(len(told))]
