"""The published claims on made-up effects and theory tables."""

import pandas as pd
import pytest

from exor.claims import INPUT, LOWER, OUTPUT, SOONER, claims, sheet

ROW = {"pair": "", "against": "", "difference": 0.0, "predicted": ""}
THEORY = {"mode": "untied", "pair": "0A-0B", "opposite": False, "semantic_gap": 0.0, "share": 0.5}


def effects(accuracy: tuple[float, float], steps: tuple[float, float]) -> pd.DataFrame:
    rows = [
        ROW | {"quantity": "accuracy", "predicted": "hurt or equal", "low": accuracy[0], "high": accuracy[1]},
        ROW | {"quantity": "distance", "pair": "1A-1B", "against": "input", "low": -9.0, "high": -8.0},
        ROW | {"quantity": "convergence", "pair": "1A-1B", "against": "input", "low": steps[0], "high": steps[1]},
    ]
    return pd.DataFrame(rows)


def theory(*agrees: bool | None) -> pd.DataFrame:
    places = [("untied", "input", "→ 0"), ("untied", "output", "apart"), ("tied", "input", "both ways")]
    rows = [
        THEORY | {"mode": m, "matrix": x, "predicted": p, "agrees": a, "share_low": 0.4, "share_high": 0.6}
        for (m, x, p), a in zip(places, agrees, strict=True)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("interval", "says"), [((-2.0, -1.0), True), ((1.0, 2.0), False), ((-1.0, 1.0), None), ((-1.0, 0.0), None)]
)
def test_intervals_decide(interval, says):
    found = claims("main", effects(interval, interval), theory(True, False, True))
    answers = {(c, w.split(",")[0]): r for c, w, r in found[["claim", "what", "reproduces"]].itertuples(index=False)}
    assert answers == {
        (LOWER, "tied − untied"): says,
        (SOONER, "1A–1B"): says,
        (INPUT, "0A–0B"): True,
        (OUTPUT, "0A–0B"): False,
    }


def test_accuracy_is_claimed_only_where_a_pair_is_pulled_both_ways():
    table = effects((-2.0, -1.0), (1.0, 2.0)).assign(predicted="")
    assert LOWER not in set(claims("holds", table, theory(True, True, None))["claim"])


def test_the_sheet_counts():
    tables = [
        claims("one", effects((-2.0, -1.0), (1.0, 2.0)), theory(True, None, None)),
        claims("two", effects((-1.0, 1.0), (-2.0, -1.0)), theory(True, True, None)),
        claims("three", pd.DataFrame(), theory(False, True, None)),
    ]
    found = sheet(tables)
    assert [row[0] for row in found.rows] == [SOONER] * 2 + [LOWER] * 2 + [OUTPUT] * 3 + [INPUT] * 3
    assert [row[-1] for row in found.rows] == [
        *("contradicted", "reproduces"),
        *("reproduces", "undecided"),
        *("undecided", "reproduces", "reproduces"),
        *("reproduces", "reproduces", "contradicted"),
    ]
    assert f"{SOONER}: 1 of 2 reproduce, 1 contradicted."[1:] in found.note
    assert f"{INPUT}: 2 of 3 reproduce, 1 contradicted."[1:] in found.note
    assert found.rows[0][3] == "0 [1.00; 2.00]"
