"""Scores of selected items per query on a GPU, by Triton kernels that write no vectors of items."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._native import dispatch

__all__ = ["picked_on_gpu"]

_LONGEST = 4096  # entries of a vector, which is held in registers


def picked_on_gpu(
    queries: Tensor, weight: Tensor, ids: Tensor, more: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor] | None:
    """Return `picked_scores` of a table, or None if the kernels do not support the tensors."""
    run = dispatch.triton_kernel("picked_dots", queries, weight, ids, *more)
    if run is None or ids.dim() != 2 or queries.dtype != weight.dtype:
        return None
    if not (0 < queries.shape[1] <= _LONGEST and weight.is_contiguous()):
        return None
    if weight.requires_grad and not weight.is_leaf:
        return None  # torch cannot take a sparse gradient through a graph
    values, offsets = (one.to(torch.int64).contiguous() for one in more)
    ids = ids.to(torch.int64).contiguous()
    for one in (ids, values):
        # As torch's embedding does on a GPU: the error comes later, but nothing waits.
        torch._assert_async(
            ((one >= 0) & (one < len(weight))).all(),
            f"item ids must be between 0 and {len(weight) - 1}",
        )
    both: tuple[Tensor, Tensor] = _PickedOnGPU.apply(queries, weight, ids, values, offsets)
    return both


class _PickedOnGPU(torch.autograd.Function):
    """Scores (B, n) and (m,); the gradient of the table is sparse, with one entry per id."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, weight: Tensor, ids: Tensor, more: Tensor, offsets: Tensor
    ) -> tuple[Tensor, Tensor]:
        run: Any = dispatch.triton_kernel("picked_dots", queries)
        queries = queries.contiguous()
        ctx.save_for_backward(queries, weight, ids, more, offsets)
        ctx.pulls = dispatch.triton_kernel("picked_pulls", queries)
        return run(queries, weight, ids, None), run(queries, weight, more, offsets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by: Tensor, more_by: Tensor) -> tuple[Tensor | None, ...]:
        queries, weight, ids, more, offsets = ctx.saved_tensors
        values = first = rest = None
        if ctx.needs_input_grad[1]:
            values = queries.new_empty(ids.numel() + len(more), queries.shape[1])
            first, rest = values[: ids.numel()], values[ids.numel() :]
        pull = ctx.pulls(queries, weight, ids, None, by.contiguous(), None, first)
        pull = ctx.pulls(queries, weight, more, offsets, more_by.contiguous(), pull, rest)
        grad = None
        if values is not None:
            where = torch.cat([ids.flatten(), more]).unsqueeze(0)
            grad = torch.sparse_coo_tensor(where, values, weight.shape, check_invariants=False)
        return pull if ctx.needs_input_grad[0] else None, grad, None, None, None
