"""The table of a sweep, the way from configs back to options, and what a sweep stands on."""

import json
import os
import random
import shlex
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import ROOT
from test_sweep import QUICK

from exor import InputError, plan, runs, sweeps
from exor.config import PUBLISHED, RunConfig, from_options, with_seeds
from exor.findings import convergence_step
from exor.language import PRESETS
from exor.runs import RunFolder, run_path
from experiments import exor as exor_command
from experiments.command import run

# --- the way back: from configs to options ------------------------------------------------------------------------


def random_config(rng):
    model = rng.choice([*PUBLISHED, "a.b:C"])
    options = {"model": model, "seed": rng.randrange(100), "tied": rng.random() < 0.5}
    if model in PUBLISHED:
        options["size"] = rng.choice(("small", "medium"))
    if rng.random() < 0.5:
        options["preset"] = rng.choice(list(PRESETS))
    else:
        a, b = rng.random(), rng.random() / 2
        options |= {"zero": (a, 1 - a), "one": (b, b, 1 - 2 * b)}
    more = {"learning_rate": 1 / 3e3, "betas": (0.8, 0.99), "eps": 1e-9, "batch_size": 7, "eval_every": 300, "bits": 5}
    more |= {"width": 12, "layers": 3, "schedule": "cosine", "max_steps": 77, "log_every": 11}
    return from_options(options | dict(rng.sample(list(more.items()), rng.randrange(4))))


def test_every_config_is_a_command_line(monkeypatch):
    asked = []
    monkeypatch.setattr("experiments.train_and_tell.main", lambda configs, **_: asked.append(configs) or 0)
    rng = random.Random(0)
    for _ in range(200):
        config = random_config(rng)
        line = shlex.join(exor_command.arguments(config))
        assert run(exor_command.app, shlex.split(line)) == 0
        assert asked.pop() == [config], line
        several = exor_command.arguments(config, [5, 1, 2, 3, 9])
        assert several[-2:] == ["--seeds", "1-3,5,9"]
        assert run(exor_command.app, several) == 0
        assert asked.pop() == [replace(config, seed=s) for s in (1, 2, 3, 5, 9)]


def test_command_lines_are_short():
    words = exor_command.arguments
    assert words(RunConfig()) == ["--seed", "42"]
    medium = from_options({"model": "lstm", "size": "medium", "preset": "hypothesis-fails", "tied": True, "bits": 5})
    assert shlex.join(words(medium)) == (
        "--model lstm --preset hypothesis-fails --size medium --bits 5 --tied --seed 42"
    )
    assert shlex.join(words(RunConfig(zero=(0.3, 0.7)))) == "--zero 0.3 0.7 --seed 42"


# --- the table ----------------------------------------------------------------------------------------------------


def test_the_table_has_what_the_folders_say(out):
    base = RunConfig(bits=4, max_steps=30_000, log_every=5000)
    first, second = with_seeds(replace(base, zero=(0.2, 0.8)), (1,), (True, False))
    alone, missing = replace(base, zero=(1.0,)), replace(base, seed=9)
    configs = [first, second, alone, missing]
    rng = np.random.default_rng(0)
    frames = {}
    for config in configs[:3]:  # runs as they would be left, with numbers known here
        folder = RunFolder(run_path(out, config))
        folder.path.mkdir(parents=True)
        folder.write_config(config)
        pairs = [config.language.pair_name(p) for p in config.language.pairs]
        names = [*sweeps.SCORES_SHOWN, *[f"{m}/{p}" for m in ("input", "output") for p in pairs]]
        frame = pd.DataFrame(rng.random((7, len(names))), columns=names)
        frame.loc[2:, "input/1A-1B"] = 0.001
        frame.insert(0, "step", range(0, 30_001, 5000))
        frame.to_csv(folder.file("metrics.csv"), index=False)
        means = {n: float(frame[n].iloc[3:].mean()) for n in names}  # steps 15,000 to 30,000
        ceilings = dict.fromkeys(sweeps.SCORES_SHOWN, 1.0)
        summary = {"state": "finished", "step": 30_000, "mean_last_20000_steps": means, "ceilings": ceilings}
        folder.write_summary(summary)
        frames[config] = frame
    table = sweeps.table(configs, out)
    assert table["preset"].fillna("").tolist() == ["", "", "hypothesis-holds", "main"]
    assert table["zero"].tolist() == ["0.2 0.8", "0.2 0.8", "1", "0.1 0.9"]
    np.testing.assert_array_equal(table["P(0A)"], [0.2, 0.2, 1, 0.1])
    np.testing.assert_array_equal(table["P(0B)"], [0.8, 0.8, np.nan, 0.9])
    assert "P(1A)" not in table and "one" not in table and "bits" not in table
    assert table["mode"].tolist() == ["tied", "untied", "untied", "untied"]
    assert table["state"].tolist() == ["finished"] * 3 + ["new"]
    assert table["step"].tolist() == [30_000] * 3 + [0]
    for i, config in enumerate(configs[:3]):
        row, frame = table.iloc[i], frames[config]
        assert row["accuracy_test"] == pytest.approx(frame["accuracy_test"].iloc[3:].mean())
        assert row["output/1A-1B"] == pytest.approx(frame["output/1A-1B"].iloc[3:].mean())
        assert row["met/input/1A-1B"] == 10_000
        assert row["folder"] == str(run_path(out, config))
        step = convergence_step(frame, "output/1A-1B")
        assert np.isnan(row["met/output/1A-1B"]) if step is None else row["met/output/1A-1B"] == step
    np.testing.assert_allclose(table["conditional_gap/0A-0B"], [0.6, 0.6, np.nan, 0.8])
    np.testing.assert_allclose(table["semantic_gap/0A-0B"], [0, 0, np.nan, 0], atol=1e-12)
    assert table.loc[3, "accuracy_train"] != table.loc[3, "accuracy_train"]
    columns = list(table.columns)
    assert columns.index("input/0A-0B") < columns.index("met/input/1A-1B") < columns.index("conditional_gap/0A-0B")
    assert columns[-1] == "folder"


def test_what_varies():
    assert sweeps.varied(sweeps.read(ROOT / "experiments/sweeps/asymmetry.yaml")) == ["zero"]
    assert sweeps.varied(sweeps.read(ROOT / "experiments/sweeps/claims.yaml")) == ["preset", "model"]
    by_size = sweeps.expand({"list": [{"model": "lstm"}, {"size": "medium"}, {"learning_rate": 1}]})
    assert sweeps.varied(by_size) == ["model", "size", "learning_rate"]


# --- the parts it stands on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "size", "measured"),
    [
        ("transformer", "small", 60_000), ("transformer", "medium", 1_370),
        ("lstm", "small", 1_700), ("lstm", "medium", 117),
        ("mixer", "small", 21_000), ("mixer", "medium", 1_016),
    ],
)  # fmt: skip
def test_expected_time_is_right_within_a_factor_of_two(model, size, measured):
    expected = 1 / plan.expected_seconds(from_options({"model": model, "size": size}))
    assert measured / 1.5 < expected < measured * 1.5


def test_where_folders_cannot_be_locked_a_file_is(out, monkeypatch):
    """As on NFS, which locks only files that are open for writing."""
    real = runs.fcntl.flock

    def flock(descriptor, operation):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(9, "Bad file descriptor")
        real(descriptor, operation)

    monkeypatch.setattr(runs.fcntl, "flock", flock)
    first, second = RunFolder(out / "a"), RunFolder(out / "a")
    first.lock()
    started = time.monotonic()
    with pytest.raises(InputError, match="another process is training"):
        second.lock(patience=0.3)
    assert 0.3 <= time.monotonic() - started < 2
    first.unlock()
    second.lock(patience=0)
    assert sweeps.run([RunConfig(**QUICK)], out, compiled=False) == []


def test_many_locked_runs_are_waited_for_only_once(out, monkeypatch):
    configs = with_seeds(RunConfig(**QUICK), tuple(range(6)), (False,))
    held = [RunFolder(run_path(out, c)) for c in configs]
    for folder in held:
        folder.lock()
    started = time.monotonic()
    assert len(sweeps.run(configs, out, compiled=False)) == 6
    assert time.monotonic() - started < 5
    assert not list(out.rglob("*.*"))


def test_the_summary_of_a_folder_is_not_rewritten(out):
    """Width is that of the checkpoint, whatever a sweep would choose."""
    config = RunConfig(**QUICK)
    sweeps.run([config], out, compiled=False)
    found = torch.load(run_path(out, config) / "checkpoint.pt", weights_only=True)
    assert found["width"] == sweeps.WIDTH
    assert json.loads((run_path(out, config) / "summary.json").read_text())["state"] == "finished"
