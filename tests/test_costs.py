"""Costs grow with what is asked for, and what does not fit is refused."""

from types import SimpleNamespace

import pytest
import torch

from exor import InputError
from exor.pretrained import costs
from exor.pretrained.analyses import ANALYSES
from exor.pretrained.subjects import Choice, Model, Plan

CPU = torch.device("cpu")


def planned(tokens=50_000, widths=(2048, 2048), fetch=0):
    models = []
    for role, width in zip(("tied", "untied"), widths, strict=False):
        checkpoint = SimpleNamespace(
            name=f"org/{role}", rows=tokens, width=width, output=None, bytes_to_fetch=fetch, memory=4 * tokens * width
        )
        models.append(Model(role, checkpoint, None, None))
    return Plan(tuple(models), Choice(), ("x",) * tokens, ())


GROWING = [
    (planned(widths=(64,)), planned(widths=(64, 64))),
    (planned(tokens=1000), planned(tokens=2000)),
    (planned(widths=(1024, 1024)), planned(widths=(1024, 2048))),
    (planned(widths=(2048, 1024)), planned(widths=(4096, 1024))),
]


@pytest.mark.parametrize(("less", "more"), GROWING)
def test_more_tokens_widths_and_models_cost_more(less, more):
    assert costs.memory(less) < costs.memory(more)
    assert costs.device_memory(less) <= costs.device_memory(more)
    assert costs.operations(less, ()) < costs.operations(more, ())


def test_what_is_held_is_counted():
    plan = planned(tokens=100_000)
    matrices = 3 * 100_000 * 2048 * 4
    assert matrices + 2 * 100_000 * 2048 * 4 <= costs.memory(plan) < 3 * matrices
    assert 100_000 * 2048 * 4 < costs.device_memory(plan) < matrices + 2**31


@pytest.mark.parametrize("name", ANALYSES)
def test_one_analysis_costs_no_more_than_all(name):
    plan = planned()
    assert 0 <= costs.operations(plan, [name]) < costs.operations(plan, ())


def test_operations_of_some_analyses():
    plan = planned(tokens=10_000)
    n, w = 10_000, 2048
    assert costs.operations(plan, ["norms"]) == 0
    assert costs.operations(plan, ["neighbours"]) == costs.operations(plan, ["spectral", "neighbours"])
    assert costs.operations(plan, ["neighbours"]) > 3 * n * n * w / 2
    assert costs.operations(plan, ["cka"]) > 3 * n * w * w
    assert costs.operations(plan, ["alignment"]) > costs.operations(plan, ["cka"])
    assert costs.operations(plan, list(ANALYSES)) == costs.operations(plan, ())


def test_speed_is_that_of_a_machine():
    assert 1e8 < costs.speed(CPU) < 1e15


def test_too_little_memory(monkeypatch):
    plan = planned()
    needed = costs.memory(plan)
    for free in (needed, None):  # None: nobody knows
        monkeypatch.setattr(costs, "available", lambda free=free: free)
        costs.require_memory(plan, CPU)
    monkeypatch.setattr(costs, "available", lambda: needed // 2)
    with pytest.raises(InputError, match=r"org/tied and org/untied: about .* GB of memory needed") as told:
        costs.require_memory(plan, CPU)
    size = f"{needed / 1e9:.2f} GB"
    assert size in str(told.value) and f"{needed // 2 / 1e9:.2f} GB are free" in str(told.value)
    assert "--limit-tokens" in str(told.value) and "\n" not in str(told.value)


def test_the_sheet(monkeypatch):
    monkeypatch.setattr(costs, "speed", lambda device: 1e9)
    plan = planned(fetch=12_345_678)
    sheet = costs.sheet(plan, (), CPU)
    rows = {row[0]: row[1] for row in sheet.rows}
    assert rows["to fetch, org/tied"] == "12.35 MB" and rows["to fetch, org/tied"].value == 12_345_678
    assert rows["tokens looked at"].value == 50_000 and rows["memory"].value == costs.memory(plan)
    assert rows["minutes of computing, roughly"].value == pytest.approx(costs.operations(plan, ()) / 6e10)
    assert "memory of cpu" not in rows
    checkpoints = [model.checkpoint for model in plan.models]
    rows = {row[0]: row[1] for row in costs.sheet_of_checkpoints(checkpoints).rows}
    assert rows["to fetch, in all"].value == 2 * 12_345_678
    assert "to fetch, in all" not in {row[0] for row in costs.sheet_of_checkpoints(checkpoints[:1]).rows}
