"""The asymmetry study on made-up sweeps whose answers are known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from exor import InputError
from exor.asymmetry import along_gap, sheet, trend
from experiments import asymmetry as command
from experiments.command import run

GAPS = (0.8, 0.0, 0.4)
SEEDS = tuple(range(10))


def sweep(cost: float = 0.2, noise: float = 0.01) -> pd.DataFrame:
    """Tied runs lose ``cost`` times the gap in accuracy; rows in no order."""
    rng = np.random.default_rng(0)
    rows = []
    for gap in GAPS:
        for seed in SEEDS:
            luck = rng.normal(0.5, 0.1)  # shared by both modes
            for mode in ("tied", "untied"):
                accuracy = luck - cost * gap * (mode == "tied") + rng.normal(0, noise)
                distance = {"input/0A-0B": gap if mode == "tied" else 0.1, "output/0A-0B": 2 * gap}
                scores = {"accuracy_train": accuracy, "ceiling_accuracy_train": 0.5 + gap / 4}
                run = {"conditional_gap/0A-0B": gap + 1e-12, "mode": mode, "seed": seed, "state": "finished"}
                rows.append(run | scores | distance)
    return pd.DataFrame(rows).sample(frac=1, random_state=1)


def test_against_plain_computation():
    table = sweep()
    found = along_gap(table)
    assert found["gap"].tolist() == sorted(GAPS)
    for row in found.to_dict("records"):
        runs = table[np.isclose(table["conditional_gap/0A-0B"], row["gap"])].sort_values("seed")
        tied, untied = (runs[runs["mode"] == mode] for mode in ("tied", "untied"))
        difference = tied["accuracy_train"].to_numpy() - untied["accuracy_train"].to_numpy()
        assert row["difference"] == pytest.approx(difference.mean())
        exact = stats.permutation_test((difference,), lambda x, axis: np.abs(x.sum(axis)), permutation_type="samples")
        assert row["p"] == pytest.approx(np.mean(exact.null_distribution >= abs(difference.sum()) - 1e-12))
        assert row["low"] < difference.mean() < row["high"]
        assert (row["distance_tied"], row["distance_output"]) == pytest.approx((row["gap"], 2 * row["gap"]))
        assert row["distance_input"] == pytest.approx(0.1)
    smallest = found["p"].min()
    assert found["p_holm"].min() == pytest.approx(3 * smallest)


def test_planted_effects_are_found_and_others_not():
    assert along_gap(sweep())["verdict"].tolist() == ["no evidence", "hurt", "hurt"]
    assert along_gap(sweep(cost=-0.2))["verdict"].tolist() == ["no evidence", "helped", "helped"]
    assert along_gap(sweep(cost=0))["verdict"].tolist() == ["no evidence"] * 3


def test_trend_against_scipy():
    table = sweep()
    slopes = []
    for seed in SEEDS:
        runs = table[table["seed"] == seed].assign(share=lambda t: t["accuracy_train"] / t["ceiling_accuracy_train"])
        wide = runs.pivot(index="conditional_gap/0A-0B", columns="mode", values="share")
        slopes.append(stats.linregress(wide.index, wide["tied"] - wide["untied"]).slope)
    middle, low, high, p = trend(table)
    assert middle == pytest.approx(np.mean(slopes))
    assert low < middle < high < 0
    assert p == pytest.approx(2 / 2**10)
    assert trend(sweep(cost=0))[3] > 0.05


def test_seeds_without_a_partner_are_left_out():
    table = sweep()
    lost = (table["seed"] == 3) & (table["mode"] == "tied") & (table["conditional_gap/0A-0B"] > 0.7)
    table.loc[lost, "state"] = "diverged"
    found = along_gap(table)
    assert found["n"].tolist() == [10, 10, 9]
    few = along_gap(table[table["seed"] < 5])
    assert set(few["verdict"]) == {"too few seeds"}
    assert sheet(few, trend(table)).rows[0][0] == "0"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[t["mode"] == "tied"], "no seed of the sweep is finished in both modes"),
        (lambda t: t.assign(state="new"), "no seed of the sweep is finished in both modes"),
        (lambda t: t.drop(columns="input/0A-0B"), "no column 'input/0A-0B'"),
    ],
)
def test_bad_input(change, words):
    with pytest.raises(InputError, match=words):
        along_gap(change(sweep()))


def test_command_without_runs(tmp_path, capsys):
    assert run(command.app, ["--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: no seed of the sweep is finished in both modes; train it first\n"
    assert not (tmp_path / "out").exists()
