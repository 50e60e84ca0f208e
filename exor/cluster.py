"""Training on a Ray cluster whose nodes share a file system and this code.

A task trains a few runs of one cell by the same function that trains them on one machine, in the same folders. When
a node dies, Ray starts its tasks again on another, and they continue from the checkpoints. A folder's lock, which the
file system shares, keeps a task from writing what a process of a dead node still writes.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path
from typing import Any

from exor import InputError
from exor.board import FIELDS, Board
from exor.config import RunConfig
from exor.plan import Planned, expected_seconds
from exor.runs import RunFolder, run_path
from exor.training import check_model, cores, succeeding
from exor.training import train as train_here
from exor.workers import Interrupted, OnFailure, describe, signals

RETRIES = 10  # of a task whose node or process died
PATIENCE = 120.0  # seconds that a process may live on when its node is given up
REACHABLE = 5.0  # seconds to wait for a cluster's port
SAVING = 60.0  # seconds that tasks may take to save when they are to stop
SETTINGS = 4  # the frame with which both sides of an HTTP/2 connection begin
LOOK_EVERY = 2.0  # seconds between two looks at the folders


def train(
    configs: Sequence[RunConfig],
    out: Path | str,
    address: str | None,
    *,
    width: int,
    most: int | None,
    watch: Callable[[Board], None] | None,
    on_failure: OnFailure,
    accelerator: str = "auto",
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Train runs, or continue them, on a cluster.

    Args:
        configs, out, width, watch, on_failure, overwrite: see :func:`exor.training.train`.
        address: of the cluster, ``host:port``; by default that which runs here, or a new one.
        most: most tasks at a time; by default as many as the cluster has CPUs.
        options: other arguments of :func:`exor.training.train`.

    Raises:
        InputError: no Ray, no such cluster, or one without CPUs.
        Interrupted: asked to stop by a signal; the tasks have been asked to save and stop.
    """
    if accelerator == "gpu":
        raise InputError("accelerator: a cluster trains on CPUs, auto and cpu are accepted")
    out = Path(out).resolve()  # tasks work in other folders
    runs = [Planned(config, RunFolder(run_path(out, config))) for config in configs]
    seen: dict[RunConfig, InputError | None] = {}
    runs = succeeding(runs, lambda run: check_model(None, seen, run), on_failure)
    runs = succeeding(runs, lambda run: run.look(overwrite=overwrite), on_failure)
    waiting = [run for run in runs if run.state is None]
    if not waiting:
        return
    joined = connect(address, most)
    import ray

    try:
        if overwrite:  # once, and not again by tasks that Ray starts again
            waiting = succeeding(waiting, _clear, on_failure)
        with signals() as stop:
            task = ray.remote(num_cpus=1, max_retries=RETRIES)(_task)
            arguments = {"width": width, "accelerator": "cpu", **options}

            def submit(job: list[Planned]) -> Any:
                return task.remote([run.config for run in job], out, arguments)

            # a program's width at a time: more would be less to start, but also less to share out
            _follow(waiting, deque(_blocks(waiting, width)), submit, most, stop, watch, on_failure)
            if stop.value:
                raise Interrupted(stop.value)
    finally:
        if joined:
            ray.shutdown()


def connect(address: str | None, cpus: int | None = None) -> bool:
    """Join a cluster, or start one on this machine with so many CPUs; false if this process has joined one already.

    Raises:
        InputError: Ray is not installed, nothing answers at the address, or the cluster has no CPUs.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its warning concerns GPUs
    try:
        import ray
    except ImportError:
        raise InputError("ray: is not installed, the extra [ray] brings it: pip install 'exor-lab[ray]'") from None
    if ray.is_initialized():
        return False
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address and address != "auto":
            _probe(address)
            ray.init(address, **quiet)
        else:
            try:
                ray.init("auto", **quiet)
            except ConnectionError:
                if address:
                    raise
                ray.init("local", num_cpus=cpus or cores(), include_dashboard=False, **quiet)
    except InputError:
        raise
    except Exception as error:  # Ray raises many kinds
        raise InputError(f"ray: no cluster can be joined at {address or 'this machine'} ({describe(error)})") from None
    if ray.cluster_resources().get("CPU", 0) < 1:
        ray.shutdown()
        raise InputError(f"ray: the cluster at {address or 'this machine'} has no CPUs to train on")
    return True


def _probe(address: str) -> None:
    """See whether something that speaks gRPC listens there: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise InputError(f"ray: {address!r} is no address, host:port such as 10.0.0.1:6379 is accepted")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACHABLE) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise InputError(f"ray: no cluster answers at {address} ({error})") from None
    if answer[3:4] != bytes([SETTINGS]):
        raise InputError(f"ray: no cluster answers at {address} (something else does)")


def _clear(run: Planned) -> None:
    run.folder.lock()
    try:
        run.folder.clear()
    finally:
        run.folder.unlock()


def _task(configs: list[RunConfig], out: Path, arguments: dict[str, Any]) -> list[tuple[RunConfig, str]]:
    """Train runs of one cell in this process. Returns those that failed, and why."""
    failures: list[tuple[RunConfig, str]] = []
    train_here(
        configs,
        out,
        patience=PATIENCE,
        on_failure=lambda config, error: failures.append((config, describe(error))),
        **arguments,
    )
    return failures


def _blocks(waiting: Sequence[Planned], size: int) -> list[list[Planned]]:
    """Runs of one cell that stand at one step, so many at a time; what takes longest comes first."""
    from exor.sweeps import cells

    standing = {run.config: run for run in waiting}
    blocks = []
    for members in cells([run.config for run in waiting]).values():
        ordered = sorted((standing[config] for config in members), key=lambda run: run.step)
        blocks += [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return sorted(blocks, key=lambda b: -sum(run.todo * expected_seconds(run.config) for run in b))


def _follow(
    waiting: Sequence[Planned],
    jobs: deque[list[Planned]],
    submit: Callable[[list[Planned]], Any],
    most: int | None,
    stop: Any,
    watch: Callable[[Board], None] | None,
    on_failure: OnFailure,
) -> None:
    """Submit tasks and wait for them, until all are done or a signal comes."""
    import ray

    board = Board(waiting, 1)
    pending: dict[Any, list[Planned]] = {}
    look_at = time.monotonic() + LOOK_EVERY
    while (jobs or pending) and not stop.value:
        while jobs and (most is None or len(pending) < most):
            job = jobs.popleft()
            pending[submit(job)] = job
        done, _ = ray.wait(list(pending), timeout=0.2)
        for ref in done:
            _collect(ref, pending.pop(ref), on_failure)
        if watch and time.monotonic() > look_at:
            started = time.monotonic()
            _look(board, waiting)
            watch(board)
            look_at = time.monotonic() + max(LOOK_EVERY, 20 * (time.monotonic() - started))
    if stop.value:
        for ref in pending:
            ray.cancel(ref)  # as Ctrl-C would: a task that trains saves and stops
        ray.wait(list(pending), num_returns=len(pending), timeout=SAVING)


def _collect(ref: Any, job: Sequence[Planned], on_failure: OnFailure) -> None:
    """Report what has failed in a task that ended."""
    import ray

    try:
        failures = dict(ray.get(ref))
    except Exception as error:  # of Ray itself, or whatever ended the task
        cause = getattr(error, "cause", None) or error
        failures = dict.fromkeys((run.config for run in job), f"its task failed ({describe(cause)})")
    for run in job:
        if run.config not in failures and not run.folder.file("summary.json").exists():
            failures[run.config] = f"{run.folder}: was trained, but is not here; is --out on a shared file system?"
    for config, reason in failures.items():
        on_failure(config, InputError(reason))


def _look(board: Board, runs: Sequence[Planned]) -> None:
    """Enter into the board's only row what the runs' folders tell; see :class:`exor.board.Place`."""
    names = ("loss_train", "accuracy_train", *[f"input/{pair}" for pair in board.pairs])
    done = work = 0.0
    active: list[tuple[int, dict[str, float]]] = []
    for run in runs:
        step, row = _last_row(run.folder.file("metrics.csv"))
        done += (new := max(0, step - run.step))
        work += new * expected_seconds(run.config)
        if 0 < step < run.config.max_steps:
            active.append((step, row))
    count = max(len(active), 1)
    means = [sum(row.get(name, nan) for _, row in active) / count for name in names]
    values = [done, work, sum(step for step, _ in active) / count, len(active), *means]
    board.rows[0, : len(values)] = values
    assert len(values) <= len(FIELDS)


def _last_row(path: Path) -> tuple[int, dict[str, float]]:
    """Step and numbers of the last whole line of ``metrics.csv``; step 0 if there is none."""
    try:
        with path.open("rb") as file:
            names = file.readline().decode().strip().split(",")
            start = file.tell()
            file.seek(max(start, file.seek(0, os.SEEK_END) - 4096))
            cells = file.read().decode().rpartition("\n")[0].rpartition("\n")[2].split(",")
        return int(cells[0]), {n: float(c) for n, c in zip(names, cells, strict=True) if c}
    except (OSError, ValueError):
        return 0, {}
