"""Gauss-Legendre quadrature, also composite over consecutive intervals."""

import functools

import torch
from torch import Tensor

__all__ = ["gauss_legendre", "panels"]


@functools.cache
def gauss_legendre(count: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre points and weights on (-1, 1), by the Golub-Welsch algorithm.

    Example:
        >>> points, weights = gauss_legendre(3)
        >>> (weights * points**4).sum()  # 2 / 5
        tensor(0.4000, dtype=torch.float64)

    Reference: Golub and Welsch, "Calculation of Gauss quadrature rules", 1969.
    """
    k = torch.arange(1, count, dtype=torch.float64)
    off_diagonal = k / (4 * k.square() - 1).sqrt()
    jacobi = torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    points, vectors = torch.linalg.eigh(jacobi)
    return points, 2 * vectors[0].square()


def panels(edges: Tensor, count: int = 16) -> tuple[Tensor, Tensor]:
    """Composite Gauss-Legendre points and weights over consecutive intervals.

    Args:
        edges: (..., n) in ascending order; intervals may be empty.
        count: points in each interval.

    Returns:
        (..., (n - 1) count) points and weights, differentiable in the edges.
    """
    points, weights = (part.to(edges) for part in gauss_legendre(count))
    low, half = edges[..., :-1, None], edges.diff(dim=-1).unsqueeze(-1) / 2
    return (low + half * (1 + points)).flatten(-2), (half * weights).flatten(-2)
