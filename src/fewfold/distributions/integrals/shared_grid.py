"""The integral of many points of one distribution on a shared grid, by a matrix product."""

import math

import torch
from torch import Tensor

from fewfold.distributions.integrals.expected_product import edge_precision
from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.peak import DOUBLE, SINGLE

__all__ = ["log_expected_on_grid"]

_POINTS = 1024  # largest grid that pays off
_MIN_ROWS = 64  # fewest rows for which sharing a grid pays off
_CHUNK = 2**20  # entries at a time


def log_expected_on_grid(
    off: Tensor, loc: Tensor, scale: Tensor, place: Tensor, width: Tensor
) -> Tensor | None:
    """`log E_t prod_(j off) Phi((t - loc_j) / scale_j)` for `t ~ N(place, width^2)`.

    The accuracy of an evenly spaced sum does not depend on where it starts, so all rows share the
    grid of the row that needs the smallest step. The logarithms of the factors at the grid points
    are one table, and their sums over subsets a matrix product.

    Args:
        off: (rows, K) boolean, the factors of each product.
        loc, scale: (K,) of the factors.
        place, width: (rows,) mean and standard deviation of t.

    Returns:
        (rows,), differentiable; or None if there are too few rows, or if the grid would need too
        many points.

    Example:
        >>> import torch
        >>> off, zero, one = torch.ones(64, 2).bool(), torch.zeros(2), torch.ones(2)
        >>> log_expected_on_grid(off, zero, one, torch.zeros(64), torch.ones(64))[0].exp()
        tensor(0.3333)
    """
    if len(off) < _MIN_ROWS or loc.shape[-1] == 0:
        return None
    digits = DOUBLE if loc.dtype == torch.float64 else SINGLE
    with torch.no_grad():
        reach = 1.02 * math.sqrt(2 * digits.drop) * width
        start = (place - reach).amin()
        # beyond this every factor is 1, and only the Gaussian density remains
        full = (loc + digits.full * scale).amax()
        stop = (place.maximum(full) + reach).amax()
        wide = math.pi * math.sqrt(2 / digits.error)
        edges = edge_precision(scale.amin().reciprocal(), len(scale), wide, digits)
        step = wide / (width.amin().square().reciprocal() + edges).sqrt()
        count = ((stop - start) / step).ceil()
        if not bool(count <= _POINTS):
            return None
        points = int(count) + 1
        t = torch.linspace(0, 1, points, dtype=loc.dtype, device=loc.device)
        t = start + (stop - start) * t
        log_step = ((stop - start) / (points - 1)).log()
    table = log_ndtr((t - loc.unsqueeze(-1)) / scale.unsqueeze(-1))
    parts = zip(
        *(rows.split(max(1, _CHUNK // points)) for rows in (off, place, width)), strict=True
    )
    logs = [_log_sum(mask.to(table) @ table, t, *normal) for mask, *normal in parts]
    return torch.cat(logs) + log_step


def _log_sum(logs: Tensor, t: Tensor, place: Tensor, width: Tensor) -> Tensor:
    """Log of the sum over grid points t (points,), weighted by the density of t in each row."""
    deviation = (t - place.unsqueeze(-1)) / width.unsqueeze(-1)
    return (logs - deviation.square() / 2).logsumexp(-1) - width.log() - math.log(2 * math.pi) / 2
