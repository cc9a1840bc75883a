"""The loss of class indices from the support alone: the row of probabilities is never written."""

from typing import Any

import torch
from torch import Tensor

from fewfold.maps import fast
from fewfold.maps.omega import Gini, Norm, Omega, Tsallis

__all__ = ["few_losses"]


def few_losses(scores: Tensor, index: Tensor, kept: Tensor, omega: Omega) -> Tensor | None:
    """Loss of every row of (N, C) scores against one class, or None where kernels cannot help.

    Rows that are not kept may hold anything; their loss means nothing and has no gradient.
    """
    member = _member(omega)
    if member is None or scores.dim() != 2 or not fast.covers(scores, member[0]):
        return None
    losses: Tensor = _Few.apply(scores.contiguous(), index, kept, omega, *member)
    return losses


def _member(omega: Omega) -> tuple[float, bool] | None:
    """Alpha, and whether it is a norm, of a regulariser that does not learn."""
    if isinstance(omega, Gini):
        return 2.0, False
    if isinstance(omega, (Tsallis, Norm)) and not isinstance(omega.alpha, Tensor):
        return float(omega.alpha), isinstance(omega, Norm)
    return None


class _Few(torch.autograd.Function):
    """<p - y, s> - Omega(p) per row; the gradient p - y is 0 outside support and class."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        index: Tensor,
        kept: Tensor,
        omega: Omega,
        alpha: float,
        norm: bool,
    ) -> Tensor:
        column, weight, count = fast.support(scores, alpha, norm)
        row = torch.repeat_interleave(count)
        given = scores.gather(1, index.unsqueeze(1)).squeeze(1)
        # Relative to the class itself a common offset costs no precision; equal infinities cancel.
        reached = scores.view(-1)[row * scores.shape[1] + column]
        above = torch.where(reached == given[row], 0.0, reached - given[row])
        gain = torch.zeros_like(given).index_add_(0, row, weight * above)
        power = torch.zeros_like(given).index_add_(0, row, weight**alpha)
        size = power ** (1 / alpha) - 1 if norm else (power - 1) / (alpha * (alpha - 1))
        losses = torch.where(count == 0, torch.inf, gain - size)
        ctx.save_for_backward(scores, index, kept, column, weight, count)
        ctx.omega = omega
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, index, kept, column, weight, count = ctx.saved_tensors
        grad = torch.where(kept & (count > 0), grads[0], 0.0)
        if torch.is_grad_enabled():  # someone will differentiate this answer: give p its graph
            p = torch.where(grad.unsqueeze(1) == 0, 0.0, ctx.omega.argmax(scores))
            out = p * grad.unsqueeze(1)
        else:
            values = weight * torch.repeat_interleave(grad, count)
            # A row that does not count may hold NaN, which zero would not silence.
            values = torch.where(torch.repeat_interleave(grad == 0, count), 0.0, values)
            out = fast.scatter(column, values, count, scores.shape[1])
        out = out.scatter_add(1, index.unsqueeze(1), -grad.unsqueeze(1))
        return out, None, None, None, None, None
