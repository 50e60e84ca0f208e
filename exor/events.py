"""TensorBoard event files that can be cut back to a known length, so that a resumed run repeats no step.

Records are collected in memory and appended in bulk; an event holds all scalars of a step. Format: TFRecord framing
(length, masked CRC-32C of the length, data, masked CRC-32C of the data) around ``Event`` protocol buffers.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import google_crc32c
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

PATTERN = "events.out.tfevents.*"


class EventLog:
    """The event file that this process appends to in a run folder. It exists from the first :meth:`flush`."""

    def __init__(self, folder: Path) -> None:
        name = f"events.out.tfevents.{time.time_ns() / 1e9:020.9f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._pending = [_record(Event(wall_time=time.time(), file_version="brain.Event:2"))]

    def scalars(self, step: int, values: Mapping[str, float], wall_time: float) -> None:
        """All scalars of a step, as one event."""
        rows = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._pending.append(_record(Event(wall_time=wall_time, step=step, summary=Summary(value=rows))))

    def summaries(self, summaries: Iterable[Summary], step: int = 0) -> None:
        """Ready-made summaries (layouts, hyperparameters)."""
        self._pending += [_record(Event(wall_time=time.time(), step=step, summary=s)) for s in summaries]

    def flush(self) -> None:
        """Append everything pending to the file."""
        if self._pending:
            with self.path.open("ab") as file:
                file.write(b"".join(self._pending))
            self._pending.clear()


def lengths(folder: Path) -> dict[str, int]:
    """Size in bytes of every event file in a folder."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob(PATTERN))}


def cut_back(folder: Path, known: Mapping[str, int]) -> None:
    """Bring the event files of a folder back to an earlier state of :func:`lengths`."""
    for path in folder.glob(PATTERN):
        if path.name in known:
            os.truncate(path, known[path.name])
        else:
            path.unlink()


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(event: Event) -> bytes:
    data = event.SerializeToString()
    header = struct.pack("<Q", len(data))
    return header + _masked_crc(header) + data + _masked_crc(data)
