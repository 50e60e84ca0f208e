"""Which contexts a model gets wrong, and what that costs: where a run stands on the way to the ceiling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from exor.language import ZERO_GAP, Contexts, Ints


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
