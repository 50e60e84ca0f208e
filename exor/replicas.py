"""Many seeds trained as one batched program.

Every parameter gets a leading replica axis and every activation keeps the batch as its last, contiguous axis, with
features in between, so vector instructions run along the batch. A transformer without positional encoding sees a
sequence only through its symbol counts: all positions that hold one symbol share one hidden state, attention weighs
states by counts, and the last layer asks for the masked position only. All of this is exact; the oracle is
``exor.models``.

Shapes: R replicas, V vocabulary, D width, B strings or contexts, S states (symbols) in sight.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from exor import InputError
from exor.config import RunConfig
from exor.data import batch_strings, draw, thresholds, words
from exor.language import Contexts
from exor.metrics import exact_scores
from exor.models import Transformer, build
from exor.program import Job, Program, compile_programs, eager

LANES = 16  # the batch is padded to whole vectors: a scalar remainder costs as much as a vector
NEVER = -1e30  # a score that softmax turns into exactly 0
SMALL = 64  # weight matrices up to this size are multiplied by fused arithmetic instead of a library call

# --- the model ------------------------------------------------------------------------------------------------


def linear(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """``weight [R, out, in]``, ``bias [R, out]``, ``x [R, S, in, B] -> [R, S, out, B]``."""
    if prod(weight.shape[1:]) <= SMALL:
        y = (weight[:, None, :, :, None] * x[:, :, None]).sum(3)
    else:
        y = weight[:, None] @ x
    return y if bias is None else y + bias[:, None, :, None]


def layer_norm(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    """Over the features of ``x [R, S, D, B]``; ``weight, bias [R, D]``."""
    centred = x - x.mean(2, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(2, keepdim=True) + 1e-5)
    return centred * scale * weight[:, None, :, None] + bias[:, None, :, None]


def attention(p: dict[str, Tensor], queries: Tensor, states: Tensor, counts: Tensor, heads: int) -> Tensor:
    """Multi-head attention over symbols weighed by how often they occur.

    Args:
        p: ``in_proj_weight [R, 3D, D]``, ``in_proj_bias``, ``out_proj.weight``, ``out_proj.bias``.
        queries: ``[R, Q, D, B or 1]``, the last axis 1 as long as all contexts share their states.
        states: ``[R, V, D, B or 1]``.
        counts: ``[R or 1, V, B]``.

    Returns:
        ``[R, Q, D, B]``.
    """
    width = states.shape[2]
    wq, wk, wv = p["in_proj_weight"].split(width, 1)
    bq, bk, bv = p["in_proj_bias"].split(width, 1)
    q = linear(wq, bq, queries).unflatten(2, (heads, -1))  # [R, Q, H, d, ·]
    k = linear(wk, bk, states).unflatten(2, (heads, -1))  # [R, V, H, d, ·]
    v = linear(wv, bv, states).unflatten(2, (heads, -1))
    scores = (q[:, :, None] * k[:, None]).sum(4) / sqrt(width / heads)  # [R, Q, V, H, ·]
    seen = counts[:, None, :, None]  # [R, 1, V, 1, B]
    scores = torch.where(seen > 0, scores, NEVER)  # [R, Q, V, H, B]
    weights = seen * torch.exp(scores - scores.amax(2, keepdim=True).detach())
    mixed = (weights[:, :, :, :, None] * v[:, None]).sum(2) / weights.sum(2)[:, :, :, None]  # [R, Q, H, d, B]
    return linear(p["out_proj.weight"], p["out_proj.bias"], mixed.flatten(2, 3))


def transformer_logits(p: dict[str, Tensor], tied: Tensor, counts: Tensor, heads: int, layers: int) -> Tensor:
    """Logits of the masked position.

    Args:
        p: parameters of ``exor.models.Transformer`` by name, each with a leading replica axis.
        tied: ``[R]`` (bool) which replicas use their input embedding as output embedding.
        counts: ``[R or 1, V, B]`` (float) how often each symbol occurs in each context.

    Returns:
        ``[R, V, B]``.
    """
    embedding = p["embed.weight"]
    states = embedding[..., None]  # [R, V, D, 1]
    for i in range(layers):
        prefix = f"encoder.layers.{i}."
        q = {name.removeprefix(prefix): x for name, x in p.items() if name.startswith(prefix)}
        queries = states[:, -1:] if i == layers - 1 else states  # only [MASK], the last symbol, is asked for
        attended = attention(
            {name.removeprefix("self_attn."): x for name, x in q.items()}, queries, states, counts, heads
        )
        x = layer_norm(q["norm1.weight"], q["norm1.bias"], queries + attended)
        hidden = F.gelu(linear(q["linear1.weight"], q["linear1.bias"], x))
        states = layer_norm(
            q["norm2.weight"], q["norm2.bias"], x + linear(q["linear2.weight"], q["linear2.bias"], hidden)
        )
    unembedding = torch.where(tied[:, None, None], embedding, p["unembed.weight"])
    return linear(unembedding, None, states)[:, 0]


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """``logits [R, V, B]``, ``target [R, B]``, ``weight [B] -> [R]``: weighted sum over the batch, in nats."""
    top = logits.amax(1, keepdim=True).detach()
    log_normaliser = (logits - top).exp().sum(1).log() + top[:, 0]
    ids = torch.arange(logits.shape[1], dtype=target.dtype, device=target.device)
    chosen = torch.where(target[:, None] == ids[None, :, None], logits, 0.0).sum(1)
    return ((log_normaliser - chosen) * weight).sum(1)


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
        self.layout = Layout({n: x.shape for n, x in build(_untied(config)).named_parameters()})
        train, test = self.language.split(config.split_seed)
        self.size = config.batch_size or len(train)
        self.full = self.size == len(train)
        padded = _padded(self.size)
        strings = torch.tensor(train, dtype=torch.int32)
        self.strings = F.pad(strings, (0, padded - self.size)) if self.full else strings
        self.weight = torch.zeros(padded, dtype=dtype)
        self.weight[: self.size] = 1 / self.size
        self.edges = thresholds(self.language)
        self.contexts = self.language.count_contexts(train, test)
        self.counts, self.targets, self.probability = _context_tensors(self.contexts, dtype)
        for name in ("strings", "weight", "edges", "counts", "targets", "probability"):
            setattr(self, name, getattr(self, name).to(device))

    def logits(self, p: dict[str, Tensor], tied: Tensor, counts: Tensor) -> Tensor:
        """See :func:`transformer_logits`."""
        return transformer_logits(p, tied, counts, self.config.heads, self.config.layers)

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
        logits = self.logits(p, tied, batch.counts(self.language).to(weight.dtype))
        return cross_entropy(logits, batch.target, weight)

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

    def evaluate(
        self, flat: Tensor, tied: Tensor, counts: Tensor, targets: Tensor, probability: Tensor
    ) -> tuple[Tensor]:
        """``[R, 4]``: exact scores, see :func:`exor.metrics.exact_scores`."""
        logits = self.logits(self.layout.unpack(flat), tied, counts)
        return (exact_scores(logits, targets, probability),)

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
        return repr((c.model, c.bits, alphabet, c.width, c.feed_forward, c.heads, c.layers, c.betas, c.eps, self.size))


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

    order_free = True

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
        self.contexts: Contexts = self.task.contexts
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
        evaluate = [p, tied, t.counts, t.targets, t.probability]
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
        t = self.task
        with torch.no_grad():
            scores = [
                self.programs[1]([state[0], tied, t.counts, t.targets, t.probability])[0][: len(block)].clone()
                for state, (tied, _), block in zip(self._state, self._who, self._blocks, strict=True)
            ]
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


def _untied(config: RunConfig) -> RunConfig:
    from dataclasses import replace

    return replace(config, tied=False)


def _parameter(model: Transformer, name: str) -> Tensor:
    found = dict(model.named_parameters()).get(name)
    return torch.zeros_like(model.input_embedding) if found is None else found.detach()  # tied: no unembedding


def _padded(size: int) -> int:
    return -(-size // LANES) * LANES


def _context_tensors(contexts: Contexts, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Counts ``[1, V, C]``, targets ``[V, C]`` and probabilities ``[2, C]``, padded with contexts of probability 0."""
    more = (0, _padded(len(contexts)) - len(contexts))
    counts = torch.tensor(contexts.counts.T[None], dtype=dtype)
    counts = F.pad(counts, more)
    counts[:, -1] = 1  # [MASK] occurs in every context, padding included: no empty softmax
    targets = F.pad(torch.tensor(contexts.targets.T, dtype=dtype), more)
    return counts, targets, F.pad(torch.tensor(contexts.probability, dtype=dtype), more)
