"""Expectation of a Gaussian function under a density of bounded support on the line."""

import math

import torch
from torch import Tensor

from fewfold.continuous.profile import is_polynomial, normaliser
from fewfold.continuous.quadrature import enough, gegenbauer, graded_masses

__all__ = ["expected_bump", "normal"]

_NOTHING = 38.0  # standard deviations at which a Gaussian is zero in any dtype


def normal(z: Tensor) -> Tensor:
    """Standard normal density."""
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def expected_bump(half: Tensor, offset: Tensor, width: Tensor, kappa: float) -> Tensor:
    """`E N(half U; offset, width^2)` where U has a density ~ (1 - u^2)^kappa on [-1, 1].

    A density much narrower than the bump is summed by the rule of Gauss and Jacobi: there its
    few nodes are exact and the closed form would cancel. Otherwise, where kappa is whole, the
    closed form; where it is not, a rule with many nodes placed where both functions live.

    Args:
        half: half the width of the support, positive.
        offset: from the middle of the support to the centre of the bump.
        width: standard deviation of the bump.

    Returns:
        One number for each of what the arguments broadcast to.
    """
    half, offset, width = torch.broadcast_tensors(half, offset, width)
    if not is_polynomial(kappa):
        return _graded(half, offset, width, kappa)
    reach = max(3.0, kappa)
    narrow = half < reach * width
    # Each branch gets safe inputs, because a NaN gradient would survive torch.where.
    count = int(reach) * enough(6, 4, half)
    summed = _summed(torch.where(narrow, half, width), offset, width, kappa, count)
    closed = _closed(torch.where(narrow, reach * width, half), offset, width, int(kappa))
    return torch.where(narrow, summed, closed)


def _summed(half: Tensor, offset: Tensor, width: Tensor, kappa: float, count: int) -> Tensor:
    """Expectation by Gauss-Gegenbauer quadrature with `count` nodes."""
    nodes, weights = gegenbauer(count, kappa, half)
    return (_exponential(half, offset, width, nodes) @ weights) / (math.sqrt(2 * math.pi) * width)


def _exponential(half: Tensor, offset: Tensor, width: Tensor, nodes: Tensor) -> Tensor:
    """`exp(-z^2 / 2)`, `(..., count)`, with few passes over the large tensor."""
    scale = 1 / (math.sqrt(2) * width)
    z = (half * scale).unsqueeze(-1) * nodes - (offset * scale).unsqueeze(-1)
    return torch.exp(-z.square())


def _closed(half: Tensor, offset: Tensor, width: Tensor, kappa: int) -> Tensor:
    """Expectation in closed form, from the moments of a truncated normal distribution.

    With `z = (t - offset) / width` the profile is a polynomial in z, centred where the bump is.
    The sign of the offset is made positive, so that differences of tails are taken of small ones.
    """
    offset = torch.where(offset < 0, -offset, offset)
    near = offset < half + _NOTHING * width
    nu, s = torch.where(near, offset, half) / half, width / half
    low = (-(1 + nu) / s).clamp(-_NOTHING, _NOTHING)
    high = ((1 - nu) / s).clamp(-_NOTHING, _NOTHING)
    moments = _moments(low, high, 2 * kappa)
    powers = _powers([(1 - nu) * (1 + nu), -2 * nu * s, -s * s], kappa)
    total = torch.zeros_like(nu)
    for coefficient, moment in zip(powers, moments, strict=True):
        total = total + coefficient * moment
    return torch.where(near, normaliser(1, kappa) * total / half, 0.0)


def _moments(low: Tensor, high: Tensor, degree: int) -> list[Tensor]:
    """`int z^r normal(z) dz` from low < 0 to high, for r up to degree."""
    root = math.sqrt(2)
    at_low, at_high = normal(low), normal(high)
    found = [(torch.erfc(-high / root) - torch.erfc(-low / root)) / 2, at_low - at_high]
    for r in range(2, degree + 1):
        at_low, at_high = at_low * low, at_high * high
        found.append((r - 1) * found[-2] + at_low - at_high)
    return found


def _powers(factor: list[Tensor], kappa: int) -> list[Tensor]:
    """Coefficients of a quadratic polynomial to the power of kappa, lowest first."""
    product = factor
    for _ in range(kappa - 1):
        grown = [torch.zeros_like(factor[0]) for _ in range(len(product) + 2)]
        for i, one in enumerate(product):
            for j, other in enumerate(factor):
                grown[i + j] = grown[i + j] + one * other
        product = grown
    return product


def _graded(half: Tensor, offset: Tensor, width: Tensor, kappa: float) -> Tensor:
    """Expectation by graded quadrature on the part of the support where the bump is nonzero."""
    ends = ((offset + side * 9 * width) / half for side in (-1, 1))
    # Detached: the integrand vanishes at the ends of the window, whose position has no effect.
    low, high = (end.detach().clamp(-1, 1) for end in ends)
    nodes, masses = graded_masses(low, high, kappa)
    total = (_exponential(half, offset, width, nodes) * masses).sum(-1)
    return total / (math.sqrt(2 * math.pi) * width)
