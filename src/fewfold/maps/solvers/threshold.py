"""The threshold behind every sparse map: find it on constants, rebuild it differentiably.

Rows arrive shifted so that their largest entry is 0. Every map of the entmax and normmax families
weighs an entry `v` by `y^q` with `y = [1 + c (v - t)]_+`, where the shift `t >= 0` makes the
weights of a row sum to 1. With `r = q c`:

    entmax    c = alpha - 1,  r = 1                     the weights are the probabilities
    normmax   c = 1,          r = alpha / (alpha - 1)   the probabilities are y^(q-1), normalised

Solvers see detached values only; what they find is rebuilt by plain differentiable ops on the
support, so every derivative torch can ask for comes out exact. Three cases:

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

_NEAR = 0.25  # |w| below which log1p(w) / w is summed as a series
_STEPS = 12  # of Newton when tracing; 9 is the worst seen for 4,096 entries, 14 for 200,000


# --- q = 1 and q = 2 ------------------------------------------------------------------------


def linear(values: Tensor) -> Tensor:
    """`[values - tau]_+` that sums to 1 along the last dimension, whose maximum must be 0."""
    inside, support = _inside(values, 1)
    rest = (inside.sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    return ((inside - rest) * support).relu()


def quadratic(values: Tensor) -> Tensor:
    """`[values - tau]_+` whose squares sum to 1; the maximum must be 0."""
    inside, support = _inside(values, 2)
    count = support.sum(-1, keepdim=True)
    mean = inside.sum(-1, keepdim=True) / count
    spread = ((inside - mean) * support).square().sum(-1, keepdim=True)
    rest = mean - ((1 - spread) / count).sqrt()
    return ((inside - rest) * support).relu()


def linear_floor(values: Tensor) -> Tensor:
    """A lower bound on tau of `linear`, also for any row that contains these values."""
    return _newton(values.detach(), 1)


def quadratic_floor(values: Tensor) -> Tensor:
    """A lower bound on tau of `quadratic`, also for any row that contains these values."""
    return _newton(values.detach(), 2)


def _inside(values: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Values above a constant threshold, 0 elsewhere, and the support as zeros and ones.

    What the closed forms add to the constant is then of the size of its rounding error, so that
    sums over millions of entries lose no digits.
    """
    fixed = values.detach()
    tau = _newton(fixed, power) if eager(fixed) else _by_sorting(fixed, power)
    inside = (values - tau).relu()
    return inside, inside.detach().sign()


def _newton(values: Tensor, power: int) -> Tensor:
    """tau of `sum [values - tau]_+^power = 1`, approached from below.

    Newton on the power-th root of the sum, which is convex: its steps are longer than those on
    the sum itself and never overshoot. For power 1 this is Michelot's projection.
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
    """The same tau from sums of non-negative terms along the sorted row, for any transform."""
    ordered = values.clamp(min=-2).sort(-1, descending=True).values
    rank = torch.arange(values.shape[-1], device=values.device, dtype=values.dtype)
    gap = (ordered.roll(1, -1) - ordered).clamp(min=0)  # to the entry before; 0 for the first
    first = (rank * gap).cumsum(-1)  # sum of all entries before this one, less this one
    mass = first
    if power == 2:
        mass = (gap * (2 * first - rank * gap)).cumsum(-1)  # sum of their squares
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
    """The weights `y^q` that sum to 1 and their `y` (1 where the weight is 0); `c <= r`."""
    shift = _shift(values, c, r)
    if not eager(values) or tracks_grad(values, c, r):
        shift = _attach(values, shift, c, r)
    return _weights(values, shift, c, r)


def power_floor(values: Tensor, c: Tensor | float, r: Tensor | float) -> Tensor:
    """The value below which every weight is 0; -inf when there is none."""
    shift = _shift(values, c, r)
    if isinstance(c, float):
        return shift - 1 / c if c > 0 else torch.full_like(shift, -math.inf)
    return torch.where(c.detach() > 0, shift - 1 / c.detach(), -math.inf)


def _shift(values: Tensor, c: Tensor | float, r: Tensor | float) -> Tensor:
    """The shift t at which the weights of each row sum to 1, on constants.

    Newton on the q-th root of the sum: convex for q > 1 (concave and rising for q < 0), hence
    monotone from t = 0; one exact step when c = 0.
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
    """`shift` with the first and second derivatives of the exact solution attached.

    One Halley step from a constant is off by the cube of the change of the inputs.
    """
    weight, y = _weights(values, shift, c, r)
    total = weight.sum(-1, keepdim=True)
    miss = total - total.detach()  # the shift has converged: only its derivatives are wanted
    slope = r * (weight / y).sum(-1, keepdim=True)
    bend = r * (r - c) * (weight / y.square()).sum(-1, keepdim=True)
    return shift + 2 * miss * slope / (2 * slope.square() - miss * bend)


def _weights(
    values: Tensor, shift: Tensor, c: Tensor | float, r: Tensor | float
) -> tuple[Tensor, Tensor]:
    """`y^q` and `y`, which are 0 and 1 outside the support so that no gradient can be NaN."""
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

    The quotient loses its derivatives to cancellation near 0, where the series of
    `2 atanh(w / (2 + w)) / w` converges like 0.02^n.
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
