"""Weighted sums of a few rows of a large table, with gradients of those rows alone."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._torch import untransformed

__all__ = ["slot_sums"]


def slot_sums(weights: Tensor, slots: Tensor, table: Tensor, *, sparse: bool) -> Tensor:
    """Return the sums `sum_j weights_ij table[slots_ij]`, reading no row of weight 0.

    Unlike `F.embedding_bag`, which computes them, they can be differentiated twice.

    Args:
        weights: (m, n), of the dtype of the table.
        slots: (m, n) int64.
        table: (N, d).
        sparse: whether the gradient of the table is sparse.

    Returns:
        (m, d).
    """
    if not untransformed(weights):
        return (weights.unsqueeze(-2) @ table[slots]).squeeze(-2)
    used = weights.detach() != 0
    ends = F.pad(used.sum(1).cumsum(0), (1, 0))
    sums: Tensor = _Sums.apply(weights[used], table, slots[used], ends, sparse)
    return sums


class _Sums(torch.autograd.Function):
    """`F.embedding_bag` with its own backward pass, and another one for second derivatives."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, table: Tensor, slots: Tensor, ends: Tensor, sparse: bool
    ) -> Tensor:
        cut = [
            one.detach().requires_grad_(needed)
            for one, needed in zip((weight, table), ctx.needs_input_grad, strict=False)
        ]
        with torch.enable_grad():
            found = F.embedding_bag(
                slots, cut[1], ends, mode="sum", sparse=sparse,
                per_sample_weights=cut[0], include_last_offset=True,
            )  # fmt: skip
        ctx.save_for_backward(weight, table, slots, ends)
        ctx.inner, ctx.sparse = (found, cut), sparse
        return found.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        weight, table, slots, ends = ctx.saved_tensors
        needed = ctx.needs_input_grad[:2]
        if not torch.is_grad_enabled() and untransformed(grad):
            found, cut = ctx.inner
            inputs = [one for one, wanted in zip(cut, needed, strict=True) if wanted]
            to = iter(torch.autograd.grad(found, inputs, grad, retain_graph=True))
            return (*(next(to) if wanted else None for wanted in needed), None, None, None)
        row = torch.repeat_interleave(ends.diff())
        to_weight = (table[slots] * grad[row]).sum(-1) if needed[0] else None
        to_table = None
        if needed[1]:
            rows = weight.unsqueeze(-1) * grad[row]
            if ctx.sparse and untransformed(grad):
                to_table = torch.sparse_coo_tensor(
                    slots.unsqueeze(0), rows, table.shape, check_invariants=False
                )
            else:  # no transform takes sparse tensors
                to_table = torch.zeros_like(table).index_add(0, slots, rows)
        return to_weight, to_table, None, None, None
