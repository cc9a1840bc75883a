"""Expectation of a product of normal distribution functions of one Gaussian variable.

    log E_t prod_j Phi(shift_j + slope_j t),   t ~ N(0, 1)

The integrand is log-concave, so it has a single peak. The logarithm of the product is analytic: the
complex zeros of Phi are at least 2.8 from the real line. A polynomial through a few Chebyshev
points around the peak therefore approximates it to full precision, and its evaluation at the many
evenly spaced points of the sum is cheap. A steep slope makes an edge, where the integrand drops to
0. The edge is next to an end of the interval of integration, so `expected_edge` uses points whose
density increases towards both ends.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.distributions.integrals.chebyshev import chebyshev, interpolation
from fewfold.distributions.integrals.expected_edge import log_expected_edge
from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.native_product import quick_product
from fewfold.distributions.integrals.peak import DOUBLE, SINGLE, Digits, find_peak, log_product

__all__ = ["edge_precision", "log_expected_product"]

_MAX_POINTS = 64  # Chebyshev points; rows that need more go to expected_edge
_BLOCK = 256  # rows computed with the same number of points
_INNER = 0.75  # inner part of an interval; near its ends the integrand is small
_ZERO = 2.8  # distance from the real line to the nearest zero of Phi


class _Plan(NamedTuple):
    """Interval of integration and number of points of every row; all (rows,)."""

    start: Tensor
    stop: Tensor
    inner: Tensor  # fraction of the interval covered by Chebyshev points
    points: Tensor  # number of Chebyshev points
    places: Tensor  # number of terms of the evenly spaced sum
    lowest: Tensor  # the smallest argument of any Phi


def log_expected_product(shift: Tensor, slope: Tensor) -> Tensor:
    """Compute `log E_t prod_j Phi(shift_j + slope_j t)` for a standard normal t.

    Args:
        shift: (rows, n).
        slope: (rows, n), of any sign and size.

    Returns:
        (rows,), differentiable; accurate to about 1e-11 in float64 and 1e-5 in float32.

    Example:
        >>> import torch
        >>> shift, slope = torch.zeros(1, 2), torch.ones(1, 2)
        >>> log_expected_product(shift, slope).exp()  # 1/4 + asin(1/2) / (2 pi)
        tensor([0.3333])
    """
    if shift.shape[-1] == 0 or len(shift) == 0:
        return shift.sum(-1)
    if shift.shape[-1] == 1:  # closed form: P(noise <= shift + slope t)
        return log_ndtr(shift * (1 + slope.square()).rsqrt()).squeeze(-1)
    quick = quick_product(shift, slope)
    if quick is None:
        return _log_expected_torch(shift, slope)
    logs, remaining = quick
    if len(remaining):
        logs[remaining] = _log_expected_torch(shift[remaining], slope[remaining])
    return logs


def _log_expected_torch(shift: Tensor, slope: Tensor) -> Tensor:
    """Differentiable torch implementation for two factors or more."""
    digits = DOUBLE if shift.dtype == torch.float64 else SINGLE
    # in the layout (n, rows) sums over n are faster
    shift, slope = shift.mT.contiguous(), slope.mT.contiguous()
    with torch.no_grad():
        plan = _plan(shift, slope, digits)
        parts = _split(plan)
    logs = [_interpolated(shift, slope, plan, rows, digits) for rows in parts[:-1]]
    if len(parts[-1]):
        far, steep = shift[:, parts[-1]].double(), slope[:, parts[-1]].double()
        logs.append(log_expected_edge(far, steep, digits).to(shift.dtype))
    return torch.cat(logs)[torch.cat(parts).argsort()]


def _split(plan: _Plan) -> list[Tensor]:
    """Group rows with the same inner part and similar numbers of points; steep rows last."""
    order = plan.points.argsort()
    easy, gentle = plan.points[order] <= _MAX_POINTS, plan.inner[order] < 1
    kinds = order[easy & gentle], order[easy & ~gentle]
    blocks = [rows for kind in kinds if len(kind) for rows in kind.split(_BLOCK)]
    return [*blocks, order[~easy]]


def _plan(shift: Tensor, slope: Tensor, digits: Digits) -> _Plan:
    """Choose the interval and the number of points of every row.

    The integrand is negligible beyond the interval, because the curvature of its logarithm is at
    least 1 everywhere, and increases in the direction in which all factors decrease.
    """
    place, curvature = find_peak(shift, slope)
    reach = 1.02 * math.sqrt(2 * digits.drop) + 0.6
    narrow = reach * curvature.rsqrt()
    least, most = slope.aminmax(dim=0)
    start = place - torch.where(least >= 0, narrow, reach)
    stop = place + torch.where(most <= 0, narrow, reach)
    rising = bool((least >= 0).all())
    argument = torch.addcmul(
        shift, slope, start if rising else torch.where(slope >= 0, start, stop)
    )
    live = torch.where(argument < digits.full, slope if rising else slope.abs(), 0.0)
    steepest, half = live.amax(0), (stop - start) / 2
    # The interpolation error with m points decreases as rho^-m, rho the sum of the semi-axes of the
    # Bernstein ellipse through the nearest zero. If rho is large, points in the inner part are
    # enough (extrapolation grows the error as 2.2^m), and fewer of them than the bound requires.
    inner, outer = (_log_rho(part * half * steepest) for part in (_INNER, 1.0))
    gentle = inner > math.log(2.2)
    count = torch.where(gentle, 0.75 * digits.error / inner, digits.error / outer) + 2
    lowest = argument.amin(0)
    ordinary = (half * steepest + lowest).isfinite()  # rows with NaN get the fewest points
    count = torch.where(ordinary, count, 4.0).clamp(4, 1e9).ceil()
    wide = math.pi * math.sqrt(2 / digits.error)
    precision = 1 + edge_precision(steepest, len(shift), wide, digits)
    places = torch.where(ordinary, 2 * half * precision.sqrt() / wide, 4.0).clamp(4, 1e9).ceil()
    part = torch.where(gentle, _INNER, 1.0)
    return _Plan(start, stop, part, count.long(), places.long(), lowest)


def _log_rho(reach: Tensor) -> Tensor:
    """Log of rho of the Bernstein ellipse of (-reach, reach) through the nearest zero of Phi."""
    axis = _ZERO / reach.clamp(min=1e-3)
    return (axis + (1 + axis.square()).sqrt()).log()


def edge_precision(steepest: Tensor, many: int, wide: float, digits: Digits) -> Tensor:
    """Bound the precision that `many` factors with slopes up to `steepest` add to a Gaussian.

    For a Gaussian of precision v the sum with step h has the error `2 exp(-2 pi^2 / (v h^2))`, and
    each Phi that is not yet 1 adds at most slope^2 to v. A product of many equal factors tends to
    the distribution function of a maximum, `exp(-exp(-a t))` with `a = slope sqrt(2 log n)`, which
    is bounded up to `pi / 2a` from the real line.
    """
    edge = math.sqrt(2 * math.log(many + 1)) * (digits.error * wide / math.pi**2)
    return steepest.square() * min(many, edge**2)


def _interpolated(
    shift: Tensor, slope: Tensor, plan: _Plan, rows: Tensor, digits: Digits
) -> Tensor:
    """Evaluate the sums of `rows` with a common number of points."""
    start, stop, inner, points, places_of, lowest = (part[rows] for part in plan)
    count, places = int(points.amax()), 16 * (1 + int(places_of.amax()) // 16)
    middle, half = (stop + start) / 2, (stop - start) / 2
    near = _INNER if bool(inner[0] < 1) else 1.0
    at = middle + half * (near * chebyshev(count)).to(shift).unsqueeze(-1)
    shift, slope = shift.index_select(1, rows), slope.index_select(1, rows)
    logs = log_product(shift, slope, at, float(lowest.amin()), digits)
    line = torch.linspace(-1, 1, places, dtype=shift.dtype, device=shift.device)
    spread = interpolation(count, places, near).to(shift).mT
    t = middle + half * line.unsqueeze(-1)
    step = (2 * half / (places - 1)).log() - math.log(2 * math.pi) / 2
    return (spread @ logs - t.square() / 2).logsumexp(0) + step
