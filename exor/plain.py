"""The slower, general path: any plain module of the interface in ``exor.models``, one replica after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from exor.config import RunConfig
from exor.data import Source
from exor.metrics import exact_scores
from exor.models import ModelFactory, build


class PlainLoop:
    """The loop that anyone would write, with the interface of ``exor.replicas.Replicas``.

    Args:
        configs: equal in all but ``seed`` and ``tied``.
        make: makes the initial model of a config, see :func:`exor.models.build`.
        device: where to train.
    """

    width = 1
    compiled = False

    def __init__(
        self, configs: Sequence[RunConfig], make: ModelFactory | None = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.configs = list(configs)
        self.step = 0
        self.device = torch.device(device)
        base = self.configs[0]
        self.models: list[Any] = [build(c, make).to(self.device) for c in self.configs]
        self.optimizers = [
            torch.optim.AdamW(
                m.parameters(), lr=base.learning_rate, betas=base.betas, eps=base.eps, weight_decay=base.weight_decay
            )
            for m in self.models
        ]
        self.source = Source(base, self.device)
        train, test = base.language.split(base.split_seed)
        self.contexts = base.language.contexts(train, test, ordered=not all(m.order_free for m in self.models))
        self.tokens = torch.tensor(self.contexts.tokens, device=self.device)
        self.position = torch.tensor(self.contexts.position, device=self.device)
        self.targets = torch.tensor(self.contexts.targets.T, dtype=torch.float32, device=self.device)
        self.probability = torch.tensor(self.contexts.probability, dtype=torch.float32, device=self.device)

    def advance(self, count: int) -> Tensor:
        """Do ``count`` updates. Returns the batch losses before each, ``[count, R]``."""
        language, losses = self.source.language, []
        for step in range(self.step, self.step + count):
            batch = self.source.batch([c.seed for c in self.configs], step)
            tokens, position, target = batch.tokens(language), batch.position.long(), batch.target.long()
            row = []
            for i, (model, optimizer, config) in enumerate(
                zip(self.models, self.optimizers, self.configs, strict=True)
            ):
                optimizer.param_groups[0]["lr"] = config.rate(step)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(tokens[i], position[i]), target[i])
                loss.backward()
                optimizer.step()
                row.append(loss.detach())
            losses.append(torch.stack(row))
        self.step += count
        return torch.stack(losses).cpu()

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """``[R, 4]`` on the CPU: exact loss and accuracy in the order of ``exor.metrics.SCORES``."""
        rows = []
        for model in self.models:
            model.eval()
            parts = zip(self.tokens.split(8192), self.position.split(8192), strict=True)
            logits = torch.cat([model(tokens, position) for tokens, position in parts])
            model.train()
            rows.append(exact_scores(logits.T[None], self.targets, self.probability))
        return torch.cat(rows).cpu()

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Input and output embeddings of all replicas, each ``[R, V, D]``, on the CPU."""
        inputs = torch.stack([m.input_embedding.detach() for m in self.models]).cpu()
        return inputs, torch.stack([m.output_embedding.detach() for m in self.models]).cpu()

    def weights(self, i: int) -> dict[str, Tensor]:
        """State dict of run i."""
        return {name: x.cpu().clone() for name, x in self.models[i].state_dict().items()}

    def state(self, i: int) -> dict:
        """What run i needs to go on."""
        return {"model": self.weights(i), "optimizer": self.optimizers[i].state_dict()}

    def load_state(self, states: Sequence[dict], step: int) -> None:
        """Continue all runs from their states after ``step`` updates."""
        self.step = step
        for model, optimizer, state in zip(self.models, self.optimizers, states, strict=True):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
