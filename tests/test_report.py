"""Reports of runs, from small made-up run folders."""

import hashlib
import re
from math import inf

import numpy as np
import pandas as pd
import pytest
from made_up import CSV, FALL, STEPS, config, write

from exor import InputError, figures, gather, results, tables
from exor.language import PRESETS
from exor.runs import RunFolder
from experiments import report as report_command
from experiments.command import run

MARKED = "before\n<!-- results: python -m experiments.report a --readme b -->\nold\n<!-- /results -->\nafter\n"


def error(capsys, *arguments) -> str:
    """Run in process; the one line of the error."""
    assert run(report_command.app, list(map(str, arguments))) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_the_table_holds_every_row_of_every_run(root):
    table = gather.metrics_table(root)
    assert len(table) == 5 * len(STEPS)
    assert list(table.columns[:3]) == ["mode", "seed", "step"]
    assert set(zip(table["mode"], table["seed"], strict=True)) == {
        *(("tied", s) for s in (1, 2, 10)),
        *(("untied", s) for s in (1, 2)),
    }
    row = table[(table["mode"] == "untied") & (table["seed"] == 2) & (table["step"] == 300)].iloc[0]
    assert row["input/1A-1B"] == pytest.approx(0.6)
    assert np.isnan(row["accuracy_train"])


def test_mean_and_range_at_steps(root):
    table = gather.metrics_table(root)
    found = tables.at_steps(table, [100, 350, 400, 500], ["input/1A-1B", "accuracy_train"])
    found = found.set_index(["mode", "column", "step"])
    assert found.loc[("tied", "input/1A-1B", 100)].tolist() == pytest.approx([1.5, 0.5, 3.0, 3])
    assert found.loc[("untied", "input/1A-1B", 100)].tolist() == pytest.approx([1.0, 0.5, 1.5, 2])
    assert found.loc[("tied", "input/1A-1B", 350)].tolist() == pytest.approx([0.6, 0.2, 1.2, 3])  # as at 300
    assert found.loc[("tied", "accuracy_train", 350)].tolist() == pytest.approx([0.5, 0.5, 0.5, 3])  # as at 200
    assert found.loc[("tied", "accuracy_train", 400)].tolist() == pytest.approx([0.53, 0.51, 0.56, 3])
    assert 500 not in found.index.get_level_values("step")  # beyond the end


def test_all_numbers_are_wanted_by_default(root):
    table = gather.metrics_table(root)
    assert set(tables.at_steps(table, [0])["column"]) == set(table.columns) - {"mode", "seed", "step"}


def test_convergence_counts_only_if_it_lasts(root):
    found = tables.convergence_steps(gather.metrics_table(root), ["input/1A-1B", "output/0A-0B"])
    assert len(found) == 10
    assert set(found["step"][found["column"] == "input/1A-1B"]) == {400}
    assert set(found["step"][found["column"] == "output/0A-0B"]) == {inf}


def test_sheets_against_hand_computation(root):
    distances, meetings, accuracies = results.of_curves(gather.collect(root))
    assert distances.headings == ("matrix, pair", "runs", "step 400")
    assert distances.rows == (
        ("tied 1A–1B", "here, 3 seeds", "0.030 [0.010–0.060]"),
        ("tied 0A–0B", "here, 3 seeds", "3.00 [1.00–6.00]"),
        ("untied input 1A–1B", "here, 2 seeds", "0.020 [0.010–0.030]"),
        ("untied input 0A–0B", "here, 2 seeds", "2.00 [1.00–3.00]"),
        ("untied output 1A–1B", "here, 2 seeds", "0.020 [0.010–0.030]"),
        ("untied output 0A–0B", "here, 2 seeds", "2.00 [1.00–3.00]"),
    )
    assert [row[0] for row in meetings.rows] == [
        "tied 1A–1B",
        "untied input 1A–1B",
        "untied input 0A–0B",
        "untied output 1A–1B",
    ]
    assert meetings.rows[2][2:] == ("0 of 2", "never [never–never]")
    assert meetings.rows[0][2] == "3 of 3"
    assert accuracies.rows[0] == ("tied, training strings", "here, 3 seeds", "0.530 [0.510–0.560]")
    assert "0.704 on training strings, 0.663 on test strings" in accuracies.note


def test_a_reference_stands_below(root, tmp_path):
    folder = tmp_path / "reference"
    folder.mkdir()
    for seed in (7, 8):
        columns = {"step": (0, 100, 200, 300, 399), "input/0A-0B": 2.0, "input/1A-1B": 0.5, "accuracy_sampled": 0.4}
        pd.DataFrame(columns).to_csv(folder / f"tied-seed-{seed}.csv", index=False)
    distances, _, accuracies = results.of_curves(gather.collect(root), gather.reference_table(folder))
    assert distances.rows[1] == ("tied 1A–1B", "reference, 2 seeds", "0.50 [0.50–0.50]")  # its last row is step 399
    assert [row[1] for row in distances.rows].count("reference, 2 seeds") == 2  # it has no untied runs
    assert accuracies.rows[1] == ("tied, training strings", "reference, 2 seeds", "0.400 [0.400–0.400]")


def test_diverged_and_unfinished_runs_are_left_out_and_named(root, caplog):
    write(root, config(4), state="diverged", step=200)
    unfinished = write(root, config(5, True))
    unfinished.file("summary.json").unlink()
    write(root, config(6), step=300)  # more steps have been asked for since
    experiment = gather.collect(root)
    assert tuple(map(str, experiment.left_out)) == (
        "tied seed 5 (unfinished)",
        "untied seed 4 (diverged)",
        "untied seed 6 (stopped at step 300 of 400)",
    )
    assert experiment.table["seed"].max() == 10 and not experiment.table["seed"].isin((4, 5, 6)).any()
    assert "untied seed 4 (diverged)" in results.results(experiment)
    gather.metrics_table(root)
    assert "tied seed 5 (unfinished)" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zero": (1.0,)}, "another language"),
        ({"bits": 5}, "bits 5 instead of 7"),
        ({"learning_rate": 1e-3}, "(learning_rate 0.001)"),
    ],
)
def test_different_experiments_do_not_mix(root, settings, words):
    write(root, config(11, **settings))
    with pytest.raises(InputError, match=re.escape(words)):
        gather.collect(root)


def test_the_same_run_twice_is_an_error(root, tmp_path):
    write(tmp_path / "again", config(1))
    with pytest.raises(InputError, match=r"untied seed 1 is in .* too"):
        gather.collect(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "No columns to parse"),
        ("step,loss_train\n0,1\n", "no column 'accuracy_train'"),
        (CSV.partition("\n")[0], "damaged ("),
        (CSV.replace("output/0A-0B", "output"), "no column 'output/0A-0B'"),
        (CSV.replace("0.25", "much"), "column 'accuracy_test' holds other things than numbers"),
        (CSV.replace("\n100,", "\n300,"), "steps do not run upwards from 0"),
        (CSV.rpartition("400,")[0], "it ends at step 300, its run at 400"),
        (CSV.rpartition(",")[0], "distances are missing at step 400"),
        (CSV + "1,2,3,4\n" + "1," * 40, "Expected 17 fields"),
        (b"step,accuracy_train\n\xff\xfe,1\n", "metrics.csv: damaged"),
    ],
)
def test_a_damaged_table_is_named_with_its_file(root, text, words):
    folder = next(root.rglob("untied/seed-2"))
    RunFolder(folder).write("metrics.csv", text)
    with pytest.raises(InputError) as caught:
        gather.collect(root)
    assert str(folder / "metrics.csv") in str(caught.value) and words in str(caught.value)
    gathered = gather.gather(root)
    (run,) = gathered.damaged
    assert run.why == str(caught.value)
    assert ("untied", 2) not in gathered.experiments[0].folders and len(gathered.experiments[0].folders) == 4


@pytest.mark.parametrize("text", ["{", "[1]", '"finished"'])
def test_a_damaged_summary_is_named(root, text):
    folder = RunFolder(next(root.rglob("tied/seed-10")))
    folder.write("summary.json", text)
    assert "summary.json: damaged" in gather.gather(root).damaged[0].why


def test_a_readme_is_not_renewed_from_damaged_runs(root, tmp_path, capsys):
    RunFolder(next(root.rglob("untied/seed-2"))).write("metrics.csv", "")
    (tmp_path / "README.md").write_text(MARKED)
    line = error(capsys, root, "--out", tmp_path / "report", "--readme", tmp_path / "README.md")
    assert "metrics.csv: damaged" in line
    assert not (tmp_path / "report").exists() and (tmp_path / "README.md").read_text() == MARKED


def test_other_bad_input_is_one_line(root, tmp_path, capsys):
    assert "holds no runs" in error(capsys, tmp_path / "nowhere")
    assert "holds no reference curves" in error(capsys, root, "--reference", tmp_path)
    (tmp_path / "tied-seed-1.csv").write_text("step,accuracy_sampled\n0,a\n")
    assert "tied-seed-1.csv: damaged" in error(capsys, root, "--reference", tmp_path)
    assert "README.md: cannot be read (No such file" in error(capsys, root, "--readme", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("no markers")
    assert "README.md: exactly one line '<!-- results:" in error(capsys, root, "--readme", tmp_path / "README.md")
    write(tmp_path / "others", config(4), state="diverged")
    assert "no finished run; left out: untied seed 4 (diverged)" in error(capsys, tmp_path / "others")


def test_the_command_writes_prints_and_renews(root, tmp_path, capsys):
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    out = tmp_path / "report"
    arguments = [str(root), "--out", str(out), "--readme", str(readme)]
    assert run(report_command.app, arguments) == 0
    printed = capsys.readouterr().out
    assert "Effects of tying" in printed and "Theory and observation" in printed
    assert max(map(len, printed.partition("Written")[0].splitlines())) <= 100
    assert sorted(p.name for p in out.iterdir()) == ["effects.csv", "made-up", "report.html", "results.md"]
    block = results.results(gather.collect(root))
    assert "| tied 1A–1B | here, 3 seeds | 0.030 [0.010–0.060] |" in block
    assert "| tied 1A–1B | here, 3 seeds | 0.030 [0.010–0.060] |" in (out / "results.md").read_text()
    head, tail = MARKED.split("old\n")
    assert readme.read_text() == f"{head}\n{block}\n{tail}"
    picture = tmp_path / "docs/results/training-curves.png"
    assert picture.read_bytes() == (out / "made-up" / "training-curves.png").read_bytes()
    assert not list(tmp_path.rglob("*.partial"))

    every = [readme, *(path for path in out.rglob("*") if path.is_file())]
    before = {path: hashlib.sha256(path.read_bytes()).digest() for path in every}
    assert run(report_command.app, arguments) == 0  # again: the same files
    assert before == {path: hashlib.sha256(path.read_bytes()).digest() for path in before}


@pytest.mark.parametrize("text", ["", MARKED + MARKED, MARKED.replace("<!-- /results -->", "")])
def test_markers_must_be_one_pair(text):
    with pytest.raises(InputError, match="exactly one line"):
        results.replace_results(text, "new")


def drawn(ax) -> dict[str, np.ndarray]:
    """Label to data of the thick lines."""
    return {line.get_label(): line.get_ydata() for line in ax.lines if not line.get_label().startswith("_")}


def test_the_figure_shows_each_matrix_and_accuracy(root):
    table = gather.metrics_table(root)
    figure = figures.training_curves(table, ceiling=0.7)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == ["Tied: the one matrix", "Untied: input embedding", "Untied: output embedding", "Training strings"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["distance"] * 3 + ["accuracy"]
    assert figure.axes[2].get_xlabel() == figure.axes[3].get_xlabel() == "step / 1,000"
    for ax, mean in zip(figure.axes[:3], (3, 2, 2), strict=True):
        lines = drawn(ax)
        assert list(lines) == ["1A–1B", "0A–0B"]
        np.testing.assert_allclose(lines["1A–1B"], mean * np.array(FALL))
        np.testing.assert_allclose(lines["0A–0B"], mean)
        assert len(ax.collections) == 2  # the bands
    assert len(figure.axes[0].lines) == 2 * (3 + 1)
    assert list(drawn(figure.axes[3])) == ["tied", "untied"]
    (note,) = figure.axes[3].texts
    assert note.get_text() == "best possible: 0.700"
    assert "3 tied seeds, 2 untied seeds" in figure.get_supxlabel()
    half = 4.302652729911275 * np.std([1, 2, 6], ddof=1) / 3**0.5  # t(.975, 2 degrees of freedom)
    band = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((3 - half, 3 + half))


@pytest.mark.parametrize("preset", ["hypothesis-holds", "hypothesis-fails"])
def test_languages_with_a_single_pair(preset, tmp_path):
    language = PRESETS[preset]
    for tied in (True, False):
        write(tmp_path, config(1, tied, zero=language.zero, one=language.one))
    experiment = gather.collect(tmp_path)
    figure = figures.training_curves(experiment.table, ceiling=experiment.ceiling)
    assert [list(drawn(ax)) for ax in figure.axes[:3]] == [["1A–1B"]] * 3
    assert figure.get_supxlabel() == "One seed."
    assert "| untied input 1A–1B | here, 1 seed | 0.010 |" in results.results(experiment)


def test_one_mode_alone(tmp_path):
    write(tmp_path, config(1, True))
    figure = figures.training_curves(gather.metrics_table(tmp_path))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Tied: the one matrix", "Training strings"]
    paths = figures.save(figure, tmp_path / "new" / "figure.png")
    assert [path.name for path in paths] == ["figure.png", "figure.pdf"]
    assert paths[0].read_bytes()[:4] == b"\x89PNG" and paths[1].read_bytes()[:4] == b"%PDF"


def test_estimates_say_so(tmp_path):
    write(tmp_path, config(1), contexts={"sampled": True})
    experiment = gather.collect(tmp_path)
    assert experiment.sampled and "Estimated from a sample" in results.results(experiment)
    figure = figures.training_curves(experiment.table, exact=not experiment.sampled)
    assert figure.axes[-1].get_ylabel() == "accuracy (estimate)"
