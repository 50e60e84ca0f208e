"""Sweeps: what a file asks for, that its runs are those of the run command, and that failures stay alone."""

import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pandas as pd
import pytest
from conftest import ROOT, command
from torch import nn

from exor import InputError, sweeps
from exor.config import RunConfig, from_options, with_seeds
from exor.models import MaskedLM
from exor.runs import RunFolder, run_path
from experiments import exor as exor_command
from experiments import sweep as sweep_command
from experiments.command import run

QUICK = {"bits": 3, "max_steps": 40, "log_every": 10}
TWO = """
seeds: 1-2
settings: {bits: 3, max_steps: 40, log_every: 10}
grid: {zero: [[.5, .5], [.1, .9]]}
"""
EAGER = ("--no-compile", "--workers", "1")


def write(folder, text, name="two.yaml"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def start(*arguments) -> subprocess.Popen:
    words = [sys.executable, "-m", "experiments.sweep", *map(str, arguments)]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def rerun_lines(text):
    return [shlex.split(line)[3:] for line in text.splitlines() if line.startswith("  python -m experiments.exor ")]


def contents(out):
    return {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


class Model(MaskedLM):
    """The least that the lab accepts."""

    def __init__(self, config):
        super().__init__()
        symbols = len(config.language.vocabulary)
        self.embed = nn.Embedding(symbols, config.width)
        self.unembed = self.embed if config.tied else nn.Embedding(symbols, config.width)

    def forward(self, tokens, position):
        return self.embed(tokens).sum(1) @ self.output_embedding.T


class Raises(Model):
    def forward(self, tokens, position):
        if len(tokens) > 2:  # the two that a model is tried with
            raise ZeroDivisionError("boom")
        return super().forward(tokens, position)


class Dies(Model):
    def forward(self, tokens, position):
        if len(tokens) > 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(tokens, position)


# --- the file ---------------------------------------------------------------------------------------------------


def test_cells_are_every_item_of_the_list_with_every_combination_of_the_grid():
    items = [{"model": "lstm"}, {"size": "medium"}, {"width": 8}]
    grid = {"zero": [[0.5, 0.5], [0.4, 0.6]], "learning_rate": ["5e-4", 1e-3], "bits": [5, 6, 7]}
    found = sweeps.expand({"seeds": "3,1", "modes": ["untied", "tied"], "list": items, "grid": grid})
    expected = [
        from_options({**item, "zero": zero, "learning_rate": rate, "bits": bits, "seed": seed, "tied": tied})
        for item in items
        for zero, rate, bits in itertools.product(*grid.values())
        for seed in (3, 1)
        for tied in (False, True)
    ]
    assert found == expected
    assert len(set(found)) == 3 * 2 * 2 * 3 * 2 * 2


def test_settings_hold_in_all_cells():
    settings = {"max_steps": 70, "size": "medium", "preset": "hypothesis-holds"}
    found = sweeps.expand({"seeds": 7, "modes": "tied", "settings": settings, "grid": {"model": ["lstm", "mixer"]}})
    assert [(c.model, c.size, c.max_steps, c.zero, c.seed, c.tied) for c in found] == [
        ("lstm", "medium", 70, (1.0,), 7, True),
        ("mixer", "medium", 70, (1.0,), 7, True),
    ]


def test_a_cell_wins_over_the_settings():
    found = sweeps.expand({"seeds": 1, "modes": "tied", "settings": {"bits": 5}, "list": [{}, {"bits": 6}]})
    assert [c.bits for c in found] == [5, 6]


def test_by_default_ten_seeds_in_both_modes():
    assert sweeps.expand({"list": [{"bits": 5}]}) == with_seeds(RunConfig(bits=5), tuple(range(42, 52)), (True, False))
    assert sweeps.expand({}) == with_seeds(RunConfig(), tuple(range(42, 52)), (True, False))
    assert [c.seed for c in sweeps.expand({"seeds": [4, "7-8"], "modes": "tied"})] == [4, 7, 8]


@pytest.mark.parametrize(("name", "count"), [("asymmetry", 8), ("claims", 9)])
def test_the_lab_s_own_sweeps(name, count):
    configs = sweeps.read(ROOT / f"experiments/sweeps/{name}.yaml")
    assert len(configs) == count * 20
    assert all(c.max_steps == 150_000 and c.size == "small" for c in configs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grids: {}", "unknown key 'grids', did you mean 'grid'?"),
        ("seed: 1", "unknown key 'seed', did you mean 'seeds'?"),
        ("bits: 7", "unknown key 'bits', settings of runs belong under 'settings', 'list' or 'grid'"),
        ("colour: 7", "unknown key 'colour', seeds, modes, settings, list, grid are accepted"),
        ("seeds: 4-", "seeds: '4-' does not parse, '42', '42-46' or '1,5,9' are accepted"),
        ("seeds: [1, 1]", "seeds: 1 is given more than once"),
        ("seeds: []", "seeds: '' does not parse"),
        ("modes: [tide]", "modes: 'tide' is not accepted, tied, untied"),
        ("modes: [tied, tied]", "modes: 'tied tied' is not accepted"),
        ("modes: []", "modes: '' is not accepted"),
        ("grid: [1]", "grid: '1' is no mapping"),
        ("grid: {}", "grid: is empty"),
        ("grid: {bits: 5}", "grid: bits: '5' is not a list"),
        ("grid: {bits: []}", "grid: bits: is empty"),
        ("list: {bits: 5}", "is not a list"),
        ("list: []", "list: is empty"),
        ("list: [5]", "list, item 1: '5' is no mapping"),
        ("settings: 5", "settings: '5' is no mapping"),
        ("settings: {seed: 5}", "settings: seed is given by 'seeds'"),
        ("grid: {tied: [true]}", "grid: tied is given by 'modes'"),
        ("grid: {zerro: [1]}", "cell 1 (zerro 1): unknown setting 'zerro', did you mean 'zero'?"),
        ("settings: {bitz: 5}", "cell 1: unknown setting 'bitz', did you mean 'bits'?"),
        ("grid: {zero: [.5, .5]}", "cell 1 (zero 0.5): zero: 0.5 is not a list of numbers"),
        ("grid: {bits: [5, 99]}", "cell 2 (bits 99): bits: 99 is not accepted, whole numbers from 2 to 16 are"),
        ("settings: {heads: 1}\ngrid: {model: [lstm]}", "cell 1 (model lstm): heads: is no setting of the lstm"),
        ("grid: {model: [lstn]}\nsettings: {size: small}", "model: 'lstn' is unknown, did you mean 'lstm'?"),
        ("list: [{bits: 5}]\ngrid: {bits: [6]}", "bits: is in 'list' and in 'grid'"),
        ("grid: {bits: [7, 5, 7]}", "cell 1 (bits 7) and cell 3 (bits 7) are the same"),
        ("list: [{preset: main}, {zero: [.1, .9]}]", "cell 1 (preset main) and cell 2 (zero 0.1 0.9) are the same"),
        ("grid: {max_steps: [5, 6]}", "would share the folder exor/main, whose name does not tell max_steps"),
        ("grid: {bits: [", "not valid YAML (line 1)"),
        ("- 1", "holds no settings; lines such as 'seeds: 42-51' are accepted"),
        ("seeds: 0-99999\ngrid: {bits: [3, 4, 5, 6, 7, 8]}", "1,200,000 runs, at most 1,000,000 are accepted"),
    ],
)
def test_bad_files_are_one_line_that_names_file_and_culprit(text, words, tmp_path, capsys):
    path = write(tmp_path, text)
    assert run(sweep_command.app, [str(path), "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"error: {path}: ")
    assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read (No such file or directory)"),
        ([], "FILE"),
        (["FILE", "--workers", "0"], "workers: 0 is out of range"),
        (["FILE", "--checkpoint-every", "-1"], "checkpoint_every: -1 is out of range"),
        (["FILE", "--overrite"], "--overrite"),
        (["FILE", "--ray", "a", "b"], "ray: 'a b' is not accepted"),
    ],
)
def test_bad_arguments(arguments, words, tmp_path, capsys):
    path = str(write(tmp_path, TWO))
    assert run(sweep_command.app, [path if a == "FILE" else a for a in arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and words in line


# --- runs -------------------------------------------------------------------------------------------------------


def test_its_runs_are_those_of_the_run_command(tmp_path, capsys):
    text = "seeds: 1-2\nsettings: {max_steps: 300}\nlist:\n  - {}\n  - {zero: [.5, .5]}\n"
    assert run(sweep_command.app, [str(write(tmp_path, text)), "--out", str(tmp_path / "a"), "--workers", "2"]) == 0
    for zero in ([], ["--zero", ".5", ".5"]):
        by_hand = ["--both", "--seeds", "1-2", "--max-steps", "300", "--workers", "2", *zero]
        assert command(*by_hand, "--out", tmp_path / "b")[0] == 0
    ours, theirs = (sorted(p.relative_to(tmp_path / o) for p in (tmp_path / o / "exor").rglob("*.*")) for o in "ab")
    assert [p for p in ours if "tfevents" not in p.name] == [p for p in theirs if "tfevents" not in p.name]
    for path in ours:
        if path.name in ("config.yaml", "metrics.csv", "weights.pt"):
            assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes(), path
    shown = capsys.readouterr().out
    assert shown.count("2 of 2") == 4 and f"{tmp_path}/a/sweeps/two.csv" in shown


def test_finished_runs_are_skipped_and_a_dry_run_writes_nothing(tmp_path, out, capsys):
    arguments = [str(write(tmp_path, TWO)), "--out", str(out), *EAGER]
    assert run(sweep_command.app, [*arguments, "--dry-run"]) == 0
    assert not out.exists()
    text = capsys.readouterr().out
    assert text.count("160") == 2 and "About" in text  # 4 runs of 40 steps in each cell
    assert run(sweep_command.app, arguments) == 0
    before = contents(out / "exor")
    assert run(sweep_command.app, arguments) == 0
    assert contents(out / "exor") == before
    capsys.readouterr()
    assert run(sweep_command.app, [*arguments, "--dry-run", "--quiet"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "0.5 0.5" in line]
    assert [cell.strip() for cell in line.split("│")[2:-1]] == ["4", "4", "0", "0", "0", "0"]  # runs, finished, …


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_sweep_goes_on_to_the_same_bytes(number, tmp_path, out):
    text = "seeds: 1-2\nsettings: {max_steps: 20000}\ngrid: {zero: [[.5, .5], [.1, .9]]}\n"
    path = write(tmp_path, text)
    configs = sweeps.read(path)
    arguments = (path, "--workers", "2", "--checkpoint-every", "0.2")
    undisturbed = tmp_path.parent / "undisturbed"  # shared by the three
    if not undisturbed.exists():
        assert start(*arguments, "--out", undisturbed).wait(300) == 0
    moments = random.Random(int(number))
    for folder in (run_path(out, configs[0]), run_path(out, configs[-1])):
        process = start(*arguments, "--out", out)
        while not (folder / "metrics.csv").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.5))
        process.send_signal(number)
        process.communicate(timeout=60)
        # before its handlers are installed, a signal ends the process as the shell reports it
        assert process.returncode in ((-number,) if number == signal.SIGKILL else (128 + number, -number, 0))
    process = start(*arguments, "--out", out)
    assert process.communicate(timeout=300) is not None and process.returncode == 0
    for config in configs:
        for file in ("metrics.csv", "weights.pt"):
            here, there = (run_path(o, config) / file for o in (out, undisturbed))
            assert here.read_bytes() == there.read_bytes()


def test_from_python_a_list_of_configs(out):
    base = RunConfig(**QUICK)
    configs = [replace(base, learning_rate=rate, seed=s) for rate, s in ((1e-3, 1), (2e-3, 2), (3e-3, 3))]
    assert sweeps.run(configs, out, compiled=False, workers=1) == []
    assert [RunFolder(run_path(out, c)).summary()["state"] for c in configs] == ["finished"] * 3
    with pytest.raises(InputError, match=r"seed 1 and .* are the same"):
        sweeps.run([*configs, configs[0]], out)
    with pytest.raises(InputError, match="does not tell max_steps"):
        sweeps.run([base, replace(base, max_steps=50)], out)


# --- failures ---------------------------------------------------------------------------------------------------


def test_failures_stay_alone_and_the_lines_told_train_them_again(tmp_path, out, capsys):
    """Found while planning: a damaged folder, another run, a lock. Found while training: divergence."""
    text = TWO.replace("[[.5, .5], [.1, .9]]", "[[.5, .5], [.4, .6], [.3, .7], [.2, .8]]")
    text = text.replace("grid: {", "grid: {learning_rate: [1e-3, 1e30], ")
    path = write(tmp_path, text)
    configs = {(c.zero[0], c.learning_rate, c.mode, c.seed): c for c in sweeps.read(path)}
    damaged, other, locked = (RunFolder(run_path(out, configs[z, 1e-3, "tied", 1])) for z in (0.5, 0.4, 0.3))
    sweeps.run([configs[0.5, 1e-3, "tied", 1]], out, compiled=False, workers=1)
    damaged.file("summary.json").write_text("{")
    other.lock()
    other.write_config(RunConfig(bits=5))
    other.unlock()
    arguments = [str(path), "--out", str(out), *EAGER]
    assert run(sweep_command.app, [*arguments, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("Cannot run: ") == 2

    holder = subprocess.Popen(
        [sys.executable, "-c", "import sys; from exor.runs import RunFolder; f = RunFolder(sys.argv[1]); f.lock(); "
         "print('held', flush=True); sys.stdin.read()", locked.path],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout.readline() == b"held\n"
    try:
        assert run(sweep_command.app, arguments) == 1
    finally:
        holder.communicate()
    err = capsys.readouterr().err
    assert "19 of 32 runs failed" in err
    for words in ("summary.json: damaged", "holds another run (bits 5 there, 3 here", "another process is training"):
        assert err.count(words) == 1
    assert err.count("seed 1 (and 1 more seeds): diverged: its loss at step ") == 8
    table = pd.read_csv(out / "sweeps/two.csv")
    assert table.groupby("learning_rate")["state"].value_counts().to_dict() == {
        (1e-3, "finished"): 13, (1e-3, "damaged"): 1, (1e-3, "another run"): 1, (1e-3, "new"): 1, (1e30, "diverged"): 16
    }  # fmt: skip
    assert table["accuracy_train"].notna().sum() == 13

    lines = rerun_lines(err)
    assert len(lines) == 3 + 8
    for line in lines:
        expected = 1 if "1e+30" in line else 0
        assert run(exor_command.app, [*line, "--quiet"]) == expected, line
    capsys.readouterr()
    assert run(sweep_command.app, arguments) == 1
    assert "16 of 32 runs failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "workers", "reason"),
    [("Raises", 1, "ZeroDivisionError: boom"), ("Raises", 2, "ZeroDivisionError: boom"), ("Dies", 2, "died (SIGKILL)")],
)
def test_what_a_model_does_to_its_process_spares_the_other_cells(model, workers, reason, out):
    good, bad = RunConfig(**QUICK), RunConfig(**QUICK, model=f"test_sweep:{model}")
    configs = [*with_seeds(bad, (1, 2), (True,)), *with_seeds(good, (1, 2), (True,))]
    failures = sweeps.run(configs, out, compiled=False, workers=workers)
    failed = {f.config for f in failures}
    # groups that waited for a process that died are reported too
    assert failed == set(configs[:2]) if model == "Raises" else failed >= set(configs[:2])
    assert all(reason in f.reason for f in failures)
    for config in set(configs) - failed:
        assert RunFolder(run_path(out, config)).summary()["state"] == "finished"


def test_a_model_that_cannot_be_made_is_a_failure_of_its_cell(out):
    good, bad = RunConfig(**QUICK), RunConfig(**QUICK, model="nowhere:Model")
    (failure,) = sweeps.run([bad, good], out, compiled=False)
    assert failure.config == bad and "nowhere" in failure.reason
    assert not run_path(out, bad).exists()
    assert RunFolder(run_path(out, good)).summary()["state"] == "finished"
    assert sweeps.plan([bad, good], out)[1] == [failure]
