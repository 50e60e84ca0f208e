"""A run that is killed and started again ends with the same bytes as one that never was."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import command, scalars, start

from exor.runs import RunFolder

STEPS = 40_000
SETTINGS = ("--both", "--seeds", "42-43", "--workers", "2", "--checkpoint-every", "0.2")
FOLDERS = [f"exor/main/{mode}/seed-{seed}" for mode in ("tied", "untied") for seed in (42, 43)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    assert command(*SETTINGS, "--max-steps", STEPS, "--out", out)[0] == 0
    return out


def assert_same(out: Path, expected: Path) -> None:
    for name in FOLDERS:
        ours, theirs = out / name, expected / name
        for file in ("metrics.csv", "weights.pt", "input-embedding.tsv"):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), f"{name}/{file}"
        with np.load(ours / "embeddings.npz") as a, np.load(theirs / "embeddings.npz") as b:
            assert all(np.array_equal(a[key], b[key]) for key in b.files)
        found = scalars(ours)
        assert all(len(values) == 1 for values in found.values())
        assert found == scalars(theirs)
        assert RunFolder(ours).summary()["state"] == "finished"
        assert not list(ours.glob(".*"))


def wait_for(path: Path, process) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_interrupted_runs_end_with_the_same_bytes(number, undisturbed, out):
    arguments = (*SETTINGS, "--max-steps", STEPS, "--out", out)
    moments = random.Random(int(number))
    for _ in range(3):
        process = start(*arguments)
        wait_for(out / FOLDERS[0] / "metrics.csv", process)
        time.sleep(moments.uniform(0, 0.8))
        process.send_signal(number) if number != signal.SIGINT else os.killpg(process.pid, number)
        process.communicate(timeout=60)
        if process.returncode:
            # before its handlers are installed, a signal ends the process as the shell reports it
            assert process.returncode in (128 + number, -number)
    assert command(*arguments)[0] == 0
    assert_same(out, undisturbed)


def test_more_steps_continue_the_run(undisturbed, out):
    for steps in (1_234, 20_000, STEPS):
        assert command(*SETTINGS, "--max-steps", steps, "--out", out)[0] == 0
    assert_same(out, undisturbed)
    log = command(*SETTINGS, "--max-steps", 30_000, "--out", out)
    assert log[0] == 2
    assert "max_steps 40000 there, 30000 here" in log[2]


def test_grouping_leaves_the_same_folders(undisturbed, out):
    """A loop over single seeds and modes: same data and metrics up to rounding, same files."""
    for seed in ("42", "43"):
        for mode in ("--tied", "--no-tied"):
            assert command(mode, "--seed", seed, "--max-steps", "2000", "--out", out)[0] == 0
    for name in FOLDERS:
        ours, theirs = out / name, undisturbed / name
        assert {p.name.split(".2")[0] for p in ours.iterdir()} >= {"config.yaml", "metrics.csv", "weights.pt"}
        frame, expected = RunFolder(ours).metrics(), RunFolder(theirs).metrics()
        np.testing.assert_allclose(frame, expected[: len(frame)], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(frame.iloc[0], expected.iloc[0])


def test_finished_runs_are_skipped(out):
    arguments = ("--max-steps", "300", "--out", out)
    assert command(*arguments)[0] == 0
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*")}
    code, text, _ = command(*arguments)
    assert code == 0
    assert "finished" in text
    assert {p: p.stat().st_mtime_ns for p in out.rglob("*")} == before
