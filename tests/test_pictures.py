"""Figures of real models: what is drawn, from made-up tables."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from matplotlib.collections import PathCollection, PolyCollection

from exor import InputError
from exor.pretrained import pictures
from exor.pretrained.evolution import read_published

REFERENCE = ROOT.parent / "shared" / "reference" / "pairs"
INWARD, OUTWARD = "untied input → tied", "untied output → tied"


@pytest.fixture(autouse=True)
def close():
    yield
    plt.close("all")


def drawn(figure):
    """Draw it, and give its panels."""
    figure.canvas.draw()
    return figure.axes


def test_histogram():
    rng = np.random.default_rng(0)
    cosines = {INWARD: rng.normal(0.5, 0.1, 5000), OUTWARD: np.append(rng.normal(0.7, 0.1, 5000), np.nan)}
    (ax,) = drawn(pictures.alignment_histogram(cosines, title="no $x_{$ mathematics", chance={INWARD: 0.2}))
    filled = [np.array([bar.get_height() for bar in held]) for held in ax.containers if len(held) == 80]
    assert [heights.sum() for heights in filled] == [5000, 5000]
    means = [cosines[INWARD].mean(), np.nanmean(cosines[OUTWARD])]
    places = {line.get_label(): line.get_xdata()[0] for line in ax.lines}
    assert [places[f"_mean {name}"] for name in (INWARD, OUTWARD)] == pytest.approx(means)
    assert places[f"{INWARD}: chance 0.200"] == 0.2 and len(places) == 3
    drawn(pictures.alignment_histogram({"one": np.ones(10)}))  # all equal
    with pytest.raises(InputError, match="no cosines"):
        pictures.alignment_histogram({INWARD: np.array([np.nan])})


def overlaps(published=(0.496, None, None)):
    rows = [("untied input", "tied", 0.5), ("untied output", "tied", 0.7), ("untied input", "untied output", 0.4)]
    table = pd.DataFrame(
        [
            {
                "a": a,
                "b": b,
                "rows": kind,
                "k": 10,
                "overlap": v - shift,
                "low": v - 0.01,
                "high": v + 0.01,
                "chance": 0.01,
            }
            for a, b, v in rows
            for kind, shift in (("raw", 0), ("mean removed", 0.1))
        ]
    )
    table["published"] = [p for value in published for p in (value, None)]
    return table


def test_neighbour_bars():
    (ax,) = drawn(pictures.neighbour_bars(overlaps()))
    heights = [bar.get_height() for bar in ax.patches]
    assert heights == pytest.approx([0.5, 0.4, 0.7, 0.6, 0.4, 0.3])
    diamonds = [line.get_ydata()[0] for line in ax.lines if line.get_marker() == "D"]
    assert diamonds == [0.496]
    assert any(np.allclose(line.get_ydata(), 0.01) for line in ax.lines)  # chance
    with pytest.raises(InputError, match="no comparisons"):
        pictures.neighbour_bars(overlaps().iloc[:0])


def norms(tokens):
    rng = np.random.default_rng(1)
    count = rng.integers(0, 1000, tokens)
    made = [
        pd.DataFrame({"matrix": name, "count": count, "norm": 1 + np.log10(count + 1) * slope})
        for name, slope in (("tied", 1), ("untied output", -0.2))
    ]
    return pd.concat(made)


def test_norm_and_frequency():
    table = norms(200)
    axes = drawn(pictures.norm_frequency(table))
    assert [ax.get_title(loc="left") for ax in axes] == ["tied", "untied output"]
    dots = axes[0].lines[0]
    seen = table[(table["matrix"] == "tied") & (table["count"] > 0)]
    assert sorted(dots.get_xdata()) == pytest.approx(sorted(np.log10(seen["count"] + 1)))
    many = drawn(pictures.norm_frequency(norms(5000)))
    assert any(isinstance(c, (PolyCollection, PathCollection)) for c in many[0].collections)
    with pytest.raises(InputError, match="no tokens"):
        pictures.norm_frequency(table.assign(count=0))


def test_running_median():
    x = np.arange(400.0)
    found = pictures.running_median(x, 2 * x)
    assert len(found) == 20 and found["y"].tolist() == pytest.approx((2 * found["x"]).tolist())
    assert found["x"].iloc[0] == np.median(x[:20])
    assert pictures.running_median(x[:30], x[:30]).empty


def test_spectra():
    values = {"tied, raw": np.array([4.0, 2.0, 0.0]), "tied, mean removed": np.array([3.0, 1.5])}
    axes = drawn(pictures.spectra(values))
    assert [ax.get_title(loc="left") for ax in axes] == ["Raw", "Mean removed"]
    assert axes[0].lines[0].get_ydata().tolist() == [1, 0.5] and axes[0].lines[0].get_xdata().tolist() == [1, 2]
    with pytest.raises(InputError, match="no singular values"):
        pictures.spectra({"tied, raw": np.zeros(3)})


def test_evolution():
    table = pd.DataFrame(
        {
            "step": [0, 0, 500, 500],
            "matrix": ["input", "output"] * 2,
            "to_first": [1, 1, 0.9, 0.8],
            "to_previous": [np.nan, np.nan, 0.9, 0.8],
        }
    )
    left, right = drawn(pictures.evolution_curves(table))
    assert [line.get_ydata().tolist() for line in left.lines] == [[1, 0.9], [1, 0.8]]
    assert [line.get_xdata().tolist() for line in right.lines] == [[500], [500]]
    both = drawn(pictures.evolution_curves(table, table.assign(to_first=0.7)))
    assert len(both[0].lines) == 4
    with pytest.raises(InputError, match="no checkpoints"):
        pictures.evolution_curves(table.iloc[:0])


@pytest.mark.skipif(not REFERENCE.exists(), reason="no published curves here")
def test_published_evolution():
    for path in sorted(REFERENCE.glob("evolution-*.json")):
        table = read_published(path)
        left, _ = drawn(pictures.evolution_curves(table))
        curve = table[table["matrix"] == "input"].sort_values("step")
        assert left.lines[0].get_ydata().tolist() == pytest.approx(curve["to_first"].tolist())


def test_differences():
    bands = [("all", np.nan, np.nan), ("unseen", 0, 0), ("fifth 1", 1, 9)]
    table = pd.DataFrame(
        [
            {"kind": kind, "band": b, "lowest": lo, "highest": hi, "difference": d, "low": d - 0.1, "high": d + 0.1}
            for kind, d in (("linear", 0.2), ("orthogonal", 0.3))
            for b, lo, hi in bands
        ]
    )
    (ax,) = drawn(pictures.differences(table))
    assert [text.get_text() for text in ax.get_xticklabels()] == ["all", "0", "1–9"]
    assert [line.get_ydata().tolist() for line in ax.lines if len(line.get_ydata()) == 3] == [[0.2] * 3, [0.3] * 3]
    with pytest.raises(InputError, match="no bands"):
        pictures.differences(table.iloc[:0])
