"""Whether rows point everywhere alike."""

from __future__ import annotations

from math import exp
from typing import NamedTuple

import torch
from torch import Tensor

from exor.pretrained.products import Products, full_precision


class Isotropy(NamedTuple):
    """How evenly rows are spread over directions.

    Attributes:
        mean_cosine: of two different rows; 0 if isotropic.
        partition_ratio: smallest over largest value of the partition function; 1 if isotropic.
        log_ratio: its logarithm, which a ratio too small for a number still has.
    """

    mean_cosine: float
    partition_ratio: float
    log_ratio: float


def isotropy(products: Products, name: str, *, centred: bool = False) -> Isotropy:
    """Mean cosine of two different rows, exactly, and the partition-function ratio of Mu & Viswanath (2018).

    The mean is over all pairs of rows that are not zero: ``(‖Σ x̂‖² − n) / (n (n − 1))``. The partition function of a
    direction is ``Z(c) = Σ exp(c·x)``, and the ratio is over the principal directions of the rows, in both senses,
    since an eigenvector has no sign.

    Args:
        centred: whether the mean row is removed first.
    """
    directions = _directions(products, name, centred).to(products.device, torch.float32)
    mean = products.mean(name) if centred else None
    total = torch.zeros(products.widths[name], dtype=torch.float64, device=products.home)
    some = 0
    logs: list[Tensor] = []
    with full_precision():
        for ids in products.blocks(products.widths[name]):
            rows = products.rows(name, ids, mean)
            lengths = rows.norm(dim=1, keepdim=True)
            unit = torch.where(lengths > 0, rows / lengths, 0)
            total += unit.sum(0).to(products.home, torch.float64)
            some += int((lengths > 0).sum())
            along = rows @ directions
            logs.append(torch.stack([along.logsumexp(0), along.neg().logsumexp(0)]).to(products.home, torch.float64))
    partition = torch.stack(logs).logsumexp(0)
    log_ratio = (partition.min() - partition.max()).item()
    mean_cosine = float((total.square().sum() - some) / (some * (some - 1))) if some > 1 else 0.0
    return Isotropy(mean_cosine, exp(log_ratio), log_ratio)


def _directions(products: Products, name: str, centred: bool) -> Tensor:
    """Eigenvectors of XᵀX in columns."""
    if centred:
        return products.eigen(name)[1]
    mean = products.mean(name)
    return torch.linalg.eigh(products.gram(name) + products.n * torch.outer(mean, mean)).eigenvectors
