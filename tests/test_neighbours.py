"""Nearest neighbours against all pairs in float64: raw and centred rows, tiles, ties, zeros, and rows that cancel."""

import numpy as np
import pytest
import torch
from scipy import stats

from exor import InputError
from exor.pretrained import neighbours
from exor.pretrained.neighbours import SPARE, hubness, nearest, overlap


def brute(matrix, k, centred):
    """Cosines of all pairs in float64, sorted; a chain of values that differ by 1e-6 at most is in the order of ids."""
    x = matrix.double().numpy()
    x = x - x.mean(0) if centred else x
    lengths = np.sqrt((x * x).sum(1))
    found = []
    for i, row in enumerate(x):
        cosines = {
            j: float(row @ other) / (lengths[i] * lengths[j]) if lengths[i] * lengths[j] else 0.0
            for j, other in enumerate(x)
            if j != i
        }
        chains, before = [], None
        for j in sorted(cosines, key=lambda j: -cosines[j]):
            if before is None or before - cosines[j] > 1e-6:
                chains.append([])
            chains[-1].append(j)
            before = cosines[j]
        found.append([j for chain in chains for j in sorted(chain)][:k])
    return torch.tensor(found)


def same(matrix, k):
    found = nearest(matrix, k)
    assert torch.equal(found.raw, brute(matrix, k, False))
    assert torch.equal(found.centred, brute(matrix, k, True))
    return found


def apart(n, width, seed=0, least=2e-6):
    """Random rows about a mean, the cosines of any of which to the others are no ties (seen in float64)."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        matrix = torch.randn(n, width, generator=generator) + 0.3 * torch.randn(width, generator=generator)
        if all(gap(matrix.double() - mean) > least for mean in (0, matrix.double().mean(0))):
            return matrix


def gap(rows):
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).fill_diagonal_(-5).sort(dim=1, descending=True).values[:, :15]
    return (cosines[:, :-1] - cosines[:, 1:]).min()


@pytest.mark.parametrize(("n", "width", "k"), [(2, 3, 1), (5, 4, 4), (23, 7, 21), (61, 16, 10), (128, 33, 5)])
def test_all_pairs(n, width, k):
    same(torch.randn(n, width, generator=torch.Generator().manual_seed(n)) + 0.4, k)


@pytest.mark.parametrize("tile", [1, 7, 16, 40, 64, 4096])
@pytest.mark.parametrize("group", [2, 3, 16])
def test_any_tiles_and_groups(monkeypatch, tile, group):
    matrix = apart(101, 24)
    monkeypatch.setattr(neighbours, "TILE", tile)
    monkeypatch.setattr(neighbours, "GROUP", group)
    monkeypatch.setattr(neighbours, "SPARE", 2)  # few candidates, so that groups are used
    same(matrix, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types(dtype):
    same(apart(80, 24).to(dtype), 6)


def test_the_matrix_is_left_as_it_is():
    for mean in (0.5, 100.0):
        matrix = torch.randn(50, 8) + mean
        before = matrix.clone()
        nearest(matrix, 4)
        assert torch.equal(matrix, before)


def test_raw_alone():
    matrix = apart(60, 12)
    found = nearest(matrix, 5, centred=False)
    assert found.centred is None and torch.equal(found.raw, brute(matrix, 5, False))


def test_the_first_of_many_are_the_few():
    matrix = apart(90, 20)
    matrix[40:60] = matrix[40].clone()  # and with ties
    for k in (1, 5, 17):
        many, few = nearest(matrix, 40), nearest(matrix, k)
        assert torch.equal(many.raw[:, :k], few.raw) and torch.equal(many.centred[:, :k], few.centred)


@pytest.mark.parametrize("tile", [16, 4096])
def test_of_more_duplicates_than_candidates_the_lower_ids(monkeypatch, tile):
    monkeypatch.setattr(neighbours, "TILE", tile)
    matrix = apart(120, 24)
    copies = torch.randperm(120, generator=torch.Generator().manual_seed(1))[:40].sort().values
    matrix[copies] = matrix[copies[0]].clone()
    assert len(copies) > 5 + SPARE
    found = same(matrix, 5)
    assert found.raw[copies[-1]].tolist() == found.centred[copies[-1]].tolist() == copies[:5].tolist()
    assert found.raw[copies[2]].tolist() == [*copies[:2].tolist(), *copies[3:6].tolist()]


def test_a_chain_of_small_steps_is_one_tie():
    angles = torch.tensor([0.0, 0.7, 0.9], dtype=torch.float64)
    steps = 0.5 + 7e-7 * torch.arange(30, dtype=torch.float64)  # 2e-5 from end to end, cosines 3e-7 apart
    angles = torch.cat([angles, steps[torch.randperm(30, generator=torch.Generator().manual_seed(0))]])
    matrix = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert nearest(matrix, 6, centred=False).raw[0].tolist() == [3, 4, 5, 6, 7, 8]
    assert nearest(matrix, 32, centred=False).raw[0].tolist() == [*range(3, 33), 1, 2]


def test_cosines_further_apart_than_a_tie_are_in_their_order():
    angles = 0.5 + torch.arange(12, dtype=torch.float64) * 1e-5  # cosines 5e-6 apart
    angles = torch.cat([torch.zeros(1, dtype=torch.float64), angles.flip(0)])
    matrix = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert nearest(matrix, 12, centred=False).raw[0].tolist() == [*range(12, 0, -1)]


def test_rows_of_zeros_have_cosine_0():
    matrix = torch.randn(60, 6, generator=torch.Generator().manual_seed(2)).abs()  # all other cosines are positive
    matrix[[7, 30]] = 0
    found = same(matrix, 59)
    assert found.raw[7].tolist() == [i for i in range(60) if i != 7]
    assert found.raw[0, -2:].tolist() == [7, 30]
    assert found.notes == ("2 rows of zeros, whose cosines are taken for 0.",)
    assert nearest(matrix[:7], 2).notes == ()
    assert nearest(torch.zeros(5, 3), 2).centred.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]]


def test_a_mean_far_larger_than_the_spread():
    matrix = torch.randn(70, 24, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 20
    matrix = matrix.float()  # raw cosines are .998 and more, centred ones as ever
    assert torch.equal(nearest(matrix, 5).centred, brute(matrix, 5, True))
    spread = torch.randn(70, 24, generator=torch.Generator().manual_seed(3)) + 3
    same(spread, 5)


@pytest.mark.parametrize("length", [1e-1, 1e-3, 1e-24, 1e-36])
def test_rows_far_shorter_than_the_mean(length):
    matrix = apart(90, 24) + 2
    matrix[11:40] = apart(29, 24, seed=1) * length
    found = nearest(matrix, 5)
    assert torch.equal(found.raw, brute(matrix, 5, False))
    long = [i for i in range(90) if not 11 <= i < 40]
    assert torch.equal(found.centred[long], brute(matrix, 5, True)[long])
    if length < 1e-6:  # less the mean, the short ones are duplicates
        assert found.centred[25].tolist() == [11, 12, 13, 14, 15]
    assert found.notes == ()


@pytest.mark.parametrize("scale", [1e-36, 1e-25, 1e-21, 1e12, 1e30])
def test_the_size_of_all_rows_does_not_matter(scale):
    same(apart(60, 24) * scale, 5)


@pytest.mark.parametrize("tile", [13, 50, 4096])
def test_progress_ends_at_all_pairs(monkeypatch, tile):
    monkeypatch.setattr(neighbours, "TILE", tile)
    told = []
    nearest(torch.randn(50, 4), 3, watch=lambda *now: told.append(now))
    assert told[-1] == (50 * 51 // 2, 50 * 51 // 2)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


@pytest.mark.parametrize("dim", [0, 1])
def test_the_largest_by_groups_are_the_largest(dim):
    values = torch.randn(203, 203, generator=torch.Generator().manual_seed(5))
    found, places = neighbours._largest(values, 4, dim)
    expected = values.topk(4, dim=dim)
    rows = expected.indices if dim else expected.indices.T
    assert torch.equal(places.sort(dim=1).values, rows.sort(dim=1).values)
    assert torch.equal(found, (values if dim else values.T).gather(1, places))


@pytest.mark.parametrize(
    ("matrix", "k", "says"),
    [
        (torch.randn(9, 4), 9, "k: 9 neighbours of 9 tokens; 1 to 8 are accepted"),
        (torch.randn(9, 4), 0, "k: 0 neighbours"),
        (torch.ones(9, 4, dtype=torch.int64), 2, "matrix: int64 of shape"),
        (torch.randn(9), 2, "matrix: float32 of shape"),
        (torch.randn(9, 4).index_fill(0, torch.tensor(5), torch.nan), 2, "matrix: row 5 holds numbers"),
        (torch.randn(9, 4).index_fill(0, torch.tensor(6), torch.inf), 2, "matrix: row 6 holds numbers"),
    ],
)
def test_what_is_refused(matrix, k, says):
    with pytest.raises(InputError, match=says) as told:
        nearest(matrix, k)
    assert "\n" not in str(told.value)


def test_overlap_is_that_of_sets(monkeypatch):
    monkeypatch.setattr(neighbours, "TILE", 7)
    generator = np.random.default_rng(0)
    a, b = (np.array([generator.permutation(30)[:10] for _ in range(40)]) for _ in range(2))
    expected = [len(set(x) & set(y)) / 10 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_allclose(overlap(torch.tensor(a), torch.tensor(b)), expected, rtol=1e-6)


def test_overlap_of_rotations_is_one_and_of_strangers_chance():
    generator = torch.Generator().manual_seed(4)
    n, k = 600, 10
    a, b = (torch.randn(n, 40, generator=generator) for _ in range(2))
    rotation = torch.linalg.qr(torch.randn(40, 40, generator=generator, dtype=torch.float64)).Q.float()
    turned = nearest(3 * a @ rotation, k)
    assert overlap(nearest(a, k).raw, turned.raw).mean() > 0.999
    assert overlap(nearest(a, k).centred, turned.centred).mean() > 0.999
    by_chance = overlap(nearest(a, k).raw, nearest(b, k).raw).double()
    assert by_chance.mean().item() == pytest.approx(k / (n - 1), abs=5 * by_chance.std().item() / n**0.5)


def test_hubness_by_hand():
    ids = torch.tensor([[1, 2], [2, 0], [1, 3], [1, 2], [1, 2]])
    counts = [1, 4, 4, 1, 0]
    found = hubness(ids)
    assert found == (pytest.approx(stats.skew(counts)), 4, 0.2)
    assert hubness(torch.tensor([[1], [2], [0]])) == (0.0, 1, 0.0)
    assert hubness(torch.tensor([[1], [0], [0], [0], [0]])).skewness > 0
