"""Spreading groups of runs over processes, one per core, and stopping them all on a signal."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from exor import InputError
from exor.board import Board, Place
from exor.config import RunConfig
from exor.group import Group, Options, train_group
from exor.plan import Planned, expected_seconds

OnFailure = Callable[[RunConfig, Exception], None]


class Interrupted(Exception):
    """Training was stopped by a signal, and saved.

    Attributes:
        signal: which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.signal = number


def _groups(runs: Sequence[Planned], workers: int, options: Options) -> list[list[Group]]:
    """The groups of each worker: every group of equal runs is dealt out in whole blocks of its program's width."""
    kinds: dict[tuple, list[Planned]] = {}
    for run in runs:
        kinds.setdefault((replace(run.config, seed=0, tied=False), run.step, run.width), []).append(run)
    shares: list[list[Group]] = [[] for _ in range(workers)]
    # what takes longest comes first, and the next always goes to who has least to do
    for members in sorted(kinds.values(), key=_seconds, reverse=True):
        width = members[0].width
        if width is None and options.device.type == "cpu" and options.batched(members[0].config):
            width = options.width or ((1 if len(members) <= workers else 2) if options.compiled else None)
        block = width or 1
        blocks = [members[i : i + block] for i in range(0, len(members), block)]
        for w, share in enumerate(sorted(shares, key=lambda groups: sum(_seconds(g.runs) for g in groups))):
            mine = [run for part in blocks[w::workers] for run in part]
            if mine:
                share.append(Group(mine, width))
    return [share for share in shares if share]


def _seconds(runs: Sequence[Planned]) -> float:
    return sum(run.todo * expected_seconds(run.config) for run in runs)


def train_on_cores(
    runs: list[Planned],
    options: Options,
    workers: int,
    watch: Callable[[Board], None] | None,
    on_failure: OnFailure | None = None,
) -> None:
    """Train runs in their locked and prepared folders, see :func:`exor.training.train`."""
    shares = _groups(runs, workers, options)
    state = Board(runs, len(shares))

    def failed(worker: int, index: int, error: Exception) -> None:
        if on_failure is None:
            raise error
        for run in shares[worker][index].runs:
            on_failure(run.config, error)

    with signals() as stop:
        if len(shares) == 1:
            _work(shares[0], options, state, 0, lambda: bool(stop.value), partial(failed, 0), watch)
        else:
            _fork(shares, options, state, stop, failed if on_failure else None, watch)
        if stop.value:
            raise Interrupted(stop.value)


def _work(
    share: list[Group],
    options: Options,
    state: Board,
    worker: int,
    asked: Callable[[], bool],
    failed: Callable[[int, Exception], None],
    watch: Callable[[Board], None] | None,
) -> None:
    """Train a share's groups one after the other; a group that fails is reported, and the next begins."""
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*configure_optimizers.*")
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for index, group in enumerate(share):
            # the lab's programs and eager blocks are too small to share
            small = options.device.type == "cpu" and options.batched(group.runs[0].config)
            torch.set_num_threads(1 if small else threads)
            if asked():
                break
            try:
                train_group(group, options, asked, Place(state, worker, watch))
            except Exception as error:  # a model of one's own may raise anything
                failed(index, error)
    torch.set_num_threads(threads)


def _fork(
    shares: list[list[Group]],
    options: Options,
    state: Board,
    stop: Any,
    failed: Callable[[int, int, Exception], None] | None,
    watch: Callable[[Board], None] | None,
) -> None:
    """One process for each share; this one only watches. They share the folders' locks, and stop if it dies."""
    context = multiprocessing.get_context("fork")
    parent = os.getpid()

    def asked() -> bool:
        return bool(stop.value) or os.getppid() != parent

    problems = context.SimpleQueue()

    def run(worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        def report(index: int, error: Exception) -> None:
            known = isinstance(error, (InputError, OSError))
            if failed is None and not known:
                raise error  # its traceback tells more
            # errors of other kinds need not survive the way to another process
            problems.put((worker, index, error if known else InputError(describe(error))))
            if failed is None:
                sys.exit(2)

        _work(shares[worker], options, state, worker, asked, report, None)
        gc.collect()  # unloads the programs, which removes the folders that they were unpacked to

    told: dict[tuple[int, int], Exception] = {}

    def listen() -> None:
        while not problems.empty():
            worker, index, error = problems.get()
            told[worker, index] = error
            if failed:
                failed(worker, index, error)

    processes = [context.Process(target=run, args=(w,)) for w in range(len(shares))]
    for process in processes:
        process.start()
    try:
        while any(p.is_alive() for p in processes):
            if watch:
                watch(state)
            listen()
            time.sleep(0.1)
        listen()
        if watch:
            watch(state)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    died = {w: process.exitcode for w, process in enumerate(processes) if process.exitcode}
    if failed is None:
        for error in told.values():
            raise error
        if died:
            raise RuntimeError(f"{len(died)} of {len(processes)} training processes failed; their messages are above")
        return
    for worker, code in died.items():
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        for index, group in enumerate(shares[worker]):
            if (worker, index) not in told and not all(_ended(run) for run in group.runs):
                failed(worker, index, InputError(f"its training process died ({how})"))


def _ended(run: Planned) -> bool:
    now = Planned(run.config, run.folder)
    with suppress(InputError):
        now.look()
    return now.state is not None


def describe(error: BaseException) -> str:
    """An error in one line; the kind is named unless the message is made for people."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (InputError, OSError)) else f"{type(error).__name__}: {text}"


@contextmanager
def signals() -> Iterator[Any]:
    """SIGINT and SIGTERM set a shared number instead of ending the process; the second time they end it."""
    stop = multiprocessing.get_context("fork").RawValue("i", 0)

    def handle(number: int, _: Any) -> None:
        if stop.value:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.value = number

    old = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: signals are somebody else's business
        pass
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
