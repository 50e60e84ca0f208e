"""What commands that train share on a terminal: the console, the progress line, numbers as people read them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from exor.board import Board
    from exor.pretrained import Watch
    from exor.sheets import Sheet

TERMINAL = Console(highlight=False)
console = TERMINAL if TERMINAL.is_terminal else Console(highlight=False, width=120)
silent = Console(quiet=True)
errors = Console(stderr=True, highlight=False)

SPEED_OVER = 5.0  # seconds over which the speed is taken


@contextmanager
def progress(say: Console) -> Iterator:
    """One progress line on a terminal; elsewhere, a line now and then."""
    bar = Progress(
        TextColumn("step {task.fields[step]:,.0f}"),
        BarColumn(None),
        TextColumn("{task.fields[speed]:,.1f}k seed-steps/s", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[numbers]}"),
        console=say,
        speed_estimate_period=30,
    )
    task = None
    told = 0.0
    seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])  # when so many seed-steps were done

    def watch(board: Board) -> None:
        nonlocal task, told
        if math.isnan(board.mean("step")):
            return
        shown = {"loss": "loss", "accuracy": "accuracy"} | dict(zip(("first", "second"), board.pairs, strict=False))
        values = [(name, board.mean(field)) for field, name in shown.items()]
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in values if not math.isnan(value))
        seen.append((time.monotonic(), board.done))
        while len(seen) > 2 and seen[-1][0] - seen[1][0] > SPEED_OVER:
            seen.popleft()
        speed = (seen[-1][1] - seen[0][1]) / max(seen[-1][0] - seen[0][0], 1e-9) / 1000
        if not say.is_terminal:
            if board.share - told >= 0.1:
                told = board.share
                say.print(f"step {board.mean('step'):,.0f} ({told:.0%})  {numbers}", soft_wrap=True)
            return
        if task is None:
            task = bar.add_task("", total=1.0, step=0, numbers="", speed=0)
            bar.start()
        bar.update(task, completed=board.share, step=board.mean("step"), numbers=numbers, speed=speed)

    try:
        yield watch
    finally:
        if task is not None:
            bar.stop()


class Speed(ProgressColumn):
    """Work done a second, with an SI prefix."""

    def render(self, task: Task) -> Text:
        """For one line."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        prefix = min(int(math.log10(max(speed, 1)) // 3), 3)
        return Text(f"{speed / 1000**prefix:.3g} {('', 'k', 'M', 'G')[prefix]}/s")


@contextmanager
def steps(say: Console) -> Iterator[Callable[[str], Watch]]:
    """A progress line for each long piece of work, on a terminal: call what this gives with its name."""
    columns = (TextColumn("{task.description}"), BarColumn(None), TaskProgressColumn(), Speed())
    with Progress(*columns, TimeRemainingColumn(compact=True), console=say, disable=not say.is_terminal) as bar:

        def watch(name: str) -> Watch:
            task = bar.add_task(name, total=None)

            def told(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total or None)

            return told

        yield watch


def show(sheet: Sheet, say: Console) -> None:
    """A table of the library, numbers at the right; nothing if it is empty."""
    if not sheet.rows:
        return
    table = Table(title=sheet.title, title_justify="left", caption=Text(sheet.note), caption_justify="left")
    table.box, table.padding, table.show_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False
    for i, (heading, first) in enumerate(zip(sheet.headings, sheet.rows[0], strict=True)):
        numbers = hasattr(first, "value")
        table.add_column(Text(heading), justify="right" if numbers else "left", no_wrap=numbers or i == 0)
    for row in sheet.rows:
        table.add_row(*map(Text, row))
    say.print(table)


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
