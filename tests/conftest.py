"""What the tests share: running the command for real, and reading what it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from made_up import config, write

ROOT = Path(__file__).parent.parent
torch.set_num_threads(1)


def start(*arguments: str | Path, **environment: str) -> subprocess.Popen:
    """Start ``python -m experiments.exor`` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.exor", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def command(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    """Run it to its end: exit status, standard output, standard error."""
    process = start(*arguments, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def scalars(folder: Path) -> dict[tuple[str, int], list[float]]:
    """All scalars in a folder's TensorBoard events: (tag, step) to the values written for it."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder for runs."""
    return tmp_path / "runs"


@pytest.fixture
def root(tmp_path) -> Path:
    """Three seeds tied (scales 1, 2, 6), two untied (1, 3)."""
    for seed, scale in ((1, 1), (2, 2), (10, 6)):
        write(tmp_path / "runs", config(seed, True), scale=scale)
    for seed, scale in ((1, 1), (2, 3)):
        write(tmp_path / "runs", config(seed), scale=scale)
    return tmp_path / "runs"
