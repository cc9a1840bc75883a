"""Orthant probabilities in a few dimensions, by nested one-dimensional integrals."""

import itertools
import math

import torch
from torch import Tensor

from fewfold.distributions.integrals.panels import gauss_legendre

__all__ = ["plackett"]

_NODES = 20


def plackett(bound: Tensor, correlation: Tensor, nodes: int = _NODES) -> Tensor:
    """`P(v <= bound)` for Gaussian v with unit variances.

    The derivative with respect to a correlation is the density of the two coordinates at their
    bounds, times the conditional probability of the others. Integrating from independent coordinates
    (t = 0) to the given correlations (t = 1),

        P = prod_i Phi(b_i) + sum_(i < j) rho_ij int_0^1 phi(b_i, b_j; t rho_ij) P_t(others | i, j) dt

    and the probability of the others, in two dimensions fewer, is computed recursively.

    Args:
        bound: (rows, d); the cost is about d^2 nodes / 2 times that of d - 2.
        correlation: (rows, d, d) positive definite.
        nodes: quadrature nodes of each integral.

    Returns:
        (rows,), differentiable; the absolute, not the relative error is small.

    Example:
        >>> import torch
        >>> plackett(torch.zeros(1, 3), 0.5 * (torch.eye(3) + torch.ones(1, 3, 3)))
        tensor([0.2500])

    Reference: Plackett, "A reduction formula for normal multivariate integrals", 1954.
    """  # noqa: E501
    total = (torch.erfc(bound * -math.sqrt(0.5)) / 2).prod(-1)
    size = bound.shape[-1]
    if size < 2:
        return total
    t, weight = _path(correlation, nodes)
    for i, j in itertools.combinations(range(size), 2):
        others = [k for k in range(size) if k not in (i, j)]
        rho, at = correlation[:, i, j, None], (bound[:, i, None], bound[:, j, None])
        r = t * rho
        gap = 1 - r.square()
        square = (at[0] - at[1]).square() / gap + 2 * at[0] * at[1] / (1 + r)
        term = weight * rho * (-square / 2).exp() / (2 * math.pi * gap.sqrt())
        if others:
            conditional = _condition(bound, correlation, t, (i, j, others))
            term = term * plackett(*conditional, nodes).view_as(term)
        total = total + term.sum(-1)
    return total


def _path(correlation: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes t in (0, 1) and weights, (rows, nodes), of a quadrature in the angle asin(t rho).

    rho is the largest correlation. In the angle, the bivariate density has no singular denominator.
    """
    points, weights = (part.to(correlation) for part in gauss_legendre(nodes))
    largest = (correlation.detach().tril(-1).abs()).amax((-2, -1)).clamp(1e-3, 1 - 1e-9)
    angle = largest.asin().unsqueeze(-1)
    turned = angle * (1 + points) / 2
    return turned.sin() / angle.sin(), weights / 2 * angle * turned.cos() / angle.sin()


def _condition(
    bound: Tensor, correlation: Tensor, t: Tensor, split: tuple[int, int, list[int]]
) -> tuple[Tensor, Tensor]:
    """Conditional bounds (rows nodes, d - 2) and correlations of the others, given i and j."""
    i, j, others = split
    along = t.unsqueeze(-1)
    first, second = along * correlation[:, None, others, i], along * correlation[:, None, others, j]
    r = along * correlation[:, None, None, i, j]
    gap = 1 - r.square()
    one, two = (first - r * second) / gap, (second - r * first) / gap
    mean = one * bound[:, None, i, None] + two * bound[:, None, j, None]
    inner = correlation[:, others][:, :, others]
    unit = torch.eye(len(others), dtype=inner.dtype, device=inner.device)
    covariance = unit + along.unsqueeze(-1) * (inner - unit).unsqueeze(1)
    covariance = covariance - one.unsqueeze(-1) * first.unsqueeze(-2)
    covariance = covariance - two.unsqueeze(-1) * second.unsqueeze(-2)
    tiny = torch.finfo(bound.dtype).eps
    deviation = covariance.diagonal(dim1=-2, dim2=-1).clamp(min=tiny).sqrt()
    scaled = covariance / (deviation.unsqueeze(-1) * deviation.unsqueeze(-2))
    limit = (bound[:, None, others] - mean) / deviation
    return limit.flatten(0, 1), scaled.flatten(0, 1)
