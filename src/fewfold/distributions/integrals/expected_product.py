"""The expectation, over one Gaussian variable, of a product of normal distribution functions.

    log E_t prod_j Phi(shift_j + slope_j t),   t ~ N(0, 1)

The integrand is log-concave, so it has one peak and falls away on either side. The logarithm of the
product is analytic: Phi has no zero nearer to the real line than 2.8, so that a polynomial through
a few Chebyshev points around the peak is as good as the function, and the sum over many evenly
spaced points costs almost nothing. Where a slope is steep the integrand has an edge, and that is
next to an end of the interval that matters, because beyond it nothing is left; the points of
`expected_edge` crowd towards both ends.
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

_EASY = 64  # Chebyshev points; rows that need more have an edge
_BLOCK = 256  # rows that share a number of points
_INNER = 0.75  # part of an interval: near its ends little is left
_ZERO = 2.8  # from the real line to the nearest zero of Phi


class _Plan(NamedTuple):
    """Where the interval of every row begins and ends, and what it needs; all (rows,)."""

    start: Tensor
    stop: Tensor
    inner: Tensor  # part of the interval that has Chebyshev points
    points: Tensor  # how many of these
    places: Tensor  # of the evenly spaced sum
    lowest: Tensor  # the least argument of any Phi


def log_expected_product(shift: Tensor, slope: Tensor) -> Tensor:
    """`log E_t prod_j Phi(shift_j + slope_j t)` for a standard normal t.

    Args:
        shift: (rows, n).
        slope: (rows, n), of any sign and size.

    Returns:
        (rows,), differentiable; to about 1e-11 in double precision and 1e-5 in single.

    Example:
        >>> import torch
        >>> shift, slope = torch.zeros(1, 2), torch.ones(1, 2)
        >>> log_expected_product(shift, slope).exp()  # 1/4 + asin(1/2) / (2 pi)
        tensor([0.3333])
    """
    if shift.shape[-1] == 0 or len(shift) == 0:
        return shift.sum(-1)
    if shift.shape[-1] == 1:  # Phi(shift + slope t) is itself the probability of a Gaussian
        return log_ndtr(shift * (1 + slope.square()).rsqrt()).squeeze(-1)
    quick = quick_product(shift, slope)
    if quick is None:
        return _in_torch(shift, slope)
    found, left = quick
    if len(left):
        found[left] = _in_torch(shift[left], slope[left])
    return found


def _in_torch(shift: Tensor, slope: Tensor) -> Tensor:
    """Of two factors or more, differentiable."""
    digits = DOUBLE if shift.dtype == torch.float64 else SINGLE
    shift, slope = shift.mT.contiguous(), slope.mT.contiguous()  # sums over n go along rows
    with torch.no_grad():
        plan = _plan(shift, slope, digits)
        parts = _split(plan)
    found = [_interpolated(shift, slope, plan, rows, digits) for rows in parts[:-1]]
    if len(parts[-1]):
        far, steep = shift[:, parts[-1]].double(), slope[:, parts[-1]].double()
        found.append(log_expected_edge(far, steep, digits).to(shift.dtype))
    return torch.cat(found)[torch.cat(parts).argsort()]


def _split(plan: _Plan) -> list[Tensor]:
    """Which rows go together: of one inner part and about as many points; steep ones last."""
    order = plan.points.argsort()
    easy, gentle = plan.points[order] <= _EASY, plan.inner[order] < 1
    kinds = order[easy & gentle], order[easy & ~gentle]
    blocks = [rows for kind in kinds if len(kind) for rows in kind.split(_BLOCK)]
    return [*blocks, order[~easy]]


def _plan(shift: Tensor, slope: Tensor, digits: Digits) -> _Plan:
    """Where to put the points of every row.

    Beyond the ends nothing is left: the logarithm of the integrand bends at least as -t^2 / 2, and
    against all slopes ever more.
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
    # The error of a polynomial through m points falls as rho^-m, rho the sum of the axes of the
    # ellipse around them that reaches the first zero. Where that is fast, points are needed only
    # in the inner part, outside of which the error grows as 2.2^m, and fewer than the bound says.
    inner, outer = (_log_rho(part * half * steepest) for part in (_INNER, 1.0))
    gentle = inner > math.log(2.2)
    count = torch.where(gentle, 0.75 * digits.error / inner, digits.error / outer) + 2
    lowest = argument.amin(0)
    ordinary = (half * steepest + lowest).isfinite()  # a row with a NaN needs no points to be one
    count = torch.where(ordinary, count, 4.0).clamp(4, 1e9).ceil()
    wide = math.pi * math.sqrt(2 / digits.error)
    precision = 1 + edge_precision(steepest, len(shift), wide, digits)
    places = torch.where(ordinary, 2 * half * precision.sqrt() / wide, 4.0).clamp(4, 1e9).ceil()
    part = torch.where(gentle, _INNER, 1.0)
    return _Plan(start, stop, part, count.long(), places.long(), lowest)


def _log_rho(reach: Tensor) -> Tensor:
    """Of the ellipse around -reach ... reach through the first zero of Phi."""
    axis = _ZERO / reach.clamp(min=1e-3)
    return (axis + (1 + axis.square()).sqrt()).log()


def edge_precision(steepest: Tensor, many: int, wide: float, digits: Digits) -> Tensor:
    """What so many factors, none with a larger slope, add to the precision of a Gaussian.

    For a Gaussian of precision v the sum with step h has the error `2 exp(-2 pi^2 / (v h^2))`, and
    each Phi that is not yet 1 adds at most slope^2 to v. Many equal ones make the edge of a
    largest value instead, `exp(-exp(-a t))` with `a = slope sqrt(2 log n)`, which is analytic
    as far as `pi / 2a` from the real line.
    """
    edge = math.sqrt(2 * math.log(many + 1)) * (digits.error * wide / math.pi**2)
    return steepest.square() * min(many, edge**2)


def _interpolated(
    shift: Tensor, slope: Tensor, plan: _Plan, rows: Tensor, digits: Digits
) -> Tensor:
    """The sums of rows that share a number of points."""
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
