"""Entmax of rows along the last dimension by Triton kernels, for alpha > 1 on a GPU."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad
from fewfold.maps import native_threshold

__all__ = ["covers", "entmax_map", "ready"]

_LOWEST = 1.001  # below, the powers overflow
_HIGHEST = 10.0  # above, 60 bisections of tau do not separate nearly equal scores
_LONGEST = 2**31 - 2**12  # the columns of the last block are counted in 32 bits


def ready(scores: Tensor) -> bool:
    """Return whether a kernel may run on these scores, for some alpha."""
    return dispatch.triton_kernel("entmax_rows", scores) is not None


def covers(rows: Tensor, alpha: float | Tensor) -> bool:
    """Return whether the kernel supports these rows, for which `ready` is true, and this alpha.

    A tensor of alphas is read, which waits for the GPU; it must be within [1.1, 2], and [1.25, 2]
    if it learns, where derivatives in float32 are accurate.
    """
    if rows.dim() == 0 or rows.numel() == 0 or rows.shape[-1] > _LONGEST:
        return False
    if not isinstance(alpha, Tensor):
        return _LOWEST <= alpha <= _HIGHEST
    if dispatch.triton_kernel("entmax_rows", rows, alpha) is None:
        return False
    return native_threshold.within(alpha, alpha.requires_grad)


def entmax_map(rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Entmax of rows for which `covers` is true, in their dtype."""
    rows = rows.contiguous()
    if tracks_grad(rows, alpha):
        probs: Tensor = _EntmaxMap.apply(rows, alpha)
        return probs
    return _forward(rows.detach(), alpha)[0]


def _forward(
    rows: Tensor, alpha: float | Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    run: Any = dispatch.triton_kernel("entmax_rows", rows)
    found: tuple[Tensor, Tensor, Tensor | None, Tensor | None] = run(rows, alpha)
    return found


class _EntmaxMap(torch.autograd.Function):
    """Autograd function of the map; long rows save the columns of their candidates."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, alpha: float | Tensor) -> Tensor:
        probs, still, columns, count = _forward(rows, alpha)
        learnt = alpha if isinstance(alpha, Tensor) else None
        ctx.save_for_backward(probs, learnt, still, columns, count)
        ctx.alpha = None if learnt is not None else alpha
        return probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probs, learnt, still, columns, count = ctx.saved_tensors
        (grad,) = grads
        alpha = learnt if ctx.alpha is None else ctx.alpha
        learns = ctx.needs_input_grad[1]
        run = dispatch.triton_kernel("entmax_rows_backward", grad, probs)
        if run is None or torch.is_grad_enabled():
            return _differentiable(probs, grad, alpha, still, learns)
        grad = grad.to(probs.dtype).contiguous()
        to_rows, to_alpha = run(probs.contiguous(), grad, alpha, still, columns, count, learns)
        if to_alpha is not None:
            to_alpha = _sum_like(to_alpha.view(*probs.shape[:-1], 1), alpha)
        return to_rows, to_alpha


def _differentiable(
    probs: Tensor, grad: Tensor, alpha: float | Tensor, still: Tensor, learns: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients in differentiable operations, for second derivatives and batches of gradients."""
    dtype = torch.promote_types(probs.dtype, torch.float32)
    # Rows with a score of +inf have zero gradient.
    grad = grad.to(dtype).masked_fill(still.view(*probs.shape[:-1], 1) > 0, 0.0)
    wide = probs.to(dtype)
    to_rows = native_threshold.pull(wide, grad, alpha, norm=False).to(probs.dtype)
    if not learns or not isinstance(alpha, Tensor):
        return to_rows, None
    slope = grad.double() * native_threshold.alpha_slope(wide.double(), alpha.double(), False)
    return to_rows, _sum_like(slope.sum(-1, keepdim=True), alpha)


def _sum_like(to_alpha: Tensor, alpha: Tensor) -> Tensor:
    """Sum the gradient of the alpha of each row to the shape and dtype of alpha."""
    return to_alpha.to(alpha.dtype).sum_to_size(alpha.shape)
