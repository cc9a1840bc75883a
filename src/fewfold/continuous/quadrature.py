"""Quadrature rules: Gauss rules, and graded rules for singular ends."""

import functools
import math

import torch
from torch import Tensor

from fewfold.continuous.profile import STEEP, normaliser, profile

__all__ = ["between", "edge", "enough", "gegenbauer", "graded", "graded_masses", "polynomial_mass"]


def enough(double: int, single: int, like: Tensor) -> int:
    """Number of nodes required for the precision of the dtype."""
    return double if like.dtype == torch.float64 else single


@functools.lru_cache(maxsize=256)
def _golub_welsch(count: int, kappa: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Gauss nodes and weights as Python floats, so that the cache holds no traced tensors."""
    import numpy as np

    j = np.arange(1, count)
    off = np.sqrt(j * (j + 2 * kappa) / ((2 * j + 2 * kappa - 1) * (2 * j + 2 * kappa + 1)))
    nodes, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    nodes = (nodes - nodes[::-1]) / 2
    weights = vectors[0] ** 2
    weights = (weights + weights[::-1]) / 2
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


def _cached(count: int, kappa: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _golub_welsch(count, kappa)


_constant = torch.compiler.assume_constant_result(_cached)  # not traced by compilers


def gegenbauer(count: int, kappa: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Gegenbauer nodes and weights, both (count,), for a density ~ (1 - u^2)^kappa.

    Exact for polynomials of degree up to `2 count - 1`. The weights sum to one; `kappa = 0` is
    Gauss-Legendre.
    """
    nodes, weights = _constant(count, float(kappa))
    return like.new_tensor(nodes), like.new_tensor(weights)


def between(low: Tensor, high: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights `(..., count)` for integrals from low to high."""
    nodes, weights = gegenbauer(count, 0.0, low)
    width = (high - low).unsqueeze(-1)
    return low.unsqueeze(-1) + width * (1 + nodes) / 2, width * weights


def graded(count: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes x in (0, 1), 1 - x, and weights, all (count,), graded towards both ends.

    With `x = g(y)`, `g = y^4 (35 - 84 y + 70 y^2 - 20 y^3)`, a power `x^p` at an end becomes
    `y^(4 p + 3)`, which is smooth enough for Gauss-Legendre quadrature in y.
    """
    nodes, weights = gegenbauer(count, 0.0, like)
    y, z = (1 + nodes) / 2, (1 - nodes) / 2
    return _step(y), _step(z), weights * 140 * (y * z) ** 3


def _step(y: Tensor) -> Tensor:
    return y**4 * (35 - 84 * y + 70 * y**2 - 20 * y**3)


def graded_masses(low: Tensor, high: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Nodes u and masses `(..., count)` of `c (1 - u^2)^kappa du` from low to high in [-1, 1]."""
    end = edge(kappa)
    low, high = low.clamp(-end, end).unsqueeze(-1), high.clamp(-end, end).unsqueeze(-1)
    place, rest, weights = graded(enough(96, 64, low), low)
    width = high - low
    nodes, scale = low + width * place, normaliser(1, kappa) * width * weights
    if kappa > STEEP:
        return nodes, scale * profile(nodes**2, kappa)
    # Distances from the nearer end, to avoid cancellation.
    product = ((1 + low) + width * place) * ((1 - high) + width * rest)
    return nodes, scale * _power(product, kappa)


def edge(kappa: float) -> float:
    """Radius in [0, 1] beyond which the profile (1 - r^2)^kappa is negligible in any dtype."""
    return math.sqrt(-math.expm1(-50 / kappa))


def polynomial_mass(low: Tensor, high: Tensor, kappa: float) -> Tensor:
    """`c int (1 - u^2)^kappa du` from low to high in [-1, 1], exact for an integer kappa."""
    nodes, weights = between(low, high, int(kappa) + 1)
    product = (1 - nodes) * (1 + nodes)
    return normaliser(1, kappa) * (weights * product ** int(kappa)).sum(-1)


def _power(base: Tensor, kappa: float) -> Tensor:
    """`base^kappa` for `base >= 0`, with a gradient of zero at zero."""
    inside = base > 0
    return torch.where(inside, torch.where(inside, base, 1.0) ** kappa, 0.0)
