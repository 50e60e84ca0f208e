"""Training through Lightning: callbacks, models of one's own, divergence, what a run folder holds."""

import json
from functools import partial

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import scalars
from torch import nn

from exor import InputError, runs
from exor.config import RunConfig, from_yaml, with_seeds
from exor.lightning import Chunks, Metric, Snapshots
from exor.metrics import SCORES
from exor.models import build
from exor.runs import run_path
from exor.training import train as train_compiled

train = partial(train_compiled, compiled=False)  # compilation takes longer than all of this
BASE = RunConfig(max_steps=300, log_every=100)


def test_a_run_folder_holds_everything(out):
    configs = with_seeds(BASE, (42,), (True, False))
    folders = train(configs, out)
    for config, folder in zip(configs, folders, strict=True):
        assert folder.path == run_path(out, config) == out / "exor" / "main" / config.mode / "seed-42"
        assert from_yaml(folder.file("config.yaml")) == config
        model, frame = runs.load(folder.path)
        pairs = ["0A-0B", "0A-1A", "0A-1B", "0B-1A", "0B-1B", "1A-1B"]
        columns = ["step", *SCORES, *[f"input/{p}" for p in pairs], *[f"output/{p}" for p in pairs]]
        assert list(frame.columns) == columns
        assert frame["step"].tolist() == [0, 100, 200, 300]

        matrix = model.output_embedding.detach().numpy()
        assert frame["output/0B-1A"].iloc[-1] == pytest.approx(np.linalg.norm(matrix[1] - matrix[2]), rel=1e-6)
        start = build(config).input_embedding.detach().numpy()
        assert frame["input/1A-1B"].iloc[0] == pytest.approx(np.linalg.norm(start[2] - start[3]), rel=1e-6)
        assert (model.input_embedding is model.output_embedding) == config.tied
        if config.tied:
            np.testing.assert_array_equal(frame.filter(like="input/"), frame.filter(like="output/"))

        with np.load(folder.file("embeddings.npz")) as saved:
            assert saved["step"].tolist() == [0, 100, 200, 300]
            np.testing.assert_array_equal(saved["input"][0], start)
            np.testing.assert_array_equal(saved["output"][-1], matrix)
        summary = json.loads(folder.file("summary.json").read_text())
        assert summary["state"] == "finished"
        assert summary["last"] == pytest.approx(frame.iloc[-1].to_dict())
        assert summary["mean_last_20000_steps"]["loss_train"] == pytest.approx(frame["loss_train"].mean())
        assert summary["ceilings"]["accuracy_train"] == pytest.approx(0.70422, abs=1e-5)
        assert summary["best_accuracy_test"]["value"] == frame["accuracy_test"].max()
        assert np.loadtxt(folder.file("output-embedding.tsv")) == pytest.approx(matrix)
        assert folder.file("symbols.tsv").read_text().split() == list(config.language.vocabulary)


def test_tensorboard_has_the_numbers_of_the_table(out):
    (folder,) = train([BASE], out)
    found, frame = scalars(folder.path), folder.metrics().set_index("step")
    for step in (0, 100, 200, 300):
        for column, tag in {"loss_test": "loss/test", "input/0A-1B": "distance/input/0A-1B"}.items():
            assert found[tag, step] == [np.float32(frame[column][step])]
        assert found["learning-rate", step] == [pytest.approx(BASE.rate(step))]
        assert found["accuracy/train-ceiling", step] == [pytest.approx(0.70422, abs=1e-5)]
    matrix = build(BASE).input_embedding.detach().numpy()
    relative = np.linalg.norm(matrix[0] - matrix[1]) / np.linalg.norm(matrix, axis=1).mean()
    assert found["relative-distance/input/0A-0B", 0] == [pytest.approx(relative, rel=1e-5)]


class Poison(L.Callback):
    """Makes one replica's weights infinite."""

    def __init__(self, seed):
        self.seed = seed

    def on_train_batch_end(self, trainer, module, *_):
        if module.step == 200:
            for i, config in enumerate(module.configs):
                if config.seed == self.seed:
                    block, row = divmod(i, module.engine.width)
                    module.engine._state[block][0][row] = float("inf")


def test_a_diverged_seed_stops_and_the_others_go_on(out, caplog):
    configs = with_seeds(BASE, (1, 2, 3), (False,))
    folders = train(configs, out / "poisoned", callbacks=[Poison(2)])
    expected = train(configs, out / "healthy")
    states = [folder.summary()["state"] for folder in folders]
    assert states == ["finished", "diverged", "finished"]
    assert folders[1].summary()["step"] == 200
    assert folders[1].metrics()["step"].tolist() == [0, 100, 200]
    assert "seed 2 diverged: its loss at step 200 is not finite" in caplog.text
    for i in (0, 2):
        assert folders[i].file("metrics.csv").read_bytes() == expected[i].file("metrics.csv").read_bytes()
    before = folders[1].file("summary.json").read_bytes()
    train(configs, out / "poisoned")
    assert folders[1].file("summary.json").read_bytes() == before


class Norms(Metric):
    def measure(self, module):
        inputs, _ = module.engine.embeddings()
        module.metrics["norm"] = inputs.flatten(1).norm(dim=1).numpy()


class Gru(nn.Module):
    def __init__(self, config):
        super().__init__()
        symbols = len(config.language.vocabulary)
        self.embed = nn.Embedding(symbols, config.width)
        self.gru = nn.GRU(config.width, config.width, batch_first=True)
        self.unembed = self.embed if config.tied else nn.Embedding(symbols, config.width)

    @property
    def input_embedding(self):
        return self.embed.weight

    @property
    def output_embedding(self):
        return self.unembed.weight

    def forward(self, tokens, position):
        hidden, _ = self.gru(self.embed(tokens))
        return hidden[torch.arange(len(tokens)), -1] @ self.output_embedding.T


def test_callback_and_model_of_ones_own(out):
    config = RunConfig(bits=4, model="gru", max_steps=60, log_every=10, tied=True)
    (folder,) = train([config], out, model=Gru, callbacks=[Norms()])
    model, frame = runs.load(folder.path, Gru(config))
    assert frame["norm"].iloc[-1] == pytest.approx(model.input_embedding.norm().item(), rel=1e-6)
    train_strings, test_strings = config.language.split()
    contexts = config.language.ordered_contexts(train_strings, test_strings)
    with torch.no_grad():
        logits = model(torch.tensor(contexts.tokens), torch.tensor(contexts.position))
    loss = -(contexts.targets * logits.log_softmax(1).double().numpy()).sum(1)
    assert frame["loss_train"].iloc[-1] == pytest.approx(contexts.probability[0] @ loss, rel=1e-5)
    # each evaluation of 2 · 4 · 4^3 contexts has to cost less than a tenth of training 14 strings a step
    assert frame["step"][frame["loss_train"].notna()].tolist() == [0, 60]


def test_own_model_resumes(out):
    config = RunConfig(bits=3, model="gru", max_steps=40, log_every=10)
    (whole,) = train([config], out / "whole", model=Gru)
    train([RunConfig(bits=3, model="gru", max_steps=20, log_every=10)], out / "parts", model=Gru)
    (parts,) = train([config], out / "parts", model=Gru)
    assert whole.file("metrics.csv").read_bytes() == parts.file("metrics.csv").read_bytes()


def test_a_model_without_the_interface_is_named(out):
    with pytest.raises(InputError, match="Linear needs a property input_embedding"):
        train([BASE], out, model=lambda config: nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("first", "last", "every"), [(0, 1000, 100), (0, 1050, 500), (350, 1000, 100), (0, 7, 1), (0, 5, 9)]
)
def test_chunks_cover_every_step_once_and_end_on_logged_steps(first, last, every):
    chunks = list(Chunks(first, last, every).train_dataloader())
    steps = [step for start, count in chunks for step in range(start, start + count)]
    assert steps == list(range(first, last))
    ends = {start + count for start, count in chunks}
    assert ends >= set(range(first + every - first % every, last + 1, every))
    assert max(count for _, count in chunks) <= 200


def test_snapshots_stay_few_and_depend_on_the_step_only():
    class Module:
        configs = (RunConfig(log_every=1),)
        step = 0
        engine = type("", (), {"embeddings": lambda self: (torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))})()

    snapshots, module = Snapshots(), Module()
    for module.step in range(3000):
        snapshots.measure(module)
        assert len(snapshots.steps) <= 512
    assert snapshots.steps == list(range(0, 3000, 8))


def test_eval_every_leaves_cells_empty(out):
    config = RunConfig(max_steps=400, log_every=100, eval_every=150)
    (folder,) = train([config], out)
    frame = folder.metrics()
    assert frame["step"][frame["loss_train"].notna()].tolist() == [0, 200, 400]
    assert frame["input/0A-0B"].notna().all()
    assert folder.file("metrics.csv").read_text().splitlines()[2].startswith("100,,,,,")


def test_two_bits_have_no_test_strings(out):
    (folder,) = train([RunConfig(bits=2, max_steps=100)], out)
    frame = pd.read_csv(folder.file("metrics.csv"))
    assert frame["accuracy_test"].isna().all()
    assert frame["accuracy_train"].notna().all()
    assert folder.summary()["best_accuracy_test"] is None


def test_checkpoints_of_other_models_and_versions(out, caplog):
    short = RunConfig(bits=3, max_steps=20, log_every=10)
    longer = RunConfig(bits=3, max_steps=40, log_every=10)
    (folder,) = train([short], out, model=Gru)
    with pytest.raises(InputError, match="its checkpoint is of another model"):
        train([longer], out)
    found = torch.load(folder.file("checkpoint.pt"), weights_only=True)
    found["versions"]["torch"] = "1.0"
    folder.write_tensors("checkpoint.pt", found)
    train([longer], out, model=Gru)
    assert "continues with other versions than it began with (torch 1.0)" in caplog.text
    del found["width"]
    folder.write_tensors("checkpoint.pt", found)
    with pytest.raises(InputError, match=r"checkpoint\.pt: damaged"):
        train([RunConfig(bits=3, max_steps=60, log_every=10)], out, model=Gru)
