"""Which contexts a model gets wrong, and what that costs: where a run stands on the way to the ceiling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from exor import InputError, runs
from exor.config import MODELS
from exor.gather import Experiment
from exor.language import ZERO_GAP, Contexts, Ints

BUDGET = 4096  # contexts that a report looks at; of more, a fixed random sample


@dataclass(frozen=True)
class Found:
    """What the runs of an experiment miss.

    Attributes:
        tables: see :func:`misses`, by mode.
        contexts: how many were looked at.
        every: how many there are.
        skipped: runs that could not be looked at, and why.
    """

    tables: dict[str, pd.DataFrame]
    contexts: int
    every: int
    skipped: tuple[str, ...]

    @property
    def sampled(self) -> bool:
        """Whether the contexts are a sample."""
        return self.contexts < self.every


def of_experiment(experiment: Experiment, budget: int = BUDGET) -> Found:
    """What the final weights of an experiment's runs miss.

    Contexts are those that the model can tell apart. More than ``budget`` of them are sampled by their probability on
    the training strings, the same ones for all runs.

    Raises:
        InputError: runs of a user's own model, which only its own code can load (nothing is imported because a file
            says so), or no run whose weights can be loaded.
    """
    config = experiment.config
    if config.model not in MODELS:
        raise InputError(f"the model {config.model} is not the lab's own, so its weights are not loaded")
    contexts, predictions, skipped = None, {}, []
    every = 0
    for mode in experiment.modes:
        rows = []
        for seed in experiment.seeds(mode):
            folder = experiment.folders[mode, seed]
            try:
                model, _ = runs.load(folder.path)
            except (InputError, RuntimeError) as error:  # torch's, where shapes do not fit
                skipped.append(f"{mode} seed {seed}: {str(error).splitlines()[0]}")
                continue
            if contexts is None:
                train, test = config.language.split(config.split_seed)
                contexts = config.language.contexts(train, test, ordered=not model.order_free)
                every = len(contexts)
                contexts = _sample(contexts, budget)
                tokens, position = torch.from_numpy(contexts.tokens), torch.from_numpy(contexts.position)
            with torch.no_grad():
                rows.append(model.eval()(tokens, position).argmax(dim=-1).numpy())
        if rows:
            predictions[mode] = np.stack(rows)
    if contexts is None:
        raise InputError(f"no weights can be loaded ({skipped[0]})")
    tables = {mode: misses(contexts, ids, config.language.vocabulary) for mode, ids in predictions.items()}
    return Found(tables, len(contexts), every, tuple(skipped))


def _sample(contexts: Contexts, budget: int) -> Contexts:
    """At most so many contexts, each as often as it is drawn; those of training strings only, if some are left out."""
    if len(contexts) <= budget:
        return contexts
    chance = contexts.probability[0]
    drawn = np.random.default_rng(0).choice(len(contexts), budget, p=chance / chance.sum())
    share = np.stack([np.full(budget, 1 / budget), np.zeros(budget)])
    return Contexts(
        contexts.tokens[drawn], contexts.position[drawn], contexts.bit[drawn], share, contexts.predictions, True
    )


def misses(contexts: Contexts, predictions: Ints, vocabulary: Sequence[str]) -> pd.DataFrame:
    """Contexts of the training strings by what decides them, and how often their prediction is not a best one.

    The parity symbol and the number of visible ones decide the masked bit, and that bit the best prediction.

    Args:
        contexts: all contexts, or a sample.
        predictions: ``[runs, contexts]`` id of each run's most likely symbol.
        vocabulary: names of the symbols, by id.

    Returns:
        A row for every parity symbol and number of ones:
        parity, ones, bit (the masked one), best (its most probable symbols, such as ``1A or 1B``);
        probability of these contexts on the training strings;
        missed: share of that probability where the prediction is less probable than the best, mean over runs;
        runs: how many there are; runs_missing: those that miss somewhere in the row; runs_mostly: in more than half;
        cost: the accuracy lost there, ``Σ P(context) · (P(best) − P(prediction))``, mean over runs. Summed over rows
        it is the ceiling minus the mean accuracy, both on these contexts.
    """
    counts, targets, probability = contexts.counts, contexts.targets, contexts.probability[0]
    is_one = np.array([name.startswith("1") for name in vocabulary])
    ones, parity = counts[:, is_one].sum(axis=1), counts[:, vocabulary.index("=1")]
    best = targets.max(axis=1)
    got = targets[np.arange(len(contexts)), predictions]  # [runs, contexts]
    wrong = (got < best - ZERO_GAP) * probability
    rows = []
    for shown, visible in np.unique(np.column_stack([parity, ones])[probability > 0], axis=0).tolist():
        here = (parity == shown) & (ones == visible)
        bit, total = int(contexts.bit[here][0]), probability[here].sum()
        target = contexts.predictions[bit]
        share = wrong[:, here].sum(axis=1) / total  # [runs]
        rows.append(
            {
                "parity": f"={shown}",
                "ones": visible,
                "bit": bit,
                "best": " or ".join(
                    name for name, p in zip(vocabulary, target, strict=True) if p >= target.max() - ZERO_GAP
                ),
                "probability": total,
                "missed": share.mean(),
                "runs": len(share),
                "runs_missing": int((share > 0).sum()),
                "runs_mostly": int((share > 0.5).sum()),
                "cost": ((best - got) * probability)[:, here].sum(axis=1).mean(),
            }
        )
    return pd.DataFrame(rows)
