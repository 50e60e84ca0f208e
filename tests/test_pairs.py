"""Published numbers: those of the design document's tables, and how they are asked for."""

from itertools import permutations

import pytest

from exor import InputError
from exor.pretrained.pairs import PAIRS, find
from exor.pretrained.sheets import Lookup
from exor.pretrained.subjects import INPUT, OUTPUT, PUBLISHED, TIED

KINDS = ("identity", "orthogonal", "linear")
# as printed: input → output, output → tied, input → tied; tied–input, tied–output, input–output
ALIGNMENT = {
    "olmo-1b": ((0.012, 0.440, 0.574), (0.014, 0.669, 0.719), (0.001, 0.420, 0.525)),
    "gpt-neo-pythia": ((-0.001, 0.456, 0.518), (0.001, 0.507, 0.637), (0.000, 0.376, 0.507)),
}
OVERLAP = {
    "olmo-1b": (0.496, 0.733, 0.455),
    "qwen3": (0.366, 0.71, 0.366),
    "gpt-neo-pythia": (0.372, 0.408, 0.611),
}
TWO = ((TIED, INPUT), (TIED, OUTPUT), (INPUT, OUTPUT))


@pytest.mark.parametrize("name", ALIGNMENT)
def test_the_table_of_alignment(name):
    pair = find(name)
    for (source, target), scores in zip(PUBLISHED, ALIGNMENT[name], strict=True):
        assert tuple(pair.value("alignment", source, target, kind) for kind in KINDS) == scores


@pytest.mark.parametrize("name", OVERLAP)
def test_the_table_of_neighbours(name):
    assert tuple(find(name).value("knn overlap", a, b, "") for a, b in TWO) == OVERLAP[name]


def test_other_numbers_of_the_design_document():
    olmo, qwen = find("olmo-1b"), find("qwen3")
    assert [qwen.value("norm correlation", a, b, "") for a, b in TWO] == [0.690, 0.973, 0.732]
    norms = [olmo.value("frobenius norm", matrix, "", "") for matrix in (INPUT, OUTPUT, TIED)]
    assert norms == pytest.approx([45.5, 203.5, 531.7], abs=0.05)
    assert olmo.value("subspace overlap", INPUT, OUTPUT, "") == pytest.approx(0.180, abs=0.0005)
    assert olmo.value("subspace overlap", TIED, INPUT, "") is None


def test_every_pair_agrees_that_the_tied_matrix_is_nearer_to_the_output():
    for pair in PAIRS.values():
        assert pair.value("knn overlap", TIED, OUTPUT, "") > pair.value("knn overlap", TIED, INPUT, "")
        assert pair.value("spectral distance", TIED, OUTPUT, "") < pair.value("spectral distance", TIED, INPUT, "")


def test_within_a_model_and_across_widths():
    qwen = find("qwen3")
    assert qwen.value("alignment", INPUT, OUTPUT, "orthogonal") == 0.256734
    assert qwen.value("alignment", OUTPUT, TIED, "orthogonal") is None


def test_order_counts_for_alignment_only():
    for pair in PAIRS.values():
        for quantity in ("knn overlap", "spectral distance", "norm correlation", "spectrum correlation"):
            for a, b in permutations((TIED, INPUT, OUTPUT), 2):
                assert pair.value(quantity, a, b, "") == pair.value(quantity, b, a, "")
    assert find("olmo-1b").value("alignment", TIED, OUTPUT, "linear") is None


def test_numbers_are_of_known_quantities_and_in_range():
    bounds = {"alignment": 1, "knn overlap": 1, "norm correlation": 1, "spectrum correlation": 1, "subspace overlap": 1}
    bounds |= {"spectral distance": 2, "frobenius norm": 1e4, "largest singular value": 1e4}
    for pair in PAIRS.values():
        for (quantity, a, b, kind), value in pair.published.items():
            assert abs(value) <= bounds[quantity] and kind in (*KINDS, "") and {a, b} <= {TIED, INPUT, OUTPUT, ""}


def test_nothing_is_known_of_other_quantities():
    lookup: Lookup = find("olmo-1b").value
    assert lookup("cka", INPUT, OUTPUT, "") is None and lookup("alignment", INPUT, OUTPUT, "cubic") is None


@pytest.mark.parametrize(("asked", "meant"), [("olmo", "olmo-1b"), ("Qwen-3", "qwen3"), ("pythia", "gpt-neo-pythia")])
def test_the_nearest_name_is_suggested(asked, meant):
    with pytest.raises(InputError, match=rf"^{asked}: no such pair \(did you mean '{meant}'\?\); [^\n]+accepted"):
        find(asked)


def test_names_that_are_like_nothing():
    with pytest.raises(InputError, match=r"^zzz: no such pair; olmo-1b, qwen3, gpt-neo-pythia are accepted"):
        find("zzz")
