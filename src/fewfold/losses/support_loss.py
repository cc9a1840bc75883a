"""The loss of class indices from the support alone: the row of probabilities is never written."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import eager, tracks_grad
from fewfold.maps import native_threshold as fast
from fewfold.maps.compiled_operators import registered, traceable
from fewfold.maps.entropies import Tsallis
from fewfold.maps.map_support import map_support
from fewfold.maps.normmax import Norm
from fewfold.maps.omega import Omega

__all__ = ["few_losses"]


def few_losses(scores: Tensor, index: Tensor, kept: Tensor, omega: Omega) -> Tensor | None:
    """Loss of every row of (N, C) scores against one class, or None where this would not help.

    Rows that are not kept may hold anything; their loss means nothing and has no gradient.
    """
    member = _member(omega)
    if member is None or scores.dim() != 2:
        return None
    if traceable(scores) and fast.has_kernel(member[0]):
        found: Tensor = _operator(scores, index, kept, *member, tracks_grad(scores))[0]
        return found
    if not fast.covers(scores, member[0]) and not _long(scores, member[0]):
        return None
    losses: Tensor = _Few.apply(scores.contiguous(), index, kept, omega, *member)
    return losses


def _long(scores: Tensor, alpha: float) -> bool:
    """Whether looking for the support first pays without the kernels."""
    return alpha >= 1.1 and scores.shape[1] >= 1024 and scores.numel() > 0 and eager(scores)


def _support(scores: Tensor, alpha: float, norm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Class and probability of all that is in a support, and how many each row has."""
    if fast.covers(scores, alpha):
        return fast.support(scores, alpha, norm)
    found = map_support(scores.detach(), Norm(alpha) if norm else Tsallis(alpha))
    return found.atoms, found.weights, found.counts


def _scatter(column: Tensor, values: Tensor, count: Tensor, scores: Tensor) -> Tensor:
    """Zeros of the shape of the scores, with the values at their classes."""
    if dispatch.ready(values):
        return fast.scatter(column, values, count, scores.shape[1])
    place = torch.repeat_interleave(count) * scores.shape[1] + column
    return torch.zeros_like(scores).view(-1).index_copy_(0, place, values).view(scores.shape)


def _member(omega: Omega) -> tuple[float, bool] | None:
    """Alpha, and whether it is a norm, of a regulariser that has a kernel and does not learn."""
    order = omega.kernel_order
    if order is None or isinstance(order.alpha, Tensor):
        return None
    return order.alpha, order.norm


def _losses(
    scores: Tensor, index: Tensor, alpha: float, norm: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """<p - y, s> - Omega(p) of every row, and its support: class, probability, number of them."""
    column, weight, count = _support(scores, alpha, norm)
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
    return torch.where(count == 0, torch.inf, gain - size), column, weight, count


def _slopes(
    grad: Tensor, scores: Tensor, index: Tensor, found: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """The gradient of the scores, `grad * (p - y)`; it is 0 outside support and class."""
    column, weight, count = found
    values = weight * torch.repeat_interleave(grad, count)
    # A row that does not count may hold NaN, which zero would not silence.
    values = torch.where(torch.repeat_interleave(grad == 0, count), 0.0, values)
    out = _scatter(column, values, count, scores)
    return out.scatter_add_(1, index.unsqueeze(1), -grad.unsqueeze(1))


class _Few(torch.autograd.Function):
    """`_losses` with their gradient."""

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
        losses, *found = _losses(scores, index, alpha, norm)
        ctx.save_for_backward(scores, index, kept, *found)
        ctx.omega = omega
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, index, kept, *found = ctx.saved_tensors
        grad = torch.where(kept & (found[2] > 0), grads[0], 0.0)
        if torch.is_grad_enabled():  # someone will differentiate this answer: give p its graph
            p = torch.where(grad.unsqueeze(1) == 0, 0.0, ctx.omega.argmax(scores))
            out = (p * grad.unsqueeze(1)).scatter_add_(1, index.unsqueeze(1), -grad.unsqueeze(1))
        else:
            out = _slopes(grad, scores, index, tuple(found))
        return out, None, None, None, None, None


# The same as an operator of compiled graphs. What an operator returns has a size known in advance,
# so that a support goes into room for an eighth of all classes; a larger one is found again.


def _room(scores: Tensor, keep: bool) -> int:
    rows, size = scores.shape
    return rows * torch.sym_min(size, size // 8 + 64) if keep else 0


def _run(
    scores: Tensor, index: Tensor, kept: Tensor, alpha: float, norm: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = scores.detach().contiguous()
    room = _room(scores, keep)
    columns, weights = index.new_empty(room), scores.new_empty(room)
    if scores.numel() == 0:
        return scores.new_zeros(len(scores)), columns, weights, index.new_zeros(len(scores))
    losses, column, weight, count = _losses(scores, index, alpha, norm)
    if len(column) <= room:
        columns[: len(column)] = column
        weights[: len(column)] = weight
    return losses, columns, weights, count


def _run_fake(
    scores: Tensor, index: Tensor, kept: Tensor, alpha: float, norm: bool, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, room = scores.shape[0], _room(scores, keep)
    integers = index.new_empty(room), index.new_empty(rows)
    return scores.new_empty(rows), integers[0], scores.new_empty(room), integers[1]


def _run_backward(
    grad: Tensor, scores: Tensor, index: Tensor, kept: Tensor, columns: Tensor, weights: Tensor,
    count: Tensor, alpha: float, norm: bool,
) -> Tensor:  # fmt: skip
    scores = scores.contiguous()
    if scores.numel() == 0:
        return torch.zeros_like(scores)
    many = int(count.sum())
    found = columns[:many], weights[:many], count
    if many > len(columns):
        found = _support(scores, alpha, norm)
    return _slopes(torch.where(kept & (count > 0), grad, 0.0), scores, index, found)


def _run_backward_fake(
    grad: Tensor, scores: Tensor, index: Tensor, kept: Tensor, columns: Tensor, weights: Tensor,
    count: Tensor, alpha: float, norm: bool,
) -> Tensor:  # fmt: skip
    return scores.new_empty(scores.shape)


_backward_operator = registered("support_loss_backward", _run_backward, _run_backward_fake)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    scores, index, kept, *ctx.member, _ = inputs
    ctx.save_for_backward(scores, index, kept, *output[1:])


def _pull(ctx: Any, wants: tuple[bool, ...], grad: Tensor, *_: Tensor | None) -> Any:
    return _backward_operator(grad, *ctx.saved_tensors, *ctx.member), *[None] * 5


_operator = registered("support_loss", _run, _run_fake, _save, _pull)
