"""Entmax and normmax by the compiled kernels: 1 < alpha <= 2, rows along the last dimension."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad
from fewfold.maps.rows import flat_rows

__all__ = [
    "Streams",
    "backward",
    "backward_alpha",
    "covers",
    "forward",
    "groups",
    "has_kernel",
    "kept_places",
    "pull",
    "quick",
    "row_numbers",
    "scatter",
    "support",
    "threshold_map",
    "within",
]

_LOWEST = 1.1  # nearer to 1 single precision no longer holds p = u^(1/(alpha-1)) to a millionth
_LOWEST_LEARNT = 1.25  # and its slope in alpha is worse
_LONGEST = 2**31
_KEEP_FROM = 2048  # longer rows leave their support behind; at least MIDDLE of team.h


def covers(rows: Tensor, alpha: float | Tensor) -> bool:
    """Whether the kernels can take these rows."""
    if type(alpha) is float:  # the common case, before anything that costs a microsecond
        return _LOWEST <= alpha <= 2.0 and dispatch.ready(rows) and _sized(rows)
    if isinstance(alpha, (int, float)):
        return covers(rows, float(alpha))
    if not (dispatch.ready(rows, alpha) and _sized(rows)):
        return False
    return within(alpha, alpha.requires_grad)


def has_kernel(alpha: float | Tensor) -> bool:
    """Whether there is a kernel for this alpha, or for some values of a tensor."""
    return isinstance(alpha, Tensor) or _LOWEST <= alpha <= 2.0


def within(alpha: Tensor, learns: bool) -> bool:
    """Whether the kernels are accurate for every entry of alpha, also for its gradient if asked."""
    lowest = _LOWEST_LEARNT if learns else _LOWEST
    return bool(((alpha >= lowest) & (alpha <= 2)).all())


def _sized(rows: Tensor) -> bool:
    shape = rows.shape
    return len(shape) > 0 and 0 < shape[-1] < _LONGEST and rows.numel() > 0


def quick(rows: Tensor, alpha: float, norm: bool = False) -> Tensor | None:
    """`threshold_map` for a call that has nothing to prepare, or None if it has.

    Between two large operations Python itself runs out of a cold cache, so that every function
    called here is felt on rows of ordinary length.
    """
    if not (_LOWEST <= alpha <= 2.0 and dispatch.ready(rows) and rows.is_contiguous()):
        return None
    shape = rows.shape
    many = rows.numel()
    if many == 0 or len(shape) == 0 or shape[-1] >= _LONGEST:
        return None
    if rows.requires_grad and torch.is_grad_enabled():
        learned: Tensor = _apply(rows, alpha, norm)
        return learned
    probs = rows.new_empty(shape)  # empty_like takes several times as long
    size = shape[-1]
    _FORWARD[rows.dtype](
        rows, probs, many // size, size, alpha, None, norm, None, 0, torch.get_num_threads()
    )
    return probs


def threshold_map(rows: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
    """Entmax, or normmax if `norm`, of rows that `covers` accepted."""
    rows = rows.contiguous()
    if tracks_grad(rows, alpha):
        probs: Tensor = _apply(rows, alpha, norm)
        return probs
    return forward(rows, alpha, norm)[0]


_FORWARD = {
    dtype: dispatch.kernel("forward", dtype)
    for dtype in (torch.float32, torch.float64)
    if dispatch.available()
}


def row_numbers(value: float | Tensor, rows: Tensor) -> tuple[float, Tensor | None]:
    """A parameter for the kernels: one number, or one double per row."""
    if isinstance(value, float):
        return value, None
    if value.numel() == 1:
        return float(value.detach()), None
    each = flat_rows(value.detach(), rows).double().contiguous()  # type: ignore[union-attr]
    return 0.0, each


def kept_places(size: int) -> int:
    """How many places of its support a row of this length leaves behind for the backward pass."""
    return min(max(size // 16, 64), 4096) if size > _KEEP_FROM else 0


def forward(
    rows: Tensor, alpha: float | Tensor, norm: bool, places: Tensor | None = None
) -> tuple[Tensor, bool]:
    """Probabilities, and whether a score was +inf.

    Args:
        places: int32 of shape (rows, `kept_places(size)`), filled with the support of each row
            for the backward pass; None where the rows are too short for it to pay.
    """
    shape = rows.shape
    probs = rows.new_empty(shape)
    size = shape[-1]
    one, each = row_numbers(alpha, rows)
    room = 0 if places is None else places.shape[1]
    infinite: bool = dispatch.kernel("forward", rows.dtype)(
        rows, probs, rows.numel() // size, size, one, each, norm, places, room, dispatch.threads()
    )
    return probs, infinite


class _ThresholdMap(torch.autograd.Function):
    """The map with its Jacobian-vector product, which is a function of the answer alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
        places, size = None, rows.shape[-1]
        if room := kept_places(size):
            places = rows.new_empty((rows.numel() // size, room), dtype=torch.int32)
        probs, infinite = forward(rows, alpha, norm, places)
        # No finite change moves a row with infinite scores.
        ctx.still = rows.isposinf().any(-1, keepdim=True) if infinite else None
        learnt = alpha if isinstance(alpha, Tensor) else None
        ctx.save_for_backward(probs, learnt, places)
        ctx.alpha, ctx.norm = None if learnt is not None else alpha, norm
        return probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probs, learnt, places = ctx.saved_tensors
        (grad,) = grads
        alpha = ctx.alpha
        if alpha is not None and ctx.still is None:  # the common case, with nothing to prepare
            if not torch.is_grad_enabled() and dispatch.ready(grad, probs):
                return backward(probs, grad, alpha, ctx.norm, places), None, None
        elif alpha is None:
            alpha = learnt
        if ctx.still is not None:
            grad = grad.masked_fill(ctx.still, 0.0)
        to_rows = to_alpha = None
        if torch.is_grad_enabled() or not dispatch.ready(grad, probs):
            if ctx.needs_input_grad[0]:
                to_rows = pull(probs, grad, alpha, ctx.norm)
        elif ctx.needs_input_grad[0]:
            to_rows = backward(probs, grad, alpha, ctx.norm, places)
        if ctx.needs_input_grad[1]:
            to_alpha = backward_alpha(probs, grad, alpha, ctx.norm)
        return to_rows, to_alpha, None


# Function.apply first looks for transforms, which has been done, and costs as much again.
_apply = super(torch.autograd.Function, _ThresholdMap).apply


def backward(
    probs: Tensor, grad: Tensor, alpha: float | Tensor, norm: bool, places: Tensor | None
) -> Tensor:
    """The Jacobian, which is symmetric, times `grad`, by the kernel."""
    probs = probs.contiguous()  # hooks on saved tensors may have changed more than their place
    grad = grad.to(probs.dtype).contiguous()
    shape = probs.shape
    out = probs.new_empty(shape)
    size = shape[-1]
    one, each = row_numbers(alpha, probs)
    room = 0 if places is None else places.shape[1]
    dispatch.kernel("backward", probs.dtype)(
        probs, grad, out, probs.numel() // size, size, one, each, norm, places, room,
        dispatch.threads(),
    )  # fmt: skip
    return out


def backward_alpha(probs: Tensor, grad: Tensor, alpha: Tensor, norm: bool) -> Tensor:
    """The gradient of alpha, summed in float64."""
    slope = grad.double() * alpha_slope(probs.double(), alpha.double(), norm)
    return slope.sum(-1, keepdim=True).to(probs.dtype).sum_to_size(alpha.shape)


def pull(probs: Tensor, grad: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
    """The Jacobian, which is symmetric, times `grad`, in differentiable operations."""
    on = probs > 0
    safe = torch.where(on, probs, 1.0)
    slope = torch.where(on, safe ** (2 - alpha), 0.0)
    if not norm:
        mean = (slope * grad).sum(-1, keepdim=True) / _filled(slope.sum(-1, keepdim=True))
        return slope * (grad - mean)
    power = torch.where(on, safe**alpha, 0.0).sum(-1, keepdim=True)
    size = _filled(power) ** ((alpha - 1) / alpha) / (alpha - 1)
    moved = slope * (grad - (probs * grad).sum(-1, keepdim=True))
    return size * (moved - probs * moved.sum(-1, keepdim=True))


def alpha_slope(probs: Tensor, alpha: Tensor, norm: bool) -> Tensor:
    """The derivative of the probabilities with respect to alpha."""
    on = probs > 0
    safe = torch.where(on, probs, 1.0)
    log = safe.log()
    if norm:
        # With u = p / norm, tau' = -sum u^alpha log u / (alpha sum u); the rest is the chain rule.
        power = torch.where(on, safe**alpha, 0.0).sum(-1, keepdim=True)
        u = safe * _filled(power) ** (-1 / alpha)
        log = u.log()
        total = torch.where(on, u, 0.0).sum(-1, keepdim=True)
        shift = -torch.where(on, u**alpha * log, 0.0).sum(-1, keepdim=True) / (
            alpha * _filled(total)
        )
        change = torch.where(on, u * (-log - shift / u ** (alpha - 1)) / (alpha - 1), 0.0)
        return (change - probs * change.sum(-1, keepdim=True)) / _filled(total)
    slope = torch.where(on, safe ** (2 - alpha), 0.0)
    share = slope / _filled(slope.sum(-1, keepdim=True))
    surprise = -probs * log
    spread = surprise - share * surprise.sum(-1, keepdim=True)
    return (probs - share) / (alpha - 1) ** 2 + spread / (alpha - 1)


def _filled(total: Tensor) -> Tensor:
    """A sum to divide by; rows without support divide by one."""
    return torch.where(total == 0, 1.0, total)


def support(rows: Tensor, alpha: float | Tensor, norm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Indices, weights and number of atoms of every row; the dense rows are never written."""
    rows = rows.detach().contiguous()
    size = rows.shape[-1]
    one, each = row_numbers(alpha, rows)
    run = dispatch.kernel("support", rows.dtype)
    found = run(rows, rows.numel() // size, size, one, each, norm, dispatch.threads())
    index, weight, count = (torch.from_numpy(part) for part in found)
    return index, weight, count


class Streams:
    """Rows of scores that come in chunks of columns; only what can be in their support is kept."""

    def __init__(self, like: Tensor, alpha: float, most: int) -> None:
        make = dispatch.kernel("Streams", like.dtype)
        self._streams = make(like.shape[0], alpha, most)

    def push(self, scores: Tensor, start: int) -> None:
        """Take the next columns, (rows, any), of which the first is number `start`."""
        size = scores.shape[1]
        self._streams.push(scores, size, scores.stride(0), start, dispatch.threads())

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Column and score of the candidates, and how many each row has: -1 if too many to keep."""
        column, score, count = (torch.from_numpy(part) for part in self._streams.take())
        return column, score, count


def scatter(index: Tensor, values: Tensor, count: Tensor, size: int) -> Tensor:
    """Dense rows of zeros with `values` at `index`, `count` of them in each row."""
    out = values.new_empty(len(count), size)
    first = torch.zeros(len(count) + 1, dtype=torch.int64)
    torch.cumsum(count, 0, out=first[1:])
    run = dispatch.kernel("scatter", values.dtype)
    run(index, values, first, out, len(count), size, dispatch.threads())
    return out


def groups(name: str, rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor] | None:
    """Groups and pulls of fusedmax ("tv_groups") or oscarmax ("oscar_groups"), if kernels can."""
    if not dispatch.ready(rows, strength) or rows.numel() == 0:
        return None
    rows = rows.contiguous()
    size = rows.shape[-1]
    each = strength.to(rows.dtype).expand(*rows.shape[:-1], 1).contiguous()
    group = torch.empty(rows.shape, dtype=torch.int64)
    pull = rows.new_empty(rows.shape)
    run = dispatch.kernel(name, rows.dtype)
    run(rows, group, pull, rows.numel() // size, size, each, dispatch.threads())
    return group, pull
