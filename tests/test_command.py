"""The command as a person uses it: what it accepts, what it says, and how it ends."""

import shutil
import subprocess
import sys
import time

import pytest
from conftest import ROOT, command, start

from exor import InputError
from exor.config import RunConfig, parse_seeds
from experiments import exor as exor_command
from experiments.command import run

SHORT = ("--max-steps", "200")


def error(capsys, *arguments) -> str:
    """Run in process; the one line of the error."""
    assert run(exor_command.app, list(map(str, arguments))) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--zero .1 .8", "zero sum to 0.9 must sum to 1"),
        ("--zero -.1 1.1", "zero probabilities from 0 to 1"),
        ("--one nan 1", "one probabilities"),
        ("--one x", "--one x float"),
        ("--zero", "zero 0 synonyms"),
        ("--bits 1", "bits 2 to 16"),
        ("--bits 17", "bits 2 to 16"),
        ("--bits 5.5", "--bits 5.5 whole number"),
        ("--heads 3", "heads 3 width 4"),
        ("--width 0", "width at least 1"),
        ("--seeds 4-", "seeds '4-' 42-46"),
        ("--seeds 9-3", "seeds '3-9'"),
        ("--seeds 1,1", "seeds 1 more than once"),
        ("--seed -1", "seed at least 0"),
        ("--seed 1 --seeds 2", "--seed --seeds exclude"),
        ("--max-steps 0", "max_steps at least 1"),
        ("--learning-rate 0", "learning_rate more than 0"),
        ("--learning-rate inf", "learning_rate finite"),
        ("--batch-size 116", "batch_size 115 training strings"),
        ("--log-every -5", "log_every at least 1"),
        ("--schedule cosin", "--schedule cosine"),
        ("--preset mian", "--preset main"),
        ("--lerning-rate 1", "--lerning-rate --learning-rate"),
        ("--model rnn --dry-run", "model rnn transformer"),
        ("--workers 0", "workers at least 1"),
        ("--name a/b", "name 'a/b'"),
        ("--config nowhere.yaml", "nowhere.yaml No such file"),
    ],
)
def test_bad_input_is_one_line_that_names_the_culprit(arguments, words, capsys):
    line = error(capsys, *arguments.split())
    assert line.startswith("error: ")
    assert all(word in line for word in words.split()), line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bits: [", "not valid YAML (line"),
        ("- 1", "holds no settings; lines such as 'bits: 7' are accepted"),
        ("bitz: 5", "'bitz', did you mean 'bits'"),
        ("bits: five", "bits: 'five' is not a whole number"),
        ("tied: 1", "tied: 1 is not true or false"),
        ("zero: .5", "zero: 0.5 is not a list of numbers"),
        ("betas: [.9]", "betas"),
    ],
)
def test_bad_config_files(text, words, tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    line = error(capsys, "--config", path)
    assert words in line
    assert str(path) in line


def test_options_win_over_preset_and_both_over_the_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("bits: 5\nzero: [0.3, 0.7]\nseed: 9\ntied: true\nversions: {torch: 1}\n")
    plan = exor_command.plan_configs
    (config,) = plan({}, file=path)
    assert config == RunConfig(bits=5, zero=(0.3, 0.7), seed=9, tied=True)
    (config,) = plan({"one": (0.2, 0.8), "preset": "hypothesis-holds"}, file=path)
    assert (config.bits, config.zero, config.one) == (5, (1.0,), (0.2, 0.8))
    configs = plan({"tied": False}, both=True, seeds="3,1-2")
    assert [(c.seed, c.tied) for c in configs] == [(s, t) for s in (3, 1, 2) for t in (True, False)]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "main"),
        ({"zero": (1.0,)}, "hypothesis-holds"),
        ({"bits": 5, "model": "lstm"}, "main-lstm-bits5"),
        ({"zero": (0.3, 0.7)}, "main-zero0.3_0.7"),
        ({"schedule": "cosine", "max_steps": 10}, "main-cosine-steps10"),
        ({"max_steps": 10, "seed": 3, "tied": True}, "main"),
        ({"learning_rate": 1e-3, "batch_size": 32, "log_every": 50}, "main-lr0.001-batch32-log50"),
    ],
)
def test_default_names_tell_what_is_not_as_published(changes, name):
    assert RunConfig(**changes).default_name == name


def test_seeds_parse():
    assert parse_seeds("42") == (42,)
    assert parse_seeds("1, 5,7-9") == (1, 5, 7, 8, 9)
    with pytest.raises(InputError, match="4294967296 is out of range"):
        parse_seeds("4294967296")


def test_help_is_quick_and_does_not_import_torch():
    code = "import sys; from experiments.exor import app; from experiments.command import run; run(app, ['--help'])"
    text = subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    options = "--tied --no-tied --both --seed --seeds --max-steps --preset --bits --zero --one --name --learning-rate"
    options += (
        " --weight-decay --schedule --width --feed-forward --heads --layers --log-every --eval-every --batch-size"
    )
    options += " --split-seed --accelerator --compile --no-compile --out --overwrite --dry-run --quiet --config"
    assert all(option in text for option in options.split())


def test_a_whole_session(out):
    code, text, _ = command("--both", "--seeds", "1-2", *SHORT, "--out", out)
    assert code == 0
    for words in ("Theory", "both ways", "1A-1B", "untied", "0.704", f"tensorboard --logdir {out}/exor/main"):
        assert words in text
    assert sorted(p.name for p in (out / "exor/main/tied").iterdir()) == ["seed-1", "seed-2"]
    assert command("--tied", "--seed", "1", *SHORT, "--quiet", "--out", out) == (0, "", "")

    code, _, err = command("--tied", "--seed", "1", "--max-steps", "300", "--bits", "6", "--name", "main", "--out", out)
    assert code == 2
    assert "bits 7 there, 6 here" in err
    code, text, _ = command("--both", "--seeds", "1-3", "--max-steps", "400", "--dry-run", "--out", out)
    assert code == 0
    assert text.count("continues at step 200") == 4
    assert text.count("new") == 2


def test_overwrite_removes_only_what_a_run_leaves(out):
    assert command(*SHORT, "--out", out)[0] == 0
    folder = out / "exor/main/untied/seed-42"
    (folder / "notes.txt").write_text("mine")
    (folder / "metrics.csv").write_text("damaged")
    assert command(*SHORT, "--out", out, "--overwrite", "--log-every", "50", "--name", "main")[0] == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert len((folder / "metrics.csv").read_text().splitlines()) == 6


@pytest.mark.parametrize("name", ["checkpoint.pt", "config.yaml", "summary.json", "metrics.csv"])
def test_damage_is_named_and_nothing_is_lost(name, out):
    assert command(*SHORT, "--out", out)[0] == 0
    folder = out / "exor/main/untied/seed-42"
    if name != "summary.json":
        (folder / "summary.json").unlink()
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 3] if name != "config.yaml" else b"\xff\xfe")
    kept = {p.name: p.read_bytes() for p in folder.iterdir()}
    code, _, err = command(*SHORT, "--out", out)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert name in err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == kept


@pytest.mark.parametrize("text", ["garbage", "step,loss_train\n0,1\n", ""])
def test_damaged_metrics_of_a_finished_run_are_not_believed(text, out):
    arguments = ("--max-steps", "100", "--no-compile", "--out", out)
    assert command(*arguments)[0] == 0
    (out / "exor/main/untied/seed-42/metrics.csv").write_text(text)
    code, _, err = command(*arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "metrics.csv: damaged" in err


def test_a_diverged_run_is_told_and_exits_with_1(out):
    arguments = ("--learning-rate", "1e30", "--max-steps", "100", "--no-compile", "--quiet", "--out", out)
    for _ in range(2):
        code, text, err = command(*arguments)
        assert (code, text) == (1, "")
        assert "Diverged: untied seed 42" in err


def test_unusable_output_folder(out):
    out.parent.mkdir(exist_ok=True)
    out.write_text("a file")
    code, _, err = command(*SHORT, "--out", out)
    assert code == 2
    assert f"{out}/exor/main/untied/seed-42: cannot be written" in err


def test_two_processes_at_once(out):
    """Different seeds do not disturb each other; on the same seed the second says so before it trains."""
    long = ("--max-steps", "3000000", "--out", out)
    first, other = start("--seed", "1", *long), start("--seed", "2", *long)
    try:
        for seed in (1, 2):
            deadline = time.monotonic() + 120
            while not (out / f"exor/main/untied/seed-{seed}/metrics.csv").exists() and time.monotonic() < deadline:
                time.sleep(0.1)
        code, _, err = command("--seeds", "0-1", *long)
        assert code == 2
        assert "seed-1: another process is training this run" in err
        assert not (out / "exor/main/untied/seed-0/metrics.csv").exists()
        assert first.poll() is None
        assert other.poll() is None
    finally:
        for process in (first, other):
            process.kill()
            process.communicate()


@pytest.mark.skipif(shutil.which("mount") is None, reason="needs a small file system")
def test_full_disk_is_one_line(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        for workers, seeds in (("1", "1"), ("2", "1-2")):
            code, _, err = command("--seeds", seeds, "--max-steps", "20000", "--workers", workers, "--out", small)
            assert code == 2
            assert "No space left on device" in err.strip().splitlines()[-1]
            assert "Traceback" not in err
            assert not list(small.rglob(".*.partial"))
            shutil.rmtree(small / "exor")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_without_a_compiler_it_runs_eagerly_and_says_so_once(out, tmp_path):
    settings = {"EXOR_CACHE": str(tmp_path / "cache"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    settings |= {"CXX": "no-such-compiler", "PATH": str(tmp_path)}
    code, _, err = command("--seeds", "1-2", "--max-steps", "100", "--workers", "1", "--out", out, **settings)
    assert code == 0
    assert err.count("compilation failed") == 1
