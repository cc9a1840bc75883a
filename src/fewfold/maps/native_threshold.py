"""Entmax and normmax of rows along the last dimension by native kernels, 1.1 <= alpha <= 2."""

from typing import Any

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._torch import tracks_grad
from fewfold.maps.rows import flat_rows

__all__ = [
    "Streams",
    "alpha_slope",
    "backward",
    "backward_alpha",
    "covers",
    "forward",
    "groups",
    "has_kernel",
    "saved_support_size",
    "pull",
    "quick",
    "row_numbers",
    "scatter",
    "support",
    "threshold_map",
    "within",
]

_LOWEST = 1.1  # below, p = u^(1/(alpha-1)) in float32 has errors above 1e-6
_LOWEST_LEARNT = 1.25  # the derivative with respect to alpha is less accurate
_LONGEST = 2**31
_SAVE_SUPPORT_FROM = 2048  # longer rows save their support; at least MIDDLE of team.h


def covers(rows: Tensor, alpha: float | Tensor) -> bool:
    """Return whether the kernels support these rows and this alpha."""
    if type(alpha) is float:  # the common case first: each further check costs about a microsecond
        return _LOWEST <= alpha <= 2.0 and dispatch.ready(rows) and _sized(rows)
    if isinstance(alpha, (int, float)):
        return covers(rows, float(alpha))
    if not (dispatch.ready(rows, alpha) and _sized(rows)):
        return False
    return within(alpha, alpha.requires_grad)


def has_kernel(alpha: float | Tensor) -> bool:
    """Return whether there is a kernel for this number, or for some values of a tensor."""
    return isinstance(alpha, Tensor) or _LOWEST <= alpha <= 2.0


def within(alpha: Tensor, learns: bool) -> bool:
    """Return whether the kernels are accurate for every alpha, and its gradient if it learns."""
    lowest = _LOWEST_LEARNT if learns else _LOWEST
    return bool(((alpha >= lowest) & (alpha <= 2)).all())


def _sized(rows: Tensor) -> bool:
    shape = rows.shape
    return len(shape) > 0 and 0 < shape[-1] < _LONGEST and rows.numel() > 0


def quick(rows: Tensor, alpha: float, norm: bool = False) -> Tensor | None:
    """Fast path of `threshold_map` for contiguous rows; None if the inputs need preparation.

    Between two large operations the Python code itself is out of the processor cache, so every
    function call here is measurable on rows of moderate length.
    """
    if not _LOWEST <= alpha <= 2.0:
        return None
    probs = dispatch.map_directly(rows, alpha, norm, _apply)
    if probs is not None:
        return probs
    if not (dispatch.ready(rows) and rows.is_contiguous()):
        return None
    shape = rows.shape
    if rows.numel() == 0 or len(shape) == 0 or shape[-1] >= _LONGEST:
        return None
    return threshold_map(rows, alpha, norm)


def threshold_map(rows: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
    """Entmax, or normmax if `norm`, of rows for which `covers` is true."""
    rows = rows.contiguous()
    if tracks_grad(rows, alpha):
        probs: Tensor = _apply(rows, alpha, norm)
        return probs
    return forward(rows, alpha, norm)[0]


def row_numbers(value: float | Tensor, rows: Tensor) -> tuple[float, Tensor | None]:
    """Return a kernel parameter as one number, or as one float64 per row."""
    if isinstance(value, float):
        return value, None
    if value.numel() == 1:
        return float(value.detach()), None
    each = flat_rows(value.detach(), rows).double().contiguous()  # type: ignore[union-attr]
    return 0.0, each


def saved_support_size(size: int) -> int:
    """Number of support indices that a row of this length saves for the backward pass."""
    return min(max(size // 16, 64), 4096) if size > _SAVE_SUPPORT_FROM else 0


def forward(
    rows: Tensor, alpha: float | Tensor, norm: bool, places: Tensor | None = None
) -> tuple[Tensor, bool]:
    """Return the probabilities, and whether any score was +inf.

    Args:
        places: int32 of shape (rows, `saved_support_size(size)`), filled with the support of each
            row for the backward pass; None for short rows, where saving it is slower.
    """
    probs = torch.empty_like(rows)
    size = rows.shape[-1]
    one, each = row_numbers(alpha, rows)
    capacity = 0 if places is None else places.shape[1]
    infinite: bool = dispatch.kernel("forward", rows.dtype)(
        rows, probs, rows.numel() // size, size, one, each, norm, places, capacity,
        dispatch.threads(),
    )  # fmt: skip
    return probs, infinite


class _ThresholdMap(torch.autograd.Function):
    """Autograd function of the map; the backward pass needs its result alone."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
        size = rows.shape[-1]
        places = found = learnt = None
        if saved := saved_support_size(size):
            places = rows.new_empty((rows.numel() // size, saved), dtype=torch.int32)
        elif type(alpha) is float:
            found = dispatch.kernel("map_known")(rows, alpha, norm, dispatch.threads())
        probs, infinite = found or forward(rows, alpha, norm, places)
        # Rows with a score of +inf have zero gradient.
        ctx.still = rows.isposinf().any(-1, keepdim=True) if infinite else None
        if isinstance(alpha, Tensor):
            alpha, learnt = None, alpha  # type: ignore[assignment]
        ctx.save_for_backward(probs, learnt, places)
        ctx.alpha, ctx.norm = alpha, norm
        return probs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probs, learnt, places = ctx.saved_tensors
        (grad,) = grads
        alpha = ctx.alpha
        if alpha is not None and ctx.still is None:  # the common case, without preparation
            if places is None:
                pulled = dispatch.pull_directly(probs, grad, alpha, ctx.norm)
                if pulled is not None:
                    return pulled, None, None
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


# Function.apply repeats the check for active transforms, which doubles the overhead of a call.
_apply = super(torch.autograd.Function, _ThresholdMap).apply


def backward(
    probs: Tensor, grad: Tensor, alpha: float | Tensor, norm: bool, places: Tensor | None
) -> Tensor:
    """Vector-Jacobian product by the kernel; the Jacobian is symmetric."""
    probs = probs.contiguous()  # saved-tensor hooks may have changed the strides
    grad = grad.to(probs.dtype).contiguous()
    out = torch.empty_like(probs)
    size = probs.shape[-1]
    one, each = row_numbers(alpha, probs)
    capacity = 0 if places is None else places.shape[1]
    dispatch.kernel("backward", probs.dtype)(
        probs, grad, out, probs.numel() // size, size, one, each, norm, places, capacity,
        dispatch.threads(),
    )  # fmt: skip
    return out


def backward_alpha(probs: Tensor, grad: Tensor, alpha: Tensor, norm: bool) -> Tensor:
    """Gradient with respect to alpha, accumulated in float64."""
    slope = grad.double() * alpha_slope(probs.double(), alpha.double(), norm)
    return slope.sum(-1, keepdim=True).to(probs.dtype).sum_to_size(alpha.shape)


def pull(probs: Tensor, grad: Tensor, alpha: float | Tensor, norm: bool) -> Tensor:
    """Vector-Jacobian product in differentiable operations; the Jacobian is symmetric."""
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
    """Derivative of the probabilities with respect to alpha."""
    on = probs > 0
    safe = torch.where(on, probs, 1.0)
    log = safe.log()
    if norm:
        # With u = p / norm: tau' = -sum u^alpha log u / (alpha sum u), then the chain rule.
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
    """Replace zero sums, of rows without support, by 1 to divide by."""
    return torch.where(total == 0, 1.0, total)


def support(rows: Tensor, alpha: float | Tensor, norm: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return indices and weights of the supports and their sizes, without dense rows."""
    rows = rows.detach().contiguous()
    size = rows.shape[-1]
    one, each = row_numbers(alpha, rows)
    run = dispatch.kernel("support", rows.dtype)
    found = run(rows, rows.numel() // size, size, one, each, norm, dispatch.threads())
    index, weight, count = (torch.from_numpy(part) for part in found)
    return index, weight, count


class Streams:
    """Find the support candidates of rows whose scores arrive in chunks of columns."""

    def __init__(self, like: Tensor, alpha: float, most: int) -> None:
        make = dispatch.kernel("Streams", like.dtype)
        self._streams = make(like.shape[0], alpha, most)

    def push(self, scores: Tensor, start: int) -> None:
        """Add the scores (rows, m) of the columns `start` to `start + m`."""
        size = scores.shape[1]
        self._streams.push(scores, size, scores.stride(0), start, dispatch.threads())

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return column and score of all candidates, and the count per row, -1 for too many."""
        column, score, count = (torch.from_numpy(part) for part in self._streams.take())
        return column, score, count


def scatter(index: Tensor, values: Tensor, count: Tensor, size: int) -> Tensor:
    """Return dense rows of zeros with `values` at `index`, `count` of them per row."""
    out = values.new_empty(len(count), size)
    first = torch.zeros(len(count) + 1, dtype=torch.int64)
    torch.cumsum(count, 0, out=first[1:])
    run = dispatch.kernel("scatter", values.dtype)
    run(index, values, first, out, len(count), size, dispatch.threads())
    return out


def groups(name: str, rows: Tensor, strength: Tensor) -> tuple[Tensor, Tensor] | None:
    """Groups and pulls of fusedmax ("tv_groups") or oscarmax ("oscar_groups") by kernels."""
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
