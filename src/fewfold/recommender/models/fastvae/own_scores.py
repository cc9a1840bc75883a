"""Scores of the items of one of several processes, for the queries of all of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold.distributed.entries import Entries, SharedEntries
from fewfold.distributed.group import Group
from fewfold.distributed.shared_batch import all_rows
from fewfold.losses.sampled_scores import (
    Items,
    item_vectors,
    picked_item_gradient,
    picked_query_gradient,
    picked_scores,
)

__all__ = ["DenseScores", "MappedScores", "OwnScores"]

_NAME = "queries, gradients"


class OwnScores(ABC):
    """Scores of the items that this process has, for the queries of all rows of a batch.

    Gradients of the queries are summed over processes; those of the items stay here.
    """

    @abstractmethod
    def picked(self, entries: Entries) -> Tensor:
        """Return the scores of the entries that this process owns, (m,)."""

    @abstractmethod
    def products(self, entries: SharedEntries) -> Tensor:
        """Return the scores (m, rows) of the entries that this process owns, for all rows."""


class DenseScores(OwnScores):
    """Scores of a table with a vector for each item.

    In the backward pass gradients of the queries are exchanged while those of the items are
    computed.

    Args:
        items: (items of this process, d).
        own: queries of this process, which get a gradient.
        queries: (rows, d) of all processes.
    """

    def __init__(self, items: Tensor, own: Tensor, queries: Tensor) -> None:
        self._of = own, items, queries

    def picked(self, entries: Entries) -> Tensor:
        """Return the scores of the entries that this process owns, (m,)."""
        scores: Tensor = _Picked.apply(*self._of, entries)
        return scores

    def products(self, entries: SharedEntries) -> Tensor:
        """Return the scores (m, rows) of the entries that this process owns, for all rows."""
        scores: Tensor = _Products.apply(*self._of, entries)
        return scores


class MappedScores(OwnScores):
    """Scores of items that are a function of several parameters, such as anchors.

    Args:
        group: the processes.
        items: of this process.
        own: queries of this process, which get a gradient.
        queries: (rows, d) of all processes.
        project: map of the queries to the space of the items; none by default.
    """

    def __init__(
        self,
        group: Group,
        items: Items,
        own: Tensor,
        queries: Tensor,
        project: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        queries = all_rows(group, own, queries, _NAME)
        self._items, self._queries = items, queries if project is None else project(queries)

    def picked(self, entries: Entries) -> Tensor:
        """Return the scores of the entries that this process owns, (m,)."""
        return _of_entries(self._queries, self._items, entries)

    def products(self, entries: SharedEntries) -> Tensor:
        """Return the scores (m, rows) of the entries that this process owns, for all rows."""
        return item_vectors(self._items, entries.ids) @ self._queries.T


def _of_entries(queries: Tensor, items: Items, entries: Entries) -> Tensor:
    none = entries.ids.new_empty(len(queries), 0)
    return picked_scores(queries, items, none, (entries.ids, entries.offsets))[1]


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, items: Tensor, queries: Tensor, entries: Entries) -> Tensor:
        ctx.entries = entries
        ctx.save_for_backward(items, queries)
        return _of_entries(queries, items.detach(), entries)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        (items, queries), entries = ctx.saved_tensors, ctx.entries
        more = entries.ids, entries.offsets
        grad: Tensor | None = None

        def items_gradient() -> None:
            nonlocal grad
            grad = picked_item_gradient(queries, items, more, by)

        pull = picked_query_gradient(queries, items, more, by)
        return _summed(entries.group, pull, items_gradient), grad, None, None


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, own: Tensor, items: Tensor, queries: Tensor, entries: SharedEntries
    ) -> Tensor:
        ctx.entries, vectors = entries, items.detach()[entries.ids]
        ctx.shape = items.shape
        ctx.save_for_backward(vectors, queries)
        return vectors @ queries.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        (vectors, queries), entries = ctx.saved_tensors, ctx.entries
        values = queries.new_empty(len(vectors), queries.shape[1])

        def items_gradient() -> None:
            torch.mm(by, queries, out=values)

        total = _summed(entries.group, by.T @ vectors, items_gradient)
        where = entries.ids.unsqueeze(0)
        grad = torch.sparse_coo_tensor(where, values, ctx.shape, check_invariants=False)
        return total, grad, None, None


def _summed(group: Group, gradient: Tensor, meanwhile: Callable[[], None]) -> Tensor:
    """Return the gradient of the queries of this process, summed over processes."""
    return group.scatter_sums(gradient, group.shares(len(gradient)), _NAME, meanwhile)
