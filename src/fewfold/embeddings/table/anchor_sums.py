"""Rows of an anchor table as weighted sums of anchors, and pooled bags of such rows."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._check import jagged
from fewfold._native import dispatch

__all__ = ["Mode", "mixed", "mixed_bags", "pool_vectors"]

Mode = Literal["sum", "mean", "max"]
_SLOTS = (torch.uint8, torch.int16, torch.int32)


def mixed(anchors: Tensor, weights: Tensor, slots: Tensor, ids: Tensor, *, sparse: bool) -> Tensor:
    """Look up rows: `out[i] = sum_j weights[ids[i], j] anchors[slots[ids[i], j]]`.

    Args:
        anchors: (K, d).
        weights: (V, s) entries of the transform.
        slots: (V, s) indices of their anchors: uint8, int16 or int32.
        ids: (n,) int64, repeats allowed.
        sparse: whether the gradient of the weights is sparse, one row per id (not coalesced).

    Returns:
        (n, d).

    Example:
        >>> import torch
        >>> anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> slots = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)
        >>> mixed(anchors, weights, slots, torch.tensor([1, 0]), sparse=False)
        tensor([[4., 3.],
                [1., 2.]])
    """
    check(anchors, weights, slots, ids)
    if native(anchors, weights, slots) and ids.is_cpu and ids.dtype == torch.int64:
        rows: Tensor = _Mixed.apply(anchors, weights, slots, ids.contiguous(), None, None, sparse)
        return rows
    return _plain(anchors, weights, slots, ids, sparse)


def mixed_bags(
    anchors: Tensor,
    weights: Tensor,
    slots: Tensor,
    ids: Tensor,
    offsets: Tensor,
    by: Tensor,
    *,
    sparse: bool,
) -> Tensor:
    """Scaled sums of rows: `by[b]` times the sum over the ids from `offsets[b]` to `offsets[b+1]`.

    Args:
        anchors: (K, d).
        weights: (V, s).
        slots: (V, s).
        ids: (n,) int64.
        offsets: (B + 1,) int64, from 0 to n.
        by: (B,) factor of each bag.
        sparse: as in `mixed`.

    Returns:
        (B, d); zeros for an empty bag.

    Example:
        >>> import torch
        >>> slots = torch.tensor([[0], [1]], dtype=torch.uint8)
        >>> ids, offsets = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 3])
        >>> by = torch.tensor([1.0, 5.0])
        >>> mixed_bags(torch.eye(2), torch.ones(2, 1), slots, ids, offsets, by,
        ...            sparse=False)
        tensor([[1., 1.],
                [0., 5.]])
    """
    check(anchors, weights, slots, ids)
    if ids.is_cpu and offsets.is_cpu:
        ids, offsets = jagged(ids, offsets, rows=len(by))
    if (
        native(anchors, weights, slots, by) and ids.is_cpu and offsets.is_cpu
        and by.dtype == anchors.dtype and not by.requires_grad
    ):  # fmt: skip
        bags: Tensor = _Mixed.apply(anchors, weights, slots, ids, offsets, by.contiguous(), sparse)
        return bags
    rows = _plain(anchors, weights, slots, ids, sparse)
    bag = torch.repeat_interleave(offsets.diff(), output_size=len(ids))
    total = rows.new_zeros(len(by), rows.shape[1]).index_add(0, bag, rows)
    return total * by.unsqueeze(1)


def pool_vectors(
    vectors: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    pad: Tensor | None,
    *,
    mode: Mode,
    include_last_offset: bool,
) -> Tensor:
    """Pool vectors that have been looked up, as `F.embedding_bag` does rows of a table.

    Args:
        vectors: (n, d) with offsets, or (bags, n, d).
        offsets: (bags,) or (bags + 1,) as in `F.embedding_bag`.
        weights: factor of each vector, or None.
        pad: bool, True for the vectors to leave out, or None.
        mode: "sum", "mean" or "max".
        include_last_offset: as in `F.embedding_bag`.

    Returns:
        (bags, d).
    """
    shape = vectors.shape[:-1]
    place = torch.arange(shape.numel(), device=vectors.device).view(shape)
    table, last = vectors.flatten(0, -2), None
    if pad is not None:
        last = shape.numel()
        place, table = torch.where(pad, last, place), F.pad(table, (0, 0, 0, 1))
    return F.embedding_bag(
        place, table, None if offsets is None else offsets.to(torch.int64), mode=mode,
        per_sample_weights=weights, include_last_offset=include_last_offset, padding_idx=last,
    )  # fmt: skip


def check(anchors: Tensor, weights: Tensor, slots: Tensor, ids: Tensor | None = None) -> None:
    """Raise unless weights and slots have the same shape and the dtypes are supported."""
    if anchors.dim() != 2 or weights.dim() != 2 or weights.shape != slots.shape:
        raise ValueError(
            "anchors must be (K, d), weights and slots both (V, s), got "
            f"{tuple(anchors.shape)}, {tuple(weights.shape)} and {tuple(slots.shape)}"
        )
    if ids is not None and ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids must be int64 or int32, got {ids.dtype}; write ids.long()")
    if slots.dtype not in _SLOTS:
        raise TypeError(
            f"slots must be uint8, int16 or int32, got {slots.dtype}; write slots.int()"
        )


def native(anchors: Tensor, weights: Tensor, slots: Tensor, *others: Tensor) -> bool:
    """Whether the kernels support these tensors."""
    return (
        dispatch.ready(anchors, weights, *others)
        and anchors.dtype == weights.dtype
        and slots.is_cpu
        and anchors.is_contiguous()
        and weights.is_contiguous()
        and slots.is_contiguous()
    )


class _Mixed(torch.autograd.Function):
    """Saves the weights and slots of the looked-up rows: the backward pass reads no table."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        weights: Tensor,
        slots: Tensor,
        ids: Tensor,
        offsets: Tensor | None,
        by: Tensor | None,
        sparse: bool,
    ) -> Tensor:
        (size, s), (k, d), n = weights.shape, anchors.shape, len(ids)
        terms, slot = weights.new_empty(n, s), torch.empty(n, s, dtype=torch.int32)
        bags = n if by is None else len(by)
        out = anchors.new_empty(bags, d)
        bad = dispatch.kernel("mix", anchors.dtype)(
            anchors, k, d, weights, slots, size, s, ids, n, offsets, by, bags, terms, slot, out,
            dispatch.threads(),
        )  # fmt: skip
        if bad != -1:
            raise refuse_id(ids, size) if bad >= 0 else refuse_slots(slots, k)
        ctx.save_for_backward(anchors, terms, slot, ids, offsets, by)
        ctx.size, ctx.sparse = size, sparse
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        anchors, terms, slot, ids, offsets, by = ctx.saved_tensors
        wants_anchors, wants_weights = ctx.needs_input_grad[:2]
        grad = grad.contiguous()
        pull = torch.zeros_like(anchors) if wants_anchors else None
        values = torch.empty_like(terms) if wants_weights else None
        dispatch.kernel("unmix", grad.dtype)(
            anchors, anchors.shape[1], terms, slot, terms.shape[1], offsets, by, len(grad), grad,
            values, pull, dispatch.threads(),
        )  # fmt: skip
        if values is None:
            return pull, *[None] * 6
        shape = (ctx.size, terms.shape[1])
        if ctx.sparse:
            where = ids.unsqueeze(0)
            rows = torch.sparse_coo_tensor(where, values, shape, check_invariants=False)
        else:
            rows = values.new_zeros(shape).index_add_(0, ids, values)
        return pull, rows, *[None] * 5


def _plain(anchors: Tensor, weights: Tensor, slots: Tensor, ids: Tensor, sparse: bool) -> Tensor:
    """Same as `mixed`, in plain torch."""
    try:
        share = F.embedding(ids, weights, sparse=sparse)
    except IndexError:
        raise refuse_id(ids, len(weights)) from None
    slot = slots.index_select(0, ids).long()
    return torch.bmm(share.unsqueeze(1), anchors[slot]).squeeze(1)


def refuse_id(ids: Tensor, size: int) -> IndexError:
    """Return the error for an id out of range."""
    bad = ids[(ids < 0) | (ids >= size)]
    return IndexError(f"ids must be between 0 and {size - 1}, got {bad[0].item()}")


def refuse_slots(slots: Tensor, anchors: int) -> ValueError:
    """Return the error for a slot out of range."""
    return ValueError(
        f"slots must be between 0 and {anchors - 1}, got {slots.min().item()} to "
        f"{slots.max().item()}"
    )
