"""Run folders: one seed in one mode, everything needed to repeat, resume, read and trust it."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from exor import InputError, __version__, events
from exor.config import MODELS, RunConfig, from_yaml, to_yaml
from exor.models import build

CHECKPOINT_FORMAT = 1
CHECKPOINT_FIELDS = ("step", "width", "state", "snapshots", "lengths", "seconds", "versions")
LEAVES = (
    *("config.yaml", "metrics.csv", "embeddings.npz", "summary.json", "checkpoint.pt", "weights.pt"),
    *(events.PATTERN, "projector_config.pbtxt", "*-embedding.tsv", "symbols.tsv", ".*.partial"),
)
PATIENCE = 2.0  # seconds that the workers of a killed process may need to notice
HELD = (errno.EWOULDBLOCK, errno.EACCES)  # what the kernel says of a lock that another process holds


def run_path(out: Path | str, config: RunConfig, name: str | None = None) -> Path:
    """``<out>/exor/<name>/<tied|untied>/seed-<n>``."""
    return Path(out) / "exor" / (name or config.default_name) / config.mode / f"seed-{config.seed}"


@cache
def versions() -> dict[str, str]:
    """Versions of what decides numbers."""
    return {
        "exor": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightning", "numpy")},
    }


class RunFolder:
    """A run's folder. Whoever writes holds its lock: a kernel lock on the folder itself, gone with its owner."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock: int | None = None

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> Path:
        """A file in the folder."""
        return self.path / name

    def lock(self, patience: float = PATIENCE) -> None:
        """Create the folder if need be and lock it until :meth:`unlock` or the end of the process and its forks.

        Args:
            patience: seconds to wait for another process that holds it.

        Raises:
            InputError: the folder cannot be made or written, or another process holds it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            self._lock = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written ({error.strerror}); choose another --out") from None
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno == errno.EBADF:  # NFS locks only what is open for writing, which no folder can be
                    self.unlock()
                    self._lock = os.open(self.file(".lock"), os.O_RDWR | os.O_CREAT)
                    continue
                if error.errno in HELD and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                self.unlock()
                if error.errno in HELD:
                    message = "another process is training this run; wait for it or choose another --out"
                else:
                    message = f"cannot be locked ({error.strerror}); choose another --out"
                raise InputError(f"{self.path}: {message}") from None

    def unlock(self) -> None:
        """Let others write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- what is there ----------------------------------------------------------------------------------------

    def config(self) -> RunConfig | None:
        """The config of the run in this folder, None if there is none.

        Raises:
            InputError: not readable as a config.
        """
        path = self.file("config.yaml")
        try:
            return from_yaml(path) if path.exists() else None
        except InputError as error:
            raise InputError(f"{error}; --overwrite trains the run again") from None

    def summary(self) -> dict[str, Any] | None:
        """``summary.json``, None before the run first ends.

        Raises:
            InputError: damaged.
        """
        path = self.file("summary.json")
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise InputError(f"{path}: damaged, it is no JSON; --overwrite trains the run again") from None

    def metrics(self) -> pd.DataFrame:
        """``metrics.csv`` as a table.

        Raises:
            InputError: missing or damaged.
        """
        path = self.file("metrics.csv")
        try:
            frame = pd.read_csv(path, encoding="utf-8")
            if "step" not in frame or frame.empty:
                raise ValueError("no steps in it")
            return frame
        except FileNotFoundError:
            raise InputError(f"{path}: does not exist; a run folder is accepted") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: damaged ({str(error).splitlines()[0]})") from None

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, None if there is none.

        Raises:
            InputError: damaged, or of another format.
        """
        path = self.file("checkpoint.pt")
        if not path.exists():
            return None
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
            if found["format"] != CHECKPOINT_FORMAT:
                raise InputError(f"{path}: format {found['format']}, this version reads {CHECKPOINT_FORMAT}")
            return {name: found[name] for name in CHECKPOINT_FIELDS}
        except InputError:
            raise
        except Exception:  # torch raises many kinds
            raise InputError(f"{path}: damaged; --overwrite trains the run again from the start") from None

    # --- writing ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove everything that a run leaves, and nothing else."""
        for pattern in LEAVES:
            for path in self.path.glob(pattern):
                path.unlink()

    def write(self, name: str, data: bytes | str) -> None:
        """Write a file so that it is either the old or the new one, whatever happens."""
        write_file(self.file(name), data)

    def write_config(self, config: RunConfig) -> None:
        """``config.yaml``."""
        self.write("config.yaml", to_yaml(config, versions=versions()))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """``summary.json``; numbers that are not finite become null."""
        self.write("summary.json", json_text(summary))

    def write_tensors(self, name: str, content: dict[str, Any]) -> None:
        """A checkpoint or weights, as ``torch.save`` makes them."""
        buffer = io.BytesIO()
        torch.save(content, buffer)
        self.write(name, buffer.getvalue())

    def write_embeddings(self, steps: list[int], inputs: np.ndarray, outputs: np.ndarray) -> None:
        """``embeddings.npz``: ``step [S]``, ``input`` and ``output [S, vocabulary, width]``."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, step=np.array(steps), input=inputs, output=outputs)
        self.write("embeddings.npz", buffer.getvalue())

    def file_lengths(self) -> dict[str, int]:
        """Lengths of the files that only grow, to cut them back to."""
        path = self.file("metrics.csv")
        return {"metrics.csv": path.stat().st_size if path.exists() else 0} | events.lengths(self.path)

    def cut_back(self, known: dict[str, int]) -> None:
        """Bring the growing files back to :meth:`file_lengths` of a checkpoint.

        Raises:
            InputError: a file is shorter than that, so something else has damaged it.
        """
        for name, size in known.items():
            path = self.file(name)
            if (path.stat().st_size if path.exists() else 0) < size:
                raise InputError(f"{path}: shorter than its checkpoint says; --overwrite trains the run again")
        if self.file("metrics.csv").exists():
            os.truncate(self.file("metrics.csv"), known["metrics.csv"])
        events.cut_back(self.path, known)


def load(folder: Path | str, model: nn.Module | None = None) -> tuple[nn.Module, pd.DataFrame]:
    """A run's plain module with its weights, and its metrics.

    Args:
        folder: a run folder.
        model: a module to load the weights into; needed for a model that is not the lab's own, since no code is run
            because a file names it.

    Raises:
        InputError: not a run folder, without weights yet, damaged, or of another model.
    """
    run = RunFolder(folder)
    config = run.config()
    if config is None:
        raise InputError(f"{folder}: not a run folder, it has no config.yaml")
    path = run.file("weights.pt")
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path}: does not exist yet; the run has not ended") from None
    except Exception:  # torch raises many kinds
        raise InputError(f"{path}: damaged") from None
    if model is None and config.model not in MODELS:
        raise InputError(f"{folder}: of the model {config.model!r}; load(folder, module) with one of it is accepted")
    module = build(config) if model is None else model
    try:
        module.load_state_dict(weights)
    except RuntimeError:
        raise InputError(f"{path}: weights of another model than {type(module).__name__}") from None
    return module, run.metrics()


def find(root: Path | str) -> Iterator[RunFolder]:
    """All run folders below a folder, in order of path with seeds as numbers.

    Raises:
        InputError: no run there.
    """
    found = [path.parent for path in Path(root).rglob("config.yaml")]
    if not found:
        raise InputError(f"{root}: holds no runs; a folder written by 'python -m experiments.exor' is accepted")
    for path in sorted(found, key=lambda p: (p.parent, len(p.name), p.name)):
        yield RunFolder(path)


def write_file(path: Path, data: bytes | str) -> None:
    """Write a file so that it is either the old or the new one, whatever happens."""
    partial = path.with_name(f".{path.name}.partial")
    raw = data.encode() if isinstance(data, str) else data
    try:
        with partial.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_identity(folder: RunFolder, config: RunConfig) -> RunConfig | None:
    """The config of the run that is already in the folder if ``config`` may continue it, None for an empty folder.

    Raises:
        InputError: another identity; names the fields that differ.
    """
    there = folder.config()
    if there is None:
        return None
    names = there.differences(config)
    if names == ["max_steps"] and config.max_steps > there.max_steps and config.schedule != "cosine":
        return there
    if names:
        what = ", ".join(f"{n} {_short(getattr(there, n))} there, {_short(getattr(config, n))} here" for n in names)
        raise InputError(f"{folder}: holds another run ({what}); choose another --name or --out, or --overwrite it")
    return there


def _short(value: Any) -> str:
    return " ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else str(value)


def json_text(value: Any) -> str:
    """As JSON, which knows neither numpy nor numbers that are not finite: those become null."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
