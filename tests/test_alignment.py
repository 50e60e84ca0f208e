"""Maps and scores against scipy's Procrustes and numpy's least squares in float64, and what is known by design."""

from math import pi, sqrt

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from exor import InputError
from exor.pretrained import products as module
from exor.pretrained.alignment import (
    IDENTITY,
    KINDS,
    LINEAR,
    ORTHOGONAL,
    align,
    bootstrap,
    difference_by_band,
    refitted,
)
from exor.pretrained.products import Products


def gaussian(n, width, seed=0):
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def related(n, source=6, target=6, seed=0, mean=0.5):
    """A matrix and a noisy linear image of it, each about a common mean."""
    a = gaussian(n, source, seed)
    return a + mean, a @ gaussian(source, target, seed + 1) + 2 * gaussian(n, target, seed + 2) - mean


def oracle(a, b, kind, fit=slice(None), score=slice(None)):
    """Cosines of the rows ``score`` of a mapped a to b, the map and the means from the rows ``fit``; in float64."""
    x, y = (matrix.double().numpy() for matrix in (a, b))
    if kind != IDENTITY:
        x, y = x - x[fit].mean(0), y - y[fit].mean(0)
    if kind == ORTHOGONAL:
        x = x @ orthogonal_procrustes(x[fit], y[fit])[0]
    if kind == LINEAR:
        x = x @ np.linalg.lstsq(x[fit], y[fit], rcond=1e-6)[0]
    x, y = x[score], y[score]
    lengths = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return np.divide((x * y).sum(1), lengths, out=np.zeros(len(x)), where=lengths > 0)


def check(a, b, kind, tolerance=2e-5, **options):
    products = Products({"a": a, "b": b}, **options)
    found = align(products, "a", "b", kind)
    wanted = oracle(a, b, kind)
    assert found.cosines.numpy() == pytest.approx(wanted, abs=tolerance)
    assert found.score == pytest.approx(wanted.mean(), abs=tolerance)
    half, shuffled = products.half.numpy(), b[products.shuffle]
    if kind in (ORTHOGONAL, LINEAR):
        assert found.held_out == pytest.approx(oracle(a, b, kind, half, ~half).mean(), abs=tolerance)
    else:
        assert np.isnan(found.held_out) and found.expected_chance == 0
    assert found.chance == pytest.approx(oracle(a, shuffled, kind).mean(), abs=tolerance)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [80, 81])
def test_scores(kind, n):
    found = check(*related(n), kind, seed=n)
    assert found.rank == 6 and found.notes == ()


@pytest.mark.parametrize(("source", "target"), [(4, 9), (9, 4)])
def test_widths_that_differ_linear(source, target):
    assert check(*related(90, source, target), LINEAR).rank == source


@pytest.mark.parametrize("kind", [ORTHOGONAL, IDENTITY, "identity, centred"])
def test_widths_that_differ_otherwise(kind):
    products = Products(dict(zip("ab", related(20, 4, 5), strict=True)))
    with pytest.raises(InputError, match=r"^a and b: widths 4 and 5 differ; the linear map accepts that$"):
        align(products, "a", "b", kind)


def test_unknown_kind():
    with pytest.raises(
        InputError, match=r"^kind: 'affine' is unknown; identity, identity, centred, orthogonal, linear"
    ):
        align(Products({"a": gaussian(9, 2)}), "a", "a", "affine")


@pytest.mark.parametrize("kind", KINDS)
def test_large_common_mean(kind):
    a, b = related(120, mean=1000)
    check(a, b, kind, 2e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [torch.bfloat16, torch.float16])
def test_half_precision_is_that_of_a_float32_copy(kind, numbers):
    a, b = (matrix.to(numbers) for matrix in related(60))
    small, copy = (align(Products({"a": x, "b": y}), "a", "b", kind) for x, y in ((a, b), (a.float(), b.float())))
    assert torch.equal(small.cosines, copy.cosines)
    assert (small.score, small.chance) == (copy.score, copy.chance)
    check(a, b, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_several_blocks_give_the_same(kind, monkeypatch):
    a, b = related(101)
    wanted = align(Products({"a": a, "b": b}), "a", "b", kind)
    monkeypatch.setattr(module, "BLOCK_BYTES", 4 * 12 * 7)
    found = check(a, b, kind)
    assert found.cosines.numpy() == pytest.approx(wanted.cosines.numpy(), abs=2e-6)


@pytest.mark.parametrize("what", ["duplicate", "constant", "sum", "few"])
def test_rank_deficient_source_has_the_map_of_smallest_norm(what):
    a, b = related(70)
    if what == "duplicate":
        a = torch.cat([a, a[:, :2]], 1)
    elif what == "constant":
        a = torch.cat([a, torch.full((70, 1), 0.3)], 1)
    elif what == "sum":
        a = torch.cat([a, (a[:, :1] + a[:, 1:2]) / 2], 1).double()
    else:
        a, b = gaussian(9, 20), gaussian(9, 4, 1)
    found = check(a, b, LINEAR, 1e-4)
    rank = 8 if what == "few" else 6
    assert found.rank == rank and found.condition == float("inf")
    assert found.notes[0] == f"a has rank {rank} of {a.shape[1]}; the map of smallest norm is taken"
    assert len(found.notes) == 1 + (what == "few")
    if what == "few":
        assert found.score == pytest.approx(1) and "no fewer dimensions (8) than tokens (9)" in found.notes[1]


@pytest.mark.parametrize("condition", [200, 300, 1e3, 8e5])
@pytest.mark.parametrize("numbers", [torch.float32, torch.float64])
def test_ill_conditioned_source(condition, numbers):
    x, y = gaussian(400, 10).double(), gaussian(400, 10, 1).double()
    u = torch.linalg.qr(x - x.mean(0)).Q
    v = torch.linalg.qr(gaussian(10, 10, 2).double()).Q
    # the target hangs on the weakest directions, so that a map without them, or with wrong ones, misses it
    b = u.flip(1) @ torch.diag(torch.arange(1.0, 11).double()) + 0.1 * y
    a = u * torch.from_numpy(np.geomspace(condition, 1, 10)) @ v.T
    found = check(a.to(numbers), b.to(numbers), LINEAR, 1e-4)
    if numbers == torch.float64 or condition < 1e4:
        assert found.condition == pytest.approx(condition, rel=0.01)
    assert any("ill-conditioned" in note for note in found.notes) == (condition > 1e4)
    assert found.score > 0.8


@pytest.mark.parametrize("kind", [ORTHOGONAL, LINEAR])
def test_rotated_copy_scores_one(kind):
    a = gaussian(500, 20) + 1
    b = 3 * (a @ torch.linalg.qr(gaussian(20, 20, 1)).Q) + 5
    found = align(Products({"a": a, "b": b}), "a", "b", kind)
    assert (found.score, found.held_out) == pytest.approx((1, 1), abs=1e-5)
    assert align(Products({"a": a, "b": b}), "a", "b", IDENTITY).score < 0.9


@pytest.mark.parametrize("kind", [ORTHOGONAL, LINEAR])
def test_unrelated_matrices_score_what_chance_gives(kind):
    n, width = 3000, 120
    found = align(Products({"a": gaussian(n, width), "b": gaussian(n, width, 1)}), "a", "b", kind)
    formula = sqrt(width / n) * (1 if kind == LINEAR else 8 / (3 * pi))
    assert found.expected_chance == pytest.approx(formula)
    assert (found.score, found.chance) == pytest.approx((formula, formula), rel=0.04)
    assert found.held_out == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("width", [1, 5])
def test_rows_of_zeros_have_cosine_zero(width):
    a, b = gaussian(20, width), gaussian(20, width, 1)
    a[3], b[3], a[5], b[7] = 0, 0, 0, 0
    found = check(a, b, IDENTITY).cosines
    assert (found == 0).nonzero()[:, 0].tolist() == [3, 5, 7]


def test_source_and_target_without_any_variation():
    for kind in KINDS:
        found = align(Products({"a": torch.zeros(8, 3), "b": gaussian(8, 3)}), "a", "b", kind)
        assert found.score == found.chance == 0 and (kind in (IDENTITY, "identity, centred") or found.rank == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite(kind):
    a, b = related(30)
    b[11, 3] = float("nan")
    with pytest.raises(InputError, match=r"^b: row 11 holds numbers that are not finite; "):
        align(Products({"a": a, "b": b}), "a", "b", kind)


def test_cross_gram_matrix_of_lower_rank_is_noted():
    a = gaussian(50, 4)
    b = torch.cat([a[:, :3], torch.zeros(50, 1)], 1)
    found = align(Products({"a": a, "b": b}), "a", "b", ORTHOGONAL)
    assert found.rank == 3 and found.condition == float("inf")
    assert found.notes == ("the cross-Gram matrix has rank 3 of 4; other maps fit equally well",)


def test_each_gram_matrix_is_computed_once_for_all_maps():
    products = Products(dict(zip("ab", related(60), strict=True)))
    for kind in KINDS:
        align(products, "a", "b", kind)
    assert products.passes == {("a", "a"): 1, ("a", "b"): 1, ("a", "b", "shuffled"): 1}
    align(products, "b", "a", LINEAR)
    assert products.passes == {
        **{("a", "a"): 1, ("a", "b"): 1, ("a", "b", "shuffled"): 1},
        **{("b", "b"): 1, ("b", "a", "shuffled"): 1},
    }


def test_ill_conditioned_products_are_made_again_in_float64():
    products = Products({"a": gaussian(60, 3).double() * torch.tensor([1e5, 1, 1]), "b": gaussian(60, 3, 1)})
    align(products, "a", "b", LINEAR)
    assert {key[2]: count for key, count in products.passes.items() if len(key) == 3 and key[1] == "b"} == {
        "float64": 1,
        "shuffled": 1,
    }
    assert products.passes["a", "a", "float64"] == 1 and products.passes["a", "b"] == 0


# --- intervals ---------------------------------------------------------------------------------------------------


def test_bootstrap_of_a_mean():
    values = np.random.default_rng(0).gamma(2, size=2000)
    low, high = bootstrap(values, resamples=4000)
    reach = 1.96 * values.std() / sqrt(2000)
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.06 * reach)
    assert bootstrap(torch.from_numpy(values), resamples=4000) == (low, high) != bootstrap(values, seed=1)


def test_bootstrap_of_what_has_no_spread_or_too_few():
    assert bootstrap(np.full(9, 0.25)) == (0.25, 0.25)
    assert np.isnan(bootstrap(np.ones(1))).all() and np.isnan(bootstrap(np.arange(9.0), resamples=0)).all()


@pytest.mark.parametrize("kind", [ORTHOGONAL, LINEAR])
def test_refitted_is_as_wide_as_fresh_samples_vary(kind):
    def sample(seed):
        a = gaussian(150, 4, seed)  # always the same map: only the tokens are fresh
        return Products({"a": a, "b": a @ gaussian(4, 4, 10**6) + 2 * gaussian(150, 4, seed + 10**4)})

    spread = np.std([align(sample(seed), "a", "b", kind).score for seed in range(200)], ddof=1)
    seen = []
    widths = []
    for seed in range(5):
        low, high = refitted(sample(seed), "a", "b", kind, resamples=60, watch=lambda *done: seen.append(done))
        assert (low + high) / 2 == pytest.approx(align(sample(seed), "a", "b", kind).score)
        widths.append(high - low)
    assert np.mean(widths) == pytest.approx(2 * 1.96 * spread, rel=0.25)
    assert seen[:60] == [(done, 60) for done in range(1, 61)]


@pytest.mark.parametrize(("kind", "resamples"), [(IDENTITY, 9), (LINEAR, 1)])
def test_refits_that_are_refused(kind, resamples):
    with pytest.raises(
        InputError, match=rf"^refits: {resamples} of the {kind} map; at least 2 of orthogonal or linear"
    ):
        refitted(Products({"a": gaussian(9, 2)}), "a", "a", kind, resamples=resamples)


# --- by frequency --------------------------------------------------------------------------------------------------


def test_difference_by_band():
    counts = np.array([0, 0, *range(10, 0, -1)])
    output, inward = np.linspace(0, 1, 12) ** 2, np.linspace(0.5, 0, 12)
    found = difference_by_band(output, inward, counts, resamples=500, seed=4).set_index("band")
    assert list(found.index) == ["all", "unseen", *(f"fifth {i}" for i in range(1, 6))]
    assert found.tokens.tolist() == [12, 2, 2, 2, 2, 2, 2]
    assert found.lowest.tolist() == [0, 0, 1, 3, 5, 7, 9] and found.highest.tolist() == [10, 0, 2, 4, 6, 8, 10]
    difference = output - inward
    wanted = [difference.mean(), difference[:2].mean(), *(difference[i : i + 2].mean() for i in (10, 8, 6, 4, 2))]
    assert found.difference.tolist() == pytest.approx(wanted)
    assert (found.loc["all", "low"], found.loc["all", "high"]) == bootstrap(difference, resamples=500, seed=4)
    assert ((found.low <= found.difference) & (found.difference <= found.high)).all()


def test_tokens_that_occur_equally_often_stay_together():
    counts = np.array([1] * 11 + [2, 2, 3, 4, 5, 5, 5, 5, 5])
    found = difference_by_band(np.arange(20.0), np.zeros(20), counts).set_index("band")
    assert found.tokens.tolist() == [20, 11, 2, 7] and list(found.index) == ["all", "fifth 1", "fifth 3", "fifth 4"]
    assert found.lowest.tolist() == [1, 1, 2, 3] and found.highest.tolist() == [5, 1, 2, 5]
    same = difference_by_band(np.arange(6.0), np.zeros(6), np.full(6, 7)).set_index("band")
    assert same.tokens.tolist() == [6, 6] and list(same.index) == ["all", "fifth 1"]
    none = difference_by_band(np.arange(6.0), np.zeros(6), np.zeros(6, int))
    assert none.band.tolist() == ["all", "unseen"]


def test_without_counts():
    found = difference_by_band(np.array([0.5, 0.7]), np.array([0.1, 0.2]))
    assert found.band.tolist() == ["all"] and found[["lowest", "highest"]].isna().all(axis=None)
    assert found.difference.item() == pytest.approx(0.45)
