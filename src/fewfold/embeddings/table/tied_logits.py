"""Scores of all rows of an anchor table, computed from the scores of its anchors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch
from fewfold._torch import eager
from fewfold.embeddings.table.anchor_sums import check, native, refuse_slots

__all__ = ["dense_scores", "tied_scores"]

_LINE = 16  # the width of a slab of queries is a multiple of this
_FORWARD, _BACKWARD = 32, 128  # queries per slab at most; the fastest values measured


def tied_scores(
    projected: Tensor, weights: Tensor, slots: Tensor, *, threshold: float = 0.0, sparse: bool
) -> Tensor:
    """Score all rows: `scores[b, v] = sum_j weights[v, j] projected[b, slots[v, j]]`.

    With `projected = hidden @ anchors.T` this equals `hidden @ table.T`, with s products per score
    instead of d. Gradients of scores of absolute value at most `threshold` are set to zero, so that
    after a softmax few rows have a gradient.

    Args:
        projected: (B, K).
        weights: (V, s).
        slots: (V, s) indices of anchors: uint8, int16 or int32.
        threshold: gradients of scores of at most this size are set to zero.
        sparse: whether the gradient of the weights is sparse, with the rows that have one.

    Returns:
        (B, V).

    Example:
        >>> import torch
        >>> weights = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> slots = torch.tensor([[0, 1], [1, 2], [2, 0]], dtype=torch.uint8)
        >>> tied_scores(torch.tensor([[1.0, 10.0, 100.0]]), weights, slots, sparse=False)
        tensor([[ 21., 430., 506.]])
    """
    check(projected, weights, slots)
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    if native(projected, weights, slots):
        every: Tensor = _Tied.apply(projected, weights, slots, float(threshold), sparse)
        return every
    if slots.numel() and eager(slots):  # torch's own errors name neither the slot nor the argument
        low, high = (bound.item() for bound in slots.aminmax())  # uint8 wraps when compared
        if low < 0 or high >= projected.shape[1]:
            raise refuse_slots(slots, projected.shape[1])
    if sparse and weights.requires_grad and torch.is_grad_enabled():
        weights = _AsRows.apply(weights)
    scores = projected.new_zeros(len(projected), len(weights))
    for weight, slot in zip(weights.unbind(1), slots.long().unbind(1), strict=True):
        scores = scores + weight * projected.index_select(1, slot)
    if threshold and scores.requires_grad:
        scores = _Dropped.apply(scores, threshold)
    return scores


def dense_scores(projected: Tensor, transform: Tensor, *, threshold: float, sparse: bool) -> Tensor:
    """Score all rows of a transform in full storage: `projected @ transform.T`.

    Args:
        projected: (B, K).
        transform: (V, K).
        threshold: gradients of scores of at most this size are set to zero.
        sparse: whether the gradient of the transform is sparse; ignored unless it is a leaf.

    Returns:
        (B, V).
    """
    sparse = sparse and transform.is_leaf
    if threshold == 0 and not sparse:
        return projected @ transform.t()
    scores: Tensor = _DenseScores.apply(projected, transform, threshold, sparse)
    return scores


class _DenseScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, transform: Tensor, threshold: float, sparse: bool
    ) -> Tensor:
        ctx.save_for_backward(projected, transform)
        ctx.threshold, ctx.sparse = threshold, sparse
        return projected @ transform.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        projected, transform = ctx.saved_tensors
        # `~(a <= b)` instead of `a > b`: NaN gradients must pass through.
        rows = (~(grad.abs() <= ctx.threshold)).any(0).nonzero().squeeze(1)
        some = grad.index_select(1, rows)
        some = torch.where(some.abs() <= ctx.threshold, 0, some).to(transform.dtype)
        values = some.t() @ projected.to(transform.dtype)
        to_projected = (some @ transform.index_select(0, rows)).to(projected.dtype)
        if ctx.sparse:
            to_transform = torch.sparse_coo_tensor(
                rows.unsqueeze(0), values, transform.shape, check_invariants=False
            )
        else:
            to_transform = torch.zeros_like(transform).index_copy(0, rows, values)
        return to_projected, to_transform, None, None


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weights: Tensor, slots: Tensor, threshold: float, sparse: bool
    ) -> Tensor:
        (queries, k), (size, s) = projected.shape, weights.shape
        turned = _to_slabs(projected, _FORWARD)
        scores = dispatch.table(queries, size, dtype=projected.dtype)
        fine = dispatch.kernel("tied", projected.dtype)(
            turned, queries, turned.shape[2], k, weights, slots, size, s, scores, dispatch.threads()
        )
        if not fine:
            raise refuse_slots(slots, k)
        ctx.save_for_backward(projected, weights, slots)
        ctx.threshold, ctx.sparse = threshold, sparse
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        projected, weights, slots = ctx.saved_tensors
        turned = _to_slabs(projected, _BACKWARD)
        (_, k, width), (size, s) = turned.shape, weights.shape
        wants_projected, wants_weights = ctx.needs_input_grad[:2]
        grad = grad.contiguous()
        marks = torch.zeros(size, dtype=torch.uint8)
        # Allocated for every row; pages that are not written take no memory.
        rows = torch.empty(size, dtype=torch.int64) if ctx.sparse else None
        values = None
        if wants_weights:
            values = torch.empty_like(weights) if ctx.sparse else torch.zeros_like(weights)
        table = (slots, size, s, grad, ctx.threshold)
        count = dispatch.kernel("untied", grad.dtype)(
            turned,
            len(projected),
            width,
            k,
            *table,
            marks,
            rows,
            values,
            dispatch.threads(),
        )
        if values is not None and rows is not None:
            values = torch.sparse_coo_tensor(
                rows[:count].unsqueeze(0), values[:count], weights.shape, is_coalesced=True,
                check_invariants=False,
            )  # fmt: skip
        pull = None
        if wants_projected:
            pull = torch.zeros_like(turned)
            dispatch.kernel("untied_pull", grad.dtype)(
                len(projected),
                width,
                k,
                weights,
                *table,
                marks,
                pull,
                dispatch.threads(),
            )
            pull = pull.transpose(1, 2).reshape(-1, k)[: len(projected)]
        return pull, values, None, None, None


def _to_slabs(projected: Tensor, most: int) -> Tensor:
    """Transpose queries (B, K) into padded slabs of equal width up to `most`: (slabs, K, width)."""
    queries, k = projected.shape
    slabs = max(1, -(-queries // most))
    width = max(1, -(-queries // (slabs * _LINE))) * _LINE
    padded = F.pad(projected, (0, 0, 0, slabs * width - queries))
    return padded.view(slabs, width, k).transpose(1, 2).contiguous()


class _AsRows(torch.autograd.Function):
    """Identity whose gradient is sparse: its non-zero rows."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor) -> Tensor:
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rows = grad.ne(0).any(1).nonzero().squeeze(1)
        values = grad.index_select(0, rows)
        return torch.sparse_coo_tensor(
            rows.unsqueeze(0), values, grad.shape, is_coalesced=True, check_invariants=False
        )


class _Dropped(torch.autograd.Function):
    """Identity whose gradient is set to zero where it is at most `threshold` in absolute value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, threshold: float) -> Tensor:
        return scores.view_as(scores)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.threshold = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.where(grad.abs() <= ctx.threshold, 0, grad), None
