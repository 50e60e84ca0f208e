"""Replicas against the plain modules: same loss, same gradients, same AdamW steps, same scores.

Two parameters are left out wherever gradients or trained weights are compared, because their true gradient is zero and
AdamW's tiny epsilon turns its rounding noise into steps: the key bias (the middle third of ``in_proj_bias``), and what
a mixer's token mixing adds to all features of the parity symbol, which every later norm takes away again.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from exor import InputError
from exor.config import MODELS, RunConfig
from exor.data import Source, words
from exor.metrics import exact_scores, mean_row_norm, pair_distances
from exor.models import build
from exor.replicas import Replicas, Task

PERIOD = {"period": 60}  # 200 steps fall, rise and fall again
MAIN = RunConfig(**PERIOD)
GRADIENT_BOUND = {torch.float32: 1e-5, torch.float64: 1e-10}
WEIGHT_BOUND = {torch.float32: 1e-5, torch.float64: 1e-7}
STEPS = 200
LAST_SEED = 2**32 - 1

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


# --- helpers --------------------------------------------------------------------------------------------------


def both(config: RunConfig, *seeds: int) -> list[RunConfig]:
    """Each seed tied and untied."""
    return [replace(config, seed=seed, tied=tied) for seed in seeds for tied in (True, False)]


def eager(configs: list[RunConfig], **options) -> Replicas:
    return Replicas(configs, compiled=False, **options)


def without_idle(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Without the middle third of each ``in_proj_bias``, and the last entry of each ``token2.bias``."""
    kept = {}
    for name, x in tensors.items():
        if name.endswith("in_proj_bias"):
            x = torch.cat([x.chunk(3)[0], x.chunk(3)[2]])
        kept[name] = x[:-1] if name.endswith("token2.bias") else x
    return kept


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    a, b = without_idle(a), without_idle(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def plain_loss(model: torch.nn.Module, config: RunConfig, source: Source, step: int) -> torch.Tensor:
    batch = source.batch([config.seed], step)
    return F.cross_entropy(model(batch.tokens(config.language)[0], batch.position[0].long()), batch.target[0].long())


def train_plain(config: RunConfig, steps: int, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], list[float]]:
    """A user's own loop: weights after the last step, and the loss before each."""
    model, source = build(config).to(dtype), Source(config)
    optimiser = torch.optim.AdamW(
        model.parameters(), config.learning_rate, config.betas, config.eps, config.weight_decay
    )
    half = {"cyclic-cosine": config.period, "cosine": config.max_steps}.get(config.schedule)
    schedule = half and torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, half, config.final_learning_rate)
    losses = []
    for step in range(steps):
        loss = plain_loss(model, config, source, step)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if schedule:
            schedule.step()
        losses.append(float(loss.detach()))
    return {name: x.detach() for name, x in model.state_dict().items()}, losses


def state_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- loss and gradients ---------------------------------------------------------------------------------------

SHAPES = [  # width, heads, layers, feed_forward
    (4, 1, 1, 4),
    (4, 2, 1, 7),
    (6, 3, 3, 5),
    (8, 2, 2, 4),
    (16, 1, 1, 32),  # matrices too large for fused arithmetic
    (16, 4, 2, 16),
    (5, 1, 1, 1),
]
GRADIENT_CASES = {
    **{"-".join(map(str, s)): dict(zip(("width", "heads", "layers", "feed_forward"), s, strict=True)) for s in SHAPES},
    "minibatch": {"batch_size": 20},  # step 5 goes over the border of two epochs
    "minibatch-of-1": {"batch_size": 1},
    "three-synonyms": {"zero": (0.2, 0.3, 0.5), "one": (0.25, 0.75), "layers": 2},
    "never-used": {"zero": (0.5, 0.0, 0.5), "one": (1.0,)},
    "5-bits": {"bits": 5, "width": 6, "heads": 2},
    "2-bits": {"bits": 2},
    "lstm": {"model": "lstm"},
    "lstm-1-of-3": {"model": "lstm", "layers": 1, "hidden": 3, "width": 5, "bits": 3, "zero": (0.2, 0.3, 0.5)},
    "lstm-minibatch": {"model": "lstm", "layers": 3, "hidden": 9, "width": 16, "batch_size": 20},
    "mixer": {"model": "mixer"},
    "mixer-2": {"model": "mixer", "layers": 2, "bits": 3, "zero": (0.2, 0.3, 0.5), "width": 5},
    "mixer-wide": {"model": "mixer", "layers": 3, "width": 16, "token_feed_forward": 20, "batch_size": 20},
    "minibatch-three-16": {"batch_size": 30, "zero": (0.2, 0.3, 0.5), "width": 16, "heads": 2, "layers": 2},
}


@each_dtype
@pytest.mark.parametrize("settings", GRADIENT_CASES.values(), ids=GRADIENT_CASES.keys())
def test_loss_and_gradients(settings, dtype):
    """At weights far from the initial ones, where biases are not zero and layers not alike."""
    configs, step, bound = both(RunConfig(**settings), 3, 8), 5, GRADIENT_BOUND[dtype]
    task = Task(configs[0], torch.device("cpu"), dtype)
    models = [build(c).to(dtype) for c in configs]
    generator = torch.Generator().manual_seed(0)
    stacked = {name: [] for name in task.layout.shapes}
    for model in models:
        for x in model.parameters():
            x.data += 0.3 * torch.randn(x.shape, generator=generator)
        weights = model.state_dict(keep_vars=True)
        for name, rows in stacked.items():
            rows.append(weights[name].detach())
    p = {name: torch.stack(rows).requires_grad_() for name, rows in stacked.items()}
    tied, seeds = torch.tensor([c.tied for c in configs]), words([c.seed for c in configs])
    steps = torch.full_like(seeds, step)
    loss = task.loss(p, tied, seeds, steps, task.edges, task.strings, task.weight)
    assert loss.dtype == dtype
    loss.sum().backward()
    for i, (config, model) in enumerate(zip(configs, models, strict=True)):
        expected = plain_loss(model, config, Source(config), step)
        expected.backward()
        assert abs(loss[i] - expected) < bound * expected
        expected = without_idle({name: x.grad for name, x in model.named_parameters()})
        found = without_idle({name: x.grad[i] for name, x in p.items()})
        if config.tied:
            assert not found.pop("unembed.weight").any()
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            assert gradient.norm() > 0, name
            assert (found[name] - gradient).norm() < bound * gradient.norm(), name


# --- training -------------------------------------------------------------------------------------------------

TRAINING_CASES = {
    "cyclic-cosine": {},
    "cosine": {"schedule": "cosine", "max_steps": 250, "tied": True},
    "constant": {"schedule": "constant", "weight_decay": 0.3, "betas": (0.8, 0.95), "eps": 1e-8, "tied": False},
    "minibatch": {"batch_size": 20, "zero": (0.2, 0.3, 0.5), "bits": 5, "width": 6, "heads": 2},
    "16-2-2": {"width": 16, "heads": 2, "layers": 2, "feed_forward": 16, "tied": False},
    "lstm": {"model": "lstm", "bits": 4},
    "mixer": {"model": "mixer", "layers": 2},
}


@each_dtype
@pytest.mark.parametrize("settings", TRAINING_CASES.values(), ids=TRAINING_CASES.keys())
def test_trains_as_adamw_on_the_plain_module(settings, dtype):
    config = RunConfig(**PERIOD | settings)
    configs = [config] if "tied" in settings else both(config, 42)
    group = eager(configs, dtype=dtype)
    losses = group.advance(STEPS)
    assert losses.shape == (STEPS, len(configs))
    assert group.step == STEPS
    for i, config in enumerate(configs):
        weights, expected = train_plain(config, STEPS, dtype)
        assert largest_difference(group.weights(i), weights) < WEIGHT_BOUND[dtype]
        np.testing.assert_allclose(losses[:, i], expected, rtol=1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tied", [True, False])
def test_seed_alone_and_among_others(tied, model):
    base = RunConfig(model=model, bits=4, **PERIOD)
    config = replace(base, seed=7, tied=tied)
    alone, together = eager([config]), eager([*both(base, 1, 2), config, *both(base, LAST_SEED)])
    assert state_equal(alone.state(0), together.state(4))
    assert state_equal(build(config).state_dict(), together.weights(4))
    first = alone.advance(STEPS), together.advance(STEPS)
    assert largest_difference(alone.weights(0), together.weights(4)) < 1e-5
    assert torch.allclose(first[0][:, 0], first[1][:, 4], rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 42, LAST_SEED])
def test_tied_and_untied_start_equal_in_what_both_have(seed):
    group = eager(both(MAIN, seed))
    tied, untied = group.weights(0), group.weights(1)
    assert torch.equal(tied.pop("unembed.weight"), tied["embed.weight"])
    assert not torch.equal(untied.pop("unembed.weight"), untied["embed.weight"])
    assert state_equal(tied, untied)


@pytest.mark.parametrize("width", [None, 2], ids=["one-block", "blocks-of-2"])
def test_state_round_trip_continues_to_the_bit(width):
    configs = both(MAIN, 5, 6)[:3]
    through, first, second = (eager(configs, width=width) for _ in range(3))
    losses = through.advance(12)
    before = first.advance(7)
    states = [first.state(i) for i in range(3)]
    kept = [{name: x.clone() for name, x in state.items()} for state in states]
    first.advance(1)  # states are copies
    assert all(state_equal(a, b) for a, b in zip(states, kept, strict=True))
    second.load_state(states, 7)
    assert second.step == 7
    assert torch.equal(torch.cat([before, second.advance(5)]), losses)
    assert all(state_equal(second.state(i), through.state(i)) for i in range(3))
    assert torch.equal(second.evaluate(), through.evaluate())


def test_advance_in_pieces_is_advance_at_once():
    whole, pieces = eager(both(MAIN, 5)), eager(both(MAIN, 5))
    losses = whole.advance(10)
    assert torch.equal(torch.cat([pieces.advance(n) for n in (1, 6, 3)]), losses)
    assert all(state_equal(whole.state(i), pieces.state(i)) for i in (0, 1))


@pytest.mark.parametrize("width", [2, 4])
def test_padding_rows_do_not_matter(width):
    """Three replicas in blocks of two or four: the last block is filled up, and nothing shows it."""
    configs = both(MAIN, 5, 6)
    three, four = eager(configs[:3], width=width), eager(configs, width=width)
    losses = three.advance(5), four.advance(5)
    assert losses[0].shape == (5, 3)
    assert torch.equal(losses[0], losses[1][:, :3])
    assert all(state_equal(three.state(i), four.state(i)) for i in range(3))
    assert three.evaluate().shape == (3, 4)
    assert torch.equal(three.evaluate(), four.evaluate()[:3])
    for a, b in zip(three.embeddings(), four.embeddings(), strict=True):
        assert a.shape == (3, 7, 4)
        assert torch.equal(a, b[:3])


@pytest.mark.parametrize("width", [None, 2], ids=["one-block", "blocks-of-2"])
def test_a_diverged_replica_leaves_the_others_alone(width):
    configs = both(MAIN, 5, 6)[:3]
    sound, broken = eager(configs, width=width), eager(configs, width=width)
    states = [sound.state(i) for i in range(3)]
    states[0]["flat"][:] = torch.nan
    broken.load_state(states, 0)
    losses = sound.advance(5), broken.advance(5)
    assert losses[1][:, 0].isnan().all()
    assert torch.equal(losses[0][:, 1:], losses[1][:, 1:])
    assert all(state_equal(sound.state(i), broken.state(i)) for i in (1, 2))
    assert torch.equal(sound.evaluate()[1:], broken.evaluate()[1:])


def test_configs_of_a_group_differ_in_seed_and_tying_only():
    with pytest.raises(InputError, match="seed and tied only"):
        eager([MAIN, replace(MAIN, learning_rate=1e-3)])


# --- what a group says about its models -----------------------------------------------------------------------

EVALUATION_CASES = {
    "main": {},
    "three-synonyms": {"bits": 5, "zero": (0.2, 0.3, 0.5), "one": (0.25, 0.75)},
    "never-used": {"bits": 4, "zero": (0.5, 0.0, 0.5), "one": (1.0,)},
    "16-2-2": {"bits": 5, "width": 16, "heads": 2, "layers": 2, "feed_forward": 16, "split_seed": 3},
    "2-bits": {"bits": 2},
    "lstm": {"model": "lstm", "bits": 5},  # 2,560 contexts, in chunks
    "mixer": {"model": "mixer", "bits": 5},
}


def brute_force_scores(model: torch.nn.Module, config: RunConfig) -> list[float]:
    """Loss and accuracy over every distinct context, in float64."""
    contexts = config.language.ordered_contexts(*config.language.split(config.split_seed))
    assert not contexts.sampled
    with torch.no_grad():
        logits = model.double()(torch.tensor(contexts.tokens), torch.tensor(contexts.position)).numpy()
    loss = np.log(np.exp(logits).sum(1)) - (contexts.targets * logits).sum(1)
    accuracy = contexts.targets[np.arange(len(contexts)), logits.argmax(1)]
    return [float(contexts.probability[i] @ x) for x in (loss, accuracy) for i in (0, 1)]


@each_dtype
@pytest.mark.parametrize("settings", EVALUATION_CASES.values(), ids=EVALUATION_CASES.keys())
def test_exact_scores_of_trained_models(settings, dtype):
    configs = both(RunConfig(learning_rate=0.03, schedule="constant", **settings), 1)
    group = eager(configs, dtype=dtype)
    group.advance(20)
    scores = group.evaluate()
    assert scores.shape == (2, 4)
    for i, config in enumerate(configs):
        model = build(config).to(dtype)
        model.load_state_dict(group.weights(i))
        bound = 1e-6 if dtype == torch.float32 else 1e-12
        np.testing.assert_allclose(scores[i], brute_force_scores(model, config), rtol=bound, atol=bound)


@pytest.mark.parametrize("width", [None, 2], ids=["one-block", "blocks-of-2"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"width": 16, "heads": 2, "layers": 2}, {"model": "lstm", "bits": 4}, {"model": "mixer", "bits": 4}],
    ids=["small", "16-2-2", "lstm", "mixer"],
)
def test_weights_load_into_the_plain_module(settings, width):
    configs = both(RunConfig(**PERIOD | settings), 1, 2)[:3]
    group = eager(configs, width=width)
    group.advance(3)
    weights, (inputs, outputs), losses = [group.weights(i) for i in range(3)], group.embeddings(), group.advance(1)[0]
    for i, config in enumerate(configs):
        model = build(config)
        model.load_state_dict(weights[i])
        assert torch.equal(model.input_embedding, inputs[i])
        assert torch.equal(model.output_embedding, outputs[i])
        assert torch.equal(inputs[i], outputs[i]) == config.tied
        assert torch.allclose(losses[i], plain_loss(model, config, Source(config), 3), rtol=1e-5)


# --- compiled -------------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler on this machine"
)


@pytest.fixture(scope="module")
def compiled():
    """Three runs in two blocks of the default program, the last one half filled; not trained."""
    group = Replicas(both(MAIN, 5, 6)[:3])
    assert group.compiled
    assert group.width == 2
    return group


@needs_compiler
def test_compiled_trains_as_eager_and_plain(compiled):
    start = [compiled.state(i) for i in range(3)]
    other = eager(compiled.configs)
    assert all(state_equal(start[i], other.state(i)) for i in range(3))
    losses, expected = compiled.advance(STEPS), other.advance(STEPS)
    scores = compiled.evaluate(), other.evaluate()
    assert torch.allclose(losses, expected, rtol=1e-5)
    assert torch.allclose(*scores, rtol=1e-5)
    assert all(largest_difference(compiled.weights(i), other.weights(i)) < 1e-5 for i in range(3))
    for i, config in enumerate(compiled.configs[:2]):
        weights, expected = train_plain(config, STEPS, torch.float32)
        assert largest_difference(compiled.weights(i), weights) < 1e-5
        np.testing.assert_allclose(losses[:, i], expected, rtol=1e-5)
        model = build(config)
        model.load_state_dict(compiled.weights(i))
        np.testing.assert_allclose(scores[0][i], brute_force_scores(model, config), rtol=1e-6)


@needs_compiler
def test_compiled_resumes_and_keeps_company_out_to_the_bit(compiled):
    configs = compiled.configs
    fresh = Replicas(configs)
    start = [fresh.state(i) for i in range(3)]
    losses, expected = fresh.advance(12), [fresh.state(i) for i in range(3)]
    compiled.load_state(start, 0)
    before = compiled.advance(7)
    states = [compiled.state(i) for i in range(3)]
    compiled.load_state(states, 7)
    assert torch.equal(torch.cat([before, compiled.advance(5)]), losses)
    assert all(state_equal(compiled.state(i), expected[i]) for i in range(3))
    alone = Replicas([configs[1]], width=2)  # a block filled up with copies
    assert state_equal(alone.state(0), start[1])
    assert torch.equal(alone.advance(12)[:, 0], losses[:, 1])
    assert state_equal(alone.state(0), expected[1])
    assert torch.equal(alone.evaluate()[0], fresh.evaluate()[1])
    diverged = [{**start[0], "flat": torch.full_like(start[0]["flat"], torch.nan)}, *start[1:]]
    compiled.load_state(diverged, 0)
    assert torch.equal(compiled.advance(12)[:, 1:], losses[:, 1:])
    assert all(state_equal(compiled.state(i), expected[i]) for i in (1, 2))
    assert torch.equal(compiled.evaluate()[1:], fresh.evaluate()[1:])


# --- metrics and learning rates -------------------------------------------------------------------------------


@each_dtype
def test_exact_scores_against_numpy(dtype):
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, (3, 5, 40)) * 1.5  # many ties
    logits[2] += 300  # beyond what exp takes in float32
    targets = rng.dirichlet(np.ones(5), 40).T
    probability = rng.dirichlet(np.ones(40), 2)
    found = exact_scores(*(torch.tensor(x, dtype=dtype) for x in (logits, targets, probability)))
    assert found.shape == (3, 4)
    for r in range(3):
        shifted = logits[r] - logits[r].max(0)
        loss = np.log(np.exp(shifted).sum(0)) - (targets * shifted).sum(0)
        hit = targets[logits[r].argmax(0), np.arange(40)]  # the first of equals
        expected = [probability[0] @ loss, probability[1] @ loss, probability[0] @ hit, probability[1] @ hit]
        np.testing.assert_allclose(found[r], expected, rtol=1e-4 if dtype == torch.float32 else 1e-12)


@each_dtype
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_distances_and_norms_against_numpy(lead, dtype):
    matrix = np.random.default_rng(0).normal(size=(*lead, 6, 4))
    pairs = MAIN.language.pairs
    bound = 1e-6 if dtype == torch.float32 else 1e-14
    x = torch.tensor(matrix, dtype=dtype)
    expected = np.stack([np.sqrt(((matrix[..., a, :] - matrix[..., b, :]) ** 2).sum(-1)) for a, b in pairs], -1)
    np.testing.assert_allclose(pair_distances(x, pairs), expected, rtol=bound)
    np.testing.assert_allclose(mean_row_norm(x), np.sqrt((matrix**2).sum(-1)).mean(-1), rtol=bound)


@pytest.mark.parametrize(
    "settings",
    [
        {"period": 10},
        {"period": 1},
        {"period": 60, "final_learning_rate": 0.0},
        {"schedule": "cosine", "max_steps": 300, "period": 10},
        {"schedule": "constant", "period": 10},
    ],
    ids=str,
)
def test_learning_rates(settings):
    config = RunConfig(**settings)
    optimiser = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], config.learning_rate)
    half = config.max_steps if config.schedule == "cosine" else config.period
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, half, config.final_learning_rate)
    for step in range(300):
        expected = config.learning_rate if config.schedule == "constant" else schedule.get_last_lr()[0]
        assert config.rate(step) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        optimiser.step()
        schedule.step()


def test_learning_rate_of_the_published_run():
    config = RunConfig()
    assert [config.rate(t) for t in (0, 20_000, 140_000)] == pytest.approx([5e-4] * 3)
    assert [config.rate(t) for t in (10_000, 30_000, 150_000)] == pytest.approx([1e-5] * 3)
    assert config.rate(5_000) == pytest.approx((5e-4 + 1e-5) / 2)
