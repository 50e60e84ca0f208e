"""The EXor language: its exact distribution, its Bayes optimum, and what its symbols have in common.

A string is ``bits`` bits, each written as one of its synonyms, then a parity symbol. One bit position
is masked and has to be predicted. The distribution is finite, so nothing here is sampled unless its
contexts number more than a million.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb, factorial, isfinite, prod

import numpy as np
from numpy.typing import NDArray

from exor import InputError

MAX_CONTEXTS = 1_000_000
SAMPLED_CONTEXTS = 16_384
ZERO_GAP = 1e-9

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Language:
    """An EXor language.

    Args:
        bits: number of bits in a string, 2 to 16; a sequence has ``bits + 1`` symbols.
        zero: probabilities of the synonyms ``0A, 0B, …`` of bit 0; non-negative, sum 1.
        one: probabilities of the synonyms ``1A, 1B, …`` of bit 1.

    Raises:
        InputError: bits out of range, no synonyms, more than 26, or probabilities that are no distribution.
    """

    bits: int = 7
    zero: tuple[float, ...] = (0.1, 0.9)
    one: tuple[float, ...] = (0.5, 0.5)

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise InputError(f"bits: {self.bits!r} is not accepted, whole numbers from 2 to 16 are")
        for name in ("zero", "one"):
            try:
                values = tuple(float(p) for p in getattr(self, name))
            except (TypeError, ValueError):
                raise InputError(f"{name}: {getattr(self, name)!r} is not accepted, a list of numbers is") from None
            if not 1 <= len(values) <= 26:
                raise InputError(f"{name}: {len(values)} synonyms, 1 to 26 are accepted")
            if any(not isfinite(p) or p < 0 for p in values):
                raise InputError(f"{name}: {_join(values)} are not all probabilities, numbers from 0 to 1 are accepted")
            if abs(sum(values) - 1) > 1e-6:
                raise InputError(f"{name}: probabilities {_join(values)} sum to {sum(values):.6g}, they must sum to 1")
            object.__setattr__(self, name, tuple(p / sum(values) for p in values))

    # --- the alphabet ---------------------------------------------------------------------------------------

    @cached_property
    def bit_symbols(self) -> tuple[str, ...]:
        """The symbols that write a bit: the zeros, then the ones."""
        zeros = tuple("0" + letter for letter in string.ascii_uppercase[: len(self.zero)])
        ones = tuple("1" + letter for letter in string.ascii_uppercase[: len(self.one)])
        return zeros + ones

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """All symbols in id order: zeros, ones, ``=0``, ``=1``, ``[MASK]``."""
        return (*self.bit_symbols, "=0", "=1", "[MASK]")

    @property
    def mask_id(self) -> int:
        """Id of ``[MASK]``, the last symbol."""
        return len(self.vocabulary) - 1

    def parity_id(self, parity: int) -> int:
        """Id of ``=0`` or ``=1``."""
        return len(self.bit_symbols) + parity

    @cached_property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Every unordered pair of bit symbols, as ids."""
        return tuple(combinations(range(len(self.bit_symbols)), 2))

    def pair_name(self, pair: tuple[int, int]) -> str:
        """``0A-0B`` for the ids of ``0A`` and ``0B``."""
        return "-".join(self.vocabulary[i] for i in pair)

    def bit_of(self, symbol: int) -> int:
        """The bit that a bit symbol writes, 0 or 1."""
        return int(symbol >= len(self.zero))

    @cached_property
    def _used(self) -> tuple[list[int], list[int]]:
        """The synonyms of each bit that have positive probability."""
        zero, one = (np.flatnonzero(row > 0).tolist() for row in self.predictions)
        return zero, one

    @cached_property
    def predictions(self) -> Floats:
        """``[2, vocabulary]``: the distribution of a masked symbol, given the bit that stood there.

        The context decides that bit (it is the parity of everything visible), and nothing else matters.
        """
        table = np.zeros((2, len(self.vocabulary)))
        table[0, : len(self.zero)] = self.zero
        table[1, len(self.zero) : len(self.bit_symbols)] = self.one
        return table

    # --- the strings ----------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Symbols in a sequence."""
        return self.bits + 1

    def split(self, seed: int = 0) -> tuple[Ints, Ints]:
        """Training and test strings, as sorted integers whose binary digits are the bits (first bit highest).

        ``round(.9 · 2^bits)`` strings are for training. With 2 bits that is all four, and no test string is left.
        """
        order = np.random.default_rng(seed).permutation(2**self.bits)
        cut = round(0.9 * 2**self.bits)
        return np.sort(order[:cut]), np.sort(order[cut:])

    def bits_of(self, strings: Ints) -> Ints:
        """``[strings] -> [strings, bits]``: the binary digits, first bit first."""
        return (strings[:, None] >> np.arange(self.bits - 1, -1, -1)) & 1

    # --- the optimum ----------------------------------------------------------------------------------------

    def masked_bit(self, strings: Ints) -> Floats:
        """``[2]``: the probability that a masked bit of these strings is 0 or 1; NaN for no strings."""
        ones = self.bits_of(strings).mean() if len(strings) else np.nan
        return np.array([1 - ones, ones])

    def bayes_accuracy(self, strings: Ints) -> float:
        """Accuracy of the best possible model on these strings; NaN for no strings."""
        return float(self.masked_bit(strings) @ self.predictions.max(axis=1))

    def bayes_loss(self, strings: Ints) -> float:
        """Cross-entropy (nats) of the best possible model on these strings; NaN for no strings."""
        p = self.predictions
        entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
        return float(self.masked_bit(strings) @ entropy)

    # --- relations between symbols --------------------------------------------------------------------------

    def semantic_gap(self, pair: tuple[int, int]) -> float:
        """Largest total-variation distance between the predictions before and after swapping one ``a`` for ``b``.

        The maximum runs over the contexts that contain ``a``. Both masked bits occur with ``a`` in sight (there are
        at least two bits), and a swap changes the prediction only through the parity, so two cases cover them all.
        Every swap stays inside the language, whose strings are all bit strings.
        """
        a, b = pair
        flipped = self.bit_of(a) ^ self.bit_of(b)
        p = self.predictions
        return float(max(np.abs(p[m] - p[m ^ flipped]).sum() / 2 for m in (0, 1)))

    def conditional_gap(self, pair: tuple[int, int]) -> float:
        """Largest ``|p(a | context) - p(b | context)|`` over all contexts."""
        a, b = pair
        return float(np.abs(self.predictions[:, a] - self.predictions[:, b]).max())

    def relations(self) -> tuple[Relation, ...]:
        """The relation of every pair of bit symbols of positive probability."""
        used = self.predictions.max(axis=0) > 0
        return tuple(
            Relation(pair, self.pair_name(pair), self.semantic_gap(pair), self.conditional_gap(pair))
            for pair in self.pairs
            if used[pair[0]] and used[pair[1]]
        )

    def distributional_hypothesis_holds(self) -> bool:
        """Whether semantic and conditional equivalence name the same pairs."""
        return all(r.semantically_equivalent == r.conditionally_equivalent for r in self.relations())

    # --- the contexts ---------------------------------------------------------------------------------------

    def contexts(self, train: Ints, test: Ints, *, ordered: bool) -> Contexts:
        """Every context, as far as a model tells them apart: by order, or by symbol counts only."""
        return self.ordered_contexts(train, test) if ordered else self.count_contexts(train, test)

    def count_contexts(self, train: Ints, test: Ints) -> Contexts:
        """Contexts told apart by their symbol counts only: all that a model without positions can see.

        ``main`` has 168. Beyond a million, a fixed random sample of both splits.
        """
        n, (zero, one) = self.bits, self._used
        zeros, ones = len(zero), len(one)
        total = 2 * sum(comb(z + zeros - 1, zeros - 1) * comb(n - 1 - z + ones - 1, ones - 1) for z in range(n))
        if total > MAX_CONTEXTS:
            return self._sample(train, test)
        rows, masked, chance = [], [], []
        ones_in = [np.bincount(self.bits_of(s).sum(1), minlength=n + 1) / max(len(s), 1) for s in (train, test)]
        for bit in (0, 1):
            for z in range(n):
                o = n - 1 - z  # visible ones
                # P(a string with o + bit ones) times P(the masked position holds `bit`)
                share = [f[o + bit] * (o + 1 if bit else z + 1) / n for f in ones_in]
                for zero_counts in _compositions(z, zeros):
                    for one_counts in _compositions(o, ones):
                        p = _multinomial(zero_counts, self.predictions[0, zero]) * _multinomial(
                            one_counts, self.predictions[1, one]
                        )
                        symbols = np.repeat([*zero, *one], (*zero_counts, *one_counts))
                        rows.append([self.mask_id, *symbols, self.parity_id(o + bit & 1)])
                        masked.append(bit)
                        chance.append([s * p for s in share])
        return self._contexts(np.array(rows), np.zeros(len(rows), np.int64), np.array(masked), np.array(chance).T)

    def ordered_contexts(self, train: Ints, test: Ints) -> Contexts:
        """Every distinct context, for models that see the order of symbols.

        ``main`` has 57,344. Beyond a million, a fixed random sample of both splits.
        """
        n, used = self.bits, self._used
        if 2 * n * sum(map(len, used)) ** (n - 1) > MAX_CONTEXTS:
            return self._sample(train, test)
        strings = np.concatenate([train, test])
        bits = self.bits_of(strings)
        share = np.zeros((2, len(strings)))
        share[0, : len(train)] = 1 / max(len(train), 1) / n
        share[1, len(train) :] = 1 / max(len(test), 1) / n
        table = np.zeros((2, max(map(len, used))), np.int64)
        for b in (0, 1):
            table[b, : len(used[b])] = used[b]
        tokens, position, masked, chance = [], [], [], []
        for p in range(n):
            # one column of symbols for each visible bit, every string followed by all of its spellings
            s, symbols = np.arange(len(strings)), np.zeros((len(strings), 0), np.int64)
            for bit in np.delete(bits, p, axis=1).T:
                spellings = np.array([len(used[b]) for b in bit[s]])
                nth = np.arange(spellings.sum()) - np.repeat(spellings.cumsum() - spellings, spellings)
                s, symbols = np.repeat(s, spellings), np.repeat(symbols, spellings, axis=0)
                symbols = np.column_stack([symbols, table[bit[s], nth]])
            q = self.predictions.max(0)[symbols].prod(1)
            parity = self.parity_id(0) + bits[s].sum(1) % 2
            tokens.append(np.column_stack([symbols[:, :p], np.full(len(s), self.mask_id), symbols[:, p:], parity]))
            position.append(np.full(len(s), p))
            masked.append(bits[s, p])
            chance.append(share[:, s] * q)
        joined = np.concatenate(tokens), np.concatenate(position), np.concatenate(masked)
        return self._contexts(*joined, np.concatenate(chance, axis=1))

    def _sample(self, train: Ints, test: Ints) -> Contexts:
        rng = np.random.default_rng(0)
        tokens, masked, position = [], [], []
        for strings in (train, test):
            bits = (
                self.bits_of(rng.choice(strings, SAMPLED_CONTEXTS)) if len(strings) else np.zeros((0, self.bits), int)
            )
            zeros = rng.choice(len(self.zero), bits.shape, p=np.array(self.zero) / sum(self.zero))
            ones = rng.choice(len(self.one), bits.shape, p=np.array(self.one) / sum(self.one)) + len(self.zero)
            where = rng.integers(self.bits, size=len(bits))
            symbols = np.column_stack([np.where(bits == 0, zeros, ones), self.parity_id(0) + bits.sum(1) % 2])
            symbols[np.arange(len(bits)), where] = self.mask_id
            tokens.append(symbols)
            masked.append(bits[np.arange(len(bits)), where])
            position.append(where)
        chance = np.zeros((2, sum(map(len, tokens))))
        chance[0, : len(tokens[0])] = 1 / max(len(tokens[0]), 1)
        chance[1, len(tokens[0]) :] = 1 / max(len(tokens[1]), 1)
        joined = np.concatenate(tokens), np.concatenate(position), np.concatenate(masked)
        return self._contexts(*joined, chance, sampled=True)

    def _contexts(self, tokens: Ints, position: Ints, bit: Ints, p: Floats, sampled: bool = False) -> Contexts:
        seen = p.sum(0) > 0
        return Contexts(tokens[seen], position[seen], bit[seen], p[:, seen], self.predictions, sampled)


@dataclass(frozen=True)
class Relation:
    """How two bit symbols relate in a language, and what theory predicts for their distances in training."""

    pair: tuple[int, int]
    name: str
    semantic_gap: float
    conditional_gap: float

    @property
    def semantically_equivalent(self) -> bool:
        """Swapping one for the other never changes the prediction: input embeddings should meet."""
        return self.semantic_gap < ZERO_GAP

    @property
    def conditionally_equivalent(self) -> bool:
        """Equally probable in every context: output embeddings should meet."""
        return self.conditional_gap < ZERO_GAP

    @property
    def conflict(self) -> bool:
        """The two roles want different things, which one tied matrix cannot give."""
        return self.semantically_equivalent != self.conditionally_equivalent

    def meets(self, matrix: str, tied: bool) -> bool | None:
        """Whether theory predicts that the pair's distance goes to 0 in ``matrix`` (``input`` or ``output``).

        None where the matrix is tied and its two roles pull in different directions.
        """
        if tied:
            return None if self.conflict else self.semantically_equivalent
        return self.semantically_equivalent if matrix == "input" else self.conditionally_equivalent


@dataclass(frozen=True)
class Contexts:
    """Masked sequences with their exact probabilities.

    Attributes:
        tokens: ``[contexts, bits + 1]`` symbol ids, ``[MASK]`` at ``position``.
        position: ``[contexts]`` masked position.
        bit: ``[contexts]`` the masked bit.
        probability: ``[2, contexts]`` on the training strings and on the test strings (zeros if there are none).
        predictions: ``[2, vocabulary]`` distribution of the masked symbol given its bit.
        sampled: whether these are a random sample of the contexts instead of all of them.
    """

    tokens: Ints
    position: Ints
    bit: Ints
    probability: Floats
    predictions: Floats
    sampled: bool

    def __len__(self) -> int:
        return len(self.bit)

    @property
    def targets(self) -> Floats:
        """``[contexts, vocabulary]``: distribution of the masked symbol in each context."""
        return self.predictions[self.bit]

    @property
    def counts(self) -> Ints:
        """``[contexts, vocabulary]``: how often each symbol occurs."""
        ids = np.arange(self.predictions.shape[1])
        return (self.tokens[:, :, None] == ids).sum(1)


PRESETS: dict[str, Language] = {
    "main": Language(),
    "hypothesis-holds": Language(zero=(1.0,)),
    "hypothesis-fails": Language(zero=(1.0,), one=(0.1, 0.9)),
}


def _join(values: tuple[float, ...]) -> str:
    return " ".join(f"{v:g}" for v in values)


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _compositions(total - first, parts - 1):
            yield (first, *rest)


def _multinomial(counts: tuple[int, ...], probabilities: Floats) -> float:
    ways = factorial(sum(counts)) // prod(map(factorial, counts))
    return ways * prod(p**c for p, c in zip(probabilities, counts, strict=True))
