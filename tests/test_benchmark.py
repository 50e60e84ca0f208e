"""The benchmark runs and writes figures; what they are is not a test's business."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_benchmark_writes_figures(tmp_path):
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "experiments.benchmark", "--quick", "--json", str(path)]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "Where the lab's time goes" in text
    figures = json.loads(path.read_text())
    for row in figures["geometry"]:
        assert row["largest_difference"] < 1e-4 and row.get("of_these_no_tie", 0) == 0
        assert row["ratio"] == pytest.approx(row["obvious_seconds"] / row["seconds"])
    rows = figures["cpu"]
    assert {(row["model"], row["size"], row["seeds"]) for row in rows if row["threads"] == 1} == {
        *(("transformer", "small", seeds) for seeds in (1, 10, 100)),
        *((model, "small", 10) for model in ("lstm", "mixer")),
    }
    for row in rows:
        assert row["ratio"] == pytest.approx(row["lab_seed_steps_per_second"] / row["plain_steps_per_second"])
        if row["threads"] == 1:
            parts = [row["seconds"][name] for name in ("updates", "evaluations", "writing")]
            assert all(part > 0 for part in parts)
            assert sum(parts) < row["seconds"]["total"]
