"""What ``python -m experiments.pairs`` does, once its options are understood."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from exor import InputError
from exor.pretrained import Watch, costs, report, require
from exor.pretrained import evolution as evolutions
from exor.pretrained.checkpoints import Checkpoint
from exor.pretrained.frequencies import count_dataset, count_text
from exor.pretrained.geometry import Geometry, Settings
from exor.pretrained.pairs import PAIRS, Pair
from exor.pretrained.parameters import parameters
from exor.pretrained.sources import expand, open_source
from exor.pretrained.store import Finding, Store
from exor.pretrained.subjects import Choice, Plan, Subject, plan
from exor.pretrained.tokenizing import tokenizer_of
from exor.pretrained.vocabulary import keep, read_vocabulary
from exor.program import cache_folder
from exor.sheets import Sheet
from experiments import terminal
from experiments.terminal import duration, show

Steps = Callable[[str], Watch]


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

    def chosen(self) -> torch.device:
        """The device to compute on.

        Raises:
            InputError: there is none of that name.
        """
        if self.device == "auto":
            return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        try:
            device = torch.device(self.device)
            torch.ones(1, device=device).sum().item()
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0][:80]
            raise InputError(f"device: {self.device}: not here ({reason}); auto and cpu are accepted") from error
        return device


@dataclass(frozen=True)
class Counting:
    """In what to count tokens, if anything."""

    text: tuple[Path, ...]
    dataset: str | None
    column: str | None
    limit: int

    def __bool__(self) -> bool:
        return bool(self.text or self.dataset)

    def count(self, planned: Plan, steps: Steps) -> tuple[np.ndarray, list[str]]:
        """How often each of the tokens looked at occurs, by the tokenizer of the last model, and what to say of it."""
        model = planned.models[-1]
        tokenizer, rows = tokenizer_of(model.checkpoint), model.checkpoint.rows
        if self.dataset:
            watch = steps(f"tokens of {self.dataset}")
            how = {"column": self.column, "limit": self.limit}
            counts = count_dataset(self.dataset, tokenizer, rows, **how, watch=watch)  # type: ignore[arg-type]
        else:
            counts = count_text(self.text, tokenizer, rows, limit=self.limit, watch=steps("tokens of the text"))
        seen = f"Frequencies: {counts.tokens:,} tokens of {counts.source}, as {model.checkpoint.name} divides it."
        return counts.counts[model.rows.numpy()], [seen, *counts.notes]


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
    keys: dict[str, str | None],
    analyses: Sequence[str],
    counting: Counting,
) -> int:
    """Look at a pair or at one model, and write the report."""
    require("safetensors", "huggingface_hub", "tokenizers")
    say, device = where.say, where.chosen()
    if analyses and "frequency" in analyses and not counting:
        raise InputError("analyses: frequency needs --text or --dataset")
    checkpoints = {role: open_source(source, **keys) for role, source in sources.items()}
    planned = plan(checkpoints, choice, settings.seed)
    if where.dry_run:
        show(costs.sheet(planned, analyses, device), say)
        return 0
    costs.require_memory(planned, device)
    title = preset.name if preset else " and ".join(map(short, checkpoints.values()))
    findings = {}
    with terminal.steps(say) as steps:
        counts, notes = counting.count(planned, steps) if counting else (None, [])
        subject = planned.read(steps)
        geometry = Geometry(
            subject.matrices,
            subject.comparisons,
            counts=counts,
            gains=subject.gains,
            settings=settings,
            store=where.store,
            device=device,
            watch=steps,
        )
        names = wanted(geometry, analyses)
        where.folder(title).mkdir(parents=True, exist_ok=True)  # before the work, as it may be refused
        for name in names:
            findings[name] = geometry.find(name)
            done = "known already" if findings[name].reused else duration(findings[name].seconds)
            say.print(f"{name}: {done}", markup=False)
    if not analyses or "parameters" in analyses:
        findings |= parameters_of(planned, subject, strict=bool(analyses))
    published = preset.value if preset else report.no_published
    return finish(report.Report(title, findings, subject.facts, [*subject.notes, *notes], published), where)


def short(checkpoint: Checkpoint) -> str:
    """The name of a model in titles and in the name of its report's folder."""
    path = Path(checkpoint.name).expanduser()
    return checkpoint.name if checkpoint.commit or not path.exists() else path.absolute().name


def wanted(geometry: Geometry, analyses: Sequence[str]) -> list[str]:
    """The analyses of matrices that are asked for, or all that can be made.

    Raises:
        InputError: one asked for cannot be made of these matrices.
    """
    for name in analyses:
        if name not in (*geometry.analyses, "parameters"):
            needs = "two models" if name == "differences" else "a pair or an untied model"
            raise InputError(f"analyses: {name} needs {needs}; {', '.join(geometry.analyses)} are accepted here")
    needed = {"alignment"} & set(geometry.analyses) if "differences" in analyses else set()
    return [name for name in geometry.analyses if not analyses or name in (*analyses, *needed)]


def parameters_of(planned: Plan, subject: Subject, *, strict: bool) -> dict[str, Finding]:
    """Shares of parameters; where the library cannot count them, that is an error only if they were asked for."""
    configs = {model.checkpoint.name: model.checkpoint.config for model in planned.models}
    tied = {fact["model"]: fact["tied"] for fact in subject.facts}
    try:
        return {"parameters": Finding({"parameters": parameters(configs, tied)})}
    except InputError as error:
        if strict:
            raise
        return {"parameters": Finding({}, (f"Parameters were not counted: {error}.",))}


def finish(told: report.Report, where: Where) -> int:
    """Show the tables, and write the files."""
    say = where.say
    for tables in told.sheets.values():
        for sheet in tables:
            show(sheet, say)
    for line in (*told.notes, *(note for finding in told.findings.values() for note in finding.notes), *told.answer):
        say.print(line, markup=False, soft_wrap=True)
    folder = where.folder(told.name)
    page, *_ = report.write(told, folder, command=where.command, date=datetime.date.today().isoformat())
    say.print(f"Written: {page}, and tables and figures beside it", soft_wrap=True, markup=False)
    return 0


# --- checkpoints of one model -----------------------------------------------------------------------------------


def follow(sources: Sequence[str], where: Where, *, choice: Choice, keys: dict[str, str | None]) -> int:
    """Follow a model through its checkpoints, or draw published curves."""
    curves = [source for source in sources if source.endswith(".json") and Path(source).is_file()]
    published = [evolutions.read_published(path) for path in curves]
    if len(published) > 1:
        raise InputError(f"evolution: {curves[1]}: a second file of curves; one at a time is accepted")
    names = [name for source in sources if source not in curves for name in expand(source)]
    if not names:
        told = report.Report(Path(curves[0]).stem, {"evolution": Finding({"evolution": published[0]})})
        return finish(told, where)
    require("safetensors", "huggingface_hub", "tokenizers")
    device = where.chosen()
    opened = {name: open_source(name, **keys) for name in names}
    steps = {name: evolutions.step_of(name) for name in names}
    notes = []
    if None in steps.values() or len(set(steps.values())) < len(steps):
        notes.append("Not every name tells a step of its own: checkpoints are counted as they were given.")
        steps = {name: i for i, name in enumerate(names)}
    in_order = sorted((step, name) for name, step in steps.items() if step is not None)
    if where.dry_run:
        show(costs.sheet_of_checkpoints([opened[name] for _, name in in_order]), where.say)
        return 0
    first = opened[in_order[0][1]]
    rows = keep(read_vocabulary(first), padding=choice.published, special=choice.special, unused=choice.unused)
    with terminal.steps(where.say) as watch:

        def matrices(name: str) -> dict[str, torch.Tensor]:
            found = opened[name].read(watch=watch(f"reading {name}"))
            return {"tied": found.input} if found.tied else {"input": found.input, "output": found.output}

        table = evolutions.evolution(((step, matrices(name)) for step, name in in_order), rows=rows, device=device)
    finding = Finding({"evolution": table}, tuple(notes))
    curve = published[0] if published else None
    return finish(report.Report(short(first).split("@")[0], {"evolution": finding}, curves=curve), where)
