"""Scores of a few items per query, and a gradient that touches no other item."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold import _native
from fewfold.maps.fast import kernel

__all__ = ["Items", "Jagged", "item_vectors", "log_sum_picked", "picked_scores"]

Items = Tensor | nn.Embedding | Callable[[Tensor], Tensor]
Jagged = tuple[Tensor, Tensor]  # values (n,), offsets (rows + 1,)


def item_vectors(items: Items, ids: Tensor) -> Tensor:
    """The vectors of these items; a table that is a leaf gets a sparse gradient."""
    if isinstance(items, nn.Embedding):
        items = items.weight
    if isinstance(items, Tensor):
        return F.embedding(ids, items, sparse=items.is_leaf)
    return items(ids)


def picked_scores(
    queries: Tensor, items: Items, ids: Tensor, more: Jagged
) -> tuple[Tensor, Tensor]:
    """Inner products of queries with a few items.

    Args:
        queries: (B, d).
        items: a table (M, d), an `nn.Embedding`, or a function from ids to their vectors.
        ids: (B, n) items of each query, or (n,) items for all of them.
        more: (m,) further items and (B + 1,) where those of each query begin.

    Returns:
        Scores (B, n) and (m,).
    """
    weight = items.weight if isinstance(items, nn.Embedding) else items
    if isinstance(weight, Tensor) and _native_can(queries, weight):
        return _picked(queries, weight, ids, more, None)
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
        block = (few.view(*ids.shape, -1) @ queries.unsqueeze(-1)).squeeze(-1)
    return block, (rest * queries[row]).sum(-1)


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
        _native.ready(queries, weight)
        and queries.dtype == weight.dtype
        and weight.is_contiguous()
        and (weight.is_leaf or not weight.requires_grad)
    )


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
        fine = kernel("picked_dots", queries.dtype)(
            queries.data_ptr(), weight.data_ptr(), len(weight), d, rows, ids.data_ptr(),
            _each(ids), more.data_ptr(), offsets.data_ptr(), scores.data_ptr(),
            more_scores.data_ptr(), _native.threads(),
        )  # fmt: skip
        if not fine:
            both = torch.cat([ids.flatten(), more])
            raise IndexError(
                f"item ids must be between 0 and {len(weight) - 1}, "
                f"got {both.min().item()} to {both.max().item()}"
            )
        if log_q is None:
            ctx.save_for_backward(queries, weight, ids, more, offsets, few, None)
            return scores, more_scores
        log_sum, n = queries.new_empty(rows), scores.shape[1]
        kernel("soften", queries.dtype)(
            scores.data_ptr(), rows, n, log_q.data_ptr(), n if log_q.dim() == 2 else 0,
            log_sum.data_ptr(), _native.threads(),
        )  # fmt: skip
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
        values = _native.table(entries, d, dtype=queries.dtype) if wants_weight else None
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
        kernel("picked_pulls", queries.dtype)(
            queries.data_ptr(), weight.data_ptr(), d, rows, ids.data_ptr(), _each(ids),
            more.data_ptr(), offsets.data_ptr(), by.data_ptr(),
            0 if scale is None else scale.data_ptr(), more_by.data_ptr(),
            0 if pull is None else pull.data_ptr(), 0 if first is None else first.data_ptr(),
            _native.threads(),
        )  # fmt: skip
        grad = None
        if values is not None:
            where = torch.cat([ids.flatten(), more]).unsqueeze(0)
            grad = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return pull, grad, None, None, None, None


def _each(ids: Tensor) -> int:
    """How many ids each query has of its own."""
    return ids.shape[1] if ids.dim() == 2 else 0
