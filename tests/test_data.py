"""Batches: a pure function of (seed, step), with exactly the language's distribution.

Every statistical test has fixed seeds, so it passes or fails for good; its bounds are those of a sound generator.
"""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch.utils.data import DataLoader

from exor.config import RunConfig
from exor.data import (
    UNIFORM_BITS,
    Batch,
    ExorDataset,
    Source,
    batch_strings,
    draw,
    key,
    mix,
    thresholds,
    uniform,
    words,
)
from exor.language import Language

LAST_SEED = 2**32 - 1
SEEDS = [0, 1, 42, 2**31, LAST_SEED]
MAIN = RunConfig()
SMALL = RunConfig(bits=3, zero=(0.2, 0.0, 0.8), one=(0.5, 0.2, 0.3))  # 0B never occurs
CONFIGS = {
    "main": MAIN,
    "small": SMALL,
    "minibatch": RunConfig(batch_size=20),
    "one-synonym": RunConfig(bits=4, zero=(1.0,), one=(1.0,)),
    "16-bits": RunConfig(bits=16, batch_size=50),
}
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


# --- helpers --------------------------------------------------------------------------------------------------


def draws(config: RunConfig, seeds: list[int], steps: list[int], strings: torch.Tensor | None = None) -> Batch:
    """Full batches of any (seed, step) pairs at once; the replica axis runs over the pairs."""
    source = Source(config)
    strings = source.strings if strings is None else strings
    return draw(config.language, source.edges, strings[None], words(seeds), torch.tensor(steps, dtype=torch.int32))


def strings_of(batch: Batch, language: Language) -> torch.Tensor:
    """``[R, B]``: the strings, read back from the symbols."""
    number = torch.zeros_like(batch.target)
    for symbol in batch.symbols:
        number = 2 * number + (symbol >= len(language.zero)).int()
    return number


def flat(batch: Batch) -> torch.Tensor:
    """``[R, B, bits + 3]``: everything in a batch."""
    return torch.stack(torch.broadcast_tensors(*batch.symbols, batch.position, batch.parity, batch.target), -1)


def assert_fits(observed: np.ndarray, expected: np.ndarray, constraints: int) -> None:
    """Chi-square test; neither too far from the expectation nor too close to it. Impossible cells stay empty."""
    observed, expected = np.ravel(observed), np.ravel(expected)
    assert observed[expected == 0].sum() == 0
    observed, expected = observed[expected > 0], expected[expected > 0]
    assert expected.min() > 5, "too few draws for a chi-square test"
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = len(expected) - constraints
    if freedom == 0:
        assert statistic == 0
        return
    assert 1e-4 < chi2.sf(statistic, freedom) < 1 - 1e-4


def correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """In standard deviations of what independent draws give."""
    x, y = x.double().ravel(), y.double().ravel()
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1]) * len(x) ** 0.5


def outcomes(batch: Batch, language: Language) -> tuple[np.ndarray, list[np.ndarray]]:
    """Each sequence as one number (spelling and masked position), and for each string the outcomes' distribution."""
    symbols = len(language.bit_symbols)
    code = batch.position.long()
    for symbol in batch.symbols:
        code = code * symbols + symbol
    chances = []
    for string in strings_of(batch, language)[0].tolist():
        p = np.full(language.bits, 1 / language.bits)
        for bit in f"{string:0{language.bits}b}":
            p = np.multiply.outer(p, language.predictions[int(bit), :symbols])
        chances.append(p.ravel())
    return code.numpy(), chances


# --- a pure function of (seed, step) --------------------------------------------------------------------------


@each_config
def test_same_alone_in_company_and_in_any_order(config):
    source, steps = Source(config), [0, 1, 5, 99, 2**31 - 1]
    together = {t: flat(source.batch(SEEDS, t)) for t in steps}
    for t in reversed(steps):
        for i, seed in enumerate(SEEDS):
            assert torch.equal(flat(Source(config).batch([seed], t))[0], together[t][i])
        assert torch.equal(flat(source.batch(SEEDS[::-1], t)).flip(0), together[t])


def test_does_not_touch_or_read_the_global_generators():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = flat(Source(MAIN).batch([42], 3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(flat(Source(MAIN).batch([42], 3)), first)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("config", [MAIN, CONFIGS["minibatch"]], ids=["full", "minibatch"])
def test_loader_gives_the_steps_in_order(config, workers):
    source = Source(config)
    loader = DataLoader(ExorDataset(config, 7), batch_size=None, num_workers=workers)
    assert len(loader) == 7
    seen = list(loader)
    assert len(seen) == 7
    for step, (tokens, position, target) in enumerate(seen):
        batch = source.batch([config.seed], step)
        assert torch.equal(tokens, batch.tokens(config.language)[0])
        assert torch.equal(position, batch.position[0].long())
        assert torch.equal(target, batch.target[0].long())


def test_arithmetic_is_that_of_unsigned_words():
    def reference(x):
        x ^= x >> 16
        x = x * 0x21F0AAAD & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x735A2D97 & 0xFFFFFFFF
        return x ^ x >> 15

    numbers = [0, 1, 2**31 - 1, 2**31, LAST_SEED, *np.random.default_rng(0).integers(2**32, size=100).tolist()]
    assert torch.equal(mix(words(numbers)), words([reference(x) for x in numbers]))


# --- one batch ------------------------------------------------------------------------------------------------


@each_config
@pytest.mark.parametrize("step", [0, 8])
def test_batch_is_consistent(config, step):
    language, source = config.language, Source(config)
    batch = source.batch(SEEDS, step)
    strings = strings_of(batch, language)
    tokens, columns = batch.tokens(language), flat(batch)[..., : config.bits]
    train = {*language.split(config.split_seed)[0].tolist()}
    if config.batch_size is None:
        assert strings.tolist() == [sorted(train)] * len(SEEDS)
    else:
        assert strings.shape == (len(SEEDS), config.batch_size)
        assert {*strings.ravel().tolist()} <= train
    parity = torch.tensor([[s.bit_count() % 2 for s in row] for row in strings.tolist()])
    assert torch.equal(batch.parity.expand_as(strings).long(), parity)
    assert tokens.shape == (*strings.shape, config.bits + 1)
    assert torch.equal(tokens[..., -1], parity + language.parity_id(0))
    masked = tokens[..., :-1] == language.mask_id
    assert torch.equal(masked, torch.arange(config.bits) == batch.position[..., None])
    assert torch.equal(tokens[..., :-1][~masked], columns[~masked].long())
    assert torch.equal(columns[masked].reshape(strings.shape), batch.target)
    counts = torch.nn.functional.one_hot(tokens, len(language.vocabulary)).sum(2).mT
    assert torch.equal(batch.counts(language), counts.float())


@each_config
def test_batch_has_the_documented_shapes(config):
    batch, source = Source(config).batch(SEEDS, 1), Source(config)
    shape = (len(SEEDS), source.size)
    assert len(batch.symbols) == config.bits
    assert batch.position.shape == batch.target.shape == shape
    assert batch.parity.shape in (shape, (1, source.size))
    assert all(symbol.shape == shape and symbol.dtype == torch.int32 for symbol in batch.symbols)


@each_config
def test_dataset_items(config):
    dataset = ExorDataset(config, 3)
    assert len(dataset) == len(list(dataset)) == 3
    language = config.language
    size = config.batch_size or len(language.split(config.split_seed)[0])
    for tokens, position, target in dataset:
        assert tokens.shape == (size, config.bits + 1)
        assert position.shape == target.shape == (size,)
        assert tokens.dtype == position.dtype == target.dtype == torch.int64
        assert torch.equal((tokens == language.mask_id).int().argmax(1), position)
        assert ((tokens == language.mask_id).sum(1) == 1).all()
        whole = torch.where(tokens == language.mask_id, target[:, None], tokens)
        ones = (whole[:, :-1] >= len(language.zero)).sum(1)
        assert (whole[:, :-1] < len(language.bit_symbols)).all()
        assert torch.equal(whole[:, -1], language.parity_id(0) + ones % 2)


def test_dataset_defaults():
    dataset = ExorDataset()
    assert len(dataset) == MAIN.max_steps
    assert torch.equal(next(iter(dataset))[0], Source(MAIN).batch([42], 0).tokens(MAIN.language)[0])


# --- the distribution -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [MAIN, SMALL, RunConfig(zero=(0.5, 0.25, 0.25), one=(0.0, 1.0))], ids=["main", "small", "5-symbols"]
)
@pytest.mark.parametrize("seed", [0, 42, LAST_SEED])
def test_symbols_positions_and_targets(config, seed):
    language, steps = config.language, 1000
    batch = draws(config, [seed] * steps, list(range(steps)))
    bits = language.bits_of(language.split(config.split_seed)[0])
    p = language.predictions[:, : len(language.bit_symbols)]
    count = lambda x: np.bincount(x.numpy().ravel(), minlength=p.shape[1])  # noqa: E731
    for position, symbols in enumerate(batch.symbols):
        for bit in (0, 1):
            observed = count(symbols[:, torch.tensor(bits[:, position] == bit)])
            assert_fits(observed, p[bit] * observed.sum(), 1)
    n, strings = config.bits, len(bits)
    positions = np.bincount(batch.position.numpy().ravel(), minlength=n)
    assert_fits(positions, np.full(n, steps * strings / n), 1)
    place = batch.position + n * torch.arange(strings)
    assert_fits(np.bincount(place.numpy().ravel(), minlength=n * strings), np.full(n * strings, steps / n), strings)
    masked = torch.tensor(bits).repeat(steps, 1, 1).gather(2, batch.position.long()[..., None])[..., 0]
    for bit in (0, 1):
        observed = count(batch.target[masked == bit])
        assert_fits(observed, p[bit] * observed.sum(), 1)


@pytest.mark.parametrize("by", ["step", "seed"])
def test_a_sequence_has_the_exact_joint_distribution(by):
    """Over all spellings and masked positions: independence of the positions from each other and from the mask."""
    many, language = list(range(40_000)), SMALL.language
    batch = draws(SMALL, [7] * len(many), many) if by == "step" else draws(SMALL, many, [7] * len(many))
    code, chances = outcomes(batch, language)
    observed = [np.bincount(x, minlength=len(p)) for x, p in zip(code.T, chances, strict=True)]
    assert_fits(np.array(observed), np.array(chances) * len(many), len(observed))


@pytest.mark.parametrize("apart", ["steps", "seeds", "strings", "both"])
def test_neighbouring_sequences_are_independent(apart):
    """Joint distribution of the outcomes of one string at two steps or seeds, and of two strings at one step."""
    config, many = RunConfig(bits=2, zero=(0.3, 0.7), one=(0.5, 0.5)), 100_000
    language, first, second = config.language, slice(0, many, 2), slice(1, many, 2)
    count = range(many)
    seeds, steps = {
        "steps": ([9] * many, list(count)),
        "seeds": (list(count), [9] * many),
        "strings": (list(count), [9] * many),
        "both": (list(count), list(count)),
    }[apart]
    code, chances = outcomes(draws(config, seeds, steps), language)
    assert len(chances) == 4
    for i, j in product(range(4), repeat=2) if apart != "strings" else [(0, 1), (0, 3), (1, 2)]:
        x, y = (code[:, i], code[:, j]) if apart == "strings" else (code[first, i], code[second, j])
        joint = np.multiply.outer(chances[i], chances[j])
        observed = np.bincount(x * len(chances[j]) + y, minlength=joint.size)
        assert_fits(observed, joint * len(x), 1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "synonyms", [(0.0, 0.4, 0.6), (0.4, 0.0, 0.6), (0.4, 0.6, 0.0), (0.4, 0.6 + 9e-7, 0.0)], ids=str
)
def test_a_synonym_of_probability_zero_never_occurs(synonyms, seed):
    config = RunConfig(zero=synonyms, one=synonyms)
    symbols = torch.stack(draws(config, [seed] * 200, list(range(200))).symbols)
    assert {*(symbols % 3).unique().tolist()} == {i for i, p in enumerate(synonyms) if p > 0}


@pytest.mark.parametrize("word", [0, LAST_SEED], ids=["lowest", "highest"])
@pytest.mark.parametrize("synonyms", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.5, 0.5, 0.0)], ids=str)
def test_not_even_at_the_ends_of_a_draw(monkeypatch, synonyms, word):
    monkeypatch.setattr("exor.data.uniform", lambda k, cell: words([word]).expand(len(k[0]), cell.shape[1]))
    config = RunConfig(zero=synonyms, one=synonyms)
    batch = Source(config).batch([1], 0)
    expected = [i for i, p in enumerate(synonyms) if p > 0][0 if word == 0 else -1]
    assert {*(torch.stack(batch.symbols) % len(synonyms)).ravel().tolist()} == {expected}
    assert {*batch.position.ravel().tolist()} == {0 if word == 0 else config.bits - 1}


def test_thresholds():
    size = 2**UNIFORM_BITS
    rare = thresholds(Language(zero=(1 - 1e-9, 1e-9), one=(1e-9, 1 - 1e-9)))
    assert rare.tolist() == [[size - 1], [1]]
    assert thresholds(Language(zero=(1.0,), one=(0.25, 0.25, 0.5))).tolist() == [[size, size], [size // 4, size // 2]]
    assert thresholds(Language(zero=(1.0,), one=(1.0,))).shape == (2, 0)
    assert thresholds(Language(zero=(0.5, 0.5, 0.0))).tolist() == [[size // 2, size], [size // 2, size]]
    assert thresholds(Language(zero=(1 / 3,) * 3)).tolist()[0] == [round(size / 3), round(2 * size / 3)]


@pytest.mark.parametrize(("zero", "common"), [((1 - 1e-9, 1e-9), 0), ((1e-9, 1 - 1e-9), 1)])
def test_a_rare_synonym_is_rare(zero, common):
    config = RunConfig(zero=zero)
    symbols = torch.stack(draws(config, [3] * 1000, list(range(1000))).symbols)
    assert {*symbols[symbols < 2].tolist()} == {common}  # 400,000 draws


# --- the generator --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid():
    """The keys of 1,000 seeds x 1,000 steps."""
    seeds, steps = torch.meshgrid(words(list(range(1000))), words(list(range(1000))), indexing="ij")
    return key(seeds, steps)


def test_keys_of_a_million_streams_are_distinct(grid):
    assert len((grid[0].long() << 32 | grid[1].long() & 0xFFFFFFFF).unique()) == 1_000_000


def test_draws_of_a_million_streams_are_distinct():
    strings = torch.tensor([127, 126, 125, 123, 119, 111, 95, 63], dtype=torch.int32)
    coefficients = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, (8, len(strings))))
    steps, prints = list(range(1000)), []
    edges = thresholds(MAIN.language)
    for seed in range(1000):
        batch = draw(MAIN.language, edges, strings[None], words([seed] * 1000), words(steps))
        columns = torch.stack([*batch.symbols, batch.position])  # [8, steps, strings]
        prints.append((columns * coefficients[:, None]).sum((0, 2)))
    assert len(torch.cat(prints).unique()) == 1_000_000


@pytest.mark.parametrize("cell", [0, 7, 32, 127 * 32 + 6])
def test_streams_are_uncorrelated(grid, cell):
    """Words and their single bits, against those of neighbouring seeds, steps, positions and strings."""
    at = lambda c: uniform(grid, torch.tensor(c, dtype=torch.int32))  # noqa: E731
    x = at(cell)
    neighbours = {
        "next seed": (x[1:], x[:-1]),
        "next step": (x[:, 1:], x[:, :-1]),
        "next both": (x[1:, 1:], x[:-1, :-1]),
        "next seed, last step": (x[1:, :-1], x[:-1, 1:]),
        "256 seeds on": (x[256:], x[:-256]),
        "256 steps on": (x[:, 256:], x[:, :-256]),
        "seed and step swapped": (x[torch.ones_like(x).tril(-1) > 0], x.T[torch.ones_like(x).tril(-1) > 0]),
        "next position": (x, at(cell + 1)),
        "next string": (x, at(cell + 32)),
        "key": (x, grid[0]),
    }
    for name, (a, b) in neighbours.items():
        assert abs(correlation(a, b)) < 4.5, name
        flips = [float(((a ^ b) >> i & 1).double().mean()) for i in range(32)]
        assert np.abs(np.array(flips) - 0.5).max() < 4.5 * 0.5 / a.numel() ** 0.5, name


@pytest.mark.parametrize("axis", ["seed", "step"])
def test_sums_over_a_stream_do_not_depend_on_the_stream(grid, axis):
    """Means over 1,000 words have the variance that independent uniform words give."""
    x = uniform(grid, torch.tensor(5, dtype=torch.int32)).double() / 2**32
    z = x.mean(0 if axis == "seed" else 1) * (12 * 1000) ** 0.5
    assert 1e-4 < chi2.sf(float((z**2).sum()), 1000) < 1 - 1e-4


def test_mix_is_injective():
    assert len(mix(torch.arange(-500_000, 500_000, dtype=torch.int32)).unique()) == 1_000_000


@pytest.mark.parametrize("numbers", ["counting", "random"])
def test_mix_avalanches(numbers):
    size = 2**16
    rng = np.random.default_rng(0)
    x = torch.arange(size) if numbers == "counting" else torch.from_numpy(rng.integers(2**32, size=size))
    x = x.to(torch.int32)
    flips = torch.stack([mix(x) ^ mix(x ^ word) for word in words([2**i for i in range(32)])])
    rates = torch.stack([(flips >> i & 1).double().mean(1) for i in range(32)])
    assert (rates - 0.5).abs().max() < 0.02
    assert (rates - 0.5).abs().mean() < 0.005


@pytest.mark.parametrize("flipped", [0, 1], ids=["seed", "step"])
def test_key_avalanches(flipped):
    """Every bit of seed or step flips every bit of both words of the key half of the time."""
    size = 2**14
    base = [words(x) for x in np.random.default_rng(0).integers(2**32, size=(2, size)).tolist()]
    for bit in words([2**i for i in range(32)]):
        near = [x ^ bit if i == flipped else x for i, x in enumerate(base)]
        for a, b in zip(key(*base), key(*near), strict=True):
            rates = torch.stack([((a ^ b) >> i & 1).double().mean() for i in range(32)])
            assert (rates - 0.5).abs().max() < 5 * 0.5 / size**0.5


# --- batches that do not see every string ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20, 23, 64, 114])
@pytest.mark.parametrize("seed", [0, LAST_SEED])
def test_each_epoch_sees_every_string_once(size, seed):
    config = RunConfig(batch_size=size)
    source, total, epochs = Source(config), 115, 4
    batches = [strings_of(source.batch([seed], t), config.language)[0] for t in range(-(-epochs * total // size))]
    assert {len(b) for b in batches} == {size}
    row = torch.cat(batches)[: epochs * total].reshape(epochs, total)
    assert torch.equal(row.sort(1).values, source.strings.expand(epochs, -1))
    assert len(row.unique(dim=0)) == epochs


def test_a_late_batch_continues_its_epoch():
    """Far into training, beyond 2^31 strings: the epoch is still one permutation."""
    config = RunConfig(batch_size=100)
    source, first = Source(config), 115 * 20_000_000 // 100  # a step at which an epoch begins
    assert first * 100 % 115 == 0
    assert first * 100 > 2**31
    row = torch.cat([strings_of(source.batch([5], first + t), config.language)[0] for t in range(23)]).reshape(20, 115)
    assert torch.equal(row.sort(1).values, source.strings.expand(20, -1))
    assert len(row.unique(dim=0)) == 20


def test_permutations_differ_across_seeds_and_are_uniform():
    source, many = Source(RunConfig(bits=3)), 5000
    strings = source.strings
    for seeds, epochs in (range(many), [0] * many), ([3] * many, range(many)):
        steps = words([e * len(strings) for e in epochs])
        # batches of one string: the first string of an epoch, and the last of the epoch before it
        first = batch_strings(strings, 1, words([*seeds]), steps)[:, 0]
        second = batch_strings(strings, 1, words([*seeds]), steps + 1)[:, 0]
        index = torch.searchsorted(strings, torch.stack([first, second]))
        observed = np.bincount((index[0] * 7 + index[1]).numpy(), minlength=49).reshape(7, 7)
        assert np.trace(observed) == 0
        assert_fits(observed, (1 - np.eye(7)) * many / 42, 1)


def test_minibatch_draws_are_those_of_its_strings():
    """A string's spelling at a step does not depend on the batch that it came in."""
    config = RunConfig(batch_size=30)
    small, full = Source(config).batch([4], 2), Source(MAIN).batch([4], 2)
    where = torch.searchsorted(Source(MAIN).strings, strings_of(small, MAIN.language)[0])
    assert torch.equal(flat(small)[0], flat(full)[0, where])


@pytest.mark.parametrize("size", [100, 114])
def test_a_string_twice_in_a_batch_is_drawn_twice(size):
    """A batch over the border of two epochs may hold a string twice; the two are as independent as any others."""
    config = RunConfig(bits=7, zero=(0.5, 0.5), batch_size=size)
    same = []
    for step in range(1, 20):
        batch = Source(config).batch([1], step)
        everything, strings = flat(batch)[0], strings_of(batch, config.language)[0].tolist()
        for i, s in enumerate(strings):
            if (j := strings.index(s)) < i:
                same.append(torch.equal(everything[i], everything[j]))
    assert len(same) > 20
    assert np.mean(same) < 0.1  # two spellings and masked positions agree with probability 2^-7 / 7
