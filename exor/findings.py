"""What happened in a run, in the terms of the theory: which pairs of symbols met, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from exor.config import RunConfig
from exor.language import Relation

MET = 0.1  # a pair has met where its distance is below this share of its start
LAST = 20_000  # steps at the end over which values are averaged: one period of the published learning rate


def last_mean(frame: pd.DataFrame) -> pd.Series:
    """Mean of every column over the last 20,000 steps."""
    return frame[frame["step"] > frame["step"].iloc[-1] - LAST].mean()


def convergence_step(frame: pd.DataFrame, column: str) -> int | None:
    """First logged step from which a distance stays below 10 % of its start to the end; None if it does not."""
    above = frame["step"][frame[column] >= MET * frame[column].iloc[0]]
    after = frame["step"] if above.empty else frame["step"][frame["step"] > above.iloc[-1]]
    return None if after.empty else int(after.iloc[0])


@dataclass(frozen=True)
class Outcome:
    """One pair in one matrix of one run.

    Attributes:
        start, end: distance at the first step, and its mean over the last 20,000 steps.
        predicted: whether theory has them meet; None where a tied matrix is pulled both ways.
        step: when they met for good; None if they did not.
    """

    relation: Relation
    matrix: str
    start: float
    end: float
    predicted: bool | None
    step: int | None

    @property
    def met(self) -> bool:
        """Whether the mean over the last 20,000 steps is below 10 % of the start."""
        return self.end < MET * self.start

    @property
    def agrees(self) -> bool | None:
        """Whether theory was right; None where it says nothing definite."""
        return None if self.predicted is None else self.met == self.predicted


def outcomes(config: RunConfig, frame: pd.DataFrame, relations: Iterable[Relation] | None = None) -> list[Outcome]:
    """Outcomes of pairs, by default all that write the same bit (theory keeps the others apart), input before output.

    A tied run has one matrix, listed as ``input``.
    """
    if relations is None:
        every = config.language.relations()
        relations = [r for r in every if r.semantically_equivalent or r.conditionally_equivalent]
    means = last_mean(frame)
    found = []
    for relation in relations:
        for matrix in ("input",) if config.tied else ("input", "output"):
            column = f"{matrix}/{relation.name}"
            predicted = relation.meets(matrix, config.tied)
            start, end = float(frame[column].iloc[0]), float(means[column])
            found.append(Outcome(relation, matrix, start, end, predicted, convergence_step(frame, column)))
    return found
