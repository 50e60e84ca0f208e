"""The published architectures: the plain modules, their sizes, and that each trains by the same command."""

import os
import random
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import command, scalars, start

from exor import InputError, runs
from exor.config import MODELS, RunConfig, from_options
from exor.lightning import evaluation_cadence
from exor.models import LSTM, Mixer, build, factory
from exor.replicas import Replicas
from exor.training import train

GRU = """
from torch import nn


class Gru(nn.Module):
    def __init__(self, config):
        super().__init__()
        symbols = len(config.language.vocabulary)
        self.embed = nn.Embedding(symbols, config.width)
        self.gru = nn.GRU(config.width, config.width, batch_first=True, bidirectional=True)
        self.down = nn.Linear(2 * config.width, config.width)
        self.unembed = self.embed if config.tied else nn.Embedding(symbols, config.width)

    @property
    def input_embedding(self):
        return self.embed.weight

    @property
    def output_embedding(self):
        return self.unembed.weight

    def forward(self, tokens, position):
        hidden = self.down(self.gru(self.embed(tokens))[0])
        return hidden[range(len(tokens)), position] @ self.output_embedding.T


class Nothing(nn.Module):
    def __init__(self, config):
        super().__init__()


class Narrow(Gru):
    def forward(self, tokens, position):
        return super().forward(tokens, position)[:, :3]


class Failing(Gru):
    def forward(self, tokens, position):
        raise ValueError("not today")
"""

# --- settings -------------------------------------------------------------------------------------------------

PUBLISHED = {  # DESIGN of the first paper's experiments, by hand
    ("transformer", "small"): {"layers": 1, "heads": 1, "width": 4, "feed_forward": 4, "learning_rate": 5e-4},
    ("transformer", "medium"): {"layers": 2, "width": 32, "feed_forward": 32, "learning_rate": 1e-4},
    ("lstm", "small"): {"layers": 2, "width": 4, "hidden": 8, "learning_rate": 5e-4},
    ("lstm", "medium"): {"layers": 4, "width": 32, "hidden": 32, "learning_rate": 5e-4},
    ("mixer", "small"): {"layers": 1, "width": 4, "token_feed_forward": 4, "feed_forward": 8, "learning_rate": 5e-4},
    ("mixer", "medium"): {"layers": 2, "width": 32, "token_feed_forward": 32, "feed_forward": 32},
}
LONG = {("transformer", "medium"), ("mixer", "medium")}
each_published = pytest.mark.parametrize(("model", "size"), PUBLISHED.keys(), ids="-".join)


@each_published
def test_published_settings(model, size):
    config = from_options({"model": model, "size": size})
    for name, value in PUBLISHED[model, size].items():
        assert getattr(config, name) == value
    assert config.max_steps == (300_000 if (model, size) in LONG else 150_000)
    assert config.size == size
    assert from_options({"model": model, "size": size}, {"bits": 5, "width": 99, "max_steps": 7}) == replace(
        config, bits=5
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_small_size_is_the_default(model):
    assert RunConfig(model=model) == from_options({"model": model, "size": "small"})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"model": "lstm"}, "main-lstm"),
        ({"size": "medium"}, "main-medium"),
        ({"model": "mixer", "size": "medium", "preset": "hypothesis-fails"}, "hypothesis-fails-mixer-medium"),
        ({"model": "lstm", "hidden": 6, "bits": 5}, "main-lstm-bits5-hidden6"),
        ({"model": "lstm", "size": "medium", "layers": 3}, "main-lstm-medium-layers3"),
        ({"model": "mixer", "token_feed_forward": 5, "learning_rate": 1e-3}, "main-mixer-tokenff5-lr0.001"),
        ({"model": "my.models:Gru", "heads": 2}, "main-my.models.Gru-heads2"),
    ],
)
def test_names_of_runs(options, name):
    assert from_options(options).default_name == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "lstm", "heads": 2}, "heads: is no setting of the lstm"),
        ({"model": "transformer", "hidden": 2}, "hidden: is no setting of the transformer"),
        ({"model": "mixer", "hidden": 2}, "hidden: is no setting of the mixer"),
        ({"size": "big"}, "size: 'big' is unknown, small, medium are accepted"),
        ({"preset": "mian"}, "preset: 'mian' is unknown, did you mean 'main'?"),
        ({"model": "my:Gru", "size": "small"}, "model: 'my:Gru' is unknown, transformer, lstm, mixer are accepted"),
        ({"lerning_rate": 1}, "unknown setting 'lerning_rate', did you mean 'learning_rate'?"),
        ({"model": "not a path"}, "model: 'not a path' is unknown"),
    ],
)
def test_settings_that_are_not_accepted(options, words):
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        from_options(options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lstn", "did you mean 'lstm'?"),
        ("nonsense", "transformer, lstm, mixer, or package.module:Class are accepted"),
        ("nowhere:Gru", "cannot be imported (ModuleNotFoundError"),
        ("exor.models:Gru", "cannot be imported (AttributeError"),
        ("exor.models:MODELS", "no class or function"),
    ],
)
def test_models_that_do_not_exist(name, words):
    with pytest.raises(InputError) as caught:
        factory(name)
    assert words in str(caught.value)


# --- plain modules --------------------------------------------------------------------------------------------


@each_published
def test_tied_and_untied_start_equal(model, size):
    config = from_options({"model": model, "size": size, "seed": 7})
    untied, tied = build(config), build(replace(config, tied=True))
    assert tied.input_embedding is tied.output_embedding
    own = dict(untied.named_parameters())
    assert own.pop("unembed.weight").shape == untied.input_embedding.shape == (7, config.width)
    assert own.keys() == dict(tied.named_parameters()).keys()
    for name, x in tied.named_parameters():
        assert torch.equal(x, own[name]), name
    assert not torch.equal(build(replace(config, seed=8)).input_embedding, untied.input_embedding)


def numpy_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias


def test_mixer_against_numpy():
    torch.manual_seed(0)
    model = Mixer(7, 8, width=5, token_feed_forward=3, feed_forward=6, layers=2).double()
    for x in model.parameters():
        x.data += 0.3 * torch.randn(x.shape, dtype=torch.float64)
    p = {name: x.numpy() for name, x in model.state_dict().items()}
    tokens, position = torch.randint(7, (9, 8)), torch.randint(7, (9,))
    expected = []
    for sequence, where in zip(tokens.numpy(), position.numpy(), strict=True):
        x = p["embed.weight"][sequence]  # [length, width]
        for i in range(2):
            q = {name.removeprefix(f"blocks.{i}."): v for name, v in p.items()}
            y = numpy_norm(x, q["norm1.weight"], q["norm1.bias"])
            hidden = np.maximum(q["token1.weight"] @ y + q["token1.bias"][:, None], 0)  # over positions
            x = x + q["token2.weight"] @ hidden + q["token2.bias"][:, None]
            y = numpy_norm(x, q["norm2.weight"], q["norm2.bias"])
            hidden = np.maximum(y @ q["channel1.weight"].T + q["channel1.bias"], 0)  # over features
            x = x + hidden @ q["channel2.weight"].T + q["channel2.bias"]
        expected.append(p["unembed.weight"] @ x[where])
    with torch.no_grad():
        np.testing.assert_allclose(model(tokens, position), np.stack(expected), rtol=1e-10)


def test_lstm_against_numpy():
    torch.manual_seed(0)
    model = LSTM(7, width=5, hidden=3, layers=2).double()
    p = {name: x.numpy() for name, x in model.state_dict().items()}
    tokens, position = torch.randint(7, (9, 8)), torch.randint(7, (9,))

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    expected = []
    for sequence, where in zip(tokens.numpy(), position.numpy(), strict=True):
        x = p["embed.weight"][sequence]
        for i in range(2):
            both = []
            for end, order in (("", 1), ("_reverse", -1)):
                h, c, states = np.zeros(3), np.zeros(3), []
                for row in x[::order]:
                    a = p[f"lstm.weight_ih_l{i}{end}"] @ row + p[f"lstm.bias_ih_l{i}{end}"]
                    a = a + p[f"lstm.weight_hh_l{i}{end}"] @ h + p[f"lstm.bias_hh_l{i}{end}"]
                    c = sigmoid(a[3:6]) * c + sigmoid(a[:3]) * np.tanh(a[6:9])
                    h = sigmoid(a[9:]) * np.tanh(c)
                    states.append(h)
                both.append(np.array(states)[::order])
            x = np.concatenate(both, axis=1)
        expected.append(p["unembed.weight"] @ (p["project.weight"] @ x[where] + p["project.bias"]))
    with torch.no_grad():
        np.testing.assert_allclose(model(tokens, position), np.stack(expected), rtol=1e-10)


# --- training -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_default_cadence_of_evaluations(model):
    config = RunConfig(model=model)
    contexts = len(Replicas([config], compiled=False).contexts)
    assert contexts == (168 if model == "transformer" else 57_344)
    assert evaluation_cadence(config, contexts) == (100 if model == "transformer" else 3_000)
    assert evaluation_cadence(replace(config, eval_every=250), contexts) == 300  # a logged step


@pytest.mark.parametrize("model", ["lstm", "mixer"])
def test_runs_of_order_sensitive_models(model, tmp_path):
    configs = [RunConfig(model=model, bits=4, max_steps=900, tied=tied, eval_every=400) for tied in (True, False)]
    for config, folder in zip(configs, train(configs, tmp_path, compiled=False), strict=True):
        plain, frame = runs.load(folder.path)
        assert frame["step"].tolist() == list(range(0, 901, 100))
        assert frame["step"][frame["accuracy_train"].notna()].tolist() == [0, 400, 800, 900]
        assert frame.filter(regex="^(input|output)/").notna().all(axis=None)
        contexts = config.language.ordered_contexts(*config.language.split(0))
        with torch.no_grad():
            best = plain(torch.tensor(contexts.tokens), torch.tensor(contexts.position)).argmax(1).numpy()
        expected = contexts.probability @ contexts.targets[np.arange(len(contexts)), best]
        np.testing.assert_allclose(frame[["accuracy_train", "accuracy_test"]].iloc[-1], expected, rtol=1e-5)
        assert torch.equal(plain.input_embedding, plain.output_embedding) == config.tied


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lstm", "mixer"])
def test_compiled_trains_as_eager(model):
    configs = [RunConfig(model=model, bits=4, seed=seed, tied=tied) for seed in (1, 2) for tied in (True, False)][:3]
    compiled, eager = Replicas(configs), Replicas(configs, compiled=False)
    assert compiled.compiled
    assert torch.allclose(compiled.advance(200), eager.advance(200), rtol=1e-5)
    assert torch.allclose(compiled.evaluate(), eager.evaluate(), rtol=1e-5)
    for i in range(3):
        ours, theirs = compiled.weights(i), eager.weights(i)
        assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


@pytest.mark.parametrize("model", ["lstm", "mixer"])
def test_killed_runs_end_with_the_same_bytes(model, tmp_path):
    def arguments(out: str) -> list:
        settings = ["--model", model, "--bits", "3", "--both", "--max-steps", "2000", "--checkpoint-every", "0.1"]
        return [*settings, "--no-compile", "--workers", "1", "--out", tmp_path / out]

    assert command(*arguments("undisturbed"))[0] == 0
    moments = random.Random(model)
    metrics = tmp_path / f"ours/exor/main-{model}-bits3/tied/seed-42/metrics.csv"
    for _ in range(2):
        process = start(*arguments("ours"))
        while not metrics.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert command(*arguments("ours"))[0] == 0
    for mode in ("tied", "untied"):
        ours, theirs = (tmp_path / out / f"exor/main-{model}-bits3/{mode}/seed-42" for out in ("ours", "undisturbed"))
        for file in ("metrics.csv", "weights.pt", "output-embedding.tsv"):
            assert (ours / file).read_bytes() == (theirs / file).read_bytes()
        assert scalars(ours) == scalars(theirs)
        assert all(len(values) == 1 for values in scalars(ours).values())


def test_own_model_by_its_import_path(tmp_path):
    (tmp_path / "mine.py").write_text(GRU)
    where = {"PYTHONPATH": str(tmp_path)}
    settings = ("--bits", "3", "--max-steps", "200", "--both", "--out", tmp_path / "runs")
    code, text, err = command("--model", "mine:Gru", *settings, **where)
    assert code == 0, err
    assert "main-mine.Gru-bits3" in text
    folder = tmp_path / "runs/exor/main-mine.Gru-bits3/tied/seed-42"
    assert "model: mine:Gru" in (folder / "config.yaml").read_text()
    with pytest.raises(InputError, match="of the model 'mine:Gru'"):
        runs.load(folder)  # a file does not decide what code is run
    with pytest.raises(InputError, match="weights of another model than LSTM"):
        runs.load(folder, LSTM(7))
    assert "finished" in command("--model", "mine:Gru", *settings, **where)[1]
    for name, words in (
        ("mine:Nothing", "Nothing needs a property input_embedding, a [7, width] tensor"),
        ("mine:Narrow", "Narrow maps 2 sequences to [2, 3], logits [2, 7] are accepted"),
        ("mine:Failing", "Failing fails (ValueError: not today)"),
        ("os:getcwd", "'os:getcwd' cannot be made (TypeError: "),
        ("lstmm", "'lstmm' is unknown, did you mean 'lstm'?"),
    ):
        code, text, err = command("--model", name, *settings, **where)
        assert code == 2
        assert err.startswith(f"error: model: {words}")
        assert err.count("\n") == 1
    assert not text  # a misspelt model is found before anything is said
    assert {p.name for p in (tmp_path / "runs/exor").iterdir()} == {"main-mine.Gru-bits3"}
