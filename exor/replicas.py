"""Many seeds trained as one batched program: gradient, AdamW and the draw of the batch in one step.

Shapes: R replicas, P parameters, V vocabulary, T symbols in a sequence, B strings, C contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from exor import InputError
from exor.config import RunConfig
from exor.data import batch_strings, draw, thresholds, words
from exor.functional import cross_entropy, logits
from exor.language import Contexts
from exor.metrics import exact_scores
from exor.models import build
from exor.program import Job, Program, compile_programs, eager

LANES = 16  # the batch is padded to whole vectors: a scalar remainder costs as much as a vector
CHUNK = 1024  # contexts that are evaluated at once, at most

# --- the training step ----------------------------------------------------------------------------------------


class Layout:
    """Where each parameter of the untied plain module lies in a flat vector of P numbers."""

    def __init__(self, shapes: dict[str, torch.Size]) -> None:
        self.shapes = shapes
        self.sizes = [prod(s) for s in shapes.values()]
        self.total = sum(self.sizes)

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """``[R, P]`` to parameters by name, each ``[R, *shape]``."""
        parts = flat.split(self.sizes, 1)
        return {name: x.reshape(-1, *s) for (name, s), x in zip(self.shapes.items(), parts, strict=True)}

    def pack(self, parameters: dict[str, Tensor]) -> Tensor:
        """The reverse of :meth:`unpack`."""
        return torch.cat([parameters[name].flatten(1) for name in self.shapes], 1)


class Task:
    """The pure functions that a config's replicas run, and the constant tensors that they read.

    Probabilities, strings and learning rates are inputs, not constants of the program: languages of one shape
    share one compiled program.
    """

    def __init__(self, config: RunConfig, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self.config = config
        self.language = config.language
        untied = build(replace(config, tied=False))
        self.layout = Layout({n: x.shape for n, x in untied.named_parameters()})
        self.order_free = untied.order_free
        train, test = self.language.split(config.split_seed)
        self.size = config.batch_size or len(train)
        self.full = self.size == len(train)
        padded = _padded(self.size)
        strings = torch.tensor(train, dtype=torch.int32)
        self.strings = F.pad(strings, (0, padded - self.size)) if self.full else strings
        self.weight = torch.zeros(padded, dtype=dtype)
        self.weight[: self.size] = 1 / self.size
        self.edges = thresholds(self.language)
        self.contexts = self.language.contexts(train, test, ordered=not self.order_free)
        for name in ("strings", "weight", "edges"):
            setattr(self, name, getattr(self, name).to(device))
        chunks = _context_chunks(self.contexts, self.order_free, dtype)
        self.chunks = [tuple(x.to(device) for x in chunk) for chunk in chunks]

    def loss(
        self,
        p: dict[str, Tensor],
        tied: Tensor,
        seed: Tensor,
        step: Tensor,
        edges: Tensor,
        strings: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """``[R]``: mean cross-entropy over the batch that each seed sees at a step."""
        if self.full:
            chosen = strings[None]
        else:
            chosen = F.pad(batch_strings(strings, self.size, seed, step), (0, len(weight) - self.size))
        batch = draw(self.language, edges, chosen, seed, step)
        view = batch.counts(self.language).to(weight.dtype) if self.order_free else batch.sequences(self.language)
        return cross_entropy(logits(self.config, p, tied, view), batch.target, weight)

    def update(
        self,
        flat: Tensor,
        m: Tensor,
        v: Tensor,
        tied: Tensor,
        seed: Tensor,
        step: Tensor,
        rates: Tensor,
        *constants: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One step: draw the batch, take the gradient, apply AdamW (Loshchilov & Hutter 2019, as in torch).

        Args:
            flat, m, v: ``[R, P]`` parameters and AdamW's first and second moments.
            tied, seed, step: ``[R]``.
            rates: ``[3]``, see :meth:`rates`.
            constants: ``edges, strings, weight``.

        Returns:
            New ``flat, m, v``, and the loss before the update, ``[R]``.
        """

        def total(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            loss = self.loss(p, tied, seed, step, *constants)
            return loss.sum(), loss

        gradients, loss = torch.func.grad(total, has_aux=True)(self.layout.unpack(flat))
        g = self.layout.pack(gradients)
        b1, b2 = self.config.betas
        decay, size, root = rates.unbind()
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        return flat * decay - size * m / (v.sqrt() * root + self.config.eps), m, v, loss

    def evaluate(self, flat: Tensor, tied: Tensor, view: Tensor, targets: Tensor, probability: Tensor) -> tuple[Tensor]:
        """``[R, 4]``: a chunk's part of the exact scores, see :func:`exor.metrics.exact_scores`."""
        found = logits(self.config, self.layout.unpack(flat), tied, view)
        return (exact_scores(found, targets, probability),)

    def rates(self, first: int, count: int) -> np.ndarray:
        """``[count, 3]`` (float64): for each update the decay factor 1 - lr·wd, lr / (1 - β1ᵗ), and 1 / √(1 - β2ᵗ)."""
        t = np.arange(first + 1, first + count + 1, dtype=np.float64)
        lr = np.array([self.config.rate(step) for step in range(first, first + count)])
        b1, b2 = self.config.betas
        return np.stack([1 - lr * self.config.weight_decay, lr / (1 - b1**t), 1 / np.sqrt(1 - b2**t)], 1)

    @property
    def name(self) -> str:
        """Everything that is constant in the compiled functions, for the cache."""
        c, alphabet = self.config, (len(self.language.zero), len(self.language.one))
        model = (c.model, c.width, c.layers, c.heads, c.feed_forward, c.hidden, c.token_feed_forward)
        return repr((model, c.bits, alphabet, c.betas, c.eps, self.size))


# --- the engine -----------------------------------------------------------------------------------------------


class Replicas:
    """Runs that differ in seed and tying only, trained together; nothing about a run depends on its company.

    On a CPU, compiled, replicas go through a program of ``width`` at a time, which keeps their activations in the
    fastest cache; otherwise all go at once. An incomplete block is filled up with copies that nobody reads.

    Args:
        configs: equal in all but ``seed`` and ``tied``.
        device: where to train.
        compiled: whether to compile; runs eagerly where that fails.
        width: replicas per program; a resumed run needs the width that it began with to end with the same bytes.

    Attributes:
        step: updates done.
        compiled: whether the replicas run as compiled programs.
        contexts: those that :meth:`evaluate` runs over.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        *,
        device: torch.device | str = "cpu",
        compiled: bool = True,
        width: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.configs = list(configs)
        self.step = 0
        self.device = torch.device(device)
        base = self.configs[0]
        if any(set(base.differences(c)) - {"seed", "tied"} for c in self.configs):
            raise InputError("replicas: the configs of one group may differ in seed and tied only")
        self.task = Task(base, self.device, dtype)
        self.contexts = self.task.contexts
        models = [build(c) for c in self.configs]
        start = self.task.layout.pack(
            {n: torch.stack([_parameter(m, n) for m in models]) for n in self.task.layout.shapes}
        )
        everyone = len(self.configs)
        self.width = width or (min(everyone, 2) if self.device.type == "cpu" and compiled else everyone)
        programs = self._programs(start[:1].to(dtype)) if compiled else None
        self.compiled = programs is not None
        if programs is None:
            self.width = width or everyone
            programs = [eager(self.task.update), eager(self.task.evaluate)]
        self.programs = programs
        self._blocks = [range(i, min(i + self.width, everyone)) for i in range(0, everyone, self.width)]
        flat = start.to(self.device, dtype)
        zero = torch.zeros_like(flat)
        self._state = [[self._fill(x, block) for x in (flat, zero, zero)] for block in self._blocks]
        tied = torch.tensor([c.tied for c in self.configs], device=self.device)
        seeds = words([c.seed for c in self.configs]).to(self.device)
        self._who = [(self._fill(tied, block), self._fill(seeds, block)) for block in self._blocks]

    def _fill(self, x: Tensor, block: range) -> Tensor:
        """Rows of a block, its first row repeated up to the program's width."""
        index = [*block] + [block[0]] * (self.width - len(block))
        return x[torch.tensor(index, device=x.device)].contiguous()

    def _programs(self, flat: Tensor) -> list[Program] | None:
        t, device = self.task, self.device
        p = flat.to(device).repeat(self.width, 1)
        tied, ints = torch.zeros(self.width, dtype=torch.bool, device=device), words([0] * self.width).to(device)
        rates = torch.ones(3, dtype=flat.dtype, device=device)
        update = [p, p.clone(), p.clone(), tied, ints, ints.clone(), rates, t.edges, t.strings, t.weight]
        evaluate = [p, tied, *t.chunks[0]]
        return compile_programs(
            [Job(t.update, update, f"update {t.name}"), Job(t.evaluate, evaluate, f"evaluate {t.name}")]
        )

    def advance(self, count: int) -> Tensor:
        """Do ``count`` updates. Returns the batch losses before each, ``[count, R]``."""
        t = self.task
        rates = torch.tensor(t.rates(self.step, count), dtype=t.weight.dtype, device=self.device).unbind()
        numbers = torch.arange(self.step, self.step + count, dtype=torch.int32, device=self.device)
        steps = numbers[:, None].repeat(1, self.width).unbind()
        update, losses = self.programs[0], []
        with torch.no_grad():
            for b, (tied, seed) in enumerate(self._who):
                flat, m, v = self._state[b]
                seen = []
                for step, rate in zip(steps, rates, strict=True):
                    flat, m, v, loss = update([flat, m, v, tied, seed, step, rate, t.edges, t.strings, t.weight])
                    seen.append(loss.clone())  # a program writes its next results where it wrote these
                self._state[b] = [x.clone() for x in (flat, m, v)]
                losses.append(torch.stack(seen)[:, : len(self._blocks[b])])
        self.step += count
        return torch.cat(losses, 1)

    def evaluate(self) -> Tensor:
        """``[R, 4]`` on the CPU: exact loss and accuracy in the order of ``exor.metrics.SCORES``."""
        with torch.no_grad():
            scores = []
            for state, (tied, _), block in zip(self._state, self._who, self._blocks, strict=True):
                parts = [self.programs[1]([state[0], tied, *chunk])[0].clone() for chunk in self.task.chunks]
                scores.append(torch.stack(parts).sum(0)[: len(block)])
        return torch.cat(scores).cpu()

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Input and output embeddings of all replicas, each ``[R, V, D]``, on the CPU."""
        flat = torch.cat([s[0][: len(b)] for s, b in zip(self._state, self._blocks, strict=True)]).cpu()
        p = self.task.layout.unpack(flat)
        tied = torch.tensor([c.tied for c in self.configs])
        return p["embed.weight"], torch.where(tied[:, None, None], p["embed.weight"], p["unembed.weight"])

    def weights(self, i: int) -> dict[str, Tensor]:
        """State dict of run i for the plain module."""
        block, row = divmod(i, self.width)
        p = {n: x[0].cpu().clone() for n, x in self.task.layout.unpack(self._state[block][0][row : row + 1]).items()}
        if self.configs[i].tied:
            p["unembed.weight"] = p["embed.weight"]
        return p

    def state(self, i: int) -> dict[str, Tensor]:
        """What run i needs to go on: parameters and moments, each ``[P]``, on the CPU."""
        block, row = divmod(i, self.width)
        return {n: x[row].cpu().clone() for n, x in zip(("flat", "m", "v"), self._state[block], strict=True)}

    def load_state(self, states: Sequence[dict[str, Tensor]], step: int) -> None:
        """Continue all runs from their states after ``step`` updates."""
        self.step = step
        together = [
            torch.stack([s[n] for s in states]).to(self.device, self.task.weight.dtype) for n in ("flat", "m", "v")
        ]
        self._state = [[self._fill(x, block) for x in together] for block in self._blocks]


def _parameter(model: nn.Module, name: str) -> Tensor:
    parameters = dict(model.named_parameters())
    if name not in parameters:  # a tied model has no unembedding of its own
        return torch.zeros_like(parameters["embed.weight"]).detach()
    return parameters[name].detach()


def _padded(size: int) -> int:
    return -(-size // LANES) * LANES


def _context_chunks(contexts: Contexts, order_free: bool, dtype: torch.dtype) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Views ``[1, V or T, C]``, targets ``[V, C]`` and probabilities ``[2, C]`` of at most ``CHUNK`` contexts.

    All chunks have one size; the last is filled up with contexts of probability 0.
    """
    size = min(CHUNK, _padded(len(contexts)))
    more = (0, -len(contexts) % size)
    if order_free:
        view = F.pad(torch.tensor(contexts.counts.T[None], dtype=dtype), more)
        view[:, -1] = 1  # [MASK] occurs in every context, padding included: no empty softmax
    else:
        view = F.pad(torch.tensor(contexts.tokens.T[None], dtype=torch.int32), more)
    targets = F.pad(torch.tensor(contexts.targets.T, dtype=dtype), more)
    probability = F.pad(torch.tensor(contexts.probability, dtype=dtype), more)
    parts = [[p.contiguous() for p in x.split(size, -1)] for x in (view, targets, probability)]
    return list(zip(*parts, strict=True))
