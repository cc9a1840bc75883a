"""Attention densities on the plane."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold._torch import untransformed
from fewfold.continuous.density import (
    LEAST_VARIANCE,
    Density,
    check_finite,
    joint_shape,
    moments_exist,
    working,
)
from fewfold.continuous.heavy_tails import gaussian_scales
from fewfold.continuous.profile import (
    checked_alpha,
    exponent,
    normaliser,
    profile,
    radius,
    spread,
)

__all__ = ["PlaneDensity", "two_by_two"]

_ASYMMETRY = 1e-2  # tolerated, for rounding and numerical derivatives


@dataclass(frozen=True, eq=False)
class PlaneDensity(Density):
    """Densities on the plane whose score is `-(t - mu)^T Sigma^-1 (t - mu) / 2`.

    The Gaussian for alpha 1; otherwise `p(t) ~ (1 - r^2)^kappa` on an ellipse, where
    `t = mu + A x`, `r = |x|` and `A = R(alpha) |Sigma|^(-1 / (4 + 4 kappa)) Sigma^(1/2)`. For
    alpha below 1 tails are heavy, `p(t) ~ (1 + r^2)^kappa`, and up to 1/2 of infinite variance.

    Args:
        mu: `(..., 2)`.
        sigma_sq: `(..., 2, 2)`, the matrices Sigma, symmetric and positive definite.
        alpha: above 0; there is no Cauchy density, alpha 0, of this family on the plane.
        weights: `(..., m)` weights of a mixture; the dimension before the last of mu then indexes
            its components.

    Example:
        >>> import torch, fewfold as ff
        >>> p = ff.continuous.PlaneDensity(torch.tensor([0.3, 0.6]), 0.04 * torch.eye(2), alpha=2.0)
        >>> p.pdf(torch.tensor([[0.3, 0.6], [0.9, 0.6]])), p.covariance[0, 0]
        (tensor([2.8209, 0.0000]), tensor(0.0376))

    Reference: Farinhas, Martins and Aguiar, "Multimodal continuous visual attention mechanisms",
    2021.
    """

    dim: ClassVar[int] = 2

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance: Tensor, alpha: float = 2.0, weights: Tensor | None = None
    ) -> Self:
        """Return the density with the given mean `(..., 2)` and covariance `(..., 2, 2)`."""
        alpha = checked_alpha(alpha, 2)
        _check_definite(covariance, "covariance")
        if alpha == 1:
            return cls(mean, covariance, alpha, weights)
        moments_exist(2, alpha)
        scaled = working(covariance) * (spread(2, alpha) / radius(2, alpha) ** 2)
        one, _, two = _factor(scaled)
        sigma_sq = (one * two)[..., None, None] ** (alpha - 1) * scaled
        return cls(mean, sigma_sq.to(covariance), alpha, weights)

    @classmethod
    def from_attention(cls, probs: Tensor, positions: Tensor, alpha: float = 2.0) -> Self:
        """Return the density with the moments of discrete attention and variance at least 1e-6.

        Args:
            probs: `(..., L)`.
            positions: `(L, 2)`.
        """
        probs = working(probs)
        if positions.dim() != 2 or positions.shape[-1] != 2 or len(positions) != probs.shape[-1]:
            raise ValueError(
                f"probs must be (..., L) and positions (L, 2), got {tuple(probs.shape)} and "
                f"{tuple(positions.shape)}"
            )
        positions = positions.to(probs)
        # Sums, because matrix products under autocast are too coarse for a variance.
        mean = (probs.unsqueeze(-1) * positions).sum(-2)
        away = positions - mean.unsqueeze(-2)
        squares = away.unsqueeze(-1) * away.unsqueeze(-2)
        covariance = (probs[..., None, None] * squares).sum(-3)
        least = LEAST_VARIANCE * torch.eye(2, dtype=probs.dtype, device=probs.device)
        return cls.from_moments(mean, covariance + least, alpha)

    def _check_shapes(self) -> None:
        mu, sigma = tuple(self.mu.shape), tuple(self.sigma_sq.shape)
        if mu[-1:] != (2,) or sigma[-2:] != (2, 2):
            raise ValueError(
                f"on the plane mu must be (..., 2) and sigma_sq (..., 2, 2), got {mu} and {sigma}"
            )
        if joint_shape(self.mu.shape[:-1], self.sigma_sq.shape[:-2]) is None:
            raise ValueError(
                f"mu (..., 2) and sigma_sq (..., 2, 2) must agree before, got {mu} and {sigma}"
            )
        _check_definite(self.sigma_sq, "sigma_sq")

    @property
    def shape(self) -> torch.Size:
        return torch.Size(torch.broadcast_shapes(self.mu.shape[:-1], self.sigma_sq.shape[:-2]))

    @property
    def root(self) -> Tensor:
        """`(..., 2, 2)` lower triangular A that maps the unit disc to the support.

        For the Gaussian, the map from the standard normal density to this one.
        """
        one, below, two = _factor(self.sigma_sq)
        lower = two_by_two(one, torch.zeros_like(one), below, two)
        if self.alpha == 1:
            return lower
        power = -1 / (2 + 2 * exponent(self.alpha))
        grown: Tensor = radius(2, self.alpha) * ((one * two) ** power)[..., None, None] * lower
        return grown

    def gaussians(self) -> tuple["PlaneDensity", Tensor]:
        variances, shares = gaussian_scales(2, self.alpha, self.sigma_sq)
        root = self.root
        many = (root @ root.mT).unsqueeze(-3) * variances[:, None, None]
        return PlaneDensity(self.mu.unsqueeze(-2), many, 1.0), shares

    @property
    def covariance(self) -> Tensor:
        """`(..., 2, 2)` covariance of each component; infinite for alpha up to 1/2."""
        if self.alpha == 1:
            return self.sigma_sq
        if not spread(2, self.alpha):
            return torch.full_like(self.sigma_sq, math.inf)
        root = self.root
        return root @ root.mT / spread(2, self.alpha)

    def whitened(self, points: Tensor) -> Tensor:
        """`A^-1 (points - mu)`, for points `(..., 2)` that broadcast against mu."""
        root, away = self.root, points - self.mu
        first = away[..., 0] / root[..., 0, 0]
        second = (away[..., 1] - root[..., 1, 0] * first) / root[..., 1, 1]
        return torch.stack([first, second], -1)

    def pdf(self, points: Tensor) -> Tensor:
        """Evaluate the density at points `(..., 2)` broadcastable with mu without components."""
        points = points if self.weights is None else points.unsqueeze(-2)
        square = self.whitened(points).square().sum(-1)
        root = self.root
        area = root[..., 0, 0] * root[..., 1, 1]
        if self.alpha == 1:
            found = torch.exp(-square / 2) / (2 * math.pi * area)
        else:
            kappa = exponent(self.alpha)
            found = normaliser(2, kappa) / area * profile(square, kappa)
        return found if self.weights is None else (found * self.weights).sum(-1)


def two_by_two(*entries: Tensor) -> Tensor:
    """Matrices `(..., 2, 2)` from four entries in row-major order."""
    rows: Tensor = torch.stack(torch.broadcast_tensors(*entries), -1)
    square: Tensor = rows.unflatten(-1, (2, 2))
    return square


def _factor(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factor of `(..., 2, 2)`: its first, off-diagonal and last entry.

    Averages both triangles. Forms no determinant, which would underflow for small variances.
    """
    first = matrices[..., 0, 0].sqrt()
    below = (matrices[..., 0, 1] + matrices[..., 1, 0]) / 2 / first
    return first, below, (matrices[..., 1, 1] - below**2).sqrt()


def _check_definite(matrices: Tensor, name: str) -> None:
    """Raise unless symmetric and positive definite; values are not checked under transforms."""
    check_finite(matrices, name)
    if matrices.shape[-2:] != (2, 2):
        raise ValueError(f"{name} must be (..., 2, 2), got {tuple(matrices.shape)}")
    if not untransformed(matrices):
        return
    with torch.no_grad():
        given = working(matrices).reshape(-1, 2, 2)
        first, _, last = _factor(given)
        asymmetry = (given[:, 0, 1] - given[:, 1, 0]).abs()
        wrong = ~((first > 0) & (last > 0))  # NaN, the root of a negative number, is not above 0
        asymmetric = ~wrong & (asymmetry > _ASYMMETRY * first * given[:, 1, 1].clamp(min=0).sqrt())
        if bool(wrong.any()):
            raise ValueError(
                f"{name} must be positive definite, got {given[wrong][0].tolist()}; add a little "
                "to the diagonal"
            )
        if bool(asymmetric.any()):
            raise ValueError(
                f"{name} must be symmetric, got {given[asymmetric][0].tolist()}; from a factor "
                "write factor @ factor.mT"
            )
