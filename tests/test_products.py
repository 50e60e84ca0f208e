"""Gram matrices against numpy in float64: halves, blocks, large means, float64 where it is needed, each made once."""

import numpy as np
import pytest
import torch

from exor import InputError
from exor.pretrained import products as module
from exor.pretrained.products import Products


def gaussian(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def oracle(a, b, rows):
    """Centred products over some rows, in float64."""
    x, y = (matrix.double().numpy()[rows] for matrix in (a, b))
    return (x - x.mean(0)).T @ (y - y.mean(0))


def close(found, wanted, share=1e-5):
    """To a share of the largest entry."""
    assert np.abs(found.numpy() - wanted).max() <= share * np.abs(wanted).max()


@pytest.mark.parametrize("n", [40, 41])
def test_gram_and_cross_gram_over_all_and_over_either_half(n):
    a, b = gaussian(n, 5) + 2, gaussian(n, 8, 1) - 1
    products = Products({"a": a, "b": b})
    half = products.half.numpy()
    assert half.sum() == n // 2 == products.size(True) and products.size(False) == n - n // 2
    for part, rows in ((None, np.arange(n)), (True, half), (False, ~half)):
        assert products.members(part).tolist() == np.arange(n)[rows].tolist()
        close(products.mean("a", part), a.double().numpy()[rows].mean(0), 1e-6)
        close(products.gram("a", half=part), oracle(a, a, rows))
        close(products.gram("a", "b", part), oracle(a, b, rows))
        close(products.gram("b", "a", part), oracle(b, a, rows))


def test_shuffled_is_of_permuted_rows():
    a, b = gaussian(30, 4), gaussian(30, 6, 1)
    products = Products({"a": a, "b": b}, seed=3)
    assert sorted(products.shuffle.tolist()) == list(range(30)) != products.shuffle.tolist()
    close(products.shuffled("a", "b"), oracle(a, b[products.shuffle], np.arange(30)))


def test_symmetric_products_by_strips(monkeypatch):
    monkeypatch.setattr(module, "STRIP_FROM", 4)
    for width in (4, 7, 18):
        a = gaussian(50, width)
        close(Products({"a": a}).gram("a"), oracle(a, a, np.arange(50)))


def test_seeds_choose_halves_and_shuffles():
    first, again, other = (Products({"a": gaussian(60, 2)}, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.half, again.half) and torch.equal(first.shuffle, again.shuffle)
    assert not torch.equal(first.half, other.half) and not torch.equal(first.shuffle, other.shuffle)


def test_large_common_mean():
    a, b = gaussian(300, 6) + 1000, gaussian(300, 6, 1) - 1000
    products, rows = Products({"a": a, "b": b}), np.arange(300)
    close(products.gram("a"), oracle(a, a, rows), 1e-4)
    close(products.gram("a", "b"), oracle(a, b, rows), 1e-4)
    close(products.gram("a", half=True), oracle(a, a, products.half.numpy()), 1e-4)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_that_of_a_float32_copy(kind):
    a = (gaussian(100, 6) + 3).to(kind)
    small, copy = Products({"a": a}), Products({"a": a.float()})
    assert torch.equal(small.gram("a"), copy.gram("a")) and torch.equal(small.mean("a"), copy.mean("a"))
    assert torch.equal(small.gram("a", exact=True), copy.gram("a", exact=True))
    assert torch.equal(small.matrices["a"], a)


def test_matrices_are_left_as_they_were():
    a = gaussian(20, 3) + 5
    kept = a.clone()
    products = Products({"a": a})
    products.gram("a"), products.eigen("a", True), products.gram("a", exact=True)
    assert torch.equal(a, kept)


def test_several_blocks_give_the_same(monkeypatch):
    a, b = gaussian(101, 5) + 1, gaussian(101, 7, 1)
    whole = Products({"a": a, "b": b})
    wanted = [whole.gram("a"), whole.gram("a", "b", True), whole.shuffled("a", "b"), whole.mean("b", False)]
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 12 * 9)
    told = []
    parts = Products({"a": a, "b": b}, watch=lambda *done: told.append(done))
    found = [parts.gram("a"), parts.gram("a", "b", True), parts.shuffled("a", "b"), parts.mean("b", False)]
    for one, other in zip(wanted, found, strict=True):
        close(other, one.numpy(), 1e-6)
    assert len(told) > 4 * 101 / 9 and max(told) == (101, 101)
    told.clear()
    parts.gram("b", "b")
    assert [done for done, _ in told] == sorted(done for done, _ in told) and told[-1] == (101, 101)


def test_each_product_is_computed_once():
    products = Products({"a": gaussian(40, 4), "b": gaussian(40, 5, 1)})
    for half in (None, True, False, None):
        products.gram("a", half=half), products.eigen("a", half), products.rank("a", half)
        products.gram("a", "b", half), products.gram("b", "a", half)
    products.shuffled("a", "b"), products.shuffled("a", "b")
    assert products.passes == {("a", "a"): 1, ("a", "b"): 1, ("a", "b", "shuffled"): 1}


def test_a_gram_matrix_in_float64_is_used_once_it_is_there():
    a = gaussian(40, 4)
    products = Products({"a": a})
    products.gram("a")
    exact = products.gram("a", exact=True)
    assert torch.equal(products.gram("a"), exact)
    close(exact, oracle(a, a, np.arange(40)), 1e-12)
    assert products.passes == {("a", "a"): 1, ("a", "a", "float64"): 1}


@pytest.mark.parametrize(("condition", "again"), [(100, False), (8e5, True)])
def test_ill_conditioned_is_multiplied_again_in_float64(condition, again):
    u, v = (np.linalg.qr(gaussian(n, 8, n).double().numpy())[0] for n in (200, 8))
    a = torch.from_numpy((u - u.mean(0)) * np.geomspace(condition, 1, 8) @ v.T)
    products = Products({"a": a})
    values = products.eigen("a")[0].sqrt().numpy()
    x = a.numpy() - a.numpy().mean(0)
    assert values == pytest.approx(np.linalg.svd(x, compute_uv=False), rel=1e-3)
    assert products.exact("a") is again and products.passes["a", "a", "float64"] == again
    assert products.rank("a") == 8


def test_eigenvectors_belong_to_descending_eigenvalues():
    a = gaussian(50, 6) * torch.arange(1, 7)
    products = Products({"a": a})
    values, vectors = products.eigen("a")
    assert (values[:-1] > values[1:]).all()
    close(vectors @ torch.diag(values) @ vectors.T, oracle(a, a, np.arange(50)))


def test_rank():
    a = gaussian(60, 5)
    twice, constant = torch.cat([a, a[:, :2]], 1), torch.cat([a, torch.full((60, 1), 0.3)], 1)
    few, zero, same = gaussian(4, 9), torch.zeros(60, 3), torch.full((60, 3), 0.1)
    for matrix, rank in ((a, 5), (twice, 5), (constant, 5), (few, 3), (zero, 0), (same, 0)):
        assert Products({"a": matrix}).rank("a") == rank
        assert Products({"a": matrix + 1000 * (matrix is twice)}).rank("a") == rank
    drowned = torch.cat([1e-5 * a.double(), torch.full((60, 1), 1e6 / 3, dtype=torch.float64)], 1)
    assert Products({"a": drowned}).rank("a") == 0  # smaller than what the mean's last digits make
    assert Products({"a": gaussian(11, 9)}).rank("a", True) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_numbers_that_are_not_finite(bad, kind):
    a = gaussian(30, 4).to(kind)
    a[17, 2] = bad
    a[23, 1] = bad
    with pytest.raises(InputError, match=r"^tied: row 17 holds numbers that are not finite; only finite"):
        Products({"tied": a}).gram("tied")


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ({}, "matrices: none given; "),
        ({"a": torch.ones(3, 2), "b": torch.ones(4, 2)}, "b: has 4 rows, and a 3; "),
        ({"a": torch.ones(3)}, r"a: float32 of shape \[3\]; "),
        ({"a": torch.ones(3, 2).long()}, r"a: int64 of shape \[3, 2\]; "),
        ({"a": torch.ones(1, 2)}, r"a: has shape \[1, 2\]; "),
        ({"a": torch.ones(3, 0)}, r"a: has shape \[3, 0\]; "),
    ],
)
def test_refused(matrices, message):
    with pytest.raises(InputError, match="^" + message):
        Products(matrices)


def test_coarse_products_are_allowed_again_afterwards():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with module.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
