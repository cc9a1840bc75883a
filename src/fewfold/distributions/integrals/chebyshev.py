"""Chebyshev points and the matrix of polynomial interpolation from them."""

import functools
import math

import torch
from torch import Tensor

__all__ = ["chebyshev", "interpolation"]


@functools.cache
def chebyshev(count: int) -> Tensor:
    """Return the (count,) Chebyshev points of (-1, 1).

    Example:
        >>> chebyshev(2)
        tensor([-0.7071,  0.7071], dtype=torch.float64)
    """
    return -_angles(count).cos()


@functools.cache
def interpolation(count: int, places: int, inner: float) -> Tensor:
    """Interpolation matrix from `inner * chebyshev(count)` to `linspace(-1, 1, places)`.

    Args:
        count: number of nodes; exact for polynomials of lower degree.
        places: number of points to evaluate at.
        inner: at most 1; values beyond are extrapolated.

    Returns:
        (count, places).

    Example:
        >>> at = chebyshev(4) * 0.8
        >>> (2 + at**3) @ interpolation(4, 3, 0.8)  # at -1, 0 and 1
        tensor([1.0000, 2.0000, 3.0000], dtype=torch.float64)

    Reference: Berrut and Trefethen, "Barycentric Lagrange interpolation", 2004.
    """
    sign = 1 - 2 * (torch.arange(count, dtype=torch.float64) % 2)
    weight = sign * _angles(count).sin()
    distance = (
        torch.linspace(-1, 1, places, dtype=torch.float64) - inner * chebyshev(count)[:, None]
    )
    part = weight[:, None] / torch.where(distance.abs() < 1e-14, 1e-14, distance)
    return part / part.sum(0)


def _angles(count: int) -> Tensor:
    """(count,) angles whose cosines are the Chebyshev points."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) * (math.pi / count)
