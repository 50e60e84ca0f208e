"""The report on real models, on planted matrices."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
import torch

from exor.pretrained.geometry import Geometry, Settings
from exor.pretrained.pairs import PAIRS
from exor.pretrained.report import TITLES, Report, write
from exor.pretrained.store import Finding
from exor.pretrained.subjects import INPUT, OUTPUT, PUBLISHED, TIED

N, WIDTH = 400, 16
HOSTILE = "<script>alert(1)</script>"
SMALL = Settings(graph=8, components=16, subspace=8, resamples=200)


def planted(share):
    """A tied matrix that is so much of the output matrix, and the rest of the input matrix, rotated."""
    generator = torch.Generator().manual_seed(0)
    inward, outward, noise = (torch.randn(N, WIDTH, generator=generator) for _ in range(3))
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q
    tied = (share * outward + (1 - share) * inward + 0.1 * noise) @ rotation
    return {TIED: tied, INPUT: inward, OUTPUT: outward}


def findings(matrices, comparisons=PUBLISHED, names=None, **more):
    geometry = Geometry(matrices, comparisons, settings=SMALL, **more)
    return {name: geometry.find(name) for name in names or geometry.analyses}


class Links(HTMLParser):
    """Addresses in a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    counts = torch.randint(0, 50, (N,), generator=torch.Generator().manual_seed(1)).numpy()
    found = findings(planted(0.8), counts=counts, gains={TIED: torch.full((WIDTH,), 2.0)})
    facts = tuple({"model": f"{HOSTILE}{i}", "tied": not i, "width": WIDTH, "scale": float("nan")} for i in range(2))
    report = Report("=x " + HOSTILE, found, facts, [f"Note {HOSTILE}."], PAIRS["olmo-1b"].value)
    write(report, out, command=f"c {HOSTILE}", date="2026-01-01")
    return report, out, (out / "report.html").read_text()


def test_the_page_stands_alone(made):
    report, out, page = made
    assert HOSTILE not in page and "&lt;script&gt;alert(1)" in page
    for link in Links(page).found:
        assert link.startswith(("data:image/png", "#")) or (link.endswith(".pdf") and (out / link).exists()), link
    assert not re.search(r"https?://", re.sub(r"data:image/png;base64,[^\"]*", "", page))
    for name in report.findings:
        if name in TITLES:
            assert f'<h2 id="{name}">{TITLES[name]}</h2>' in page
    for sheets in report.sheets.values():
        for sheet in sheets:
            assert f"<h3>{sheet.title}</h3>" in page


def test_published_numbers_stand_beside_ours(made):
    report, _, page = made
    (sheet,) = report.sheets["alignment"]
    column = sheet.headings.index("published")
    shown = {row[:2]: row[column] for row in sheet.rows}
    assert shown["untied output → tied", "linear"].value == 0.719
    assert shown["untied input → untied output", "identity"].value == 0.012
    assert shown["untied output → tied", "identity, centred"] == "–"
    plain = Report("x", report.findings).sheets
    assert all("published" not in sheet.headings for sheets in plain.values() for sheet in sheets)
    assert "0.719" in page


def test_files(made):
    report, out, _ = made

    def strict(name):
        raise AssertionError(name)

    held = json.loads((out / "results.json").read_text(), parse_constant=strict)
    assert held["answer"] == report.answer and held["models"][0]["scale"] is None
    rows = held["analyses"]["alignment"]["tables"]["alignment"]
    assert [row["score"] for row in rows] == report.findings["alignment"].tables["alignment"]["score"].tolist()
    for finding in report.findings.values():
        for name, table in finding.tables.items():
            read = pd.read_csv(out / f"{name}.csv")
            assert list(read.columns) == list(table.columns) and len(read) == len(table)
            for column in table.select_dtypes("number"):
                assert read[column].to_numpy() == pytest.approx(table[column].to_numpy(), nan_ok=True)
    for stem in ("alignment", "differences", "knn-overlap", "singular-values", "norm-frequency"):
        assert (out / f"{stem}.png").exists() and (out / f"{stem}.pdf").exists()


def test_cells_that_begin_like_formulas(tmp_path):
    table = pd.DataFrame({"model": ["=1+1", "plain"], "total": [1, 2], "embedding": 1, "share": -0.5})
    table = table.assign(share_tied=0.5, share_untied=0.5)
    write(Report("x", {"parameters": Finding({"parameters": table})}), tmp_path, command="c", date="d")
    read = pd.read_csv(tmp_path / "parameters.csv")
    assert read["model"].tolist() == ["'=1+1", "plain"] and set(read["share"]) == {-0.5}


@pytest.mark.parametrize(("share", "word"), [(0.8, "output"), (0.2, "input")])
def test_the_answer(share, word):
    lines = Report("x", findings(planted(share), names=("alignment", "differences", "neighbours", "spectral"))).answer
    assert len(lines) == 3 and all(f"the untied {word}" in line for line in lines), lines


def test_the_answer_may_be_neither():
    matrices = planted(0.5)
    matrices[OUTPUT] = matrices[INPUT].clone()
    lines = Report("x", findings(matrices, names=("alignment", "differences", "neighbours"))).answer
    assert "neither role" in lines[0] and "with either role" in lines[1]


def test_one_model_and_checkpoints(tmp_path):
    alone = Report("one", findings({TIED: planted(1)[TIED]}, ()), ({"model": "m", "tied": True},))
    write(alone, tmp_path / "one", command="c", date="d")
    assert alone.answer == [] and "Isotropy" in (tmp_path / "one/report.html").read_text()
    curves = pd.DataFrame({"step": [0, 9], "matrix": "tied", "to_first": [1, 0.5], "to_previous": [float("nan"), 0.5]})
    write(Report("many", {"evolution": Finding({"evolution": curves})}), tmp_path / "many", command="c", date="d")
    assert (tmp_path / "many/evolution.pdf").exists() and "Over training" in (tmp_path / "many/report.html").read_text()
