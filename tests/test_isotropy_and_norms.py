"""Isotropy against all pairs of rows and all directions in float64; norms of rows against numpy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import rankdata

from exor import InputError
from exor.pretrained import norms as norms_module
from exor.pretrained import products as module
from exor.pretrained.isotropy import isotropy
from exor.pretrained.norms import correlations, row_norms, summary
from exor.pretrained.products import Products


def gaussian(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def spread(n=61, width=6, mean=0.5):
    """Rows about a mean, their principal directions well apart."""
    return gaussian(n, width) * torch.linspace(1, 3, width) + mean


def pairs(x):
    """Mean cosine of all pairs of different rows that are not zero."""
    x = x[np.linalg.norm(x, axis=1) > 0]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.mean([unit[i] @ unit[j] for i in range(len(x)) for j in range(len(x)) if i != j])


def partition(x):
    """Logarithm of smallest over largest sum of exponentials along eigenvectors, in both senses."""
    vectors = np.linalg.eigh(x.T @ x)[1]
    logs = [logsumexp(x @ (sign * vector)) for vector in vectors.T for sign in (1, -1)]
    return min(logs) - max(logs)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("mean", [0, 0.5, 20])
@pytest.mark.parametrize("n", [60, 61])
def test_isotropy(centred, mean, n):
    a = spread(n, mean=mean)
    found = isotropy(Products({"a": a}), "a", centred=centred)
    x = a.double().numpy()
    x = x - x.mean(0) if centred else x
    assert found.mean_cosine == pytest.approx(pairs(x), abs=1e-5)
    assert found.log_ratio == pytest.approx(partition(x), rel=1e-4, abs=1e-4)
    assert found.partition_ratio == pytest.approx(np.exp(partition(x)), rel=1e-3)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_that_of_a_float32_copy(kind):
    a = spread().to(kind)
    assert isotropy(Products({"a": a}), "a") == isotropy(Products({"a": a.float()}), "a")


def test_long_rows_do_not_overflow():
    a = 1000 * spread()
    found = isotropy(Products({"a": a}), "a")
    assert found.log_ratio == pytest.approx(partition(a.double().numpy()), rel=1e-4)
    assert found.log_ratio < -1000 and found.partition_ratio == 0
    assert found.mean_cosine == pytest.approx(pairs(a.double().numpy()), abs=1e-5)


def test_several_blocks_give_the_same(monkeypatch):
    a = spread()
    wanted = isotropy(Products({"a": a}), "a")
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 12 * 7)
    assert isotropy(Products({"a": a}), "a") == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_rows_of_zeros_make_no_pairs():
    a = spread()
    a[7], a[20] = 0, 0
    found = isotropy(Products({"a": a}), "a")
    assert found.mean_cosine == pytest.approx(pairs(a.double().numpy()), abs=1e-5)
    assert found.log_ratio == pytest.approx(partition(a.double().numpy()), rel=1e-4)  # they count in the sums
    assert isotropy(Products({"a": torch.zeros(5, 2)}), "a") == (0, 1, 0)
    one = torch.zeros(5, 2)
    one[0] = 1
    assert isotropy(Products({"a": one}), "a").mean_cosine == 0


def test_planted_directions():
    axes = torch.cat([torch.eye(4), -torch.eye(4)])
    # a row meets itself turned once among the seven others
    assert isotropy(Products({"a": axes}), "a") == pytest.approx((-1 / 7, 1, 0), abs=1e-6)
    same = torch.ones(9, 4) * torch.arange(1, 10)[:, None]
    assert isotropy(Products({"a": same}), "a").mean_cosine == pytest.approx(1)
    assert isotropy(Products({"a": 0.01 * gaussian(5000, 8)}), "a") == pytest.approx((0, 1, 0), abs=2e-3)


def test_numbers_that_are_not_finite():
    a = spread()
    a[4, 1] = float("inf")
    with pytest.raises(InputError, match=r"^a: row 4 holds numbers that are not finite; "):
        isotropy(Products({"a": a}), "a")


# --- norms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_norms_of_rows(kind, monkeypatch):
    a, gain = spread().to(kind), gaussian(6, 1, 1)[:, 0].to(kind)
    x, g = a.double().numpy(), gain.double().numpy()
    for block in (norms_module.BLOCK, 6 * 7):
        monkeypatch.setattr(norms_module, "BLOCK", block)
        found = row_norms(a)
        assert found.dtype == np.float64 and found == pytest.approx(np.linalg.norm(x, axis=1), rel=1e-6)
        assert row_norms(a, gain) == pytest.approx(np.linalg.norm(x * g, axis=1), rel=1e-6)


def test_one_number_beyond_the_range_of_half_precision():
    a = torch.full((2, 4), 40000.0, dtype=torch.float16)
    assert row_norms(a) == pytest.approx([80000, 80000], rel=1e-3)
    assert row_norms(a, torch.full((4,), 3.0, dtype=torch.float16)) == pytest.approx([240000, 240000], rel=1e-3)


def test_summary():
    a = spread(60)
    found = summary(row_norms(a))
    lengths = sorted(np.linalg.norm(a.double().numpy(), axis=1))
    assert found.frobenius == pytest.approx(np.linalg.norm(a.double().numpy()), rel=1e-6)
    assert (found.smallest, found.largest) == pytest.approx((lengths[0], lengths[-1]), rel=1e-6)
    assert (found.mean, found.median) == pytest.approx((np.mean(lengths), (lengths[29] + lengths[30]) / 2), rel=1e-6)


def test_correlations():
    random = np.random.default_rng(0)
    x = random.integers(0, 9, 50).astype(float)  # with ties
    y = np.exp(x) + 100 * random.random(50)
    wanted = [np.corrcoef(x, y)[0, 1], np.corrcoef(rankdata(x), rankdata(y))[0, 1]]
    assert correlations(x, y) == pytest.approx(wanted)
    assert correlations(np.arange(5.0), np.arange(5.0) ** 3)[1] == pytest.approx(1)


@pytest.mark.filterwarnings("error")
def test_correlations_that_do_not_exist():
    for x, y in ((np.ones(4), np.arange(4.0)), (np.arange(4.0), np.ones(4)), (np.ones(1), np.ones(1)), ([], [])):
        assert np.isnan(correlations(np.array(x), np.array(y))).all()
