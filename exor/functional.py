"""The models of ``exor.models`` for many replicas at once, as pure functions; ``exor.models`` is the oracle.

Every parameter gets a leading replica axis and every activation keeps the batch as its last, contiguous axis, with
features in between, so vector instructions run along the batch. Only the masked position is asked for, and what
follows from that is exact: the last transformer layer has one query, the last states of the others are selected
before they are projected.

Shapes: R replicas, V vocabulary, D width, T symbols in a sequence, B strings or contexts, S states in sight.
"""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn import functional as F

from exor.config import RunConfig

NEVER = -1e30  # a score that softmax turns into exactly 0
SMALL = 64  # weight matrices up to this size are multiplied by fused arithmetic instead of a library call

Parameters = dict[str, Tensor]  # by their names in the plain module, each with a leading replica axis


def logits(config: RunConfig, p: Parameters, tied: Tensor, view: Tensor) -> Tensor:
    """Logits of the masked position, ``[R, V, B]``.

    Args:
        p: parameters of the untied plain module.
        tied: ``[R]`` (bool) which replicas use their input embedding as output embedding.
        view: what the model sees of its contexts: symbol counts ``[R or 1, V, B]`` (float) for a transformer, which has
            no positional encoding, and symbols ``[R or 1, T, B]`` (int32) for the others.
    """
    states = {"transformer": transformer, "lstm": lstm, "mixer": mixer}[config.model](config, p, view)
    unembedding = torch.where(tied[:, None, None], p["embed.weight"], p["unembed.weight"])
    return linear(unembedding, None, states)[:, 0]


def transformer(config: RunConfig, p: Parameters, counts: Tensor) -> Tensor:
    """``[R, 1, D, B]``: the last state at the masked position.

    All positions that hold one symbol share one state, and attention weighs states by counts ``[R or 1, V, B]``.
    """
    states = p["embed.weight"][..., None]  # [R, V, D, 1]
    for i in range(config.layers):
        q = part(p, f"encoder.layers.{i}.")
        queries = states[:, -1:] if i == config.layers - 1 else states  # only [MASK], the last symbol, is asked for
        attended = attention(part(q, "self_attn."), queries, states, counts, config.heads)
        x = layer_norm(q["norm1.weight"], q["norm1.bias"], queries + attended)
        hidden = F.gelu(linear(q["linear1.weight"], q["linear1.bias"], x))
        x = x + linear(q["linear2.weight"], q["linear2.bias"], hidden)
        states = layer_norm(q["norm2.weight"], q["norm2.bias"], x)
    return states


def lstm(config: RunConfig, p: Parameters, tokens: Tensor) -> Tensor:
    """``[R, 1, D, B]``: the projected state at the masked position of ``tokens [R or 1, T, B]``.

    Both directions run together, on an axis of length 2; the second reads the sequence from its end.
    """
    x = lookup(p["embed.weight"], tokens)
    for i in range(config.layers):
        names = (f"weight_ih_l{i}", f"weight_hh_l{i}", f"bias_ih_l{i}", f"bias_hh_l{i}")
        w_in, w, b_in, b = (torch.stack([p[f"lstm.{n}"], p[f"lstm.{n}_reverse"]], 1) for n in names)
        gates = w_in[:, None] @ torch.stack([x, x.flip(1)], 2) + (b_in + b)[:, None, :, :, None]  # [R, T, 2, 4H, B]
        states: list[Tensor] = []  # [R, 2, H, B] each
        c: Tensor | float = 0.0
        for a in gates.unbind(1):  # the gradient of indexing would be as long as the sequence for every step
            enter, keep, new, leave = (a + w @ states[-1] if states else a).chunk(4, 2)
            c = keep.sigmoid() * c + enter.sigmoid() * tanh(new)
            states.append(leave.sigmoid() * tanh(c))
        forth, back = torch.stack(states, 1).unbind(2)
        x = torch.cat([forth, back.flip(1)], 2)  # [R, T, 2H, B]
    return linear(p["project.weight"], p["project.bias"], masked(x, tokens, p["embed.weight"].shape[1]))


def mixer(config: RunConfig, p: Parameters, tokens: Tensor) -> Tensor:
    """``[R, 1, D, B]``: the last state at the masked position of ``tokens [R or 1, T, B]``."""
    x = lookup(p["embed.weight"], tokens)
    for i in range(config.layers):
        q = part(p, f"blocks.{i}.")
        y = layer_norm(q["norm1.weight"], q["norm1.bias"], x).flatten(2)[:, None]  # [R, 1, T, D B]
        y = linear(q["token1.weight"], q["token1.bias"], y).relu()
        x = x + linear(q["token2.weight"], q["token2.bias"], y).reshape(x.shape)
        if i == config.layers - 1:
            x = masked(x, tokens, p["embed.weight"].shape[1])
        y = layer_norm(q["norm2.weight"], q["norm2.bias"], x)
        y = linear(q["channel1.weight"], q["channel1.bias"], y).relu()
        x = x + linear(q["channel2.weight"], q["channel2.bias"], y)
    return x


# --- their parts ----------------------------------------------------------------------------------------------


def part(p: Parameters, prefix: str) -> Parameters:
    """The parameters below a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in p.items() if name.startswith(prefix)}


def lookup(embedding: Tensor, tokens: Tensor) -> Tensor:
    """``[R, V, D], [R or 1, T, B] -> [R, T, D, B]``"""
    ids = torch.arange(embedding.shape[1], dtype=tokens.dtype, device=tokens.device)
    one_hot = (tokens[:, :, None] == ids[:, None]).to(embedding.dtype)
    return linear(embedding.transpose(1, 2), None, one_hot)


def masked(states: Tensor, tokens: Tensor, symbols: int) -> Tensor:
    """``[R, T, D, B], [R or 1, T, B] -> [R, 1, D, B]``: the states where [MASK], the last of the symbols, stands."""
    return torch.where(tokens[:, :, None] == symbols - 1, states, 0.0).sum(1, keepdim=True)


def tanh(x: Tensor) -> Tensor:
    """By the exponential function, which vectorises better; the same to one part in 10^7 of the largest value, 1."""
    return 2 * (2 * x).sigmoid() - 1


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


def attention(p: Parameters, queries: Tensor, states: Tensor, counts: Tensor, heads: int) -> Tensor:
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


def cross_entropy(logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """``logits [R, V, B]``, ``target [R, B]``, ``weight [B] -> [R]``: weighted sum over the batch, in nats."""
    top = logits.amax(1, keepdim=True).detach()
    log_normaliser = (logits - top).exp().sum(1).log() + top[:, 0]
    ids = torch.arange(logits.shape[1], dtype=target.dtype, device=target.device)
    chosen = torch.where(target[:, None] == ids[None, :, None], logits, 0.0).sum(1)
    return ((log_normaliser - chosen) * weight).sum(1)
