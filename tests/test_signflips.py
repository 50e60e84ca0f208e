"""The tests and intervals against scipy, brute force and closed testing."""

from itertools import chain, combinations, product
from math import inf, sqrt

import numpy as np
import pytest
from scipy import stats

from exor.signflips import holm, interval, max_t, sign_flip_p, sign_flips


def brute_p(d, centre=0.0) -> float:
    """The sign-flip test, one flip after the other, with integers exact."""
    d = np.asarray(d) - centre
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in product((1, -1), repeat=len(d))]
    return float(np.mean([s >= sums[0] - 1e-12 for s in sums]))


def samples(rng):
    """Differences with and without ties, zeros and outliers."""
    for n in (6, 7, 9):
        yield rng.normal(0.5, 1, n)
        yield rng.standard_cauchy(n)
        yield rng.integers(-2, 5, n).astype(float)
        yield np.where(rng.random(n) < 0.2, -1.0, 1.0)
        yield np.maximum(rng.integers(-3, 4, n), 0).astype(float)


@pytest.mark.parametrize("n", [2, 3, 6, 8, 10])
def test_p_is_that_of_scipy(n):
    rng = np.random.default_rng(n)
    for d in (rng.normal(0.5, 1, n), rng.integers(-2, 4, n) / 10, np.full(n, 0.1)):
        result = stats.permutation_test(
            (d, np.zeros(n)),
            lambda x, y, axis: abs((x - y).sum(axis=axis)),
            permutation_type="samples",
            alternative="greater",
            n_resamples=inf,
        )
        assert sign_flip_p(d) == pytest.approx(result.pvalue, abs=1e-12)


def test_p_of_constant_and_zero_differences():
    for value in (0.1, -0.7, 1e-9, 1 / 3):  # sums of these round differently in different orders
        assert sign_flip_p(np.full(10, value)) == 2 / 2**10
        assert interval(np.full(10, value)) == pytest.approx((value, value))
    assert sign_flip_p(np.zeros(10)) == 1
    assert interval(np.zeros(10)) == (0, 0)
    alternating = np.tile([0.1, -0.1], 5)
    assert sign_flip_p(alternating) == 1
    tilted = np.append(np.full(9, 0.1), -0.1)
    assert sign_flip_p(tilted) == brute_p(np.append(np.ones(9), -1)) == 22 / 1024


def test_the_interval_holds_the_centres_that_are_not_rejected():
    for d in samples(np.random.default_rng(2)):
        low, high = interval(d)
        nudge = 1e-6 * np.abs(d).sum()
        inside, outside = np.linspace(low, high, 7), [low - nudge, high + nudge, low - 1, high + 1]
        assert all(brute_p(d, c) > 0.05 for c in inside)
        assert all(brute_p(d, c) <= 0.05 for c in outside)


def test_zero_is_outside_the_interval_exactly_where_p_is_at_most_5_percent():
    rng = np.random.default_rng(3)
    outside = 0
    for _ in range(2000):
        d = rng.integers(-2, 7, rng.integers(6, 10)) * rng.choice([0.1, 0.7, 1 / 3])  # ties, up to rounding
        low, high = interval(d)
        assert (low > 0 or high < 0) == (sign_flip_p(d) <= 0.05)
        outside += low > 0 or high < 0
    assert 200 < outside < 1800
    touching = np.array([1.0] * 6 + [-1.0]) * 0.1  # p is 1/8, and zero the mean of a pair
    assert interval(touching)[0] == 0


def test_few_seeds_have_a_t_interval():
    for n in range(2, 6):
        d = np.random.default_rng(n).normal(1, 1, n)
        expected = stats.ttest_1samp(d, 0).confidence_interval(0.95)
        assert interval(d) == pytest.approx((expected.low, expected.high))
    assert interval(np.full(3, 0.5)) == (0.5, 0.5)
    assert np.isnan(interval(np.array([1.0]))).all() and sign_flip_p(np.array([1.0])) == 1


def test_many_seeds_are_tested_with_a_sample_of_flips():
    n = 17
    rng = np.random.default_rng(4)
    all_flips = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    for centre in (0.0, 0.3, 0.5):
        d = rng.normal(centre, 1, n)
        exact = np.mean(abs(all_flips @ d) >= abs(d.sum()) - 1e-9)
        assert sign_flip_p(d) == pytest.approx(exact, abs=4 * sqrt(exact / 50_000))
        bounds = np.array(interval(d))
        assert bounds == pytest.approx(stats.ttest_1samp(d, 0).confidence_interval(0.95), abs=0.15)
        assert ((bounds[0] > 0) or (bounds[1] < 0)) == (sign_flip_p(d) <= 0.05)
        # the interval inverts the very same sample of flips
        assert [sign_flip_p(d - c) > 0.05 for c in (*bounds - 1e-6, *bounds + 1e-6)] == [False, True, True, False]
    assert sign_flip_p(np.ones(40)) == 2 / 100_000  # not zero: (1 + 1) / (1 + 99,999), the opposite counts
    assert (sign_flips(17)[0] == 1).all() and len(sign_flips(16)) == 2**15


def test_holm_is_closed_testing():
    rng = np.random.default_rng(5)
    for m in range(1, 7):
        p = rng.choice([0.001, 0.004, 0.01, 0.02, 0.5, 1.0, rng.random()], m)
        subsets = list(chain.from_iterable(combinations(range(m), k) for k in range(1, m + 1)))
        closed = [max(min(1, len(s) * min(p[list(s)])) for s in subsets if i in s) for i in range(m)]
        assert holm(p) == pytest.approx(closed)


def test_max_t_is_the_brute_force_one():
    rng = np.random.default_rng(6)
    n = 7
    paths = [rng.normal(shift, 1, (n, 3)) for shift in (0, 1, 3)]
    paths += [np.zeros((n, 2)), np.zeros((n, 0)), np.full((n, 1), 0.1)]
    joined = np.concatenate(paths, axis=1)

    def statistic(d):
        return 0.0 if not d.any() else abs(d.sum()) / sqrt((d**2).sum())

    observed = [statistic(d) for d in joined.T]
    exceeded = np.zeros(len(observed))
    for signs in product((1, -1), repeat=n):
        highest = max(statistic(d * signs) for d in joined.T)
        exceeded += [highest >= t - 1e-9 for t in observed]
    assert np.concatenate(max_t(paths)) == pytest.approx(exceeded / 2**n)


def test_max_t_of_one_row_and_step_is_the_sign_flip_test():
    rng = np.random.default_rng(8)
    for _ in range(50):
        d = rng.integers(-3, 6, 7)
        (p,) = max_t([d[:, None] * 0.1])  # ties, up to rounding
        assert p[0] == brute_p(d) == sign_flip_p(d * 0.1)
