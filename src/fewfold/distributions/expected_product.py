"""The expectation, over one Gaussian variable, of a product of normal distribution functions.

    log E_t prod_j Phi(shift_j + slope_j t),   t ~ N(0, 1)

The integrand is log-concave, so it has one peak and falls away on either side. Easy rows are summed
at evenly spaced points around the peak, which for so smooth a function converges faster than any
power. Where a slope is steep the integrand has an edge, and that is next to an end of the interval
that matters, because beyond it nothing is left; the points of `expected_edge` crowd towards both
ends.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fewfold.distributions.expected_edge import log_expected_edge
from fewfold.distributions.log_ndtr import log_ndtr
from fewfold.distributions.peak import DOUBLE, SINGLE, Digits, find_peak, folded, log_product

__all__ = ["edge_precision", "log_expected_product"]

_EASY = 128  # points up to which they are evenly spaced
_BLOCK = 128  # rows that share a number of points


class _Plan(NamedTuple):
    """Where the points of every row begin and end, and how many steps there are; all (rows,)."""

    start: Tensor
    stop: Tensor
    steps: Tensor
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
    digits = DOUBLE if shift.dtype == torch.float64 else SINGLE
    with torch.no_grad():
        plan = _plan(shift, slope, digits)
        order = plan.steps.argsort()
        sizes = plan.steps[order]
        easy = int((sizes <= _EASY).sum())
        plan = _Plan(*(part[order] for part in plan))
    shift, slope = shift[order], slope[order]
    found = []
    for at in range(0, easy, _BLOCK):
        end = min(at + _BLOCK, easy)
        found.append(_evenly(shift[at:end], slope[at:end], plan, at, digits))
    if easy < len(shift):
        steep = log_expected_edge(shift[easy:].double(), slope[easy:].double())
        found.append(steep.to(shift.dtype))
    return torch.cat(found)[order.argsort()]


def _plan(shift: Tensor, slope: Tensor, digits: Digits) -> _Plan:
    """Where to put the points of every row.

    Beyond the ends nothing is left: the logarithm of the integrand bends at least as -t^2 / 2, and
    against all slopes ever more.
    """
    place, curvature = find_peak(shift, slope)
    reach = 1.02 * math.sqrt(2 * digits.drop) + 0.4
    narrow = reach * curvature.rsqrt()
    left = torch.where((slope >= 0).all(-1), narrow, reach)
    right = torch.where((slope <= 0).all(-1), narrow, reach)
    start, stop = _shortened(shift, slope, place, left, right, digits)
    argument = torch.where(slope >= 0, start.unsqueeze(-1), stop.unsqueeze(-1))
    argument = torch.addcmul(shift, slope, argument)
    wide = math.pi * math.sqrt(2 / digits.error)
    live = torch.where(argument < digits.full, slope.abs(), 0.0)
    precision = edge_precision(live, wide, digits) + 1
    count = ((stop - start) * precision.sqrt() / wide).clamp(4, 1e9).ceil()
    return _Plan(start, stop, count.long(), argument.amin(-1))


def _shortened(
    shift: Tensor, slope: Tensor, place: Tensor, left: Tensor, right: Tensor, digits: Digits
) -> tuple[Tensor, Tensor]:
    """The ends, nearer to the peak where the integrand has fallen enough already."""
    near = torch.stack([place - 0.65 * left, place, place + 0.75 * right], -1)
    x = torch.addcmul(shift.unsqueeze(1), slope.unsqueeze(1), near.unsqueeze(-1))
    # A larger Phi far out only hides a fall; at the peak it would pretend one.
    sure = (x[:, 1].amin(-1) >= digits.fold).unsqueeze(-1)
    logs = folded(torch.erfc(x.clamp_(min=digits.fold).mul_(-math.sqrt(0.5))), 2).log().sum(-1)
    logs = logs - near.square() / 2
    enough = sure & (logs[:, 1:2] - logs >= digits.drop)
    start = torch.where(enough[:, 0], near[:, 0], place - left)
    return start, torch.where(enough[:, 2], near[:, 2], place + right)


def edge_precision(live: Tensor, wide: float, digits: Digits) -> Tensor:
    """What factors of slopes (..., n), 0 for those that are 1, add to the precision of a Gaussian.

    For a Gaussian of precision v the sum with step h has the error `2 exp(-2 pi^2 / (v h^2))`, and
    each Phi that is not yet 1 adds at most slope^2 to v. Many equal ones make the edge of a
    largest value instead, `exp(-exp(-a t))` with `a = slope sqrt(2 log n)`, which is analytic
    as far as `pi / 2a` from the real line.
    """
    many = (live > 0).sum(-1).to(live.dtype)
    edge = live.amax(-1) * (2 * (many + 1).log()).sqrt() * (digits.error * wide / math.pi**2)
    return torch.minimum(live.square().sum(-1), edge.square())


def _evenly(shift: Tensor, slope: Tensor, plan: _Plan, at: int, digits: Digits) -> Tensor:
    """The sums of consecutive rows, sorted by their number of points, from row `at` on."""
    start, stop, count, lowest = (part[at : at + len(shift)] for part in plan)
    points = int(count[-1]) + 1
    place = torch.linspace(0, 1, points, dtype=shift.dtype, device=shift.device)
    reach = (stop - start).unsqueeze(-1)
    t = start.unsqueeze(-1) + reach * place
    weight = (reach / (points - 1)).log() - t.square() / 2 - math.log(2 * math.pi) / 2
    logs = log_product(shift, slope, t, float(lowest.amin()), digits)
    return (logs + weight).logsumexp(-1)
