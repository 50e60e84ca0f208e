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
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from exor import InputError
from exor.board import Board, Place
from exor.group import Group, Options, train_group
from exor.plan import Planned


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
        shared = replace(run.config, seed=0, tied=False)
        kinds.setdefault((shared, run.step, run.width), []).append(run)
    shares: list[list[Group]] = [[] for _ in range(workers)]
    for (_, _, begun), members in kinds.items():
        width = begun
        if width is None and options.compiled and options.device.type == "cpu" and options.batched(shared):
            width = 1 if len(members) <= workers else 2
        block = width or 1
        blocks = [members[i : i + block] for i in range(0, len(members), block)]
        for w, share in enumerate(sorted(shares, key=lambda groups: sum(len(g.runs) for g in groups))):
            mine = [run for part in blocks[w::workers] for run in part]
            if mine:
                share.append(Group(mine, width))
    return [share for share in shares if share]


def train_on_cores(runs: list[Planned], options: Options, workers: int, watch: Callable[[Board], None] | None) -> None:
    shares = _groups(runs, workers, options)
    state = Board(runs, len(shares))
    with _signals() as stop:
        if len(shares) == 1:
            _work(shares[0], options, state, 0, lambda: bool(stop.value), watch)
        else:
            _fork(shares, options, state, stop, watch)
        if stop.value:
            raise Interrupted(stop.value)


def _work(
    share: list[Group],
    options: Options,
    state: Board,
    worker: int,
    asked: Callable[[], bool],
    watch: Callable[[Board], None] | None,
) -> None:
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*configure_optimizers.*")
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        for group in share:
            # the lab's programs and eager blocks are too small to share
            small = options.device.type == "cpu" and options.batched(group.runs[0].config)
            torch.set_num_threads(1 if small else threads)
            if not asked():
                train_group(group, options, asked, Place(state, worker, watch))
    torch.set_num_threads(threads)


def _fork(
    shares: list[list[Group]],
    options: Options,
    state: Board,
    stop: Any,
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
        try:
            _work(shares[worker], options, state, worker, asked, None)
            gc.collect()  # unloads the programs, which removes the folders that they were unpacked to
        except (InputError, OSError) as error:
            problems.put(error)
            sys.exit(2)

    processes = [context.Process(target=run, args=(w,)) for w in range(len(shares))]
    for process in processes:
        process.start()
    try:
        while any(p.is_alive() for p in processes):
            if watch:
                watch(state)
            time.sleep(0.1)
        if watch:
            watch(state)
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()
    if not problems.empty():
        raise problems.get()
    failed = [p.exitcode for p in processes if p.exitcode]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(processes)} training processes failed; their messages are above")


@contextmanager
def _signals() -> Iterator[Any]:
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
