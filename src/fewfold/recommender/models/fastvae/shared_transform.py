"""Helpers of a transform shared by inputs and outputs: gradients, output vectors, proposal."""

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold.embeddings.table.anchor_sums import mixed
from fewfold.embeddings.table.embedding import AnchorEmbedding
from fewfold.sampling.proposal import Given, Proposal

__all__ = ["FixedQueries", "OutputVectors", "two_uses"]


class _TwoUses(torch.autograd.Function):
    """Return a table twice; concatenate the two sparse gradients.

    Torch would add them, which takes as long as everything else in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        return table.view_as(table), table.view_as(table)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        present = [grad for grad in grads if grad is not None]
        if len(present) < 2 or not all(grad.is_sparse for grad in present):
            dense = [grad.to_dense() for grad in present]
            return torch.stack(dense).sum(0) if dense else None
        indices = torch.cat([grad._indices() for grad in present], 1)
        values = torch.cat([grad._values() for grad in present])
        return torch.sparse_coo_tensor(indices, values, present[0].shape, check_invariants=False)


def two_uses(table: Tensor) -> tuple[Tensor, Tensor]:
    """Return two views of a table whose sparse gradients are concatenated, not added."""
    views: tuple[Tensor, Tensor] = _TwoUses.apply(table)
    return views


class OutputVectors:
    """Output vectors of a table of fixed width, in the form of items that sampled losses accept."""

    padding_idx = max_norm = None
    scale_grad_by_freq, sparse = False, True

    def __init__(self, table: AnchorEmbedding, transform: Tensor, anchors: Tensor) -> None:
        self.anchors, self.transform, self.slots = anchors, transform, table.slots
        self.num_embeddings, self.attached = table.num_embeddings, table.attached
        self._before = table.embedding_dim - anchors.shape[1]

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the vectors, (*ids, width)."""
        flat = ids.flatten()
        if self.slots is None:
            raise ValueError("a table held in full has no slots; use its transform as the items")
        vectors = mixed(self.anchors, self.transform, self.slots, flat, sparse=True)
        if self.attached.watching and vectors.requires_grad:
            vectors.register_hook(
                lambda gradient: self.attached.record(flat, F.pad(gradient, (self._before, 0)))
            )
        return vectors.view(*ids.shape, -1)


class FixedQueries(Proposal):
    """A proposal evaluated at these queries instead of those of the loss.

    The loss sees queries mapped to the space of the transform; the proposal was fitted to vectors.
    """

    def __init__(self, proposal: Proposal, queries: Tensor) -> None:
        self.proposal, self.queries = proposal, queries

    def fit(self, item_vectors: Tensor, counts: Tensor | None = None) -> Self:
        """Fit the wrapped proposal."""
        self.proposal.fit(item_vectors, counts)
        return self

    def given(self, queries: Tensor, *, shared: bool = False) -> Given:
        """Return the distribution of the wrapped proposal for its fixed queries."""
        return self.proposal.given(self.queries, shared=shared)
