"""Scores of selected items per query, with gradients for these items only."""

from collections.abc import Callable
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch
from fewfold.losses.picked_on_gpu import picked_on_gpu

__all__ = [
    *("Anchored", "Items", "Jagged", "item_vectors", "log_sum", "log_sum_picked"),
    *("picked_item_gradient", "picked_query_gradient", "picked_scores"),
]


class _Attached(Protocol):
    @property
    def watching(self) -> bool: ...
    def before_read(self, ids: Tensor | None) -> None: ...


@runtime_checkable
class Anchored(Protocol):
    """Embedding table with rows `sum_j transform[i, j] anchors[slots[i, j]]`.

    `AnchorEmbedding` satisfies this protocol. Given the scores of the anchors, the score of an item
    takes s products instead of d.
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
        """Return the vectors of these ids."""


Items = Tensor | nn.Embedding | Anchored | Callable[[Tensor], Tensor]
Jagged = tuple[Tensor, Tensor]  # values (n,), offsets (rows + 1,)


def item_vectors(items: Items, ids: Tensor) -> Tensor:
    """Return the vectors of these items; a table that is a leaf receives a sparse gradient."""
    if isinstance(items, nn.Embedding):
        items = items.weight
    if isinstance(items, Tensor):
        return F.embedding(ids, items, sparse=items.is_leaf)
    vectors = items(ids)
    if not isinstance(vectors, Tensor) or vectors.dim() != 2 or len(vectors) != len(ids):
        got = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ValueError(
            f"items must be a function from ids ({len(ids)},) to vectors ({len(ids)}, d), "
            f"but returned {got}"
        )
    return vectors


def picked_scores(
    queries: Tensor, items: Items, ids: Tensor, more: Jagged
) -> tuple[Tensor, Tensor]:
    """Return the inner products of queries with selected items.

    Args:
        queries: (B, d).
        items: a table (M, d), an `nn.Embedding`, an `AnchorEmbedding`, or a function from ids to
            their vectors.
        ids: (B, n) items of each query, or (n,) items for all queries.
        more: further items (m,) and their offsets (B + 1,): a variable number per query.

    Returns:
        Scores (B, n) and (m,).
    """
    weight = items.weight if isinstance(items, nn.Embedding) else items
    if isinstance(weight, Tensor) and _has_kernel(queries, weight):
        return _picked(queries, weight, ids, more, None)
    if isinstance(weight, Tensor):
        found = picked_on_gpu(queries, weight, ids, more)
        if found is not None:
            return found
    if _scores_by_anchors(items, queries, ids):
        return _anchored_scores(queries, items, ids, more, None)
    values, offsets = more
    row = torch.repeat_interleave(
        torch.arange(len(queries), device=ids.device), offsets.diff(), output_size=len(values)
    )
    vectors, rest = item_vectors(weight, torch.cat([ids.flatten(), values])).split(
        [ids.numel(), len(values)]
    )
    if ids.dim() == 1:
        block = queries @ vectors.T
    else:
        block = (vectors.view(*ids.shape, vectors.shape[-1]) @ queries.unsqueeze(-1)).squeeze(-1)
    return block, (rest * queries.index_select(0, row)).sum(-1)


def log_sum_picked(
    queries: Tensor, items: Items, ids: Tensor, log_q: Tensor, more: Jagged
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of score - log q over the ids of each query (B,), and the scores of `more` (m,).

    Arguments as in `picked_scores`; log q is (B, n), or (n,) for shared ids.
    """
    weight = items.weight if isinstance(items, nn.Embedding) else items
    if isinstance(weight, Tensor) and _has_kernel(queries, weight) and not log_q.requires_grad:
        shape = (len(queries), ids.shape[-1]) if max(log_q.dim(), ids.dim()) == 2 else ids.shape
        log_q = log_q.to(queries.dtype).expand(shape).contiguous()
        return _picked(queries, weight, ids, more, log_q)
    if not log_q.requires_grad and _scores_by_anchors(items, queries, ids):
        log_q = log_q.to(queries.dtype).expand(ids.shape).contiguous()
        return _anchored_scores(queries, items, ids, more, log_q)
    scores, more_scores = picked_scores(queries, weight, ids, more)
    return (scores - log_q).logsumexp(1), more_scores


def log_sum(scores: Tensor, log_q: Tensor) -> Tensor:
    """Return the log-sum-exp of score - log q of each row, (B,); log q is (B, n) or (n,)."""
    if not (dispatch.ready(scores, log_q) and scores.dtype == log_q.dtype) or log_q.requires_grad:
        return (scores - log_q).logsumexp(1)
    total: Tensor = _LogSum.apply(scores, log_q.contiguous())
    return total


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, log_q: Tensor) -> Tensor:
        softmax = scores.clone(memory_format=torch.contiguous_format)
        rows, n = scores.shape
        total = scores.new_empty(rows)
        dispatch.kernel("soften", scores.dtype)(
            softmax, rows, n, log_q, n if log_q.dim() == 2 else 0, total, dispatch.threads()
        )
        ctx.save_for_backward(softmax)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        (softmax,) = ctx.saved_tensors
        return softmax * by.unsqueeze(1), None


def picked_query_gradient(queries: Tensor, items: Tensor, more: Jagged, by: Tensor) -> Tensor:
    """Return the gradient of the queries (B, d) of scores of `more`, given that of the scores."""
    ids, offsets = more
    if _has_kernel(queries, items):
        pull = torch.zeros_like(queries)
        _pull(queries, items, more, by, pull, None)
        return pull
    row = torch.arange(len(queries), device=ids.device).repeat_interleave(offsets.diff())
    return torch.zeros_like(queries).index_add_(0, row, items.detach()[ids] * by.unsqueeze(1))


def picked_item_gradient(queries: Tensor, items: Tensor, more: Jagged, by: Tensor) -> Tensor:
    """Return the gradient of the items (M, d) of scores of `more`, sparse, one entry per id."""
    ids, offsets = more
    if _has_kernel(queries, items):
        values = dispatch.table(len(ids), queries.shape[1], dtype=queries.dtype)
        _pull(queries, items, more, by, None, values)
    else:
        row = torch.arange(len(queries), device=ids.device).repeat_interleave(offsets.diff())
        values = queries[row] * by.unsqueeze(1)
    return torch.sparse_coo_tensor(ids.unsqueeze(0), values, items.shape, check_invariants=False)


def _pull(
    queries: Tensor, items: Tensor, more: Jagged, by: Tensor, pull: Tensor | None,
    values: Tensor | None,
) -> None:  # fmt: skip
    """Write gradients of the scores of `more` to `pull` and `values`."""
    rows, d = queries.shape
    none = more[0][:0]
    dispatch.kernel("picked_pulls", queries.dtype)(
        queries, items, len(items), d, rows, none, 0, *more, queries[:0], None, by.contiguous(),
        pull, values, dispatch.threads(),
    )  # fmt: skip


def _picked(
    queries: Tensor, weight: Tensor, ids: Tensor, more: Jagged, log_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Picked.apply(
        queries, weight, ids.to(torch.int64).contiguous(), *more, log_q
    )
    return both


def _has_kernel(queries: Tensor, weight: Tensor) -> bool:
    return (
        dispatch.ready(queries, weight)
        and queries.dtype == weight.dtype
        and weight.is_contiguous()
        and (weight.is_leaf or not weight.requires_grad)
    )


def _scores_by_anchors(items: Items, queries: Tensor, ids: Tensor) -> TypeGuard[Anchored]:
    """Return whether items can be scored through the scores of their anchors.

    Not for ids that all queries share: computing their vectors is faster.
    """
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


def _anchored_scores(
    queries: Tensor, items: Anchored, ids: Tensor, more: Jagged, log_q: Tensor | None
) -> tuple[Tensor, Tensor]:
    every = torch.cat([ids.flatten(), more[0]])
    items.attached.before_read(every)
    both: tuple[Tensor, Tensor] = _AnchoredScores.apply(
        queries @ items.anchors.t(), items.transform, items.slots, every, ids.shape, more[1], log_q,
        items.sparse,
    )  # fmt: skip
    return both


class _AnchoredScores(torch.autograd.Function):
    """Scores of selected items from the scores of the anchors (B, K); log q as in `_Picked`."""

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
            raise ValueError(f"slots must be between 0 and {k - 1}, got others in the table")
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
    """Scores by native kernels; the gradient of the table is sparse, with one entry per id.

    If log q is given, the log-sum-exp replaces the scores (B, n). For ids that all queries share
    the scores are a matrix product, computed by torch.
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
        shared = weight.index_select(0, ids) if ids.dim() == 1 else None
        scores = queries.new_empty(ids.shape) if shared is None else queries @ shared.T
        more_scores = queries.new_empty(more.shape)
        dispatch.kernel("picked_dots", queries.dtype)(
            queries, weight, len(weight), d, rows, ids, _each(ids), more, offsets, scores,
            more_scores, dispatch.threads(),
        )  # fmt: skip
        if log_q is None:
            ctx.save_for_backward(queries, weight, ids, more, offsets, shared, None)
            return scores, more_scores
        log_sum, n = queries.new_empty(rows), scores.shape[1]
        dispatch.kernel("soften", queries.dtype)(
            scores, rows, n, log_q, n if log_q.dim() == 2 else 0, log_sum, dispatch.threads()
        )
        ctx.save_for_backward(queries, weight, ids, more, offsets, shared, scores)
        return log_sum, more_scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, more_by: Tensor) -> tuple[Tensor | None, ...]:
        queries, weight, ids, more, offsets, shared, softmax = ctx.saved_tensors
        rows, d = queries.shape
        wants_query, wants_weight = ctx.needs_input_grad[:2]
        by, more_by = by.contiguous(), more_by.contiguous()
        # The gradient of a log-sum-exp is the softmax times one factor per row.
        scale, by = (None, by) if softmax is None else (by, softmax)
        pull = torch.zeros_like(queries) if wants_query else None
        entries = ids.numel() + len(more)
        values = dispatch.table(entries, d, dtype=queries.dtype) if wants_weight else None
        first = values
        if shared is not None:
            if pull is not None:
                torch.mm(by, shared, out=pull)
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
    """Return the number of ids of each query; 0 if all queries share them."""
    return ids.shape[1] if ids.dim() == 2 else 0
