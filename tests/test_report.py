"""Reports of runs, from small made-up run folders."""

import hashlib
import html
import io
import os
import re
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest

from exor import InputError, figures, gather, misses, report, results, sheets, tables
from exor.config import RunConfig
from exor.language import PRESETS
from exor.models import build
from exor.runs import RunFolder, run_path
from experiments import report as report_command
from experiments.command import run

STEPS = (0, 100, 200, 300, 400)
FALL = (1.0, 0.5, 0.05, 0.2, 0.01)  # a distance that falls below 10 % twice, the second time for good
MARKED = "before\n<!-- results: python -m experiments.report a --readme b -->\nold\n<!-- /results -->\nafter\n"


def frame(config: RunConfig, scale: float = 1.0) -> pd.DataFrame:
    """Metrics of a run that ends at step 400; distances are ``scale`` times those of FALL, or stay at ``scale``."""
    columns = {"step": STEPS, "loss_train": 1.0, "loss_test": 1.0}
    columns |= {"accuracy_train": (0.0, nan, 0.5, nan, 0.5 + scale / 100), "accuracy_test": 0.25}
    for matrix in ("input", "output"):
        for pair in config.language.pairs:
            name = config.language.pair_name(pair)
            columns[f"{matrix}/{name}"] = scale * (np.array(FALL) if name == "1A-1B" else np.ones(5))
    return pd.DataFrame(columns)


def write(out: Path, config: RunConfig, *, name: str = "made-up", scale: float = 1.0, **summary) -> RunFolder:
    """A run folder with config, metrics and summary."""
    folder = RunFolder(run_path(out, config, name))
    folder.path.mkdir(parents=True)
    folder.write_config(config)
    folder.write("metrics.csv", frame(config, scale).to_csv(index=False))
    folder.write_summary({"state": "finished", "step": 400, "contexts": {"sampled": False}} | summary)
    return folder


def config(seed: int = 1, tied: bool = False, **settings) -> RunConfig:
    """A run of 400 steps."""
    return RunConfig(seed=seed, tied=tied, max_steps=400, **settings)


CSV = frame(config()).to_csv(index=False)


@pytest.fixture
def root(tmp_path) -> Path:
    """Three seeds tied (scales 1, 2, 6), two untied (1, 3)."""
    for seed, scale in ((1, 1), (2, 2), (10, 6)):
        write(tmp_path / "runs", config(seed, True), scale=scale)
    for seed, scale in ((1, 1), (2, 3)):
        write(tmp_path / "runs", config(seed), scale=scale)
    return tmp_path / "runs"


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


# --- several experiments --------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=alert(1)> [red]"
TRAP = "trap_that_must_not_be_imported"


def weigh(folder: RunFolder) -> None:
    """Give a run initial weights, and embeddings that wander."""
    model = build(folder.config())
    folder.write_tensors("weights.pt", model.state_dict())
    walk = np.random.default_rng(0).normal(size=(5, *model.input_embedding.shape)).cumsum(axis=0)
    folder.write_embeddings(list(STEPS), walk, walk)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The report on three experiments and some unusable runs: exit status, output, error, its folder."""
    path = tmp_path_factory.mktemp("made")
    runs, out = path / "runs", path / "report"
    for seed in range(1, 8):
        for tied in (True, False):
            weigh(write(runs, config(seed, tied), name="=made", scale=seed + tied / 2))
    weigh(write(runs, config(1, True, model="mixer"), name=HOSTILE))
    (path / f"{TRAP}.py").write_text("raise SystemExit('imported')")
    for seed in (1, 2, 3):
        for tied in (True, False):
            write(runs, config(seed, tied, model=f"{TRAP}:Model"), name="own", scale=seed + tied)
    write(runs, config(8), name="=made", state="diverged")
    write(runs, config(9), name="never", state="stopped", step=10)
    write(runs, config(10), name="=made").write("metrics.csv", "step\n0\n")
    write(runs, config(11), name="=made").write("config.yaml", "bits: many")
    (write(runs, config(12, model=f"{TRAP}:Model"), name="own").path / "summary.json").unlink()
    printed, complained = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        patch.setattr("sys.stdout", printed)
        patch.setattr("sys.stderr", complained)
        status = run(report_command.app, [str(runs), "--out", str(out)])
    return status, printed.getvalue(), complained.getvalue(), out


def page(made) -> str:
    return (made[3] / "report.html").read_text(encoding="utf-8")


def section(made, name: str) -> str:
    """Of the page, the part on an experiment."""
    (found,) = [part for part in page(made).split("<section>")[1:] if f">{html.escape(name)}</h2>" in part]
    return found.partition("</section>")[0]


def rows(part: str, title: str) -> dict[str, str]:
    """First cell to all the rest of a row with details, in the table with that title."""
    table = part[part.index(f">{title}</h3>") :].partition('<p class="note">')[0]
    found = {}
    for chunk in table.split('<th scope="row"><details><summary>')[1:]:
        label, _, rest = chunk.partition("</summary>")
        found[html.unescape(label)] = rest
    return found


class Tags(HTMLParser):
    """Which elements there are, and that they nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.seen, self.ids = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_report_survives_unusable_runs_and_names_them(made):
    status, printed, complained, out = made
    assert status == 2
    assert complained.count("\n") == 1 and "metrics.csv: damaged" in complained and "bits" in complained
    assert sorted(p.name for p in out.iterdir() if p.is_file()) == ["effects.csv", "report.html", "results.md"]
    left_out = page(made).partition('id="left-out"')[2]
    for words in ("diverged", "stopped", "metrics.csv: damaged", "config.yaml: bits", "unfinished"):
        assert words in left_out and words in (out / "results.md").read_text(), words
    assert "never untied seed 9 (stopped)" in " ".join(printed.split())
    for seed in (8, 10, 11):
        assert f"untied/seed-{seed}" not in section(made, "=made")


def test_experiments_stand_in_order_with_their_differences(made):
    names = [html.unescape(n) for n in re.findall(r"<h2 id=[^>]*>([^<]*)</h2>", page(made))]
    assert names == ["Experiments", "=made", HOSTILE, "own", "Left out"]
    table = sheets.of_settings(gather.gather(made[3].parent / "runs").experiments)
    assert table.headings[:2] == ("experiment", "model") and "seed" not in table.headings
    assert table.rows[1][:2] == (HOSTILE, "mixer")


def test_the_page_asks_for_nothing_and_escapes_names(made):
    text = page(made)
    tags = Tags(text)
    assert len(tags.ids) == len(set(tags.ids))
    for tag, attributes in tags.seen:
        assert tag not in ("link", "iframe", "object", "base") and not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "srcset", "action"):
            link = attributes.get(name) or ""
            assert not re.match(r"(\w+:)?//|\w+:(?!image/png;base64,)", link), link
            if link.startswith("#"):
                assert link[1:] in tags.ids
            elif link and not link.startswith("data:"):
                assert os.path.exists(made[3] / unquote(link)), link
    assert [a["src"][:22] for tag, a in tags.seen if tag == "img"] == ["data:image/png;base64,"] * 12
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert "@import" not in style and "url(" not in style
    assert text.count("<script>") == 1 and "fetch" not in text and HOSTILE not in text
    assert "prefers-color-scheme: dark" in style and 'aria-sort="none"' in text


def test_every_effect_is_that_of_the_csv_and_lists_its_runs(made):
    frame = pd.read_csv(made[3] / "effects.csv", keep_default_na=False)
    assert frame["experiment"].unique().tolist() == ["'=made", "own"]
    for name, seeds in (("=made", range(1, 8)), ("own", (1, 2, 3))):
        found = rows(section(made, name), "Effects of tying")
        here = frame[frame["experiment"].str.removeprefix("'") == name]
        assert len(found) == len(here) == 7
        for row, (_, expected) in zip(found.values(), here.iterrows(), strict=True):
            main, _, more = row.partition('<tr class="more">')
            numbers = [float(v.replace("Infinity", "inf")) for v in re.findall(r'data-sort="([^"]*)"', main)]
            assert numbers == pytest.approx(expected[["tied", "untied", "difference", "p_holm"]].tolist(), rel=1e-12)
            links = [unquote(link) for link in re.findall(r'href="([^"]*)"', more)]
            assert [link.rsplit("/", 3)[-3:-1] for link in links] == [
                [mode, f"seed-{seed}"] for seed in seeds for mode in ("tied", "untied")
            ]
            assert all((made[3] / link / "config.yaml").exists() for link in links)
            assert expected["seeds"] == " ".join(map(str, seeds))


def test_theory_stands_row_by_row_with_its_runs(made):
    found = rows(section(made, "=made"), "Theory and observation")
    assert list(found) == [
        *("tied 1A–1B", "tied 0A–0B", "untied input 1A–1B", "untied input 0A–0B"),
        *("untied output 1A–1B", "untied output 0A–0B", "accuracy"),
    ]
    assert "→ 0" in found["untied input 0A–0B"] and "disagrees" in found["untied input 0A–0B"]  # it stays at its start
    assert "apart" in found["untied output 0A–0B"] and ">agrees" in found["untied output 0A–0B"]
    assert found["tied 1A–1B"].count("href=") == 7 and found["accuracy"].count("href=") == 14


def test_what_cannot_be_told_is_said(made):
    hostile, own = section(made, HOSTILE), html.unescape(section(made, "own"))
    assert "No effects table: no seed has a run to use in both modes" in hostile
    assert ">Effects of tying</h3>" not in hostile and "Theory and observation" in hostile
    assert "Estimated from a fixed sample of 4,096 of 57,344 contexts" in hostile
    assert "is not the lab's own, so its weights are not loaded" in own
    assert "Fewer than 6 seeds can reach no verdict" in own
    assert "No figure “Embeddings in the plane”" in own
    assert "7 seeds (1–7)" in section(made, "=made")
    assert "Contexts that miss the ceiling" in section(made, "=made")
    assert TRAP not in __import__("sys").modules


def test_other_settings_under_one_name_are_another_experiment(root):
    write(root, config(11, learning_rate=1e-3))
    write(root, config(12, learning_rate=2e-3, width=8), state="diverged")
    first, second = gather.gather(root).experiments
    assert {first.name, second.name} == {"made-up (learning_rate 0.0005)", "made-up (learning_rate 0.001)"}
    assert {len(first.folders), len(second.folders)} == {5, 1}
    assert sheets.of_settings([first, second]).headings == ("experiment", "learning_rate")


def test_experiments_are_ordered_by_preset_then_model(tmp_path):
    for name, preset, model in (
        ("a", "hypothesis-fails", "transformer"),
        ("b", "main", "lstm"),
        ("c", "main", "transformer"),
        ("d", "hypothesis-holds", "mixer"),
    ):
        language = PRESETS[preset]
        write(tmp_path, config(1, model=model, zero=language.zero, one=language.one), name=name)
    assert [e.name for e in gather.gather(tmp_path).experiments] == ["c", "b", "d", "a"]


def test_many_synonyms_do_not_explode(tmp_path):
    one = tuple(i / 120 for i in range(1, 16))
    for tied in (True, False):
        write(tmp_path, config(1, tied, zero=(1.0,), one=one))
    (experiment,) = gather.gather(tmp_path).experiments
    assert len(experiment.telling) == 105 and len(experiment.relations) == 3
    gaps = [r.conditional_gap for r in experiment.telling]
    kept = [r.conditional_gap for r in experiment.relations]
    assert (min(kept), max(kept)) == (min(gaps), max(gaps))
    analysis = report.analyse(experiment)
    assert len(analysis.effects) == 1 + 2 * 3
    assert "Of 105 pairs of symbols for the same bit, 3 are looked at" in " ".join(analysis.notes)


def test_versions_that_differ_are_noted(root):
    folder = RunFolder(next(root.rglob("untied/seed-2")))
    for path in root.rglob("summary.json"):
        RunFolder(path.parent).write_summary({"state": "finished", "step": 400, "versions": {"torch": "2.11"}})
    folder.write_summary({"state": "finished", "step": 400, "versions": {"torch": "2.12"}})
    (note,) = report.unlike(gather.collect(root))
    assert note == "Runs differ in torch: 2.11 (4 runs), 2.12 (untied seed 2)."


def test_the_sample_of_contexts_is_near_the_whole(tmp_path):
    weigh(write(tmp_path, config(1, True, model="mixer")))
    experiment = gather.collect(tmp_path)
    whole, part = misses.of_experiment(experiment, budget=100_000), misses.of_experiment(experiment)
    assert not whole.sampled and part.sampled and (part.contexts, part.every) == (4096, whole.contexts)
    a, b = whole.tables["tied"], part.tables["tied"]
    assert b["cost"].sum() == pytest.approx(a["cost"].sum(), abs=0.02)
    np.testing.assert_allclose(b["probability"], a["probability"], atol=0.02)
    assert part.tables["tied"].equals(misses.of_experiment(experiment).tables["tied"])


def test_weights_that_do_not_fit_are_said(root):
    weigh(folder := RunFolder(next(root.rglob("untied/seed-2"))))
    weigh(other := RunFolder(next(root.rglob("untied/seed-1"))))
    other.write_tensors("weights.pt", {"embed.weight": build(config(1, width=8)).input_embedding})
    found = misses.of_experiment(gather.collect(root))
    assert found.tables["untied"]["runs"].tolist() == [1] * len(found.tables["untied"]) and "tied" not in found.tables
    assert len(found.skipped) == 4 and any("untied seed 1" in s for s in found.skipped) and folder.path.exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.012345, "−0.0123"),
        (-31920.4, "−31,920"),
        (0.0, "0"),
        (0.5, "0.500"),
        (99.96, "100.0"),
        (1e-7, "0.000000100"),
        (inf, "∞"),
        (nan, "–"),
    ],
)
def test_numbers_are_printed_with_three_digits(value, text):
    found = sheets.number(value)
    assert found == text
    assert found.value == value or np.isnan(value)


def test_intervals_share_their_decimals():
    assert sheets.with_interval(-0.0082931, -0.096034, 0.080060) == "−0.0083 [−0.0960; 0.0801]"
    assert sheets.with_interval(0.5, nan, nan) == "0.500"
    assert sheets.ranges([1, 2, 4, 5, 6, 9]) == "1, 2, 4–6, 9"


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a"])
def test_names_are_no_formulas(root, name):
    (experiment,) = gather.gather(root).experiments
    analysis = report.analyse(experiment)
    object.__setattr__(experiment, "name", name)
    lines = report.csv([analysis]).splitlines()
    assert lines[1].startswith(f"'{name},") and ",-" in lines[1]  # numbers keep their sign


@pytest.mark.slow
def test_a_report_on_trained_runs(tmp_path):
    from exor.config import with_seeds
    from exor.training import train

    settings = RunConfig(bits=4, max_steps=300)
    train(with_seeds(settings, (1, 2), (True, False)), tmp_path / "runs", compiled=False, workers=1)
    out = tmp_path / "report"
    assert run(report_command.app, [str(tmp_path / "runs"), "--out", str(out)]) == 0
    text = (out / "report.html").read_text()
    assert text.count("<figure>") == 5 and "Contexts that miss the ceiling" in text
    assert len(pd.read_csv(out / "effects.csv")) == 7
