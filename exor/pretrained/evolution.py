"""How far embedding rows turn over training: cosines to the first checkpoint and to the previous one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from exor import InputError
from exor.runs import json_text

BLOCK = 2**22  # numbers of a matrix that are looked at together
QUANTILES = {"low": 0.1, "high": 0.9}
AGAINST = {"to_first": "vs_init", "to_previous": "consecutive"}  # our columns, and what published files call them
MATRICES = ("input", "output", "tied")
WORDS = ("steps?", "(?:checkpoint|ckpt|iter|iteration)s?")


def evolution(
    checkpoints: Iterable[tuple[int, Mapping[str, Tensor]]],
    *,
    rows: Tensor | None = None,
    device: torch.device | str | None = None,
) -> pd.DataFrame:
    """Cosines of each row to itself in the first and in the previous checkpoint.

    Holds the matrices of three checkpoints at most (the first, the previous, and the one being made), so that
    ``checkpoints`` can be a generator that reads one after the other.

    Args:
        checkpoints: step and matrices ``[tokens, width]`` by name (``input``, ``output``, ``tied``), by ascending step.
        rows: those to look at, ``[rows]``; all by default.
        device: where to compute; where the matrices lie by default.

    Returns:
        A row per checkpoint and matrix: ``step``, ``matrix``; ``to_first``, the mean over rows, with their 10 % and
        90 % quantiles ``to_first_low`` and ``to_first_high``; the same for ``to_previous``, NaN in the first
        checkpoint; ``norm``, the Frobenius norm. A row of zeros has cosine 0 to every other, and 1 to one of zeros.

    Raises:
        InputError: no checkpoints; or one that differs from the first in its matrices or their shapes.
    """
    found: list[dict[str, Any]] = []
    first: Mapping[str, Tensor] = {}
    previous: Mapping[str, Tensor] = {}
    for step, matrices in checkpoints:
        first = first or matrices
        _check_like(first, matrices, step)
        for name in matrices:  # no name is kept for a matrix: it would keep one more alive
            found.append({"step": step, "matrix": name} | _compare(name, matrices, first, previous, rows, device))
        previous = matrices
    if not found:
        raise InputError("no checkpoints to follow; at least one is accepted")
    return pd.DataFrame(found)


def _compare(
    name: str,
    matrices: Mapping[str, Tensor],
    first: Mapping[str, Tensor],
    previous: Mapping[str, Tensor],
    rows: Tensor | None,
    device: torch.device | str | None,
) -> dict[str, float]:
    """A matrix against the same one of two earlier checkpoints."""
    matrix = matrices[name]
    known: dict[str, Any] = {"rows": rows, "device": device}
    to_first = row_cosines(first[name], matrix, **known)
    to_previous = row_cosines(previous[name], matrix, **known) if previous else torch.tensor([torch.nan])
    norm = {"norm": _norm(matrix, rows)}
    return _summary("to_first", to_first) | _summary("to_previous", to_previous) | norm


def row_cosines(
    a: Tensor, b: Tensor, *, rows: Tensor | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Cosine of each row of one matrix to the same row of another, ``[rows]`` float32.

    Args:
        a, b: ``[tokens, width]``.
        rows: those to look at, ``[rows]``; all by default.
        device: where to compute.
    """
    found = []
    for block_a, block_b in zip(_blocks(a, rows), _blocks(b, rows), strict=True):
        x, y = (block.to(device=device or block.device, dtype=torch.float32) for block in (block_a, block_b))
        x, y = (torch.nn.functional.normalize(block, dim=1) for block in (x, y))
        cosines = (x * y).sum(dim=1)
        empty = ~(x.any(dim=1) | y.any(dim=1))
        found.append(cosines.masked_fill(empty, 1.0).cpu())
    return torch.cat(found)


def _norm(matrix: Tensor, rows: Tensor | None) -> float:
    return float(np.sqrt(sum(float(block.float().norm()) ** 2 for block in _blocks(matrix, rows))))


def _blocks(matrix: Tensor, rows: Tensor | None) -> Iterable[Tensor]:
    """Some rows after the other, few enough to convert."""
    size = max(BLOCK // max(matrix.shape[1], 1), 1)
    if rows is None:
        return matrix.split(size)
    return (matrix[some.to(matrix.device)] for some in rows.split(size))


def _summary(name: str, cosines: Tensor) -> dict[str, float]:
    """Mean and quantiles."""
    values = cosines.double().numpy()
    ends = {f"{name}_{end}": float(np.quantile(values, share)) for end, share in QUANTILES.items()}
    return {name: float(values.mean())} | ends


def _check_like(first: Mapping[str, Tensor], matrices: Mapping[str, Tensor], step: int) -> None:
    shapes, wanted = ({name: tuple(m.shape) for name, m in held.items()} for held in (matrices, first))
    if shapes != wanted or not shapes:
        said = [", ".join(f"{n} {' × '.join(map(str, s))}" for n, s in held.items()) for held in (shapes, wanted)]
        raise InputError(
            f"step {step}: {said[0] or 'no matrices'}, where the first checkpoint has {said[1] or 'none'}; checkpoints "
            "of one model are accepted"
        )


def step_of(name: str) -> int | None:
    """The training step that the name of a revision, a folder or a file tells, None if it tells none.

    Understood are a number after ``step``, else after ``checkpoint``, ``ckpt`` or ``iter`` (``step20000-tokens83B``,
    ``stage1-step1000-tokens5B``, ``checkpoint-500``, ``ckpt_10``, ``global_step2000``, ``step10k``), and a name that is
    a number. Of a path the innermost part that tells one counts; of ``org/name@revision`` the revision only.
    """
    for part in reversed(re.split(r"[/\\]", name.rpartition("@")[2])):
        for words in WORDS:
            if found := re.findall(rf"(?<![a-z]){words}[-_=. ]?(\d+)([km]?)(?![a-z\d])", part, re.IGNORECASE):
                number, unit = found[-1]
                return int(number) * {"": 1, "k": 1000, "m": 1_000_000}[unit.lower()]
        if re.fullmatch(r"\d+", part, re.ASCII):
            return int(part)
    return None


def to_json(table: pd.DataFrame, model_id: str = "") -> str:
    """A table of :func:`evolution` as published files have it, and our further columns beside.

    Keys are ``model_id``, ``steps``, and lists of as many values: ``input_vs_init``, ``input_consecutive``, the same
    for ``output`` and ``tied``, and ``input_vs_init_low``, ``input_vs_init_high``, ``input_norm`` and their like. What
    is not known is null.
    """
    steps = sorted(table["step"].unique().tolist())
    held: dict[str, Any] = {"model_id": model_id, "steps": steps}
    for matrix, rows in table.groupby("matrix", sort=False):
        known = rows.set_index("step").reindex(steps)
        held |= {key: known[column].tolist() for column, key in _keys(str(matrix)).items() if column in known}
    return json_text(held)


def read_published(path: Path | str) -> pd.DataFrame:
    """Curves as published, or as :func:`to_json` writes them: a table like that of :func:`evolution`.

    Values that are null or NaN are NaN; columns without any value are left out. ``attrs["model"]`` names the model.

    Raises:
        InputError: unreadable, or not in that format.
    """
    path = Path(path)
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: not readable as JSON ({why})") from error
    steps = held.get("steps") if isinstance(held, dict) else None
    if not isinstance(steps, list) or not steps or not all(type(step) is int for step in steps):
        raise InputError(f"{path}: no list 'steps' of whole numbers; a JSON file of published curves is accepted")
    tables = [_read_matrix(path, held, matrix) for matrix in MATRICES]
    if not any(len(table.columns) > 2 for table in tables):
        raise InputError(f"{path}: no curves; lists such as 'input_vs_init' are accepted")
    table = pd.concat([t for t in tables if len(t.columns) > 2], ignore_index=True)
    table = table.sort_values("step", kind="stable", ignore_index=True)
    for column in AGAINST:
        table[column] = table.get(column, np.nan)
    table.attrs["model"] = str(held.get("model_id") or "")
    return table


def _read_matrix(path: Path, held: Mapping[str, Any], matrix: str) -> pd.DataFrame:
    """A matrix's curves; two columns if there are none."""
    steps = held["steps"]
    columns: dict[str, Sequence[Any]] = {"step": steps, "matrix": [matrix] * len(steps)}
    for column, key in _keys(matrix).items():
        values = held.get(key)
        if values is None:
            continue
        if not isinstance(values, list) or len(values) != len(steps):
            raise InputError(f"{path}: {key}: a list of {len(steps)} numbers, one for each step, is accepted")
        if wrong := [v for v in values if not (v is None or type(v) in (int, float))]:
            raise InputError(f"{path}: {key}: {wrong[0]!r} is no number; numbers and null are accepted")
        columns[column] = [np.nan if value is None else float(value) for value in values]
    return pd.DataFrame(columns)


def _keys(matrix: str) -> dict[str, str]:
    """The keys of a matrix in a file, by our columns."""
    keys = {}
    for column, key in AGAINST.items():
        keys[column] = f"{matrix}_{key}"
        keys |= {f"{column}_{end}": f"{matrix}_{key}_{end}" for end in QUANTILES}
    return keys | {"norm": f"{matrix}_norm"}
