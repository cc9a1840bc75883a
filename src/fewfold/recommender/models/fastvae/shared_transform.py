"""One transform for both tables of a model: its two gradients, its outputs, its proposal."""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.embeddings.table.anchor_sums import mixed
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.sampling.proposal import Given, Proposal

__all__ = ["Decoder", "Seeing", "twice"]


class _Twice(torch.autograd.Function):
    """A table that is used twice, whose sparse gradients are put one after the other.

    Torch would add them up, for as much time as everything else in the backward pass takes.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        return table.view_as(table), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        there = [grad for grad in grads if grad is not None]
        if len(there) < 2 or not all(grad.is_sparse for grad in there):
            whole = [grad.to_dense() for grad in there]
            return torch.stack(whole).sum(0) if whole else None
        where = torch.cat([grad._indices() for grad in there], 1)
        values = torch.cat([grad._values() for grad in there])
        return torch.sparse_coo_tensor(where, values, there[0].shape, check_invariants=False)


def twice(table: Tensor) -> tuple[Tensor, Tensor]:
    """The table for two uses."""
    both: tuple[Tensor, Tensor] = _Twice.apply(table)
    return both


class Decoder:
    """The outputs of a table of fixed width, as a sampled loss takes them."""

    padding_idx = max_norm = None
    scale_grad_by_freq, sparse = False, True

    def __init__(self, table: AnchorEmbedding, transform: Tensor, anchors: Tensor) -> None:
        self.anchors, self.transform, self.slots = anchors, transform, table.slots
        self.num_embeddings, self.attached = table.num_embeddings, table.attached
        self._before = table.embedding_dim - anchors.shape[1]

    def __call__(self, ids: Tensor) -> Tensor:
        """Vectors (*ids, width)."""
        flat = ids.flatten()
        if self.slots is None:
            raise ValueError("a table that is held in full is its own decoder")
        vectors = mixed(self.anchors, self.transform, self.slots, flat, sparse=True)
        if self.attached.watching and vectors.requires_grad:
            vectors.register_hook(
                lambda gradient: self.attached.record(flat, F.pad(gradient, (self._before, 0)))
            )
        return vectors.view(*ids.shape, -1)


class Seeing(Proposal):
    """A proposal that is asked with these queries, whatever it is given."""

    def __init__(self, proposal: Proposal, queries: Tensor) -> None:
        self.proposal, self.queries = proposal, queries

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        """Fit the proposal itself."""
        self.proposal.fit(item_vectors, counts)
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """What the proposal draws from for its own queries."""
        return self.proposal.given(self.queries, shared=shared)
