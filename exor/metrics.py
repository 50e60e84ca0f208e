"""Numbers that describe a model: exact loss and accuracy, and distances between embeddings. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SCORES = ("loss_train", "loss_test", "accuracy_train", "accuracy_test")


def exact_scores(logits: Tensor, targets: Tensor, probability: Tensor) -> Tensor:
    """Expected loss and accuracy over contexts of known probability.

    ``loss = Σ P(ctx) Σ P(symbol | ctx) · -log softmax(logits)``, in nats;
    ``accuracy = Σ P(ctx) P(most likely prediction | ctx)``, ties to the lower id.

    Args:
        logits: ``[R, vocabulary, contexts]``.
        targets: ``[vocabulary, contexts]`` distribution of the masked symbol.
        probability: ``[2, contexts]`` on training and on test strings.

    Returns:
        ``[R, 4]`` in the order of ``SCORES``.
    """
    top = logits.amax(1, keepdim=True)
    log_normaliser = (logits - top).exp().sum(1).log() + top[:, 0]  # [R, contexts]
    loss = log_normaliser - (targets * logits).sum(1)
    best, hit = logits[:, 0], targets[0].expand_as(loss)
    for v in range(1, logits.shape[1]):  # an argmax that compiles to vector instructions
        better = logits[:, v] > best
        best, hit = torch.where(better, logits[:, v], best), torch.where(better, targets[v], hit)
    per_context = torch.stack([loss, loss, hit, hit], 1)  # [R, 4, contexts]
    return (per_context * torch.cat([probability, probability])).sum(2)


def pair_distances(matrix: Tensor, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """Euclidean distance between the rows of each pair: ``[..., vocabulary, width] -> [..., pairs]``."""
    first, second = torch.tensor(pairs, device=matrix.device).T
    return torch.linalg.vector_norm(matrix[..., first, :] - matrix[..., second, :], dim=-1)


def mean_row_norm(matrix: Tensor) -> Tensor:
    """Mean Euclidean norm of the rows: ``[..., vocabulary, width] -> [...]``."""
    return torch.linalg.vector_norm(matrix, dim=-1).mean(-1)
