"""Scores of all rows of a transform that is held in full, and a gradient of few rows."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["product"]


def product(projected: Tensor, transform: Tensor, *, threshold: float, sparse: bool) -> Tensor:
    """projected (B, K) times the transform (V, K), (B, V).

    Args:
        projected: (B, K).
        transform: (V, K).
        threshold: gradients of scores this small and smaller count as zero.
        sparse: whether the gradient of the transform is sparse; then only for a leaf.
    """
    sparse = sparse and transform.is_leaf
    if threshold == 0 and not sparse:
        return projected @ transform.t()
    scores: Tensor = _Product.apply(projected, transform, threshold, sparse)
    return scores


class _Product(torch.autograd.Function):
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
        # What is no number is not small: it must show.
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
