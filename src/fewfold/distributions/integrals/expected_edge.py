"""Expected product of normal distribution functions with steep slopes, by graded points."""

import math

import torch
from torch import Tensor

from fewfold.distributions.integrals.peak import DOUBLE, Digits, find_peak, log_product, slopes

__all__ = ["log_expected_edge"]

_BLOCK = 64  # rows computed with the same number of points


def log_expected_edge(shift: Tensor, slope: Tensor, digits: Digits = DOUBLE) -> Tensor:
    """Compute `log E_t prod_j Phi(shift_j + slope_j t)` in float64 for slopes of any size.

    The points are `start + (stop - start) sigmoid(u)` with u evenly spaced. At the distance d from
    an end only slopes up to about `10 / d` have an effect, so a constant number of points for each
    factor of two in the distance is enough.

    Args:
        shift, slope: (n, rows) in double precision.
        digits: accuracy settings.

    Returns:
        (rows,), differentiable.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> log_expected_edge(0 * one, 1e6 * one).exp()
        tensor([0.5000], dtype=torch.float64)
    """
    with torch.no_grad():
        peak = find_peak(shift, slope)[0]
        start, near_start = _end(shift, slope, peak, -1)
        stop, near_stop = _end(shift, slope, peak, 1)
        reach = stop - start
        low = (near_start / reach).clamp(max=0.25).log()
        length = -(near_stop / reach).clamp(max=0.25).log() - low
        order = length.argsort()
        ends = torch.stack([start, reach, low, length])
    logs = [
        _graded_sum(shift[:, rows], slope[:, rows], ends[:, rows], digits)
        for rows in order.split(_BLOCK)
    ]
    return torch.cat(logs)[order.argsort()]


def _graded_sum(shift: Tensor, slope: Tensor, ends: Tensor, digits: Digits) -> Tensor:
    """Evaluate the sums of a block of rows, with as many points as its longest row needs."""
    start, reach, low, length = ends.unbind()
    count = int((length.amax() / digits.step).ceil()) + 1
    line = torch.linspace(0, 1, count, dtype=shift.dtype, device=shift.device)
    u = low + length * line.unsqueeze(-1)
    share = u.sigmoid()
    weight = (reach * share * (-u).sigmoid() * length / (count - 1)).log()
    logs = _log_integrand(shift, slope, start + reach * share)
    return (logs + weight).logsumexp(0)


def _log_integrand(shift: Tensor, slope: Tensor, t: Tensor) -> Tensor:
    """(points, rows) log of the integrand: phi(t) times the product."""
    ends = [torch.addcmul(shift, slope, part) for part in (t[0], t[-1])]
    lowest = min(float(part.detach().amin()) for part in ends)
    logs = log_product(shift, slope, t, lowest, DOUBLE)
    return logs - t.square() / 2 - math.log(2 * math.pi) / 2


def _end(shift: Tensor, slope: Tensor, peak: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Return an end of the interval of integration and the length scale of the integrand there.

    At the end the log integrand is `DOUBLE.drop` below its peak. Bracketed Newton's method on the
    square root of twice the drop, which is linear for a Gaussian.
    """
    drop = DOUBLE.drop
    top = _log_integrand(shift, slope, peak[None])[0]
    inner, outer = peak, peak + side * (math.sqrt(2 * drop) + 0.4)
    t = outer
    for _ in range(200):
        fall = top - _log_integrand(shift, slope, t[None])[0]
        enough = fall >= drop
        done = enough & (fall <= drop + 8)
        inner, outer = torch.where(enough, inner, t), torch.where(enough, t, outer)
        if bool(done.all()):
            break
        root = (2 * fall.clamp(min=1e-3)).sqrt()
        ahead = t + root * (root - math.sqrt(2 * drop + 8)) / slopes(shift, slope, t)[0]
        inside = (ahead - inner) * (ahead - outer) < 0
        t = torch.where(inside, ahead, (inner + outer) / 2)
        t = torch.where(done, outer, t)
    return outer, 3 / slopes(shift, slope, outer)[0].abs()
