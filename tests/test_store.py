"""Findings are made once from the same numbers, and come back as they were."""

import numpy as np
import pandas as pd
import pytest
import torch

from exor.pretrained.store import Finding, Store, digest


def finding(value=1.5):
    table = pd.DataFrame({"name": ["a", "→"], "value": [value, np.nan], "count": [1, 2], "sure": [True, False]})
    return Finding({"some table": table}, ("A note.",), {"cosines, a → b": np.linspace(0, 1, 7, dtype=np.float32)})


def test_what_is_kept_comes_back(tmp_path):
    store = Store(tmp_path / "findings")
    made = store.get("alignment", {"seed": 1}, finding)
    again = store.get("alignment", {"seed": 1}, lambda: pytest.fail("made twice"))
    assert (made.reused, again.reused) == (False, True)
    pd.testing.assert_frame_equal(again.tables["some table"], made.tables["some table"])
    assert again.notes == made.notes and again.seconds == made.seconds
    np.testing.assert_array_equal(again.arrays["cosines, a → b"], made.arrays["cosines, a → b"])
    assert again.arrays["cosines, a → b"].dtype == np.float32


def test_other_numbers_are_another_finding(tmp_path):
    store = Store(tmp_path)
    for made_from in ({"seed": 1}, {"seed": 2}, {"seed": 1, "k": 3}):
        assert not store.get("alignment", made_from, finding).reused
    assert not store.get("spectra", {"seed": 1}, finding).reused
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"PK" + b[2:99]])
def test_damaged_is_made_again(tmp_path, damage):
    store = Store(tmp_path)
    store.get("alignment", {}, finding)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert not store.get("alignment", {}, finding).reused
    assert store.get("alignment", {}, finding).reused


def test_fresh_makes_again_and_keeps(tmp_path):
    Store(tmp_path).get("alignment", {}, finding)
    assert not Store(tmp_path, fresh=True).get("alignment", {}, lambda: finding(2.5)).reused
    assert Store(tmp_path).get("alignment", {}, finding).tables["some table"]["value"][0] == 2.5


def test_no_folder_keeps_nothing():
    assert not Store(None).get("alignment", {}, finding).reused


def test_digest_sees_every_bit_and_the_shape():
    a = torch.arange(60_000.0).reshape(10_000, 6)
    b = a.clone()
    assert digest(a) == digest(b)
    b[-1, -1] += 0.01
    assert len({digest(a), digest(b), digest(a.reshape(6, -1)), digest(a.double()), digest(a.T)}) == 5
    assert digest(a.T) == digest(a.T.contiguous())
