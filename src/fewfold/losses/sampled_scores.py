"""Scores of a few items per query, and a gradient that touches no other item."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch

__all__ = ["Anchored", "Items", "Jagged", "item_vectors", "log_sum_picked", "picked_scores"]


class _Attached(Protocol):
    @property
    def watching(self) -> bool: ...
    def before_read(self, ids: Tensor | None) -> None: ...


@runtime_checkable
class Anchored(Protocol):
    """A table whose rows mix a few anchors, `sum_j transform[i, j] anchors[slots[i, j]]`.

    `AnchorEmbedding` is one. Items are then scored by what a query thinks of the anchors, for s
    products each in the place of d.
    """

    num_embeddings: int
    anchors: nn.Parameter
    transform: nn.Parameter
    slots: Tensor | None
    sparse: bool
    padding_idx: int | None
    max_norm: float | None
    scale_grad_by_freq: bool
    attached: _Attached

    def __call__(self, input: Tensor) -> Tensor:
        """The vectors of these ids."""


Items = Tensor | nn.Embedding | Anchored | Callable[[Tensor], Tensor]
Jagged = tuple[Tensor, Tensor]  # values (n,), offsets (rows + 1,)


def item_vectors(items: Items, ids: Tensor) -> Tensor:
    """The vectors of these items; a table that is a leaf gets a sparse gradient."""
    if isinstance(items, nn.Embedding):
        items = items.weight
    if isinstance(items, Tensor):
        return F.embedding(ids, items, sparse=items.is_leaf)
    vectors = items(ids)
    if not isinstance(vectors, Tensor) or vectors.dim() != 2 or len(vectors) != len(ids):
        came = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ValueError(
            f"items must be a function from ids ({len(ids)},) to vectors ({len(ids)}, d), "
            f"but returned {came}"
        )
    return vectors


def picked_scores(
    queries: Tensor, items: Items, ids: Tensor, more: Jagged
) -> tuple[Tensor, Tensor]:
    """Inner products of queries with a few items.

    Args:
        queries: (B, d).
        items: a table (M, d), an `nn.Embedding`, an `AnchorEmbedding`, or a function from ids to
            their vectors.
        ids: (B, n) items of each query, or (n,) items for all of them.
        more: (m,) further items and (B + 1,) where those of each query begin.

    Returns:
        Scores (B, n) and (m,).
    """
    weight = items.weight if isinstance(items, nn.Embedding) else items
    if isinstance(weight, Tensor) and _native_can(queries, weight):
        return _picked(queries, weight, ids, more, None)
    if _mixes(items, queries, ids):
        return _mixed(queries, items, ids, more, None)
    values, offsets = more
    row = torch.repeat_interleave(
        torch.arange(len(queries), device=ids.device), offsets.diff(), output_size=len(values)
    )
    few, rest = item_vectors(weight, torch.cat([ids.flatten(), values])).split(
        [ids.numel(), len(values)]
    )
    if ids.dim() == 1:
        block = queries @ few.T
    else:
        block = (few.view(*ids.shape, few.shape[-1]) @ queries.unsqueeze(-1)).squeeze(-1)
    return block, (rest * queries.index_select(0, row)).sum(-1)


def log_sum_picked(
    queries: Tensor, items: Items, ids: Tensor, log_q: Tensor, more: Jagged
) -> tuple[Tensor, Tensor]:
    """Log of the sum of exp(score - log q) over the ids of each query (B,); scores of more (m,).

    Arguments as in `picked_scores`; log q is (B, n), or (n,) where the ids are.
    """
    weight = items.weight if isinstance(items, nn.Embedding) else items
    if isinstance(weight, Tensor) and _native_can(queries, weight) and not log_q.requires_grad:
        shape = (len(queries), ids.shape[-1]) if max(log_q.dim(), ids.dim()) == 2 else ids.shape
        log_q = log_q.to(queries.dtype).expand(shape).contiguous()
        return _picked(queries, weight, ids, more, log_q)
    if not log_q.requires_grad and _mixes(items, queries, ids):
        log_q = log_q.to(queries.dtype).expand(ids.shape).contiguous()
        return _mixed(queries, items, ids, more, log_q)
    scores, more_scores = picked_scores(queries, weight, ids, more)
    return (scores - log_q).logsumexp(1), more_scores


def _picked(
    queries: Tensor, weight: Tensor, ids: Tensor, more: Jagged, log_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Picked.apply(
        queries, weight, ids.to(torch.int64).contiguous(), *more, log_q
    )
    return both


def _native_can(queries: Tensor, weight: Tensor) -> bool:
    return (
        dispatch.ready(queries, weight)
        and queries.dtype == weight.dtype
        and weight.is_contiguous()
        and (weight.is_leaf or not weight.requires_grad)
    )


def _mixes(items: Items, queries: Tensor, ids: Tensor) -> TypeGuard[Anchored]:
    """Whether items can be scored through their anchors; those for all queries are better mixed."""
    return (
        ids.dim() == 2
        and isinstance(items, Anchored)
        and items.slots is not None
        and items.padding_idx is None
        and items.max_norm is None
        and not items.scale_grad_by_freq
        and not items.attached.watching
        and dispatch.ready(queries, items.anchors, items.transform)
        and queries.dtype == items.anchors.dtype == items.transform.dtype
        and items.transform.is_contiguous()
        and items.slots.is_contiguous()
    )


def _mixed(
    queries: Tensor, items: Anchored, ids: Tensor, more: Jagged, log_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    every = torch.cat([ids.flatten(), more[0]])
    items.attached.before_read(every)
    both: tuple[Tensor, Tensor] = _PickedMix.apply(
        queries @ items.anchors.t(), items.transform, items.slots, every, ids.shape, more[1], log_q,
        items.sparse,
    )  # fmt: skip
    return both


class _PickedMix(torch.autograd.Function):
    """Scores of picked rows from the scores of the anchors (B, K); log q as in `_Picked`."""

    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        transform: Tensor,
        slots: Tensor,
        every: Tensor,
        shape: torch.Size,
        offsets: Tensor,
        log_q: Tensor | None,
        sparse: bool,
    ) -> tuple[Tensor, Tensor]:
        projected = projected.contiguous()
        (rows, k), (size, s), n = projected.shape, transform.shape, len(every)
        terms, slot = transform.new_empty(n, s), torch.empty(n, s, dtype=torch.int32)
        scores, more_scores = projected.new_empty(shape), projected.new_empty(n - shape.numel())
        bad = dispatch.kernel("mixed_dots", projected.dtype)(
            projected, k, rows, transform, slots, size, s, every, shape[1], n, offsets, terms, slot,
            scores, more_scores, dispatch.threads(),
        )  # fmt: skip
        if bad >= 0:
            raise IndexError(f"item ids must be between 0 and {size - 1}, got {every[bad].item()}")
        if bad != -1:
            raise ValueError(f"slots must be between 0 and {k - 1}; those of the table are not")
        ctx.sparse, ctx.each, ctx.size = sparse, shape[1], size
        if log_q is None:
            ctx.save_for_backward(projected, terms, slot, every, offsets, None)
            return scores, more_scores
        log_sum = projected.new_empty(rows)
        dispatch.kernel("soften", projected.dtype)(
            scores, rows, shape[1], log_q, shape[1], log_sum, dispatch.threads()
        )
        ctx.save_for_backward(projected, terms, slot, every, offsets, scores)
        return log_sum, more_scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, more_by: Tensor) -> tuple[Tensor | None, ...]:
        projected, terms, slot, every, offsets, softmax = ctx.saved_tensors
        (rows, k), s = projected.shape, terms.shape[1]
        by, more_by = by.contiguous(), more_by.contiguous()
        scale, by = (None, by) if softmax is None else (by, softmax)
        pull = torch.zeros_like(projected) if ctx.needs_input_grad[0] else None
        values = torch.empty_like(terms) if ctx.needs_input_grad[1] else None
        dispatch.kernel("mixed_pulls", projected.dtype)(
            projected, k, rows, s, ctx.each, offsets, terms, slot, by, scale, more_by, pull, values,
            dispatch.threads(),
        )  # fmt: skip
        if values is not None and ctx.sparse:
            where, shape = every.unsqueeze(0), (ctx.size, s)
            values = torch.sparse_coo_tensor(where, values, shape, check_invariants=False)
        elif values is not None:
            values = values.new_zeros(ctx.size, s).index_add_(0, every, values)
        return pull, values, None, None, None, None, None, None


class _Picked(torch.autograd.Function):
    """The scores by the kernels; the gradient of the table is sparse, one entry per id.

    Where log q is given, the log of the sum in place of the scores (B, n). Items for all queries
    are a small product of matrices, which torch does best.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        weight: Tensor,
        ids: Tensor,
        more: Tensor,
        offsets: Tensor,
        log_q: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        queries = queries.contiguous()
        rows, d = queries.shape
        few = weight.index_select(0, ids) if ids.dim() == 1 else None
        scores = queries.new_empty(ids.shape) if few is None else queries @ few.T
        more_scores = queries.new_empty(more.shape)
        dispatch.kernel("picked_dots", queries.dtype)(
            queries, weight, len(weight), d, rows, ids, _each(ids), more, offsets, scores,
            more_scores, dispatch.threads(),
        )  # fmt: skip
        if log_q is None:
            ctx.save_for_backward(queries, weight, ids, more, offsets, few, None)
            return scores, more_scores
        log_sum, n = queries.new_empty(rows), scores.shape[1]
        dispatch.kernel("soften", queries.dtype)(
            scores, rows, n, log_q, n if log_q.dim() == 2 else 0, log_sum, dispatch.threads()
        )
        ctx.save_for_backward(queries, weight, ids, more, offsets, few, scores)
        return log_sum, more_scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, more_by: Tensor) -> tuple[Tensor | None, ...]:
        queries, weight, ids, more, offsets, few, softmax = ctx.saved_tensors
        rows, d = queries.shape
        wants_query, wants_weight = ctx.needs_input_grad[:2]
        by, more_by = by.contiguous(), more_by.contiguous()
        # A gradient of the log of a sum is the softmax times a number per row.
        scale, by = (None, by) if softmax is None else (by, softmax)
        pull = torch.zeros_like(queries) if wants_query else None
        entries = ids.numel() + len(more)
        values = dispatch.table(entries, d, dtype=queries.dtype) if wants_weight else None
        first = values
        if few is not None:
            if pull is not None:
                torch.mm(by, few, out=pull)
                if scale is not None:
                    pull.mul_(scale.unsqueeze(1))
            if values is not None:
                scaled = queries if scale is None else queries * scale.unsqueeze(1)
                torch.mm(by.T, scaled, out=values[: len(ids)])
                first = values[len(ids) :]
        dispatch.kernel("picked_pulls", queries.dtype)(
            queries, weight, len(weight), d, rows, ids, _each(ids), more, offsets, by, scale,
            more_by, pull, first, dispatch.threads(),
        )  # fmt: skip
        grad = None
        if values is not None:
            where = torch.cat([ids.flatten(), more]).unsqueeze(0)
            grad = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return pull, grad, None, None, None, None


def _each(ids: Tensor) -> int:
    """How many ids each query has of its own."""
    return ids.shape[1] if ids.dim() == 2 else 0
