"""Effects of made-up runs whose answers are known, statistics against brute force, and the null by simulation."""

from math import inf, nan

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from exor import InputError
from exor.effects import HOLM, MIXED, Comparison, compare, differences, effects, fewest_seeds
from exor.language import PRESETS, Language, Relation
from exor.signflips import holm, max_t, sign_flip_p

STEPS = np.arange(0, 50_001, 1000)
MEETS, CONFLICT = Relation((2, 3), "1A-1B", 0.0, 0.0), Relation((0, 1), "0A-0B", 0.0, 0.8)
COLUMNS = ["accuracy_train", "input/1A-1B", "output/1A-1B", "input/0A-0B", "output/0A-0B"]
ROWS = [
    ("accuracy", "", ""),
    ("distance", "1A-1B", "input"),
    ("distance", "1A-1B", "output"),
    ("convergence", "1A-1B", "input"),
    ("convergence", "1A-1B", "output"),
    ("distance", "0A-0B", "input"),
    ("distance", "0A-0B", "output"),
]


def made(n: int = 10, tied: dict | None = None, untied: dict | None = None, noise: float = 0.01) -> pd.DataFrame:
    """Runs of n seeds. Every column is 1 plus noise of the run, and plus what is given for it in a mode."""
    rng = np.random.default_rng(1)
    frames = []
    for mode, plus in (("tied", tied or {}), ("untied", untied or {})):
        values = {c: np.ones((n, len(STEPS))) + noise * rng.normal(size=(n, 1)) + plus.get(c, 0) for c in COLUMNS}
        if mode == "tied":
            values |= {c: values[c.replace("output", "input")] for c in COLUMNS}
        for i in range(n):
            columns = {c: v[i] for c, v in values.items()}
            frames.append(pd.DataFrame({"mode": mode, "seed": 42 + i, "step": STEPS, "accuracy_test": nan} | columns))
    return pd.concat(frames, ignore_index=True)


def judged(table: pd.DataFrame, relations=(MEETS, CONFLICT)) -> pd.DataFrame:
    """The effects table by quantity, pair and matrix."""
    return effects(compare(table, relations)[0]).set_index(["quantity", "pair", "against"])


def meeting(*steps: float) -> np.ndarray:
    """``[seeds, steps]`` to add to the distances of :func:`made`: they fall to about 0 at a step of each seed."""
    return np.where(np.array(steps)[:, None] <= STEPS, -0.999, 0.0)


def test_fewest_seeds():
    assert [fewest_seeds(rows) for rows in (1, 2, 5, 7, 13)] == [6, 7, 8, 9, 10]
    for rows in (2, 5, 7, 13):
        few = fewest_seeds(rows)
        reached = {n: holm(np.full(rows, 2 / 2**n)).min() <= HOLM for n in (few - 1, few)}
        assert reached == {few - 1: False, few: True}


# --- verdicts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "row", "negative", "positive"),
    [
        ("accuracy_train", ("accuracy", "", ""), "hurt", "helped"),
        ("input/1A-1B", ("distance", "1A-1B", "input"), "helped", "hurt"),
        ("output/1A-1B", ("distance", "1A-1B", "output"), "helped", "hurt"),
        ("input/0A-0B", ("distance", "0A-0B", "input"), "closer", "farther"),
        ("output/0A-0B", ("distance", "0A-0B", "output"), "closer", "farther"),
    ],
)
def test_planted_differences_have_their_words(column, row, negative, positive):
    for shift, word in ((-0.3, negative), (0.3, positive)):
        table = judged(made(untied={column: -shift}))  # untied, so that only one matrix differs
        assert table["verdict"].drop([row]).eq("no evidence").all()
        assert table.loc[row, "verdict"] == word
        assert table.loc[row, "difference"] == pytest.approx(shift, abs=0.02)
        assert table.loc[row, "p"] == 2 / 2**10
        assert table.loc[row, "p_holm"] == pytest.approx(7 * 2 / 2**10)
        low, high = table.loc[row, ["low", "high"]]
        assert low < shift < high and high - low < 0.03


def test_only_the_last_20000_steps_count():
    early = np.where(STEPS <= 30_000, 0.3, 0.0)
    table = judged(made(tied={"input/1A-1B": early}))
    assert table.loc[("distance", "1A-1B", "input"), "verdict"] == "no evidence"  # positive all the time: not mixed


@pytest.mark.parametrize("row", [ROWS[0], ROWS[2], ROWS[5]])
def test_a_difference_that_changes_sign_is_mixed(row):
    column = f"{row[2]}/{row[1]}" if row[1] else "accuracy_train"
    crossing = np.where(STEPS < 25_000, 0.3, -0.3)
    assert judged(made(untied={column: crossing})).loc[row, "verdict"] == "mixed"
    # with 7 seeds a band's p cannot reach 1 %, with 8 it can
    assert judged(made(7, untied={column: crossing})).loc[row, "verdict"] == "no evidence"
    assert judged(made(8, untied={column: crossing})).loc[row, "verdict"] == "mixed"


def test_convergence_times():
    tied = {"input/1A-1B": meeting(*range(10_000, 20_000, 1000))}
    later = meeting(*range(25_000, 35_000, 1000))
    untied = {"input/1A-1B": later, "output/1A-1B": meeting(*[5000] * 9, inf)}
    table = judged(made(tied=tied, untied=untied))
    row = table.loc[("convergence", "1A-1B", "input")]
    assert (row["verdict"], row["difference"], row["median_tied"], row["median_untied"]) == (
        *("helped", -15_000),
        *(14_500, 29_500),
    )
    assert (row["never_tied"], row["never_untied"], row["bound"]) == (0, 0, False)
    row = table.loc[("convergence", "1A-1B", "output")]
    assert row["difference"] == np.mean([*(t - 5000 for t in range(10_000, 19_000, 1000)), 19_000 - 50_000])
    assert (row["never_tied"], row["never_untied"], row["bound"]) == (0, 1, True)
    assert judged(made(tied=untied, untied=tied)).loc[("convergence", "1A-1B", "input"), "verdict"] == "hurt"
    assert pd.isna(table.loc[ROWS[1], "median_tied"])


def test_runs_that_never_converge():
    late, never = {"input/1A-1B": meeting(*[40_000] * 10)}, {"input/1A-1B": meeting(*[inf] * 10)}
    row = judged(made(tied=never, untied=never)).loc[("convergence", "1A-1B", "input")]
    assert (row["difference"], row["p"], row["verdict"], row["bound"]) == (0, 1, "no evidence", False)
    assert (row["never_tied"], row["never_untied"], row["median_tied"]) == (10, 10, inf)
    row = judged(made(tied=late, untied=never)).loc[("convergence", "1A-1B", "input")]
    assert (row["difference"], row["verdict"], row["bound"]) == (-10_000, "helped", True)
    assert (row["low"], row["high"]) == (-10_000, -10_000)


def test_medians_are_kaplan_meier():
    times = [3000, 7000, 7000, 12_000, 30_000, 50_000, inf, inf, inf]  # one at the very last step
    for n, median in ((9, 30_000), (8, (12_000 + 30_000) / 2)):
        curves = {"input/1A-1B": meeting(*times[:n])}
        row = judged(made(n, tied=curves)).loc[("convergence", "1A-1B", "input")]
        assert (row["median_tied"], row["never_tied"]) == (median, np.isinf(times[:n]).sum())
        finite, horizon = [t for t in times[:n] if t < inf], [50_000] * int(np.isinf(times[:n]).sum())
        alive = stats.ecdf(stats.CensoredData(uncensored=finite, right=horizon)).sf
        assert alive.evaluate(median - 1) >= 0.5 - 1e-9 and alive.evaluate(median) <= 0.5 + 1e-9


def test_fewer_than_6_seeds_get_values_and_no_verdict():
    for n in (1, 2, 5):
        table = judged(made(n, untied={"input/0A-0B": -5.0}))
        assert (table["verdict"] == "too few seeds").all() and (table["n"] == n).all()
        assert table.loc[ROWS[5], "difference"] == pytest.approx(5, abs=0.1)
        assert table["low"].isna().all() == (n == 1)
        assert table.loc[ROWS[5], "agrees"] is (None if n == 1 else True)
    assert set(judged(made(6))["verdict"]) == {"no evidence"}


def test_too_few_seeds_for_so_many_rows():
    shift = dict.fromkeys(COLUMNS, -1.0)
    assert fewest_seeds(len(ROWS)) == 9
    for n in (6, 7, 8):
        assert set(judged(made(n, untied=shift))["verdict"]) == {"no evidence"}
    assert judged(made(9, untied=shift)).loc[ROWS[5], "verdict"] == "farther"


def test_more_than_16_seeds_are_not_exact():
    for n, exact in ((16, True), (17, False)):
        table = judged(made(n, untied={"input/0A-0B": -0.3}))
        assert (table["exact"] == exact).all()
        assert table.loc[ROWS[5], "verdict"] == "farther"


def test_what_theory_predicts():
    table = judged(made(tied={"input/0A-0B": 0.5}, untied={"output/0A-0B": -0.5}))
    assert table["predicted"].to_dict() == dict(
        zip(ROWS, ["hurt or equal", "", "", "earlier", "earlier", "farther", "closer"], strict=True)
    )
    agrees = table["agrees"].to_dict()
    assert (agrees[ROWS[1]], agrees[ROWS[5]], agrees[ROWS[6]]) == (None, True, False)
    reverse = Relation((0, 1), "0A-0B", 0.8, 0.0)
    assert judged(made(), [reverse])["predicted"].tolist() == ["hurt or equal", "closer", "farther"]
    assert judged(made(), [MEETS])["predicted"].tolist() == ["", "", "", "earlier", "earlier"]
    apart = Relation((0, 2), "0A-0B", 1.0, 1.0)
    assert judged(made(), [apart])["predicted"].tolist() == ["", "", ""]


def test_equal_accuracy_agrees_with_hurt_or_equal():
    for shift, agrees in ((0.0, True), (-0.1, True), (0.1, False)):
        table = judged(made(noise=0, tied={"accuracy_train": shift}))
        assert table.loc[ROWS[0], "agrees"] is agrees
        assert table.loc[ROWS[1], "agrees"] is None
        assert table.loc[ROWS[1], ["p", "p_holm", "low", "high"]].tolist() == [1, 1, 0, 0]
        assert table.loc[ROWS[0], "verdict"] == (
            "no evidence" if agrees and shift == 0 else "hurt" if agrees else "helped"
        )


@pytest.mark.parametrize("preset", PRESETS)
def test_the_rows_are_those_of_the_language(preset):
    relations = [r for r in PRESETS[preset].relations() if r.semantically_equivalent or r.conditionally_equivalent]
    rows = {
        "main": [*ROWS[:1], *ROWS[5:], *ROWS[1:5]],
        "hypothesis-holds": ROWS[:5],
        "hypothesis-fails": ROWS[:3],  # 1A–1B is torn there
    }
    assert judged(made(), relations).index.tolist() == rows[preset]
    many = Language(zero=(0.2, 0.3, 0.5), one=(0.25,) * 4).relations()
    pairs = [r.name for r in many if r.semantically_equivalent]
    table = made()
    table = table.assign(**{f"{m}/{p}": table[f"{m}/0A-0B"] for m in ("input", "output") for p in pairs})
    assert len(judged(table, [r for r in many if r.semantically_equivalent])) == 1 + 2 * 3 + 4 * 6


# --- runs -------------------------------------------------------------------------------------------------------


def test_the_order_of_rows_does_not_matter():
    table = made(untied={"output/0A-0B": np.linspace(-1, 1, 10)[:, None]}, tied={"input/1A-1B": meeting(*[9000] * 10)})
    pd.testing.assert_frame_equal(judged(table), judged(table.sample(frac=1, random_state=0)))


def test_differences_are_what_the_table_is_made_of():
    tied = {"input/1A-1B": meeting(*[9000] * 9, inf)}
    comparisons, _ = compare(made(tied=tied), [MEETS, CONFLICT])
    table, parts = effects(comparisons), differences(comparisons)
    assert len(parts) == 7 * 10
    keys = ["quantity", "pair", "against"]
    means = parts.groupby(keys, sort=False)[["tied", "untied", "difference"]].mean().reset_index()
    pd.testing.assert_frame_equal(means, table[means.columns.tolist()])
    assert (parts["tied"] - parts["untied"] == parts["difference"]).all()
    never = parts.groupby(keys, sort=False)[["never_tied", "never_untied"]].sum()
    assert never.to_numpy().tolist() == table[["never_tied", "never_untied"]].to_numpy().tolist()
    assert set(table["seeds"]) == {tuple(range(42, 52))} == {tuple(parts["seed"][:10])}
    last = parts[(parts["quantity"] == "convergence") & (parts["seed"] == 51)].iloc[0]
    assert (last["tied"], last["never_tied"]) == (50_000, True)


def test_runs_that_cannot_be_used_are_left_out_with_their_pair():
    table = made(12)
    of = {(m, s): (table["mode"] == m) & (table["seed"] == s) for m in ("tied", "untied") for s in range(42, 54)}
    table.loc[of["tied", 43] & (table["step"] == 7000), "output/1A-1B"] = nan
    table.loc[of["untied", 44] & (table["step"] >= 9000), "accuracy_train"] = inf
    table.loc[of["untied", 45] & (table["step"] > 20_000), "accuracy_train"] = nan
    table = table[~of["tied", 46] & ~(of["untied", 47] & (table["step"] > 30_000))]
    comparisons, left_out = compare(table, [MEETS, CONFLICT])
    assert comparisons[0].seeds == (42, 48, 49, 50, 51, 52, 53)
    assert left_out == [
        ("tied", 43, "output/1A-1B is not finite at step 7,000"),
        ("tied", 44, "no untied run of this seed to compare with"),
        ("tied", 45, "no untied run of this seed to compare with"),
        ("tied", 47, "no untied run of this seed to compare with"),
        ("untied", 43, "no tied run of this seed to compare with"),
        ("untied", 44, "accuracy_train is not finite at step 9,000"),
        ("untied", 45, "accuracy_train is missing at the end"),
        ("untied", 46, "no tied run of this seed to compare with"),
        ("untied", 47, "ends at step 30,000, the longest run at 50,000"),
    ]
    whole = made(12)
    kept = whole[whole["seed"].isin(comparisons[0].seeds)]
    pd.testing.assert_frame_equal(effects(comparisons), effects(compare(kept, [MEETS, CONFLICT])[0]))


def test_accuracy_that_is_evaluated_rarely():
    """Between two evaluations stands the earlier; before the first nothing is known, so nothing is concluded."""
    crossing = np.where(STEPS < 20_000, 0.3, -0.3)
    table = made(untied={"accuracy_train": crossing})
    rare = table.assign(accuracy_train=table["accuracy_train"].where(table["step"] % 12_000 == 0))
    comparison = compare(rare, [MEETS])[0][0]
    assert np.sign(comparison.path.mean(axis=0)).tolist() == [-1, -1, -1, -1, 1, 1, 1, 1, 1, 1]  # first + at 24,000
    assert judged(rare).loc[ROWS[0], "verdict"] == "mixed"
    late = rare.assign(accuracy_train=rare["accuracy_train"].where(rare["step"] > 20_000))
    comparison = compare(late, [MEETS])[0][0]
    assert np.sign(comparison.path.mean(axis=0)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert judged(late).loc[ROWS[0], ["verdict", "difference"]].tolist() == ["helped", pytest.approx(0.3, abs=0.02)]


def test_steps_that_are_not_logged_get_the_last_one_before():
    crossing = np.where(STEPS < 26_000, 0.3, -0.3)
    table = made(untied={"input/0A-0B": crossing})
    sparse = table[
        (table["step"] % 3000 == 0) | (table["step"] == 50_000)
    ]  # 25,000 is not there, 24,000 and 27,000 are
    comparison = compare(sparse, [CONFLICT])[0][1]
    assert np.sign(comparison.path.mean(axis=0)).tolist() == [-1, -1, -1, -1, -1, 1, 1, 1, 1, 1]


def test_errors_name_the_culprit():
    table = made(3)
    for column in ("mode", "seed", "step", "accuracy_train", "output/0A-0B"):
        with pytest.raises(InputError, match=f"^the table of runs has no column '{column}'$"):
            compare(table.drop(columns=column), [MEETS, CONFLICT])
    with pytest.raises(InputError, match=r"^no seed has a run to use in both modes; tied seed 42: no untied run"):
        compare(table[table["mode"] == "tied"], [MEETS])
    with pytest.raises(InputError, match=r"^no seed has a run to use in both modes$"):
        compare(table[:0], [MEETS])


# --- under the null ---------------------------------------------------------------------------------------------


def null_table(rng: np.random.Generator, kind: str, n: int = 10) -> list[Comparison]:
    """Comparisons of exchangeable runs: correlated rows, autocorrelated curves, three runs in ten never converging."""

    def noise(*shape):
        return rng.standard_t(1.2, shape) if kind == "heavy tails" else rng.normal(size=shape)

    steps, rows = 50, 5
    runs = noise(2, n, 1, steps) + noise(2, n, rows, steps)  # a run's rows have a part in common
    runs = (
        np.cumsum(runs, axis=3) if kind != "constant" else runs * 0 + np.where(rng.random((2, n, 1, 1)) < 0.5, 0.1, 0)
    )
    runs = runs + noise(n, rows, 1)  # and a seed's two runs as well
    if kind == "tied values":
        runs = runs.round(-1)
    times = np.where(rng.random((2, n, 2)) < 0.3, inf, (10_000 + 3000 * np.abs(noise(2, n, 2))).round(-3))
    times = np.minimum(times, np.where(np.isinf(times), inf, 50_000))
    ends, paths = runs[..., -20:].mean(axis=3), runs[0, :, :, 4::5] - runs[1, :, :, 4::5]
    seeds, words = tuple(range(n)), ("negative", "positive")
    no = np.zeros(n, bool)
    found = [Comparison("distance", "", "", "", words, seeds, *ends[:, :, i], no, no, paths[:, i]) for i in range(rows)]
    for i in range(2):
        never, values = np.isinf(times[:, :, i]), np.minimum(times[:, :, i], 50_000)
        found.append(Comparison("convergence", "", "", "", words, seeds, *values, *never, np.zeros((n, 0))))
    return found


def test_at_most_5_percent_of_null_tables_contain_a_verdict():
    rng = np.random.default_rng(7)
    kinds = ("normal", "heavy tails", "tied values", "constant")
    rates = pd.DataFrame([null_rates(null_table(rng, kind)) for kind in kinds for _ in range(250)])
    share = rates.mean()
    assert share["any"] <= 0.05
    assert share["any"] == pytest.approx(share["holm"] + share["mixed"], abs=0.003) and share["holm"] > 0.01
    assert share["band"] <= MIXED + 0.008
    # without the adjustments it would fail
    assert share["unadjusted"] > 0.08
    assert share["pointwise"] > 0.03


def null_rates(comparisons: list[Comparison]) -> dict[str, bool]:
    """Whether a table has a verdict, by which way, and whether it had one without adjustment."""
    table = effects(comparisons)
    mixed = table["verdict"] == "mixed"
    steps = [d for c in comparisons for d in c.path.T]
    return {
        "any": (table["verdict"] != "no evidence").any(),
        "holm": (~mixed & (table["verdict"] != "no evidence")).any(),
        "mixed": mixed.any(),
        "band": bool((np.concatenate(max_t([c.path for c in comparisons])) <= MIXED).any()),
        "unadjusted": (table["p"] <= HOLM).any(),
        "pointwise": any(sign_flip_p(d) <= MIXED for d in steps),
    }
