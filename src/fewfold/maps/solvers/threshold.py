"""Threshold equations of entmax and normmax: solved on detached values, then differentiated.

Rows are shifted so that their largest entry is 0. Every map of the entmax and normmax families
gives an entry `v` the weight `y^q` with `y = [1 + c (v - t)]_+`, where the shift `t >= 0` makes
the weights of a row sum to 1. With `r = q c`:

    entmax    c = alpha - 1,  r = 1                     the weights are the probabilities
    normmax   c = 1,          r = alpha / (alpha - 1)   the probabilities are y^(q-1), normalised

Solvers use detached values only. Their solution is recomputed by differentiable operations on the
support, so that derivatives of all orders are exact. Three cases:

    q = 1 and q = 2   closed forms on the support (`linear`, `quadratic`)
    any q > 1, q < 0  Newton for t, smooth through c = 0, which is softmax (`power`)
    0 < q < 1         in `steep.py`
"""

import math

import torch
from torch import Tensor

from fewfold._torch import compiled, eager, tracks_grad
from fewfold.maps.solvers.operators import number, opaque

__all__ = [
    "expm1_ratio",
    "linear",
    "linear_floor",
    "power",
    "power_floor",
    "quadratic",
    "quadratic_floor",
]

_NEAR = 0.25  # |w| below which log1p(w) / w is evaluated by its series
_STEPS = 12  # Newton steps when tracing; at most 9 were needed for 4,096 entries, 14 for 200,000


# --- q = 1 and q = 2 ------------------------------------------------------------------------


def linear(values: Tensor) -> Tensor:
    """Return `[values - tau]_+` with sum 1 along the last dimension; the maximum must be 0."""
    inside, support = _inside(values, 1)
    rest = (inside.sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    return ((inside - rest) * support).relu()


def quadratic(values: Tensor) -> Tensor:
    """Return `[values - tau]_+` with squares that sum to 1; the maximum must be 0."""
    inside, support = _inside(values, 2)
    count = support.sum(-1, keepdim=True)
    mean = inside.sum(-1, keepdim=True) / count
    spread = ((inside - mean) * support).square().sum(-1, keepdim=True)
    rest = mean - ((1 - spread) / count).sqrt()
    return ((inside - rest) * support).relu()


def linear_floor(values: Tensor) -> Tensor:
    """Lower bound on tau of `linear` for any row that contains these values."""
    return _newton(values.detach(), 1)


def quadratic_floor(values: Tensor) -> Tensor:
    """Lower bound on tau of `quadratic` for any row that contains these values."""
    return _newton(values.detach(), 2)


def _inside(values: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Return `[values - tau]_+` for a detached tau, and the support as zeros and ones.

    The closed forms then only add a correction of the size of the rounding error of tau, so that
    sums over millions of entries stay accurate.
    """
    fixed = values.detach()
    tau = _newton(fixed, power) if eager(fixed) else _by_sorting(fixed, power)
    inside = (values - tau).relu()
    return inside, inside.detach().sign()


def _newton(values: Tensor, power: int) -> Tensor:
    """Solve `sum [values - tau]_+^power = 1` for tau, approached from below.

    Newton's method on the power-th root of the sum, which is convex: its steps are longer than on
    the sum itself and never overshoot. For power 1 this is Michelot's algorithm.
    """
    tau = torch.full_like(values[..., :1], -1.0)
    enough = 8 * torch.finfo(tau.dtype).eps
    for _ in range(200):
        excess = (values - tau).relu_()
        if power == 1:
            miss = excess.sum(-1, keepdim=True) - 1
            step = miss / excess.sign_().sum(-1, keepdim=True)
        else:
            slope = excess.sum(-1, keepdim=True)
            square = excess.square_().sum(-1, keepdim=True)
            miss = square - square.sqrt()
            step = miss / slope
        if bool((miss <= enough).all()):
            break
        tau = tau + step.clamp_(min=0)
    return tau


def _by_sorting(values: Tensor, power: int) -> Tensor:
    """Solve the same equation by sorting, without data-dependent control flow."""
    ordered = values.clamp(min=-2).sort(-1, descending=True).values
    rank = torch.arange(values.shape[-1], device=values.device, dtype=values.dtype)
    gap = (ordered.roll(1, -1) - ordered).clamp(min=0)  # to the previous entry; 0 for the first
    first = (rank * gap).cumsum(-1)  # sum over previous entries of their distance to this one
    mass = first
    if power == 2:
        mass = (gap * (2 * first - rank * gap)).cumsum(-1)  # sum of the squared distances
    last = (mass < 1).sum(-1, keepdim=True) - 1
    missing = 1 - mass.gather(-1, last)
    if power == 1:
        drop = missing / (last + 1)
    else:
        slope = first.gather(-1, last)
        drop = missing / (slope + (slope.square() + (last + 1) * missing).sqrt())
    return ordered.gather(-1, last) - drop


# --- any q > 1 or q < 0 ---------------------------------------------------------------------


def power(values: Tensor, c: Tensor | float, r: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return the weights `y^q`, which sum to 1, and `y` (1 where the weight is 0); `c <= r`."""
    shift = _shift(values, c, r)
    if not eager(values) or tracks_grad(values, c, r):
        shift = _attach(values, shift, c, r)
    return _weights(values, shift, c, r)


def power_floor(values: Tensor, c: Tensor | float, r: Tensor | float) -> Tensor:
    """Return the value below which every weight is 0; -inf if all weights are positive."""
    shift = _shift(values, c, r)
    if isinstance(c, float):
        return shift - 1 / c if c > 0 else torch.full_like(shift, -math.inf)
    return torch.where(c.detach() > 0, shift - 1 / c.detach(), -math.inf)


def _shift(values: Tensor, c: Tensor | float, r: Tensor | float) -> Tensor:
    """Return the detached shift t at which the weights of each row sum to 1.

    Newton's method on the q-th root of the sum, which is convex for q > 1 (concave and increasing
    for q < 0), hence monotone from t = 0; exact after one step when c = 0.
    """
    values = values.detach()
    if compiled():
        return _shift_operator(values, number(c, values), number(r, values))
    c = c.detach() if isinstance(c, Tensor) else c
    r = r.detach() if isinstance(r, Tensor) else r
    quick = eager(values)
    enough = 16 * torch.finfo(values.dtype).eps
    shift = torch.zeros_like(values[..., :1])
    for _ in range(100 if quick else _STEPS):
        weight, y = _weights(values, shift, c, r)
        total = weight.sum(-1, keepdim=True)
        slope = (weight / y).sum(-1, keepdim=True)
        miss = total.log()
        shift = shift + miss / r * total / slope * expm1_ratio(-c * miss / r)
        if quick and bool((miss.abs() <= enough).all()):
            break
    return shift


def _shift_of_rows(values: Tensor, c: Tensor, r: Tensor) -> Tensor:
    return _shift(values, c, r)


_shift_operator = opaque(_shift_of_rows)


def _attach(values: Tensor, shift: Tensor, c: Tensor | float, r: Tensor | float) -> Tensor:
    """Attach the first and second derivatives of the exact solution to the detached `shift`.

    One Halley step from a constant has an error of third order in the change of the inputs.
    """
    weight, y = _weights(values, shift, c, r)
    total = weight.sum(-1, keepdim=True)
    miss = total - total.detach()  # the shift has converged; only its derivatives matter
    slope = r * (weight / y).sum(-1, keepdim=True)
    bend = r * (r - c) * (weight / y.square()).sum(-1, keepdim=True)
    return shift + 2 * miss * slope / (2 * slope.square() - miss * bend)


def _weights(
    values: Tensor, shift: Tensor, c: Tensor | float, r: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return `y^q` and `y`; outside the support 0 and 1, so that no gradient is NaN."""
    distance = values.detach() - shift.detach()
    inside = (1 + c * distance > 0) & (distance > -math.inf)
    d = torch.where(inside, values - shift, 0.0)
    w = c * d
    if isinstance(c, float) and abs(c) > _NEAR / 2:
        log = (r / c) * w.log1p()
    else:
        log = r * d * _log1p_ratio(w)
    return torch.where(inside, log.exp(), 0.0), 1 + w


def _log1p_ratio(w: Tensor) -> Tensor:
    """`log1p(w) / w`, analytic at 0 to every order of differentiation.

    Derivatives of the quotient cancel near 0; there the series of `2 atanh(w / (2 + w)) / w` is
    used, which converges like 0.02^n.
    """
    near = w.detach().abs() < _NEAR
    small = torch.where(near, w, 0.0)
    square = (small / (2 + small)).square()
    series = torch.full_like(square, 1 / 21)
    for odd in range(19, 0, -2):
        series = series * square + 1 / odd
    far = torch.where(near, 1.0, w)
    return torch.where(near, series * 2 / (2 + small), far.log1p() / far)


def expm1_ratio(w: Tensor) -> Tensor:
    """`expm1(w) / w`, analytic at 0 to every order of differentiation."""
    near = w.detach().abs() < 0.5
    small = torch.where(near, w, 0.0)
    series = torch.ones_like(small)
    for n in range(14, 1, -1):
        series = series * small / n + 1
    far = torch.where(near, 1.0, w)
    return torch.where(near, series, far.expm1() / far)
