"""A trained FastVAE: queries, item vectors, tensors, ONNX."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewfold._progress import phase
from fewfold.distributed.row_shards import RowShards
from fewfold.embeddings.anchor_inspection import AnchorInspection, inspect_anchors
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.anchored_tables import AnchoredTables
from fewfold.recommender.models.fastvae.network import FastVAE
from fewfold.recommender.models.fitted_vectors import FittedVectors
from fewfold.recommender.models.model import Model
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.ranking.sharded_ranking import sharded_top_k

__all__ = ["FittedVAE"]


class FittedVAE(FittedVectors):
    """A trained `FastVAE`: scores are inner products of a query with the vectors of the items.

    If its tables are in several processes, all call the same methods in the same order.
    """

    _on_device: FastVAE | None = None

    def __init__(self, recipe: Model, model: FastVAE) -> None:
        self._recipe, self.model = recipe, model.eval().requires_grad_(False)
        self.items, self.group = model.count, model.tables.group

    @property
    def recipe(self) -> Model:
        """The `VAE` this was fitted by."""
        return self._recipe

    @cached_property
    def vectors(self) -> Tensor:
        """(items, d) item vectors, contiguous."""
        with phase("preparing the ranking"):
            return self.model.vectors.contiguous()

    @cached_property
    def _own_vectors(self) -> Tensor:
        """Item vectors of the items that this process has."""
        return self.model.own_vectors.contiguous()

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row, by all processes if they have parts of the tables."""
        if self.group.world == 1:
            return super().rank(history, k, exclude=exclude, allowed=allowed)
        return sharded_top_k(
            self.group, self.queries, self._own_vectors, history, k, exclude=exclude,
            allowed=allowed,
        )  # fmt: skip

    def to(self, device: torch.device) -> None:
        """Encode users and rank on a device; a copy of the network is there."""
        super().to(device)
        self._on_device = None if device.type == "cpu" else copy.deepcopy(self.model).to(device)

    def queries_on_device(self, history: Jagged) -> Tensor:
        """(rows, d) query vectors on the device that ranks."""
        if self._on_device is None:
            return super().queries_on_device(history)
        return self._on_device.queries(history)

    def score_cost(self, known: Jagged) -> float:
        """Multiply-adds to score one item for one user: the width of the vectors."""
        return self.model.width

    def normalised(self) -> Tensor:
        """Compute (items, d - 1) item vectors without their bias, of length one."""
        weights = torch.arange(self.vectors.shape[1]) != self.model.latent
        return F.normalize(self.vectors[:, weights])

    def queries(self, history: Jagged) -> Tensor:
        """(rows, d) query vectors of users with these items."""
        return self.model.queries(history)

    def state(self) -> dict[str, Tensor]:
        """Parameters of the network, tensors of its tables, and shortcut; all on rank 0."""
        found = {
            name: value.collect() if isinstance(value, RowShards) else value
            for name, value in self.stored().items()
        }
        return {name: value for name, value in found.items() if value is not None}

    def stored(self) -> dict[str, Tensor | RowShards]:
        """The same with sharded tables as they are."""
        state: dict[str, Tensor | RowShards] = {}
        for name, value in self.model.encoder_state().items():
            state[f"vae.{name}"] = value
        state |= self.model.tables.saved()
        linear = self.model.shortcut
        if linear is not None:
            state["shortcut.table"], state["shortcut.scale"] = linear.stored(), linear.scale
            state["shortcut.strength"] = torch.tensor(linear.strength, dtype=torch.float64)
        return state

    def to_onnx(self) -> nn.Module:
        """Module from padded histories to scores."""
        return _PaddedScores(self.model, self.vectors)

    def inspect_anchors(
        self, labels: Sequence[Any] | None, names: Sequence[Any]
    ) -> AnchorInspection | None:
        """Describe the anchors of the tables, that of the bias excluded; None if dense."""
        tables = self.model.tables
        if not isinstance(tables, AnchoredTables):
            return None
        table, bias = tables.without_bias(), int(tables.is_bias.sum())
        found = inspect_anchors(table, labels=labels, names=names)
        bias_parameters = bias * table.embedding_dim + tables.table.nonzeros() - table.nonzeros()
        return replace(found, anchors=found.anchors - bias, other_parameters=bias_parameters)


class _PaddedScores(nn.Module):
    """FastVAE from (rows, length) item numbers, padded with -1, to (rows, items) scores."""

    def __init__(self, model: FastVAE, vectors: Tensor) -> None:
        super().__init__()
        self.model, self.vectors = model, nn.Buffer(vectors)
        self.inputs = nn.Buffer(model.entries())
        self.linear = None if model.shortcut is None else model.shortcut.gathered()

    def forward(self, history: Tensor) -> Tensor:
        there = (history >= 0).unsqueeze(2).float()
        ids = history.clamp(min=0)
        by = there.sum(1).clamp(min=1).rsqrt()
        bag = (self.inputs[ids] * there).sum(1) * by
        query = self.model.mean_queries(bag)
        linear = self.linear
        if linear is not None:
            rows = (linear.table / linear.scale.unsqueeze(1))[ids]
            query = torch.cat([query, (rows * there).sum(1) * (linear.strength * by)], 1)
        return query @ self.vectors.T
