"""Singular values, subspaces and kernel alignment against numpy, textbook formulas, simulation, planted matrices."""

import numpy as np
import pytest
import torch

from exor import InputError
from exor.pretrained import products as module
from exor.pretrained.products import Products
from exor.pretrained.spectra import Spectrum, correlation, feature_overlap, linear_cka, spectrum, token_overlap


def gaussian(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def rotation(width, seed=0):
    return torch.linalg.qr(gaussian(width, width, seed).double()).Q


def centred(matrix):
    x = matrix.double().numpy()
    return x - x.mean(0)


def planted(n, values, seed=0):
    """Columns without a mean, with these singular values."""
    values = torch.tensor(values, dtype=torch.float64)
    x = gaussian(n, len(values), seed).double()
    return torch.linalg.qr(x - x.mean(0)).Q * values @ rotation(len(values), seed + 1)


# --- singular values ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "width"), [(80, 7), (81, 1), (6, 10), (10, 10)])
def test_singular_values(n, width):
    a = gaussian(n, width) + torch.arange(width)
    products = Products({"a": a})
    for raw, x in ((True, a.double().numpy()), (False, centred(a))):
        found = spectrum(products, "a", centred=not raw)
        wanted = np.linalg.svd(x, compute_uv=False)
        assert found.values == pytest.approx(wanted, rel=1e-5, abs=1e-6 * wanted[0])
        rank = min(n, width) if raw else min(n - 1, width)
        assert found.rank == rank == np.linalg.matrix_rank(x, tol=1e-6 * wanted[0])
        shares = wanted[:rank] / wanted.sum()
        assert found.effective == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-4)
        assert found.stable == pytest.approx((x**2).sum() / wanted[0] ** 2, rel=1e-4)
        condition = np.linalg.cond(x) if rank == min(n, width) else np.inf
        assert found.condition == pytest.approx(condition, rel=1e-3)
    assert products.passes["a", "a"] == 1


def test_large_common_mean():
    a = gaussian(200, 5) + 1000
    products = Products({"a": a})
    wanted = np.linalg.svd(centred(a), compute_uv=False)
    assert spectrum(products, "a", centred=True).values == pytest.approx(wanted, rel=1e-4)
    raw = spectrum(products, "a", centred=False)
    assert raw.values[0] == pytest.approx(1000 * np.sqrt(200 * 5), rel=1e-3) and raw.rank == 5


def test_equal_singular_values():
    found = spectrum(Products({"a": planted(50, [3] * 6)}), "a", centred=True)
    assert (found.rank, found.effective, found.stable, found.condition) == pytest.approx((6, 6, 6, 1), rel=1e-5)
    identity = spectrum(Products({"a": 2 * torch.eye(6)}), "a", centred=False)
    assert (identity.rank, identity.effective, identity.stable) == pytest.approx((6, 6, 6), rel=1e-5)
    less_mean = spectrum(Products({"a": 2 * torch.eye(6)}), "a", centred=True)
    assert (less_mean.rank, less_mean.effective, less_mean.stable) == pytest.approx((5, 5, 5), rel=1e-5)
    assert less_mean.condition == float("inf")


def test_unequal_singular_values():
    found = spectrum(Products({"a": planted(50, [4, 2, 2, 1e-9])}), "a", centred=True)
    assert found.rank == 3 and found.condition == float("inf")
    assert found.effective == pytest.approx(2 ** (0.5 * 1 + 0.5 * 2), rel=1e-5)  # shares ½, ¼, ¼
    assert found.stable == pytest.approx(1.5, rel=1e-5)
    assert spectrum(Products({"a": planted(50, [5, 1])}), "a", centred=True).condition == pytest.approx(5, rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1])
def test_rows_that_are_all_the_same(value):
    products = Products({"a": torch.full((30, 4), value)})
    found = spectrum(products, "a", centred=True)
    assert (found.rank, found.effective, found.stable, found.condition) == (0, 0, 0, float("inf"))
    raw = spectrum(products, "a", centred=False)
    assert (raw.rank, raw.effective, raw.stable) == pytest.approx((1, 1, 1) if value else (0, 0, 0), abs=1e-6)


def made_of(values):
    return Spectrum(np.array(values, dtype=float), len(values), 1.0, 1.0, 1.0)


def test_correlation_of_singular_values():
    a, b = made_of([9, 4, 2, 1]), made_of([5, 4.5, 3, 0, 0])
    assert correlation(a, b) == pytest.approx(np.corrcoef([9, 4, 2, 1], [5, 4.5, 3, 0])[0, 1])
    assert correlation(a, b, leading=3) == pytest.approx(np.corrcoef([9, 4, 2], [5, 4.5, 3])[0, 1])
    assert correlation(a, made_of([19, 9, 5, 3])) == pytest.approx(1)
    assert np.isnan(correlation(a, made_of([2, 2, 2]))) and np.isnan(correlation(a, made_of([2])))


# --- subspaces ----------------------------------------------------------------------------------------------------


def test_same_matrix_overlaps_itself():
    products = Products({"a": gaussian(60, 8) * torch.arange(1, 9), "b": gaussian(60, 8, 1)})
    for overlap in (feature_overlap, token_overlap):
        found = overlap(products, "a", "a", 3)
        assert (found.canonical, found.squared) == pytest.approx((1, 1), abs=1e-6)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_overlaps_are_those_of_singular_vectors(k):
    a = (gaussian(70, 6) + 2) * torch.arange(1, 7)
    b = a @ gaussian(6, 9, 1) + gaussian(70, 9, 2)
    (u, _, v), (w, _, _) = (np.linalg.svd(centred(matrix), full_matrices=False) for matrix in (a, b))
    tokens = np.linalg.svd(u[:, :k].T @ w[:, :k], compute_uv=False)
    found = token_overlap(Products({"a": a, "b": b}), "a", "b", k)
    assert (found.canonical, found.squared) == pytest.approx((tokens.mean(), (tokens**2).mean()), abs=1e-4)
    features = np.linalg.svd(v[:k] @ np.linalg.svd(centred(b[:, :6]))[2][:k].T, compute_uv=False)
    found = feature_overlap(Products({"a": a, "b": b[:, :6]}), "a", "b", k)
    assert (found.canonical, found.squared) == pytest.approx((features.mean(), (features**2).mean()), abs=1e-4)


def test_planted_subspaces():
    basis, noise = rotation(10), 1e-3 * gaussian(200, 10, 3)
    strong = gaussian(200, 4, 1).double()
    first, second = strong @ basis[:, :4].T + noise, strong @ basis[:, 4:8].T + noise
    half = strong @ basis[:, 2:6].T + noise
    products = Products({"first": first, "second": second, "half": half})
    assert feature_overlap(products, "first", "second", 4).canonical == pytest.approx(0, abs=1e-3)
    assert feature_overlap(products, "first", "half", 4)[:2] == pytest.approx((0.5, 0.5), abs=1e-3)
    assert token_overlap(products, "first", "second", 4)[:2] == pytest.approx((1, 1), abs=1e-4)


def by_chance(n, width, k):
    """Canonical correlations of random subspaces among features, and of centred random matrices among tokens."""
    random = np.random.default_rng(0)
    features, tokens = [], []
    for _ in range(200):
        spaces = [np.linalg.qr(random.standard_normal((width, k)))[0] for _ in range(2)]
        features.append(np.linalg.svd(spaces[0].T @ spaces[1], compute_uv=False))
        matrices = [random.standard_normal((n, k)) for _ in range(2)]
        spaces = [np.linalg.qr(matrix - matrix.mean(0))[0] for matrix in matrices]
        tokens.append(np.linalg.svd(spaces[0].T @ spaces[1], compute_uv=False))
    return np.array(features), np.array(tokens)


@pytest.mark.parametrize(("n", "width", "k"), [(60, 30, 10), (12, 11, 11), (40, 16, 8)])
def test_chance_levels(n, width, k):
    products = Products({"a": gaussian(n, width), "b": gaussian(n, width, 1)})
    features, tokens = by_chance(n, width, k)
    for overlap, drawn in ((feature_overlap, features), (token_overlap, tokens)):
        found = overlap(products, "a", "b", k)
        assert found.canonical_chance == pytest.approx(drawn.mean(), abs=0.025)
        assert found.squared_chance == pytest.approx((drawn**2).mean(), abs=0.01)
        assert found == overlap(products, "a", "b", k) and found.canonical_chance <= 1 + 1e-9


def test_unrelated_matrices_overlap_by_chance():
    products = Products({"a": gaussian(3000, 60), "b": gaussian(3000, 60, 1)})
    for overlap in (feature_overlap, token_overlap):
        found = overlap(products, "a", "b", 20)
        assert found.canonical == pytest.approx(found.canonical_chance, abs=0.05)
        assert found.squared == pytest.approx(found.squared_chance, rel=0.25)


@pytest.mark.parametrize("overlap", [feature_overlap, token_overlap])
def test_more_dimensions_than_there_are(overlap):
    a = torch.cat([gaussian(30, 4), torch.ones(30, 2)], 1)
    products = Products({"a": gaussian(30, 6, 1), "low": a})
    assert overlap(products, "a", "low", 4).canonical <= 1
    for k in (5, 0):
        with pytest.raises(InputError, match=rf"^low: no subspace of {k} dimensions at rank 4; 1 to 4 are accepted$"):
            overlap(products, "low", "a", k)


def test_features_of_widths_that_differ():
    products = Products({"a": gaussian(30, 4), "b": gaussian(30, 5)})
    with pytest.raises(InputError, match=r"^a and b: widths 4 and 5 differ; one width is accepted$"):
        feature_overlap(products, "a", "b", 2)


# --- kernel alignment ---------------------------------------------------------------------------------------------


def textbook(a, b):
    """From centred kernels of all pairs of tokens."""
    n = len(a)
    centring = np.eye(n) - 1 / n
    k, m = (centring @ (x @ x.T) @ centring for x in (matrix.double().numpy() for matrix in (a, b)))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


@pytest.mark.parametrize("mean", [0, 3, 100])
def test_linear_cka(mean, monkeypatch):
    a = gaussian(90, 6) * torch.arange(1, 7) + mean
    b = a @ gaussian(6, 11, 1) + 5 * gaussian(90, 11, 2)
    products = Products({"a": a, "b": b})
    assert linear_cka(products, "a", "b") == pytest.approx(textbook(a, b), rel=1e-4)
    assert linear_cka(products, "b", "a") == pytest.approx(textbook(a, b), rel=1e-4)
    assert linear_cka(products, "a", "a") == pytest.approx(1)
    chance = linear_cka(products, "a", "b", shuffle=True)
    assert chance == pytest.approx(textbook(a, b[products.shuffle]), rel=1e-3, abs=1e-6)
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 17 * 10)
    assert linear_cka(Products({"a": a, "b": b}), "a", "b") == pytest.approx(textbook(a, b), rel=1e-4)


def test_linear_cka_sees_no_rotation_scale_or_shift():
    a, b = gaussian(90, 6) * torch.arange(1, 7), gaussian(90, 6, 1) + gaussian(90, 1)
    moved = 0.1 * a.double() @ rotation(6) + 2
    products = Products({"a": a, "moved": moved, "b": b})
    assert linear_cka(products, "a", "moved") == pytest.approx(1, abs=1e-6)
    assert linear_cka(products, "moved", "b") == pytest.approx(linear_cka(products, "a", "b"), rel=1e-5)
    assert linear_cka(products, "a", "b") < 0.5


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_linear_cka_with_equal_rows(value):
    constant = torch.full((30, 4), value)
    products = Products({"a": gaussian(30, 3), "constant": constant, "zeros": torch.zeros(30, 2)})
    assert linear_cka(products, "a", "constant") == pytest.approx(0, abs=1e-6)
    assert linear_cka(products, "constant", "zeros") == 0
