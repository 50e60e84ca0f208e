"""Which contexts made-up predictions miss, against the ceiling and against a plain loop."""

import numpy as np
import pytest

from exor.language import PRESETS, Language
from exor.misses import misses


def language_contexts(language: Language, ordered: bool = False):
    train, test = language.split()
    return train, (language.ordered_contexts if ordered else language.count_contexts)(train, test)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("language", [*PRESETS.values(), Language(4, (0.2, 0.4, 0.4), (0.0, 1.0)), Language(2)])
def test_costs_sum_to_the_distance_from_the_ceiling(language, ordered):
    train, contexts = language_contexts(language, ordered)
    predictions = np.random.default_rng(0).integers(len(language.vocabulary), size=(3, len(contexts)))
    table = misses(contexts, predictions, language.vocabulary)
    accuracy = np.mean(
        [
            sum(p * t[s] for p, t, s in zip(contexts.probability[0], contexts.targets, run, strict=True))
            for run in predictions
        ]
    )
    assert table["cost"].sum() == pytest.approx(language.bayes_accuracy(train) - accuracy, abs=1e-12)
    assert table["probability"].sum() == pytest.approx(1)
    assert (table["probability"] > 0).all() and not table.isna().any(axis=None)


def test_the_best_predictions_miss_nothing():
    language = PRESETS["main"]
    _, contexts = language_contexts(language)
    best = contexts.targets.argmax(1)
    other = np.where(contexts.bit == 1, 3, best)  # 1B is as good as 1A
    table = misses(contexts, np.stack([best, other]), language.vocabulary)
    assert (table[["missed", "runs_missing", "runs_mostly", "cost"]] == 0).all(axis=None)
    assert set(table["best"]) == {"0B", "1A or 1B"}


def test_a_miss_is_where_it_was_put():
    """With two bits, =1 and no visible one, a 1 is masked: one run says 0B there, one 0B where 0A is to be seen."""
    language = Language(2)
    _, contexts = language_contexts(language)
    best = contexts.targets.argmax(1)
    here = (contexts.counts[:, language.parity_id(1)] == 1) & (contexts.counts[:, 2:4].sum(1) == 0)
    somewhere = here & (contexts.counts[:, 0] == 1)
    runs = np.stack([best, np.where(here, 1, best), np.where(somewhere, 1, best)])
    table = misses(contexts, runs, language.vocabulary).set_index(["parity", "ones"])
    assert table.index.tolist() == [("=0", 0), ("=0", 1), ("=1", 0), ("=1", 1)]
    assert table["bit"].tolist() == [0, 1, 1, 0]
    assert table["probability"].tolist() == pytest.approx([0.25] * 4)
    row = table.loc[("=1", 0)]
    assert (row["best"], row["runs"], row["runs_missing"], row["runs_mostly"]) == ("1A or 1B", 3, 2, 1)
    assert row["missed"] == pytest.approx((1 + 0.1) / 3)
    assert row["cost"] == pytest.approx(0.25 * (0.5 + 0.1 * 0.5) / 3)
    assert table.drop(index=[("=1", 0)])["cost"].eq(0).all()


def test_contexts_of_test_strings_do_not_count():
    language = Language(4)
    _, contexts = language_contexts(language, ordered=True)
    unseen = contexts.probability[0] == 0
    assert unseen.any()
    best = contexts.targets.argmax(1)
    table = misses(contexts, np.where(unseen, language.mask_id, best)[None], language.vocabulary)
    assert (table["cost"] == 0).all() and (table["runs_missing"] == 0).all()
