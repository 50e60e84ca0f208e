"""Outcomes of made-up runs whose answers are known."""

import numpy as np
import pandas as pd
import pytest

from exor.config import RunConfig
from exor.findings import convergence_step, last_mean, outcomes

STEPS = np.arange(0, 50_001, 1000)


def table(**columns) -> pd.DataFrame:
    return pd.DataFrame({"step": STEPS, **columns})


@pytest.mark.parametrize(
    ("distance", "step"),
    [
        (np.where(STEPS < 10_000, 2.0, 0.1), 10_000),
        (np.where((STEPS < 10_000) | (STEPS == 30_000), 2.0, 0.1), 31_000),  # it has to stay below
        (np.where(STEPS < 10_000, 2.0, 0.2), None),  # 10 % is not below 10 %
        (np.where(STEPS < 50_000, 2.0, 0.1), 50_000),
        (np.full(len(STEPS), 2.0), None),
    ],
)
def test_convergence_step(distance, step):
    assert convergence_step(table(x=distance), "x") == step


def test_last_mean_is_over_the_last_20000_steps():
    assert last_mean(table(x=STEPS))["x"] == STEPS[(STEPS > 30_000)].mean()
    assert last_mean(table(x=np.where(STEPS == 50_000, 1.0, np.nan)))["x"] == 1


def test_outcomes_compare_with_theory():
    meets, apart = np.where(STEPS < 10_000, 2.0, 0.01), np.full(len(STEPS), 1.5)
    columns = {"input/0A-0B": meets, "input/1A-1B": meets, "output/0A-0B": apart, "output/1A-1B": apart}
    found = {(o.matrix, o.relation.name): o for o in outcomes(RunConfig(), table(**columns))}
    assert {key: (o.predicted, o.met, o.agrees, o.step) for key, o in found.items()} == {
        ("input", "0A-0B"): (True, True, True, 10_000),
        ("output", "0A-0B"): (False, False, True, None),
        ("input", "1A-1B"): (True, True, True, 10_000),
        ("output", "1A-1B"): (True, False, False, None),
    }
    tied = {o.relation.name: o.agrees for o in outcomes(RunConfig(tied=True), table(**columns))}
    assert tied == {"0A-0B": None, "1A-1B": True}
