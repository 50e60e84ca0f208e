"""Sweeps on a real Ray cluster: the same bytes as on one machine, also when a node dies in the middle."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from threading import Thread

import lightning as L
import pytest
from conftest import ROOT, scalars

from exor import InputError, sweeps
from exor import cluster as cluster_module
from exor.config import RunConfig, with_seeds
from exor.runs import RunFolder, run_path
from experiments import sweep as sweep_command
from experiments.command import run

ray = pytest.importorskip("ray")

STEPS = 60_000
SWEEP = {"seeds": "1-2", "settings": {"max_steps": STEPS}, "grid": {"zero": [[0.1, 0.9], [0.3, 0.7]]}}
QUICK = RunConfig(bits=3, max_steps=40, log_every=10)


class Audit(L.Callback):
    """Writes down which process trains which run, and where it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer, module, *_):
        lines = [f"{folder.path.resolve()} {os.getpid()} {module.step}\n" for folder in module.folders]
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, "".join(lines).encode())  # one write: lines of two processes do not mix
        os.close(file)


@pytest.fixture
def cluster(monkeypatch):
    """A head without CPUs and two nodes with one each; it notices within seconds when one dies."""
    from ray.cluster_utils import Cluster

    paths = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in paths if p))
    soon = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": soon})
    try:
        cluster.workers = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def parent(pid: int) -> int | None:
    text = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True).stdout
    return int(text) if text.strip() else None


def entries(log: Path):
    lines = log.read_text().splitlines() if log.exists() else []
    return [(folder, int(pid), int(step)) for folder, pid, step in map(str.split, lines)]


@pytest.mark.slow
def test_a_node_dies_and_nothing_is_lost(cluster, tmp_path):
    configs = sweeps.expand(SWEEP)
    assert sweeps.run(configs, tmp_path / "here", workers=2, callbacks=[Audit(tmp_path / "log-here")]) == []
    log = tmp_path / "log"

    (raylet,) = cluster.workers[0].all_processes["raylet"]

    def halfway() -> list[int]:
        """Processes of the first node that are in the middle of a run."""
        last = {pid: step for _, pid, step in entries(log)}
        return [p for p, step in last.items() if STEPS / 4 < step < STEPS / 2 and parent(p) == raylet.process.pid]

    def kill() -> None:
        for pid in (raylet.process.pid, *wait_until(halfway)):  # as when a machine dies: all of it at once
            os.kill(pid, signal.SIGKILL)
        cluster.remove_node(cluster.workers[0], allow_graceful=False)

    killer = Thread(target=kill)
    killer.start()
    seen = []
    failures = sweeps.run(
        configs,
        tmp_path / "there",
        ray=cluster.address,
        callbacks=[Audit(log)],
        checkpoint_every=0.2,
        watch=lambda board: seen.append(board.share),
    )
    killer.join()
    assert failures == []
    assert seen and seen == sorted(seen) and 0 < seen[-1] <= 1

    for config in configs:
        here, there = (run_path(tmp_path / out, config) for out in ("here", "there"))
        for file in ("metrics.csv", "weights.pt"):
            assert (here / file).read_bytes() == (there / file).read_bytes(), there / file
        found = scalars(there)
        assert all(len(values) == 1 for values in found.values())
        assert found == scalars(here)
        assert RunFolder(there).summary()["state"] == "finished"

    trained = defaultdict(list)
    for folder, pid, step in entries(log):
        trained[folder].append((pid, step))
    assert len(trained) == len(configs)
    moved = 0
    for written in trained.values():
        turns = [(pid, [step for _, step in rows]) for pid, rows in groupby(written, key=lambda row: row[0])]
        assert len({pid for pid, _ in turns}) == len(turns)  # never back to a process that had to stop
        assert all(steps == sorted(set(steps)) for _, steps in turns)
        if len(turns) > 1:
            moved += 1
            (_, before), (_, after) = turns
            assert 0 < after[0] <= before[-1] + 200  # from a checkpoint, at most one chunk after the last entry
    assert 1 <= moved <= 2  # a task has two runs


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_command_goes_on(cluster, tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("seeds: 1-2\nsettings: {max_steps: 3000000}\nmodes: [tied]\ngrid: {zero: [[.1, .9], [.3, .7]]}\n")
    command = [sys.executable, "-m", "experiments.sweep", str(path), "--out", str(tmp_path / "out")]
    command += ["--ray", cluster.address, "--checkpoint-every", "1000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folders = [RunFolder(run_path(tmp_path / "out", c)) for c in sweeps.read(path)]
    wait_until(lambda: all(f.file("metrics.csv").exists() for f in folders) or process.poll() is not None)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=90)
    assert process.returncode == 130
    assert "stopped by SIGINT; everything is saved, and the same command continues." in text
    assert "Traceback" not in text + err
    for folder in folders:
        assert folder.checkpoint()["step"] == folder.summary()["step"] > 0
        assert folder.summary()["state"] == "stopped"
        folder.lock(patience=10)  # nobody holds it any more
        folder.unlock()


@pytest.mark.slow
def test_failures_on_a_cluster_stay_alone(cluster, tmp_path):
    bad = RunConfig(bits=3, max_steps=40, log_every=10, model="test_sweep:Raises")
    diverging = RunConfig(bits=3, max_steps=40, log_every=10, learning_rate=1e30)
    configs = [*with_seeds(QUICK, (1, 2, 3), (True, False)), bad, diverging]
    first = RunFolder(run_path(tmp_path, configs[0]))
    failures = sweeps.run(configs, tmp_path, ray=cluster.address, compiled=False, workers=1)
    assert [f.config for f in failures] == [bad, diverging]
    assert "ZeroDivisionError: boom" in failures[0].reason
    assert "diverged" in failures[1].reason
    assert first.summary()["state"] == "finished"
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "exor").rglob("*")}
    assert sweeps.run(configs[:6], tmp_path, ray=cluster.address) == []
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "exor").rglob("*")}
    assert sweeps.run(configs[:1], tmp_path, ray=cluster.address, compiled=False, overwrite=True) == []
    assert first.file("weights.pt").stat().st_mtime_ns > before[first.file("weights.pt")]


def test_a_task_waits_for_a_process_that_outlives_its_node(tmp_path):
    code = "import sys, time; from exor.runs import RunFolder; RunFolder(sys.argv[1]).lock(); print(); time.sleep(4)"
    words = [sys.executable, "-uc", code, str(run_path(tmp_path, QUICK))]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        started = time.monotonic()
        assert cluster_module._task([QUICK], tmp_path, {"compiled": False, "width": 2}) == []
        assert time.monotonic() - started > 3
    assert RunFolder(run_path(tmp_path, QUICK)).summary()["state"] == "finished"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:9", "ray: no cluster answers at 127.0.0.1:9 ("),
        ("nowhere.invalid:6379", "ray: no cluster answers at nowhere.invalid:6379 ("),
        ("nowhere", "ray: 'nowhere' is no address, host:port such as 10.0.0.1:6379 is accepted"),
        ("ray://head:10001", "ray: 'ray://head:10001' is no address"),
        ("127.0.0.1:99999", "ray: no cluster answers at 127.0.0.1:99999 ("),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_one_line(address, words, tmp_path, capsys):
    path = tmp_path / "two.yaml"
    path.write_text("seeds: 1-2\n")
    started = time.monotonic()
    assert run(sweep_command.app, [str(path), "--ray", address, "--out", str(tmp_path)]) == 2
    assert time.monotonic() - started < 10
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and words in line


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_listens_there(answer, tmp_path):
    """Ray would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(answer)
            time.sleep(0.2 if answer else 6)
            connection.close()

        Thread(target=serve, daemon=True).start()
        started = time.monotonic()
        with pytest.raises(InputError, match=r"ray: no cluster answers at 127.0.0.1:\d+ \((timed out|something else)"):
            sweeps.run([QUICK], tmp_path, ray=f"127.0.0.1:{server.getsockname()[1]}")
        assert time.monotonic() - started < 10


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"ray: is not installed, the extra \[ray\] brings it"):
        sweeps.run([QUICK], tmp_path, ray=True)


def test_a_cluster_trains_on_cpus(tmp_path):
    with pytest.raises(InputError, match="accelerator: a cluster trains on CPUs"):
        sweeps.run([QUICK], tmp_path, ray=True, accelerator="gpu")
