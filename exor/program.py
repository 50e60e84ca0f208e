"""Turning a pure function of tensors into a fast program.

On a CPU the function is traced, compiled ahead of time to machine code for this very processor, and kept in the
user's cache folder, so the next process starts within milliseconds and without the compiler. Its intermediate
results live on the stack: for the small models of this lab, allocation would cost more than arithmetic. On a GPU
the function is compiled by ``torch.compile`` and its launches are recorded in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import platformdirs
import torch
from torch import Tensor

log = logging.getLogger("exor")

Function = Callable[..., tuple[Tensor, ...]]
# Takes its inputs as a list. What it returns may lie in memory that the next call writes to again: it can be passed
# to that call, which reads before it writes, but what is to be kept has to be cloned.
Program = Callable[[list[Tensor]], Sequence[Tensor]]

INDUCTOR = {
    "aot_inductor.allow_stack_allocation": True,
    "cpp.threads": 1,  # cores are used by running different replicas on them
    "realize_opcount_threshold": 8,  # compute shared subexpressions once; also halves the compile time
}


class Job(NamedTuple):
    """A function to compile.

    Attributes:
        function: pure, from tensors to a tuple of tensors.
        inputs: examples; their shapes, types and device are fixed in the program, their values are not.
        name: identifies the function and every constant in it.
    """

    function: Function
    inputs: list[Tensor]
    name: str


def cache_folder() -> Path:
    """Where compiled programs are kept: ``EXOR_CACHE``, or ``exor`` in the user's cache folder."""
    return Path(os.environ.get("EXOR_CACHE") or platformdirs.user_cache_path("exor"))


def eager(function: Function) -> Program:
    """The function itself, called like a program."""

    def run(inputs: list[Tensor]) -> Sequence[Tensor]:
        return function(*inputs)

    return run


def compile_programs(jobs: Sequence[Job]) -> list[Program] | None:
    """The compiled functions, in order; None where they cannot be compiled (said once, as a warning)."""
    try:
        if jobs[0].inputs[0].device.type == "cpu":
            return _ahead_of_time(jobs)
        return [_cuda_graph(job) for job in jobs]
    except Exception as error:  # the compiler is a large program on an unknown machine: any failure means "go without"
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        log.warning("Training runs uncompiled, and slower: compilation failed (%s).", reason.strip()[:200])
        return None


def fingerprint(job: Job) -> str:
    """Hash of all that decides the machine code: function, shapes, this package's sources, torch, processor."""
    parts = [job.name, torch.__version__, repr(INDUCTOR), _processor()]
    parts += [f"{x.dtype}{tuple(x.shape)}{x.stride()}" for x in job.inputs]
    sources = Path(__file__).parent
    parts += [
        (sources / f"{name}.py").read_text(encoding="utf-8")
        for name in ("data", "functional", "metrics", "program", "replicas")
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _ahead_of_time(jobs: Sequence[Job]) -> list[Program]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        with tempfile.TemporaryDirectory() as temporary:
            return [_built(job, Path(temporary)) for job in jobs]
    missing = [job for job in jobs if not _path(job, folder).exists()]
    # the compiler is Python and works on one core: a forked copy of this process does the second program meanwhile
    fork = multiprocessing.get_context("fork") if sys.platform == "linux" else None
    others = (
        [fork.Process(target=_try_to_build, args=(job, folder), daemon=True) for job in missing[1:]] if fork else []
    )
    for process in others:
        process.start()
    try:
        programs = [_built(jobs[0], folder, tell=True)]
        for process in others:
            process.join()
        return programs + [_built(job, folder) for job in jobs[1:]]
    finally:
        for process in others:
            process.kill()


def _try_to_build(job: Job, folder: Path) -> None:
    with contextlib.suppress(Exception):  # the parent tries again, and tells
        _built(job, folder)


def _path(job: Job, folder: Path) -> Path:
    return folder / f"{fingerprint(job)}.pt2"


def _built(job: Job, folder: Path, tell: bool = False) -> Program:
    """The program from the folder, built there if it is missing; processes that want the same one wait for it."""
    path = _path(job, folder)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            try:
                return _load(path)
            except Exception:
                path.unlink()  # damaged
        if tell:
            log.info("Compiling, once for this kind of model and machine …")
        _build(job, path)
        return _load(path)


def _build(job: Job, path: Path) -> None:
    from torch._inductor import aoti_compile_and_package
    from torch.fx.experimental.proxy_tensor import make_fx

    partial = path.with_name(f"{path.stem}.{os.getpid()}.partial.pt2")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = make_fx(lambda *inputs: job.function(*inputs))(*job.inputs)
        exported = torch.export.export(traced, tuple(job.inputs))
        try:
            aoti_compile_and_package(exported, package_path=str(partial), inductor_configs=dict(INDUCTOR))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _load(path: Path) -> Program:
    from torch._inductor import aoti_load_package

    return aoti_load_package(str(path), run_single_threaded=True).loader.boxed_run


def _cuda_graph(job: Job) -> Program:
    compiled = torch.compile(job.function, fullgraph=True, dynamic=False)
    static = [x.clone() for x in job.inputs]
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = compiled(*static)

    def run(values: list[Tensor]) -> Sequence[Tensor]:
        for place, value in zip(static, values, strict=True):
            place.copy_(value)
        graph.replay()
        return [out.clone() for out in outputs]

    return run


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    except OSError:
        import platform

        return platform.platform() + platform.processor()
