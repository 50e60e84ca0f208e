"""The report on several experiments, and its page, from made-up run folders."""

import html
import io
import os
import re
from html.parser import HTMLParser
from math import inf, nan
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from made_up import STEPS, config, write

from exor import gather, misses, report, sheets
from exor.config import RunConfig
from exor.language import PRESETS
from exor.models import build
from exor.runs import RunFolder
from experiments import report as report_command
from experiments.command import run

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
