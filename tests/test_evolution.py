"""Cosines over training against scipy, names of steps, and files as published."""

import gc
import json
import weakref
from math import nan
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cosine

from exor import InputError
from exor.pretrained import evolution as module
from exor.pretrained.evolution import evolution, read_published, row_cosines, step_of, to_json

REFERENCE = Path(__file__).parent.parent.parent / "shared" / "reference" / "pairs"
published = pytest.mark.skipif(not REFERENCE.is_dir(), reason="no reference data here")


def path(steps: int, seed: int = 0, names=("input", "output"), rows: int = 30):
    generator = torch.Generator().manual_seed(seed)
    held = {name: torch.randn(rows, 5, generator=generator) for name in names}
    for i in range(steps):
        yield 10 * i, held
        held = {name: matrix + torch.randn(rows, 5, generator=generator) for name, matrix in held.items()}


@pytest.mark.parametrize("block", [1, 35, 2**22])
def test_cosines_are_those_of_scipy(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    checkpoints = list(path(4))
    table = evolution(checkpoints).set_index(["step", "matrix"])
    assert list(table.index) == [(s, m) for s in (0, 10, 20, 30) for m in ("input", "output")]
    for i, (step, held) in enumerate(checkpoints):
        for name, matrix in held.items():
            row = table.loc[step, name]
            for column, j in (("to_first", 0), ("to_previous", i - 1)):
                if j < 0:
                    assert np.isnan(row[[column, f"{column}_low", f"{column}_high"]].to_numpy(float)).all()
                    continue
                other = checkpoints[j][1][name]
                each = [1 - cosine(x, y) for x, y in zip(matrix.double(), other.double(), strict=True)]
                expected = [np.mean(each), *np.quantile(each, (0.1, 0.9))]
                assert row[[column, f"{column}_low", f"{column}_high"]].tolist() == pytest.approx(expected, abs=1e-6)
            assert row["norm"] == pytest.approx(np.linalg.norm(matrix.double().numpy()), rel=1e-6)


def test_chosen_rows_only():
    rows = torch.tensor([3, 7, 8])
    chosen = evolution(path(3), rows=rows)
    cut = evolution((step, {name: m[rows] for name, m in held.items()}) for step, held in path(3))
    pd.testing.assert_frame_equal(chosen, cut)


def test_half_precision_and_rows_of_zeros():
    a = torch.tensor([[0.0, 0], [0, 0], [1, 0], [3e4, 4e4]], dtype=torch.float16)
    b = torch.tensor([[0.0, 0], [1, 1], [-2, 0], [4e4, 3e4]], dtype=torch.float16)
    assert row_cosines(a, b).tolist() == pytest.approx([1, 0, -1, 0.96], abs=1e-3)
    assert row_cosines(a, b).dtype == torch.float32


def test_three_checkpoints_are_held_at_most():
    alive: list[weakref.ref] = []
    most = 0

    def reading():
        nonlocal most
        for i in range(6):
            made = {name: torch.full((4, 3), float(i + 1)) for name in ("input", "output")}
            alive.extend(weakref.ref(matrix) for matrix in made.values())
            gc.collect()
            most = max(most, sum(reference() is not None for reference in alive))
            yield i, made
            del made

    assert len(evolution(reading())) == 12
    assert most == 3 * 2


def test_checkpoints_of_different_models_are_refused():
    with pytest.raises(InputError, match=r"step 10: input 29 × 5, where the first checkpoint has input 30 × 5"):
        evolution([next(path(1, names=["input"])), (10, {"input": torch.ones(29, 5)})])
    with pytest.raises(InputError, match=r"step 10: tied 30 × 5, where the first checkpoint has input 30 × 5, output"):
        evolution([next(path(1)), (10, {"tied": torch.ones(30, 5)})])
    with pytest.raises(InputError, match="no checkpoints"):
        evolution([])


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step20000-tokens83B", 20_000),
        ("allenai/OLMo-1B-0724-hf@step2000-tokens8B", 2000),
        ("step1000-unsharded", 1000),
        ("stage1-step150-tokens1B", 150),
        ("checkpoint-500", 500),
        ("ckpt_10", 10),
        ("global_step2000", 2000),
        ("EleutherAI/pythia-70m@step143000", 143_000),
        ("runs/step100/model.safetensors", 100),
        ("step1/step2", 2),
        ("step5\\pytorch_model.bin", 5),
        ("iter_0001000", 1000),
        ("epoch_1-step_20", 20),
        ("checkpoint-7-step-9", 9),
        ("step10k", 10_000),
        ("Step=3", 3),
        ("20000", 20_000),
        ("main", None),
        ("allenai/OLMo-1B-hf", None),
        ("Qwen/Qwen3-4B", None),
        ("org/step3@main", None),
        ("footstep12", None),
        ("", None),
    ],
)
def test_steps_in_names(name, step):
    assert step_of(name) == step


@published
@pytest.mark.parametrize(("model", "last"), [("OLMo-1B-0724-hf", 20_000), ("OLMo-7B-0424-hf", 50_000)])
def test_published_files_are_read_as_they_are(model, last):
    file = REFERENCE / f"evolution-{model}.json"
    table, held = read_published(file), json.loads(file.read_text())
    assert table.attrs["model"] == f"allenai/{model}" and table["step"].max() == last
    for matrix in ("input", "output"):
        rows = table[table["matrix"] == matrix]
        assert rows["step"].tolist() == held["steps"]
        assert rows["to_first"].tolist() == held[f"{matrix}_vs_init"]
        assert rows["to_previous"].tolist() == held[f"{matrix}_consecutive"]


@published
def test_the_published_cosines_of_olmo():
    at = read_published(REFERENCE / "evolution-OLMo-1B-0724-hf.json").set_index(["step", "matrix"])["to_first"]
    assert round(at[20_000, "input"], 3) == 0.865 and round(at[20_000, "output"], 3) == 0.561


def test_values_that_are_missing(tmp_path):
    file = tmp_path / "curves.json"
    file.write_text(
        '{"steps": [0, 5], "input_vs_init": [1, null], "input_consecutive": [NaN, 0.5], "tied_vs_init": [1, 1]}'
    )
    table = read_published(file)
    expected = {"step": [0, 0, 5, 5], "matrix": ["input", "tied"] * 2, "to_first": [1.0, 1.0, nan, 1.0]}
    expected |= {"to_previous": [nan, nan, 0.5, nan]}
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected))


@pytest.mark.parametrize("names", [("input", "output"), ("tied",)])
def test_what_is_written_is_read_again(tmp_path, names):
    table = evolution(path(3, names=names))
    file = tmp_path / "curves.json"
    file.write_text(to_json(table, "org/model"))
    again = read_published(file)
    pd.testing.assert_frame_equal(again, table, check_like=True, rtol=1e-15)
    held = json.loads(file.read_text())
    assert held["model_id"] == "org/model" and held["steps"] == [0, 10, 20]
    assert held[f"{names[0]}_consecutive"][0] is None and f"{names[0]}_vs_init" in held


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "[]",
        "{}",
        '{"steps": []}',
        '{"steps": 3}',
        '{"steps": ["1"]}',
        '{"steps": [1.5], "input_vs_init": [1]}',
        '{"steps": [0], "loss": [1]}',
        '{"steps": [0, 1], "input_vs_init": [1]}',
        '{"steps": [0], "input_vs_init": 1}',
        '{"steps": [0], "input_vs_init": ["1"]}',
    ],
)
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "curves.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"curves\.json: [^\n]+$"):
        read_published(file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"none\.json: not readable as JSON \(No such file"):
        read_published(tmp_path / "none.json")
