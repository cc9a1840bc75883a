"""Samples of a batch whose rows are encoded by several processes, and their scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold.distributed.group import Group
from fewfold.distributed.row_exchange import Owners
from fewfold.losses.sampled import check_positive_probabilities
from fewfold.losses.sampled_scores import (
    picked_item_gradient,
    picked_query_gradient,
    picked_scores,
)
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.fastvae.objectives import SampledSoftmax
from fewfold.sampling.batch_part import BatchPart

__all__ = ["OwnSamples", "SharedSample"]


@dataclass(frozen=True, eq=False)
class _BatchSamples:
    """Queries and samples of all rows of a batch, the same in all processes.

    Attributes:
        group: the processes.
        own: (rows of this process, d) its queries, which get the gradient of all processes.
        queries: (rows, d) of all processes, without a gradient.
        ids: the samples, (rows, n) or (n,).
        log_q: of the samples, of the same shape.
        positive_q: (m,) log q of the items of the rows.
    """

    group: Group
    own: Tensor
    queries: Tensor
    ids: Tensor
    log_q: Tensor
    positive_q: Tensor

    def _picked(self, items: Tensor, owners: Owners) -> Tensor:
        """Return the scores of entries of rows, (n,), each computed by its owner."""
        scores: Tensor = _OwnScores.apply(self.own, items, self.queries, owners)
        return owners.assemble(scores, "scores")


class OwnSamples(_BatchSamples):
    """Samples of each row, drawn by the process that encodes it, as one process draws them."""

    @classmethod
    def of(
        cls,
        group: Group,
        queries: Tensor,
        objective: SampledSoftmax,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Self:
        """Draw samples of the rows of this process, and exchange them together with queries."""
        rows, n = len(history.lengths), objective.samples
        own, counts = group.share(rows), group.shares(rows)
        given = objective.proposal.given(queries.detach())
        given.part = BatchPart(own.start, rows)
        ids, log_q = given.sample(n, generator=generator)
        mine = history.rows(own)
        positive_q = given.log_prob(mine.values, mine.row)
        check_positive_probabilities(mine.values, positive_q)
        parts = [queries.detach(), ids.to(torch.int32), log_q, positive_q]
        words = [part.contiguous().view(torch.int32) for part in parts]
        width = [word.shape[1] for word in words[:3]]
        edges = torch.tensor([0, *counts]).cumsum(0)
        lengths = history.offsets[edges].diff().tolist()
        sizes = [
            (count * width[0], count * width[1], count * width[2], length)
            for count, length in zip(counts, lengths, strict=True)
        ]
        flat = torch.cat([word.flatten() for word in words])
        got = group.gather(flat, [sum(size) for size in sizes], "queries and samples")
        pieces = got.split([n for size in sizes for n in size])
        all_queries, all_ids, all_log_q, all_positive_q = (
            torch.cat(pieces[at::4]).view(part.dtype) for at, part in enumerate(parts)
        )
        return cls(
            group, queries, all_queries.view(rows, -1), all_ids.view(rows, n).long(),
            all_log_q.view(rows, n), all_positive_q,
        )  # fmt: skip

    def scores(self, items: Tensor, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        rows, n = self.ids.shape
        found = self._picked(items, Owners.of(self.group, self.ids, history))
        return found[: rows * n].view(rows, n), found[rows * n :]


class SharedSample(_BatchSamples):
    """Samples for all rows, from the mixture of all queries; all processes draw the same."""

    @classmethod
    def of(
        cls,
        group: Group,
        queries: Tensor,
        objective: SampledSoftmax,
        history: Jagged,
        generator: torch.Generator | None,
    ) -> Self:
        """Gather the queries, and draw."""
        counts = group.shares(len(history.lengths))
        all_queries = group.gather(queries.detach(), counts, "queries")
        given = objective.proposal.given(all_queries, shared=True)
        ids, log_q = given.sample(objective.samples, generator=generator)
        positive_q = given.log_prob(history.values)
        check_positive_probabilities(history.values, positive_q)
        return cls(group, queries, all_queries, ids, log_q, positive_q)

    def scores(self, items: Tensor, history: Jagged) -> tuple[Tensor, Tensor]:
        """Return the scores of the samples, (rows, n), and of the items of the rows, (m,)."""
        nothing = self.ids[:0], torch.zeros(2, dtype=torch.int64)
        owners = Owners.of(self.group, self.ids.unsqueeze(0), nothing)
        scores: Tensor = _OwnProducts.apply(self.own, items, self.queries, owners)
        samples = owners.assemble(scores, "scores").T
        positives = Owners.of(self.group, self.ids.new_empty(len(self.queries), 0), history)
        return samples, self._picked(items, positives)


class _OwnScores(torch.autograd.Function):
    """Scores of the entries of this process, for queries of all processes.

    In the backward pass gradients of the queries are summed over processes while those of the
    items, which stay here, are computed.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, items: Tensor, queries: Tensor, owners: Owners) -> Tensor:
        ctx.owners = owners
        ctx.save_for_backward(items, queries)
        none = owners.ids.new_empty(len(queries), 0)
        return picked_scores(queries, items.detach(), none, (owners.ids, owners.offsets))[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        (items, queries), owners = ctx.saved_tensors, ctx.owners
        more = owners.ids, owners.offsets
        grad: Tensor | None = None

        def items_gradient() -> None:
            nonlocal grad
            grad = picked_item_gradient(queries, items, more, by)

        pull = picked_query_gradient(queries, items, more, by)
        return _summed(owners.group, pull, items_gradient), grad, None, None


class _OwnProducts(torch.autograd.Function):
    """Scores (n, rows) of items that this process has, for the queries of all rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, items: Tensor, queries: Tensor, owners: Owners) -> Tensor:
        ctx.owners, vectors = owners, items.detach()[owners.ids]
        ctx.shape = items.shape
        ctx.save_for_backward(vectors, queries)
        return vectors @ queries.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        (vectors, queries), owners = ctx.saved_tensors, ctx.owners
        values = queries.new_empty(len(vectors), queries.shape[1])

        def items_gradient() -> None:
            torch.mm(by, queries, out=values)

        total = _summed(owners.group, by.T @ vectors, items_gradient)
        where = owners.ids.unsqueeze(0)
        grad = torch.sparse_coo_tensor(where, values, ctx.shape, check_invariants=False)
        return total, grad, None, None


def _summed(group: Group, gradient: Tensor, meanwhile: Callable[[], None]) -> Tensor:
    """Return the gradient of the queries of this process, summed over processes."""
    counts = group.shares(len(gradient))
    return group.scatter_sums(gradient, counts, "queries, gradients", meanwhile)
