"""Loss against class indices from the support alone, without dense rows of probabilities."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import eager, tracks_grad
from fewfold.maps import native_threshold
from fewfold.maps.compiled_operators import registered, traceable
from fewfold.maps.entropies import Tsallis
from fewfold.maps.map_support import map_support
from fewfold.maps.normmax import Norm
from fewfold.maps.omega import Omega

__all__ = ["support_losses"]


def support_losses(scores: Tensor, index: Tensor, valid: Tensor, omega: Omega) -> Tensor | None:
    """Loss of every row of (N, C) scores against one class, or None if this path does not apply.

    Rows where `valid` is false may contain any values; their loss is undefined, its gradient zero.
    """
    member = _member(omega)
    if member is None or scores.dim() != 2:
        return None
    if traceable(scores) and native_threshold.has_kernel(member[0]):
        found: Tensor = _operator(scores, index, valid, *member, tracks_grad(scores))[0]
        return found
    if not native_threshold.covers(scores, member[0]) and not _worth_narrowing(scores, member[0]):
        return None
    losses: Tensor = _SupportLoss.apply(scores.contiguous(), index, valid, omega, *member)
    return losses


def _worth_narrowing(scores: Tensor, alpha: float) -> bool:
    """Return whether finding the support first is faster without the kernels."""
    return alpha >= 1.1 and scores.shape[1] >= 1024 and scores.numel() > 0 and eager(scores)


def _support(scores: Tensor, alpha: float, norm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return class and probability of the entries of all supports, and the count per row."""
    if native_threshold.covers(scores, alpha):
        return native_threshold.support(scores, alpha, norm)
    found = map_support(scores.detach(), Norm(alpha) if norm else Tsallis(alpha))
    return found.atoms, found.weights, found.counts


def _scatter(column: Tensor, values: Tensor, count: Tensor, scores: Tensor) -> Tensor:
    """Return zeros of the shape of the scores with the values at their classes."""
    if dispatch.ready(values):
        return native_threshold.scatter(column, values, count, scores.shape[1])
    place = torch.repeat_interleave(count) * scores.shape[1] + column
    return torch.zeros_like(scores).view(-1).index_copy_(0, place, values).view(scores.shape)


def _member(omega: Omega) -> tuple[float, bool] | None:
    """Return alpha and norm of a regulariser with a kernel and constant alpha; None otherwise."""
    order = omega.kernel_order
    if order is None or isinstance(order.alpha, Tensor):
        return None
    return order.alpha, order.norm


def _losses(
    scores: Tensor, index: Tensor, alpha: float, norm: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """<p - y, s> - Omega(p) of every row, and the supports: class, probability, count per row."""
    column, weight, count = _support(scores, alpha, norm)
    row = torch.repeat_interleave(count)
    given = scores.gather(1, index.unsqueeze(1)).squeeze(1)
    # Scores relative to the target lose no precision to a common offset; equal infinities cancel.
    reached = scores.view(-1)[row * scores.shape[1] + column]
    above = torch.where(reached == given[row], 0.0, reached - given[row])
    gain = torch.zeros_like(given).index_add_(0, row, weight * above)
    # Subtract the sum of p, which is 1, entry by entry, so that its rounding error cancels.
    powers = weight**alpha if norm else weight * (weight ** (alpha - 1) - 1)
    power = torch.zeros_like(given).index_add_(0, row, powers)
    size = power ** (1 / alpha) - 1 if norm else power / (alpha * (alpha - 1))
    return torch.where(count == 0, torch.inf, gain - size), column, weight, count


def _slopes(
    grad: Tensor, scores: Tensor, index: Tensor, found: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Gradient with respect to the scores, `grad * (p - y)`, as a dense tensor."""
    column, weight, count = found
    values = weight * torch.repeat_interleave(grad, count)
    # An ignored row may contain NaN, and 0 * NaN is NaN.
    values = torch.where(torch.repeat_interleave(grad == 0, count), 0.0, values)
    out = _scatter(column, values, count, scores)
    return out.scatter_add_(1, index.unsqueeze(1), -grad.unsqueeze(1))


class _SupportLoss(torch.autograd.Function):
    """`_losses` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        index: Tensor,
        valid: Tensor,
        omega: Omega,
        alpha: float,
        norm: bool,
    ) -> Tensor:
        losses, *found = _losses(scores, index, alpha, norm)
        ctx.save_for_backward(scores, index, valid, *found)
        ctx.omega = omega
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, index, valid, *found = ctx.saved_tensors
        grad = torch.where(valid & (found[2] > 0), grads[0], 0.0)
        if torch.is_grad_enabled():  # a second derivative: p needs its graph
            p = torch.where(grad.unsqueeze(1) == 0, 0.0, ctx.omega.argmax(scores))
            out = (p * grad.unsqueeze(1)).scatter_add_(1, index.unsqueeze(1), -grad.unsqueeze(1))
        else:
            out = _slopes(grad, scores, index, tuple(found))
        return out, None, None, None, None, None


# The same as an operator for compiled graphs. The outputs of an operator have a size known in
# advance: the supports are saved in buffers for an eighth of all classes, and recomputed in the
# backward pass if they do not fit.


def _capacity(scores: Tensor, save: bool) -> int:
    """Number of support entries that the forward operator can save."""
    rows, size = scores.shape
    return rows * torch.sym_min(size, size // 8 + 64) if save else 0


def _run(
    scores: Tensor, index: Tensor, valid: Tensor, alpha: float, norm: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = scores.detach().contiguous()
    capacity = _capacity(scores, save)
    columns, weights = index.new_empty(capacity), scores.new_empty(capacity)
    if scores.numel() == 0:
        return scores.new_zeros(len(scores)), columns, weights, index.new_zeros(len(scores))
    losses, column, weight, count = _losses(scores, index, alpha, norm)
    if len(column) <= capacity:
        columns[: len(column)] = column
        weights[: len(column)] = weight
    return losses, columns, weights, count


def _run_fake(
    scores: Tensor, index: Tensor, valid: Tensor, alpha: float, norm: bool, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, capacity = scores.shape[0], _capacity(scores, save)
    integers = index.new_empty(capacity), index.new_empty(rows)
    return scores.new_empty(rows), integers[0], scores.new_empty(capacity), integers[1]


def _run_backward(
    grad: Tensor, scores: Tensor, index: Tensor, valid: Tensor, columns: Tensor, weights: Tensor,
    count: Tensor, alpha: float, norm: bool,
) -> Tensor:  # fmt: skip
    scores = scores.contiguous()
    if scores.numel() == 0:
        return torch.zeros_like(scores)
    total = int(count.sum())
    found = columns[:total], weights[:total], count
    if total > len(columns):
        found = _support(scores, alpha, norm)
    return _slopes(torch.where(valid & (count > 0), grad, 0.0), scores, index, found)


def _run_backward_fake(
    grad: Tensor, scores: Tensor, index: Tensor, valid: Tensor, columns: Tensor, weights: Tensor,
    count: Tensor, alpha: float, norm: bool,
) -> Tensor:  # fmt: skip
    return scores.new_empty(scores.shape)


_backward_operator = registered("support_loss_backward", _run_backward, _run_backward_fake)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    scores, index, valid, *ctx.member, _ = inputs
    ctx.save_for_backward(scores, index, valid, *output[1:])


def _pull(ctx: Any, wants: tuple[bool, ...], grad: Tensor, *_: Tensor | None) -> Any:
    return _backward_operator(grad, *ctx.saved_tensors, *ctx.member), *[None] * 5


_operator = registered("support_loss", _run, _run_fake, _save, _pull)
