"""The README's Python runs as it stands."""

import re

import pytest
import yaml
from conftest import ROOT, command

from exor import sweeps

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "runs/exor/main" not in b])
def test_examples_run(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    if "mask-norm" in block:
        assert "mask-norm" in capsys.readouterr().out
        assert (tmp_path / "runs/exor/main-gru-bits4/tied/seed-2/weights.pt").exists()


def test_the_two_lines_stand_first():
    lines = re.search(r"```sh\n(.*?)\n(.*?)\n```", README).groups()
    assert lines == ("pip install -e . && python -m experiments.exor --tied", "pip install -e '.[test]' && pytest")


def test_the_sweep_file_is_accepted():
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    configs = sweeps.expand(yaml.safe_load(block))
    assert {c.default_name for c in configs} == {
        f"main-{name}bits6-zero{zero}" for name in ("lstm-", "medium-") for zero in ("0.5_0.5", "0.4_0.6")
    }
    assert len(configs) == 4 * 2 * 10


def test_commands_are_accepted(tmp_path):
    lines = re.findall(r"^python -m experiments\.exor(.*?)(?:#.*)?$", README, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        arguments = [word for word in line.split() if word != "--dry-run"]
        arguments += [] if "--help" in line else ["--dry-run", "--out", tmp_path]
        assert command(*arguments)[0] == 0, line
