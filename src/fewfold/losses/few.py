"""The loss of class indices from the support alone: the row of probabilities is never written."""

from typing import Any

import torch
from torch import Tensor

from fewfold import _native
from fewfold.maps import fast
from fewfold.maps.omega import Gini, Norm, Omega, Tsallis
from fewfold.maps.rows import eager
from fewfold.maps.sparse import map_support

__all__ = ["few_losses"]


def few_losses(scores: Tensor, index: Tensor, kept: Tensor, omega: Omega) -> Tensor | None:
    """Loss of every row of (N, C) scores against one class, or None where this would not help.

    Rows that are not kept may hold anything; their loss means nothing and has no gradient.
    """
    member = _member(omega)
    if member is None or scores.dim() != 2:
        return None
    if not fast.covers(scores, member[0]) and not _long(scores, member[0]):
        return None
    losses: Tensor = _Few.apply(scores.contiguous(), index, kept, omega, *member)
    return losses


def _long(scores: Tensor, alpha: float) -> bool:
    """Whether looking for the support first pays without the kernels."""
    return alpha >= 1.1 and scores.shape[1] >= 1024 and scores.numel() > 0 and eager(scores)


def _support(scores: Tensor, omega: Omega, alpha: float, norm: bool) -> tuple[Tensor, ...]:
    """Class and probability of all that is in a support, and how many each row has."""
    if fast.covers(scores, alpha):
        return fast.support(scores, alpha, norm)
    found = map_support(scores.detach(), omega)
    return found.atoms, found.weights, found.counts


def _scatter(column: Tensor, values: Tensor, count: Tensor, scores: Tensor) -> Tensor:
    """Zeros of the shape of the scores, with the values at their classes."""
    if _native.ready(values):
        return fast.scatter(column, values, count, scores.shape[1])
    place = torch.repeat_interleave(count) * scores.shape[1] + column
    return torch.zeros_like(scores).view(-1).index_copy_(0, place, values).view(scores.shape)


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
        column, weight, count = _support(scores, omega, alpha, norm)
        row = torch.repeat_interleave(count)
        given = scores.gather(1, index.unsqueeze(1)).squeeze(1)
        # Relative to the class itself a common offset costs no precision; equal infinities cancel.
        reached = scores.view(-1)[row * scores.shape[1] + column]
        above = torch.where(reached == given[row], 0.0, reached - given[row])
        gain = torch.zeros_like(given).index_add_(0, row, weight * above)
        # The sum of p is 1, but taken off entry by entry it takes its rounding with it.
        powers = weight**alpha if norm else weight * (weight ** (alpha - 1) - 1)
        power = torch.zeros_like(given).index_add_(0, row, powers)
        size = power ** (1 / alpha) - 1 if norm else power / (alpha * (alpha - 1))
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
            out = _scatter(column, values, count, scores)
        out = out.scatter_add_(1, index.unsqueeze(1), -grad.unsqueeze(1))
        return out, None, None, None, None, None
