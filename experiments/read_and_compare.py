"""What ``python -m experiments.pairs`` does, once its options are understood."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich import filesize
from rich.console import Console

from exor import InputError
from exor.pretrained import costs, frequencies, report, require
from exor.pretrained import evolution as evolutions
from exor.pretrained.checkpoints import open_checkpoint
from exor.pretrained.geometry import ANALYSES, Geometry, Settings
from exor.pretrained.pairs import PAIRS, Pair, find
from exor.pretrained.store import Finding, Store
from exor.pretrained.subjects import Choice, Plan, Subject, plan
from exor.program import cache_folder
from exor.sheets import Sheet
from experiments import terminal
from experiments.terminal import duration, show


@dataclass(frozen=True)
class Where:
    """Where and how to work."""

    out: Path | None
    device: str
    fresh: bool
    dry_run: bool
    command: str
    say: Console

    @property
    def store(self) -> Store:
        """Where findings are kept."""
        return Store(cache_folder() / "findings", fresh=self.fresh)

    def folder(self, name: str) -> Path:
        """Where the report on something goes."""
        return self.out or Path("report/pairs") / (re.sub(r"[^\w.=+-]+", "-", name).strip("-.") or "model")


@dataclass(frozen=True)
class Counting:
    """In what to count tokens, if anything."""

    text: tuple[Path, ...]
    dataset: str | None
    column: str | None
    limit: int

    def __bool__(self) -> bool:
        return bool(self.text or self.dataset)


def show_pairs(say: Console) -> int:
    """``--list``."""
    rows = tuple((pair.name, pair.tied, pair.untied, pair.note) for pair in PAIRS.values())
    show(Sheet("Published pairs", "Lopardo et al. 2026.", ("name", "tied", "untied", "note"), rows), say)
    return 0


def compare(
    sources: dict[str, str],
    where: Where,
    *,
    preset: Pair | None,
    choice: Choice,
    settings: Settings,
    keys: tuple[str | None, str | None],
    analyses: Sequence[str],
    counting: Counting,
) -> int:
    """Look at a pair or at one model, and write the report."""
    require("safetensors", "huggingface_hub", "tokenizers")
    say, device = where.say, device_of(where.device)
    if counting.text and counting.dataset:
        raise InputError("text: --text and --dataset exclude each other")
    checkpoints = {role: open_source(source, keys) for role, source in sources.items()}
    planned = plan(checkpoints, choice, settings.seed)
    if where.dry_run:
        show(costs.sheet(planned, analyses, settings, device), say)
        return 0
    costs.require_memory(planned, device)
    with terminal.steps(say) as watch:
        counts = count(planned, counting, where, watch) if counting else None
        subject = planned.read(watch)
        geometry = Geometry(
            subject.matrices,
            subject.comparisons,
            counts=counts,
            settings=settings,
            store=where.store,
            device=device,
            watch=watch,
        )
        findings = {}
        for name in wanted(geometry, analyses):
            findings[name] = geometry.find(name)
            tell(name, findings[name], say)
    name = preset.name if preset else " and ".join(checkpoint.name for checkpoint in checkpoints.values())
    published = preset.value if preset else report.no_published
    told = report.Report(name, findings, subject.facts, subject.notes, published)
    return finish(told, where)


def wanted(geometry: Geometry, analyses: Sequence[str]) -> list[str]:
    """The analyses asked for, or all that can be made.

    Raises:
        InputError: one asked for cannot be made of these matrices.
    """
    for name in analyses:
        if name not in geometry.analyses:
            reason = "it needs --text or --dataset" if name == "frequency" else "it needs a pair or an untied model"
            raise InputError(f"analyses: {name} cannot be made here, {reason}; {', '.join(geometry.analyses)} are accepted")
    return [name for name in geometry.analyses if name in (analyses or ANALYSES)]


def finish(told: report.Report, where: Where) -> int:
    """Show the tables, and write the files."""
    say = where.say
    for tables in told.sheets.values():
        for sheet in tables:
            show(sheet, say)
    for line in (*told.notes, *(note for finding in told.findings.values() for note in finding.notes), *told.answer):
        say.print(line, markup=False)
    folder = where.folder(told.name)
    written = report.write(told, folder, command=where.command, date=datetime.date.today().isoformat())
    say.print(f"Written: {written[0]}, and {len(written) - 1} more files in {folder}", soft_wrap=True, markup=False)
    return 0


def tell(name: str, finding: Finding, say: Console) -> None:
    """That an analysis is done."""
    how = "known already" if finding.reused else duration(finding.seconds)
    say.print(f"{name}: {how}", markup=False)


# --- checkpoints of one model -----------------------------------------------------------------------------------


def evolution(sources: Sequence[str], where: Where, *, keys: tuple[str | None, str | None]) -> int:
    """Follow a model through its checkpoints, or draw published curves."""
    curves = [source for source in sources if source.endswith(".json") and Path(source).is_file()]
    published = [evolutions.read_published(Path(path)) for path in curves]
    names = [name for source in sources if source not in curves for name in expand(source)]
    if not names:
        (table, *others) = published
        finding = Finding({"evolution": table})
        told = report.Report(Path(curves[0]).stem, {"evolution": finding}, curves=others[0] if others else None)
        return finish(told, where)
    require("safetensors", "huggingface_hub", "tokenizers")
    opened = [open_source(name, keys) for name in names]
    steps = [evolutions.step_of(checkpoint.name) for checkpoint in opened]
    notes = []
    if None in steps or len(set(steps)) < len(steps):
        notes.append("Not every name tells a step of its own: checkpoints are counted as they were given.")
        steps = [*range(len(opened))]
    order = sorted(range(len(opened)), key=lambda i: steps[i])
    if where.dry_run:
        show(costs.sheet_of_checkpoints([opened[i] for i in order]), where.say)
        return 0
    with terminal.steps(where.say) as watch:
        table = evolutions.evolution((steps[i], matrices(opened[i], watch)) for i in order)
    name = opened[0].name.split("@")[0]
    finding = Finding({"evolution": table}, tuple(notes))
    return finish(report.Report(name, {"evolution": finding}, curves=published[0] if published else None), where)
