"""What is looked at: the matrices of a pair of models, or of one, over the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from exor import InputError
from exor.pretrained import Watch, unwatched
from exor.pretrained.checkpoints import Checkpoint, Embeddings
from exor.pretrained.vocabulary import Vocabulary, keep, match, read_vocabulary

TIED, INPUT, OUTPUT = "tied", "untied input", "untied output"
PUBLISHED = ((INPUT, OUTPUT), (OUTPUT, TIED), (INPUT, TIED))


@dataclass(frozen=True)
class Choice:
    """Which tokens are looked at, and how.

    Attributes:
        published: as the second paper's code does: padding rows are kept, and tokens are matched by their raw strings.
        special, unused: whether special tokens, and tokens that were never used, are kept.
        limit: at most so many tokens, a fixed random sample.
        fold_norm: whether the final norm's gain is multiplied into the rows of output matrices.
    """

    published: bool = False
    special: bool = True
    unused: bool = True
    limit: int | None = None
    fold_norm: bool = False


@dataclass(frozen=True)
class Model:
    """One of the models: where it comes from and what is known of it, a line each."""

    role: str
    checkpoint: Checkpoint
    vocabulary: Vocabulary
    rows: Tensor  # the rows looked at, in order


@dataclass(frozen=True)
class Subject:
    """Matrices over the same tokens.

    Attributes:
        matrices: ``[tokens, width]`` by name.
        gains: of the final norm behind an output matrix, ``[width]``, by its name, if it is not multiplied in yet.
        comparisons: those to make, source and target.
        tokens: their strings, where they are known.
        facts: of each model.
        notes: what a reader has to know, in sentences.
    """

    matrices: dict[str, Tensor]
    gains: dict[str, Tensor]
    comparisons: tuple[tuple[str, str], ...]
    tokens: tuple[str | None, ...]
    facts: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A subject before its matrices are read.

    Attributes:
        models: the tied one and the untied one, or the only one.
        notes: on how tokens were matched.
    """

    models: tuple[Model, ...]
    choice: Choice
    tokens: tuple[str | None, ...]
    notes: tuple[str, ...]

    @property
    def bytes_to_fetch(self) -> int:
        """Bytes of weights that are not on this machine yet."""
        return sum(model.checkpoint.bytes_to_fetch for model in self.models)

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the matrices, as far as it is known which there are."""
        if len(self.models) == 2:
            tied, untied = (model.checkpoint.width for model in self.models)
            return tied, untied, untied
        only = self.models[0].checkpoint
        return (only.width,) if only.output is None else (only.width, only.width)

    def read(self, watch: Callable[[str], Watch] = lambda _: unwatched) -> Subject:
        """Read the matrices.

        Raises:
            InputError: unreadable; or a model of the pair is not what it is taken for.
        """
        matrices: dict[str, Tensor] = {}
        gains: dict[str, Tensor] = {}
        facts, notes = [], list(self.notes)
        for model in self.models:
            found = model.checkpoint.read(watch=watch(f"reading {model.checkpoint.name}"))
            if len(self.models) == 2 and found.tied != (model.role == "tied"):
                is_not, other = ("tied", "--untied") if model.role == "tied" else ("untied", "--tied")
                raise InputError(f"{found.name}: not {is_not} ({found.why}); {other} or --model accepts it")
            facts.append(facts_of(model, found))
            notes += [f"{found.name}: {note}" for note in (*found.notes, *model.vocabulary.notes)]
            output = found.folded() if self.choice.fold_norm else found.output
            roles = {TIED: output} if found.tied else {INPUT: found.input, OUTPUT: output}
            matrices |= {name: _rows(matrix, model.rows) for name, matrix in roles.items()}
            if found.norm_gain is not None and not self.choice.fold_norm:
                gains[TIED if found.tied else OUTPUT] = found.norm_gain
            del found, output, roles
        comparisons = PUBLISHED if len(self.models) == 2 else ((INPUT, OUTPUT),) if INPUT in matrices else ()
        return Subject(matrices, gains, comparisons, self.tokens, tuple(facts), tuple(notes))


def plan(checkpoints: dict[str, Checkpoint], choice: Choice = Choice(), seed: int = 0) -> Plan:
    """Decide on the tokens to look at.

    Args:
        checkpoints: ``tied`` and ``untied``, or ``model`` alone.
        seed: of the sample, if the number of tokens is limited.

    Raises:
        InputError: the two have no token in common.
    """
    kept: dict[str, bool] = {"padding": choice.published, "special": choice.special, "unused": choice.unused}
    vocabularies = [read_vocabulary(checkpoint) for checkpoint in checkpoints.values()]
    notes: list[str] = []
    if len(vocabularies) == 2:
        matched = match(vocabularies[0], vocabularies[1], raw=choice.published, **kept)
        rows = [matched.rows_a, matched.rows_b]
        notes += [f"{len(matched.rows_a):,} tokens in common, {matched.how}.", *matched.notes]
    else:
        rows = [keep(vocabularies[0], **kept)]
    if choice.limit is not None and choice.limit < len(rows[0]):
        some = torch.randperm(len(rows[0]), generator=torch.Generator().manual_seed(seed))[: choice.limit].sort().values
        notes.append(f"A random sample of {choice.limit:,} of {len(rows[0]):,} tokens.")
        rows = [r[some] for r in rows]
    models = [
        Model(role, checkpoint, vocabulary, r)
        for (role, checkpoint), vocabulary, r in zip(checkpoints.items(), vocabularies, rows, strict=True)
    ]
    tokens = tuple(vocabularies[-1].tokens[i] for i in rows[-1].tolist())
    return Plan(tuple(models), choice, tokens, tuple(notes))


def facts_of(model: Model, found: Embeddings) -> dict[str, Any]:
    """What is known of a model, fit for JSON."""
    checkpoint, vocabulary = model.checkpoint, model.vocabulary
    real = sum(token is not None for token in vocabulary.tokens)
    return {
        "model": found.name,
        "commit": checkpoint.commit,
        "type": checkpoint.model_type,
        "tied": found.tied,
        "why": found.why,
        "width": checkpoint.width,
        "rows": checkpoint.rows,
        "tokens": real,
        "padding rows": checkpoint.rows - real,
        "vocabulary from": vocabulary.source,
        "input matrix": checkpoint.input.name,
        "output matrix": checkpoint.output.name if checkpoint.output else None,
        "stored as": checkpoint.input.dtype,
        "final norm": found.norm,
        "head bias": found.head_bias is not None,
        "logit scale": found.logit_scale,
        "logit cap": found.logit_cap,
        "input scale": found.input_scale,
    }


def _rows(matrix: Tensor, rows: Tensor) -> Tensor:
    """The same tensor where all rows are wanted."""
    return matrix if len(rows) == len(matrix) and bool((rows.diff() == 1).all()) else matrix[rows]
