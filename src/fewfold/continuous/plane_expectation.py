"""Expectations of Gaussian functions and probabilities of boxes under densities on the plane."""

import math

import torch
from torch import Tensor

from fewfold.continuous.gaussian_expectation import expected_bump
from fewfold.continuous.plane_density import PlaneDensity, two_by_two
from fewfold.continuous.profile import exponent, is_polynomial, normaliser, profile
from fewfold.continuous.quadrature import between, edge, enough, graded

__all__ = ["expected_boxes", "expected_bumps"]

_FAR = 8.7  # standard deviations beyond which a Gaussian on the plane has no mass


def expected_bumps(density: PlaneDensity, centres: Tensor, widths: Tensor) -> Tensor:
    """`E_p N(t; m_j, diag(s_j^2))`, `(..., n)` for centres and widths `(n, 2)`.

    The support is whitened to a disc and sliced along the longer axis of the bump. The expectation
    on a slice is `expected_bump`; across slices, with the sine of an angle as coordinate, the
    integrand is analytic and integrated by Gauss-Legendre quadrature where the bump is not zero.
    The number of slices suffices for bumps and densities of any width.
    """
    if density.alpha == 1:
        return _expected_normal(density, centres, widths)
    kappa, root = exponent(density.alpha), density.root.unsqueeze(-3)
    each = PlaneDensity(density.mu.unsqueeze(-2), density.sigma_sq.unsqueeze(-3), density.alpha)
    place = each.whitened(centres)
    spread = _whitened_covariance(root, widths)
    turn = _short_axis_first(spread.detach())  # a disc is invariant under rotation
    place = (turn @ place.unsqueeze(-1)).squeeze(-1)
    spread = turn @ spread @ turn.mT
    variance, cross = spread[..., 0, 0], spread[..., 0, 1]
    slope = cross / variance
    left = (spread[..., 1, 1] - cross * slope).unsqueeze(-1).sqrt()
    angle, step = _slices(place[..., 0], variance.sqrt(), edge(kappa))
    v, h = angle.sin(), angle.cos()
    away = v - place[..., :1]
    across = torch.exp(-(away**2) / (2 * variance.unsqueeze(-1)))
    across = across / (2 * math.pi * variance).sqrt().unsqueeze(-1)
    along = expected_bump(h, place[..., 1:] + slope.unsqueeze(-1) * away, left, kappa)
    total = (step * across * along * profile(v**2, kappa + 1)).sum(-1)
    area = root[..., 0, 0] * root[..., 1, 1]
    return normaliser(2, kappa) / normaliser(1, kappa) * total / area


def _expected_normal(density: PlaneDensity, centres: Tensor, widths: Tensor) -> Tensor:
    """`N(m_j; mu, Sigma + S_j)`."""
    total = density.sigma_sq.unsqueeze(-3) + torch.diag_embed(widths**2)
    each = PlaneDensity(density.mu.unsqueeze(-2), total, 1.0)
    return each.pdf(centres)


def _whitened_covariance(root: Tensor, widths: Tensor) -> Tensor:
    """`A^-1 diag(s^2) A^-T`, `(..., n, 2, 2)`."""
    first = 1 / root[..., 0, 0]
    second = 1 / root[..., 1, 1]
    mixed = -root[..., 1, 0] * first * second
    one, two = (widths[..., i] ** 2 for i in (0, 1))
    off = first * mixed * one
    entries = [first**2 * one, off, off, mixed**2 * one + second**2 * two]
    return two_by_two(*entries)


def _short_axis_first(spread: Tensor) -> Tensor:
    """`(..., 2, 2)`: rotations after which the first coordinate has the smaller variance."""
    a, b, c = spread[..., 0, 0], spread[..., 0, 1], spread[..., 1, 1]
    angle = torch.atan2(2 * b, a - c) / 2 + math.pi / 2
    cos, sin = angle.cos(), angle.sin()
    return two_by_two(cos, sin, -sin, cos)


def _slices(place: Tensor, width: Tensor, end: float) -> tuple[Tensor, Tensor]:
    """Quadrature angles and weights `(..., slices)` where both bump and disc are nonzero."""
    ends = [(place + side * 9 * width).detach().clamp(-end, end).asin() for side in (-1, 1)]
    return between(ends[0], ends[1], enough(56, 40, place))


def expected_boxes(density: PlaneDensity, edges: Tensor, across: Tensor) -> Tensor:
    """Probability of every box of a grid, `(..., n m)` for edges `(n + 1,)` and `(m + 1,)`.

    The mean and each side of a box form a triangle. With h(r) the mass within radius r, a side at
    distance d contributes `int h(r) d / r^2 dx / (2 pi)`, `r^2 = d^2 + x^2`: a polynomial in x
    inside the support if kappa is an integer, and the angle it subtends outside.
    """
    low, left = torch.meshgrid(edges[:-1], across[:-1], indexing="ij")
    high, right = torch.meshgrid(edges[1:], across[1:], indexing="ij")
    corners = torch.stack([low, left, high, left, high, right, low, right], -1)
    corners = corners.reshape(-1, 4, 2)
    each = PlaneDensity(
        density.mu[..., None, None, :], density.sigma_sq[..., None, None, :, :], density.alpha
    )
    points = each.whitened(corners)
    return _sides(points, points.roll(-1, -2), density.alpha).sum(-1)


def _sides(start: Tensor, end: Tensor, alpha: float) -> Tensor:
    """Signed mass `(...)` of the triangles of the origin and the sides from start to end."""
    along = end - start
    along = along / along.norm(dim=-1, keepdim=True)
    distance = start[..., 0] * along[..., 1] - start[..., 1] * along[..., 0]
    first, last = (start * along).sum(-1), (end * along).sum(-1)
    limit = _FAR if alpha == 1 else _limit(exponent(alpha))
    square = limit**2 - distance**2
    crosses = square > 0
    half = torch.where(crosses, torch.where(crosses, square, 1.0).sqrt(), 0.0)
    low, high = first.clamp(-half, half), last.clamp(-half, half)
    inside = distance * _inside(low, high, distance, alpha)
    outside = _angle(first, low, distance) + _angle(high, last, distance)
    mass: Tensor = (inside + outside) / (2 * math.pi)
    return mass


def _limit(kappa: float) -> float:
    """Radius beyond which the density is zero; polynomials are integrated exactly up to 1."""
    return 1.0 if is_polynomial(kappa) else edge(kappa)


def _angle(start: Tensor, end: Tensor, distance: Tensor) -> Tensor:
    """Angle subtended at the origin by a segment that does not pass through it."""
    some = start != end
    x = torch.where(some, distance**2 + start * end, 1.0)
    return torch.atan2(torch.where(some, distance * (end - start), 0.0), x)


def _inside(low: Tensor, high: Tensor, distance: Tensor, alpha: float) -> Tensor:
    """`int h(r) / r^2 dx` from low to high, where h is the mass within a radius."""
    if alpha != 1 and not is_polynomial(exponent(alpha)):
        place, _, weights = graded(enough(112, 80, low), low)
        width = (high - low).unsqueeze(-1)
        nodes, weights = low.unsqueeze(-1) + width * place, width * weights
    else:
        count = enough(56, 40, low) if alpha == 1 else int(exponent(alpha)) + 1
        nodes, weights = between(low, high, count)
    square = distance.unsqueeze(-1) ** 2 + nodes**2
    return (weights * _mass_per_square(square, alpha)).sum(-1)


def _mass_per_square(square: Tensor, alpha: float) -> Tensor:
    """`h(r) / r^2`: a polynomial in the squared radius if kappa is an integer."""
    if alpha != 1 and is_polynomial(exponent(alpha)):
        square = square.clamp(max=1)  # powers overflow for far sides, whose weights are 0
        power, total = torch.ones_like(square), torch.ones_like(square)
        for _ in range(int(exponent(alpha))):
            power = power * (1 - square)
            total = total + power
        return total
    square = square.clamp(min=1e-12)
    if alpha == 1:
        return -torch.expm1(-square / 2) / square
    square = square.clamp(max=1 - torch.finfo(square.dtype).eps)
    return -torch.expm1((exponent(alpha) + 1) * torch.log1p(-square)) / square
