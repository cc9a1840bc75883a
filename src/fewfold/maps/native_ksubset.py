"""The k-subset map of rows along the last dimension by native kernels."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad
from fewfold.maps.native_threshold import row_numbers

__all__ = ["budget_map", "pull", "quick"]


def budget_map(rows: Tensor, k: float | Tensor) -> Tensor | None:
    """Return the k-subset map, or None if the kernels do not support the rows (NaN, +inf)."""
    if rows.numel() == 0 or not dispatch.ready(rows):
        return None
    if isinstance(k, Tensor) and not dispatch.ready(k.float()):
        return None
    rows = rows.contiguous()
    probs = _budget(rows.detach(), k)
    if probs is None or not tracks_grad(rows, k):
        return probs
    answer: Tensor = _BudgetMap.apply(rows, k, probs)
    return answer


def quick(rows: Tensor, k: float) -> Tensor | None:
    """Fast path of `budget_map`: contiguous rows without gradient; None otherwise."""
    if not (dispatch.ready(rows) and rows.is_contiguous() and rows.numel() > 0 and rows.dim() > 0):
        return None
    if not 0 <= k <= rows.shape[-1] or (rows.requires_grad and torch.is_grad_enabled()):
        return None
    return _budget(rows, float(k))


def _budget(rows: Tensor, k: float | Tensor) -> Tensor | None:
    probs = rows.new_empty(rows.shape)
    size = rows.shape[-1]
    one, each = row_numbers(k, rows)
    run = dispatch.kernel("budget", rows.dtype)
    fine = run(rows, probs, rows.numel() // size, size, one, each, dispatch.threads())
    return probs if fine else None


class _BudgetMap(torch.autograd.Function):
    """Attach the gradient to a computed map: the projection on entries strictly in (0, 1)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, k: float | Tensor, probs: Tensor) -> Tensor:
        ctx.save_for_backward(probs, k if isinstance(k, Tensor) else None)
        return probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probs, k = ctx.saved_tensors
        (grad,) = grads
        to_rows, to_k = pull(probs, grad, k if ctx.needs_input_grad[1] else None)
        return to_rows, to_k, None


def pull(probs: Tensor, grad: Tensor, k: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the gradient with respect to the rows, and to k if it is given."""
    if k is None and not torch.is_grad_enabled() and dispatch.ready(grad):
        return _budget_backward(probs, grad.contiguous()), None
    free = (probs.detach() > 0) & (probs.detach() < 1)
    number = free.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(free, grad, 0.0).sum(-1, keepdim=True) / number
    to_rows = torch.where(free, grad - mean, 0.0)
    return to_rows, None if k is None else mean.sum_to_size(k.shape).to(k.dtype)


def _budget_backward(probs: Tensor, grad: Tensor) -> Tensor:
    out = probs.new_empty(probs.shape)
    size = probs.shape[-1]
    run = dispatch.kernel("budget_backward", probs.dtype)
    run(probs, grad, out, probs.numel() // size, size, dispatch.threads())
    return out
