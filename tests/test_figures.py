"""Figures from small made-up numbers: what is drawn is what was computed by hand, and all of it can be read."""

from itertools import combinations
from math import inf, nan

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from exor import InputError, comparisons, figures, planes
from exor.figures import MATRICES, MODES, PAIRS

STEPS = (0, 100, 200, 300, 400)
MEETS = {100: (1, 0.05, 0.05, 0.05, 0.05), 300: (1, 0.05, 0.2, 0.05, 0.05), inf: (1, 1, 0.05, 1, 1)}
VOCABULARY = ("0A", "0B", "1A", "1B", "=0", "=1", "[MASK]")
T_2 = 4.302652729911275  # t(.975, 2 degrees of freedom)


def rows(mode: str, seed: int, length: int = 5, **columns) -> pd.DataFrame:
    """A run of one pair, which stays apart where nothing else is said."""
    filled = {"accuracy_train": 0.5, "input/1A-1B": 1.0, "output/1A-1B": 1.0} | columns
    return pd.DataFrame({"mode": mode, "seed": seed, "step": STEPS} | filled)[:length]


def falling(mode: str, seed: int, met: float, length: int = 5) -> pd.DataFrame:
    """A run whose rows have met for good by a step."""
    return rows(mode, seed, length, **{"input/1A-1B": MEETS[met]})


def line(ax: Axes, label: str) -> Line2D:
    """The one line of that label."""
    (found,) = (line for line in ax.lines if line.get_label() == label)
    return found


def dots(ax: Axes) -> np.ndarray:
    """Where the solid dots of a plane are: 0A, 0B, 1A, 1B."""
    (found,) = (c for c in ax.collections if isinstance(c, PathCollection) and len(c.get_offsets()) == 4)
    return np.asarray(found.get_offsets())


def texts(figure: Figure) -> list[Text]:
    """All words that are seen."""
    found = [*figure.texts, *(t for legend in figure.legends for t in legend.get_texts())]
    for ax in figure.axes:
        found += [*ax.texts, ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
        found += ax.get_legend().get_texts() if ax.get_legend() else []
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)  # or no labels
            found += [label for place, label in ticks if low <= place <= high]
    return [text for text in found if text is not None and text.get_visible() and text.get_text()]


def check_legible(figure: Figure) -> None:
    """Words are large enough, inside of the figure, and none lies on another."""
    with figures.style():  # on which ticks depend
        figures.settle(figure)
        seen = texts(figure)
        boxes = [(text.get_text(), text.get_window_extent()) for text in seen]
    assert min(text.get_fontsize() for text in seen) >= 7
    for words, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1, words
    for (words, box), (others, other) in combinations(boxes, 2):
        assert not box.padded(-1).overlaps(other.padded(-1)), (words, others)


def test_looks_differ_without_colour():
    for looks in (MATRICES.values(), MODES.values(), PAIRS[:3]):
        assert len({look.line for look in looks}) == len({look.marker for look in looks}) == len(looks)
    assert len({look.marker for look in PAIRS}) == len(PAIRS)


def test_both_files_are_written_with_embedded_fonts(tmp_path):
    figure = figures.training_curves(rows("tied", 1))
    png, pdf = figures.save(figure, tmp_path / "new" / "figure.pdf")
    assert (png.name, pdf.name) == ("figure.png", "figure.pdf")
    assert png.read_bytes()[:4] == b"\x89PNG"
    written = pdf.read_bytes()
    assert written[:4] == b"%PDF" and b"/CIDFontType2" in written and b"/Type3" not in written


def test_training_curves_differ_in_dashes():
    table = pd.concat([rows(m, s, **{"input/0A-0B": 1.0, "output/0A-0B": 2.0}) for m in MODES for s in (1, 2)])
    figure = figures.training_curves(table, ceiling=0.7)
    for ax, names in zip(figure.axes, 3 * [("1A–1B", "0A–0B")] + [("tied", "untied")], strict=True):
        assert [line(ax, name).get_linestyle() for name in names] == ["-", "--"]
    assert "mean over 2 seeds" in figure.get_supxlabel()
    check_legible(figure)


# --- convergence times ----------------------------------------------------------------------------------------------


def test_shares_that_have_met_are_one_minus_kaplan_meier():
    """At 100, one of four; at 300, one of the two that are left (one ended at 200): 1 − 3/4 · 1/2."""
    runs = [falling("tied", 1, 300), falling("tied", 2, inf, 3), falling("tied", 3, inf), falling("tied", 4, 100)]
    runs[1].loc[2, "input/1A-1B"] = 1.0  # not below at its own end
    figure = figures.convergence_times(pd.concat(runs))
    (ax,) = figure.axes
    curve, met, unmet, _ = ax.lines
    assert curve.get_drawstyle() == "steps-post"
    np.testing.assert_allclose(curve.get_xdata(), [0, 0.1, 0.2, 0.3, 0.4, 0.4])
    np.testing.assert_allclose(curve.get_ydata(), [0, 0.25, 0.25, 0.625, 0.625, 0.625])
    np.testing.assert_allclose(sorted(met.get_xydata().tolist()), [[0.1, 0.25], [0.3, 0.625]])
    np.testing.assert_allclose(sorted(unmet.get_xydata().tolist()), [[0.2, 0.25], [0.4, 0.625]])
    assert ax.get_legend_handles_labels()[1] == ["tied: 2 of 4 met"]
    assert ax.get_title(loc="left") == "1A–1B"
    check_legible(figure)


def test_a_horizon_censors():
    figure = figures.convergence_times(pd.concat([falling("tied", 1, 300), falling("tied", 2, 100)]), horizon=250)
    (ax,) = figure.axes
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[0, 0], [0.1, 0.5], [0.25, 0.5], [0.25, 0.5]])
    assert ax.get_legend_handles_labels()[1] == ["tied: 1 of 2 met"] and ax.get_xlim() == (0, 0.25)


def test_each_pair_and_matrix_has_a_curve_and_legends_lie_above():
    runs = [falling(mode, seed, 100 * seed) for mode in MODES for seed in (1, 3)]
    table = pd.concat(runs).assign(**{"input/0A-0B": 1.0, "output/0A-0B": 2.0})
    figure = figures.convergence_times(table)
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["1A–1B", "0A–0B"]
    ones, zeros = (ax.get_legend_handles_labels()[1] for ax in figure.axes)
    assert ones == ["tied: 2 of 2 met", "untied input: 2 of 2 met", "untied output: 0 of 2 met"]
    assert zeros == ["tied: 0 of 2 met", "untied input: 0 of 2 met", "untied output: 0 of 2 met"]
    assert [line(figure.axes[0], label).get_linestyle() for label in ones] == ["-", "--", "--"]
    check_legible(figure)
    for ax in figure.axes:
        assert ax.get_legend().get_window_extent().y0 > ax.transData.transform((0, 1))[1]


def test_without_a_pair_there_are_no_times():
    with pytest.raises(InputError, match="no pair"):
        figures.convergence_times(rows("tied", 1), pairs=[])


# --- differences ----------------------------------------------------------------------------------------------------


def test_differences_are_paired_by_seed():
    """By seed, tied − untied is 1, 2, 6; by order, or with the seeds that have no partner, it is not."""
    tied = {2: 12.0, 1: 3.0, 10: 11.0, 5: 100.0}
    untied = {10: 5.0, 7: 50.0, 2: 10.0, 1: 2.0}
    table = [rows("tied", s, **{"input/1A-1B": v, "accuracy_train": v / 100}) for s, v in tied.items()]
    table += [rows("untied", s, **{"input/1A-1B": v, "accuracy_train": v / 100}) for s, v in untied.items()]
    figure = figures.differences_over_training(pd.concat(table))
    distance, accuracy = figure.axes
    half = T_2 * np.std([1, 2, 6], ddof=1) / 3**0.5
    for ax, label, scale in ((distance, "tied − untied input", 1), (accuracy, "tied − untied", 0.01)):
        np.testing.assert_allclose(line(ax, label).get_ydata(), 3 * scale)
        band = ax.collections[0].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((scale * (3 - half), scale * (3 + half)))
        singles = [thin.get_ydata()[0] for thin in ax.lines if thin.get_label() == "_single seeds"]
        np.testing.assert_allclose(
            sorted(singles), [scale * d for d in ((1, 2, 6) if ax is accuracy else (1, 2, 2, 6, 10, 11))]
        )
        assert any(set(thin.get_ydata()) == {0} for thin in ax.lines)  # the zero line
    np.testing.assert_allclose(line(distance, "tied − untied output").get_ydata(), (3 + 12 + 11) / 3 - 1)
    assert "mean over 3 seeds" in figure.get_supxlabel()
    check_legible(figure)


def test_accuracy_that_is_evaluated_rarely_is_carried_on():
    rare = (0.0, nan, 0.4, nan, 0.6)
    table = pd.concat([rows("tied", 1, accuracy_train=rare), rows("untied", 1, accuracy_train=0.1)])
    figure = figures.differences_over_training(table)
    np.testing.assert_allclose(line(figure.axes[-1], "tied − untied").get_ydata(), [-0.1, -0.1, 0.3, 0.3, 0.5])
    assert figure.get_supxlabel().startswith("One seed.") and not figure.axes[0].collections
    check_legible(figure)


@pytest.mark.parametrize("table", [rows("tied", 1), pd.concat([rows("tied", 1), rows("untied", 2)])])
def test_differences_need_a_seed_in_both_modes(table):
    with pytest.raises(InputError, match="no seed ran both tied and untied"):
        figures.differences_over_training(table)


# --- planes ---------------------------------------------------------------------------------------------------------


def walk(width: int, snapshots: int = 9) -> np.ndarray:
    """``[snapshots, 7, width]``: symbols that wander."""
    return np.random.default_rng(width).normal(size=(snapshots, 7, width)).cumsum(axis=0)


def distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_a_plane_of_width_2_keeps_every_distance_between_all_columns():
    """Points of different columns too: so all columns have the same basis and the same origin."""
    track, steps = walk(2), np.arange(9) * 100
    figure = planes.embedding_plane({"tied": (steps, track)}, VOCABULARY, steps=(0, 310, 800))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["step 0", "step 300", "step 800"]
    seen = np.concatenate([dots(ax) for ax in figure.axes])
    np.testing.assert_allclose(distances(seen), distances(track[[0, 3, 8], :4].reshape(-1, 2)))
    assert figure.axes[0].get_ylabel() == "tied\n100 % of variance"
    assert len({(ax.get_xlim(), ax.get_ylim()) for ax in figure.axes}) == 1
    np.testing.assert_allclose(figure.axes[1].lines[0].get_xydata()[-1], seen[4])  # the way of 0A ends at 0A
    assert [len(ax.lines[0].get_xdata()) for ax in figure.axes] == [1, 4, 9]
    check_legible(figure)


@pytest.mark.parametrize("width", [1, 4, 32])
def test_a_plane_is_made_of_the_two_largest_components(width):
    track = walk(width)[:, :4]
    plane = planes.principal_plane(track, np.ones(width))
    seen, flat = plane(track), track.reshape(-1, width)
    np.testing.assert_allclose(seen.mean(axis=(0, 1)), 0, atol=1e-12)
    variances = np.linalg.eigvalsh(np.atleast_2d(np.cov(flat.T)))[::-1]
    expected = [*variances[:2], 0.0][:2]
    np.testing.assert_allclose(seen.reshape(-1, 2).var(axis=0, ddof=1), expected, atol=1e-12)
    np.testing.assert_allclose(plane.share, np.array(expected) / variances.sum(), atol=1e-12)
    assert seen.shape == (9, 4, 2) and (distances(seen[0]) <= distances(track[0]) + 1e-9).all()
    assert (plane.basis @ np.ones(width) >= 0).all()


def test_the_signs_of_axes_do_not_depend_on_those_of_the_decomposition(monkeypatch):
    track, svd = {"tied": (range(9), walk(4))}, np.linalg.svd

    def picture() -> np.ndarray:
        return np.concatenate([dots(ax) for ax in planes.embedding_plane(track, VOCABULARY).axes])

    before = picture()
    assert (before[-2:].mean(axis=0) >= before[-4:-2].mean(axis=0)).all()  # at the end, from zeros to ones
    for signs in ((-1, 1, 1, 1), (1, -1, 1, 1), (-1, -1, 1, 1)):
        flipped = np.array(signs)

        def other(points, flipped=flipped, **options):
            left, scales, right = svd(points, **options)
            return left * flipped, scales, right * flipped[:, None]

        monkeypatch.setattr(np.linalg, "svd", other)
        np.testing.assert_allclose(picture(), before)


def test_a_turned_space_gives_the_same_picture():
    track = walk(4)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))
    one, other = (planes.embedding_plane({"tied": (range(9), t)}, VOCABULARY) for t in (track, track @ turn))
    for a, b in zip(one.axes, other.axes, strict=True):
        np.testing.assert_allclose(dots(a), dots(b), atol=1e-9)


def test_rows_have_their_own_plane_and_columns_steps_that_all_have():
    steps = np.arange(0, 150_001, 400)
    tracks = {name: (steps, walk(width, 376) / 100) for name, width in (("tied", 1), ("untied input", 4))}
    tracks["untied output"] = steps[::2], walk(32, 188) / 100
    figure = planes.embedding_plane(tracks, VOCABULARY)
    titles = [ax.get_title(loc="left") for ax in figure.axes[:5]]
    assert titles == ["step 0", "step 4,800", "step 15,200", "step 48,000", "step 149,600"]
    assert [ax.get_ylabel().splitlines()[0] for ax in figure.axes[::5]] == list(tracks)
    assert not dots(figure.axes[4])[:, 1].any() and dots(figure.axes[14])[:, 1].any()  # width 1: on a line
    assert len({ax.get_xlim() for ax in figure.axes}) == 3


def test_names_keep_apart_where_symbols_have_met():
    track = np.repeat(walk(4, 1), 2, axis=0)
    track[1, 0], track[1, 2] = track[1, 1], track[1, 3]
    figure = planes.embedding_plane({"tied": ((0, 1), track)}, VOCABULARY, steps=(0, 1))
    assert [text.get_text() for text in figure.axes[1].texts][:4] == ["0A", "0B", "1A", "1B"]
    check_legible(figure)


def test_embeddings_that_stand_still_are_drawn():
    figure = planes.embedding_plane({"tied": ((0,), np.ones((1, 7, 4)))}, VOCABULARY)
    assert figure.axes[0].get_ylabel() == "tied\n0 % of variance"


@pytest.mark.parametrize(
    ("tracks", "words"),
    [
        ({}, "no embeddings"),
        ({"tied": ((0, 1), np.zeros((2, 6, 4)))}, r"tied: shape \(2, 6, 4\), \[2 steps, 7 symbols, width\]"),
        ({"tied": ((0, 1), np.zeros((1, 7, 4)))}, r"\[2 steps, 7 symbols"),
        ({"tied": ((0,), np.full((1, 7, 4), nan))}, "not finite"),
        ({"a": ((0,), np.zeros((1, 7, 4))), "b": ((1,), np.zeros((1, 7, 4)))}, "no step in common"),
    ],
)
def test_what_cannot_be_seen_in_a_plane(tracks, words):
    with pytest.raises(InputError, match=words):
        planes.embedding_plane(tracks, VOCABULARY)


# --- comparisons ----------------------------------------------------------------------------------------------------

EFFECTS = pd.DataFrame(
    [
        ("accuracy", "", "", -0.01, -0.09, 0.06, "no evidence"),
        ("distance", "1A-1B", "input", -0.04, -0.06, -0.02, "helped"),
        ("distance", "0A-0B", "untied output", nan, nan, nan, nan),
        ("convergence", "1A-1B", "input", 30_000.0, 12_000.0, inf, "hurt"),
        ("convergence", "1A-1B", "output", 5_000.0, nan, nan, "too few seeds"),
    ],
    columns=["quantity", "pair", "against", "mean", "low", "high", "verdict"],
)


def test_a_forest_shows_each_row_in_the_panel_of_its_unit():
    figure = comparisons.effects_forest(EFFECTS)
    titles = ["Accuracy", "Distance of the two rows", "Steps until the two rows have met"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == titles
    labels = [[label.get_text() for label in ax.get_yticklabels()] for ax in figure.axes]
    assert labels[0] == ["tied − untied"]
    assert labels[1] == ["1A–1B: tied − untied input", "0A–0B: tied − untied output"]
    verdicts = [[text.get_text() for text in ax.texts] for ax in figure.axes]
    assert verdicts == [["no evidence"], ["helped", "–"], ["hurt", "too few seeds"]]
    interval, mean, *_ = figure.axes[1].lines
    np.testing.assert_allclose(interval.get_xdata(), [-0.06, -0.02])
    assert (mean.get_xdata()[0], mean.get_ydata()[0]) == (-0.04, 0)
    assert mean.get_markerfacecolor() == "k" and figure.axes[0].lines[1].get_markerfacecolor() == "w"
    arrows = [line.get_marker() for ax in figure.axes for line in ax.lines if line.get_marker() in ("<", ">")]
    assert arrows == [">"]
    assert figure.axes[0].get_ylim() == (0.5, -0.5)  # from top to bottom
    assert all(ax.get_xlim()[0] < 0 < ax.get_xlim()[1] for ax in figure.axes)  # zero is always seen
    check_legible(figure)


def test_a_forest_of_another_column_and_of_nothing():
    figure = comparisons.effects_forest(EFFECTS.rename(columns={"mean": "difference"})[:1], mean="difference")
    assert figure.axes[0].lines[1].get_xdata()[0] == -0.01
    with pytest.raises(InputError, match="no effects"):
        comparisons.effects_forest(EFFECTS[:0])


def gaps() -> pd.DataFrame:
    """Three seeds at two gaps; at gap .8, tied − untied accuracy is .1, .2, .6 by seed but not by order."""
    found = []
    for gap, tied, untied in ((0.0, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), (0.8, (0.3, 0.5, 0.8), (0.3, 0.2, 0.2))):
        found += [(gap, "tied", s, a, 0.8, gap, gap) for s, a in zip((1, 2, 3), tied, strict=True)]
        found += [(gap + 1e-12, "untied", s, a, 0.8, 0.1, 2 * gap) for s, a in zip((2, 1, 3), untied, strict=True)]
    columns = ["gap", "mode", "seed", "accuracy", "ceiling", "input/0A-0B", "output/0A-0B"]
    return pd.DataFrame(found, columns=columns)


def test_what_a_gap_does_against_hand_computation():
    figure = comparisons.against_gap(gaps())
    accuracy, distance, change = figure.axes
    np.testing.assert_allclose(line(accuracy, "tied").get_ydata(), [0.5 / 0.8, 1.6 / 3 / 0.8])
    np.testing.assert_allclose(line(accuracy, "untied").get_ydata(), [0.5 / 0.8, 0.7 / 3 / 0.8])
    np.testing.assert_allclose(line(distance, "tied").get_ydata(), [0, 0.8])
    np.testing.assert_allclose(line(distance, "untied input").get_ydata(), [0.1, 0.1])
    np.testing.assert_allclose(line(distance, "untied output").get_ydata(), [0, 1.6])
    np.testing.assert_allclose(line(change, "tied − untied").get_xydata(), [[0, 0], [0.8, 0.3]])
    half = T_2 * np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5
    (bar,) = change.containers[-1].lines[2]
    np.testing.assert_allclose(bar.get_segments()[0], [[0.8, 0.3 - half], [0.8, 0.3 + half]])
    singles = [c.get_offsets()[:, 1] for c in change.collections if isinstance(c, PathCollection)]
    np.testing.assert_allclose(sorted(singles[-1]), [0.1, 0.2, 0.6])
    assert figure.get_supxlabel() == "Mean and 95 % t-interval over 3 seeds; dots: single seeds."
    check_legible(figure)


def test_gaps_of_another_pair_of_one_mode_and_of_one_seed():
    frame = gaps().rename(columns={"gap": "g", "accuracy": "a", "input/0A-0B": "input/1A-1B"})
    frame = frame[(frame["mode"] == "tied") & (frame["seed"] == 1)]
    figure = comparisons.against_gap(frame, "1A-1B", gap="g", accuracy="a")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Accuracy", "Distance 1A–1B"]
    assert figure.get_supxlabel() == "One seed." and not figure.axes[0].containers
    check_legible(figure)


def test_gaps_that_cannot_be_shown():
    with pytest.raises(InputError, match="no runs"):
        comparisons.against_gap(gaps()[:0])
    with pytest.raises(InputError, match=r"two runs are tied seed 1 at gap 0;"):
        comparisons.against_gap(pd.concat([gaps(), gaps()[:1]]))
