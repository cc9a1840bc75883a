"""Densities to attend with on the plane."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold.attention.continuous.density import (
    LEAST_VARIANCE,
    Density,
    check_positive,
    joint_shape,
)
from fewfold.attention.continuous.profile import (
    checked_alpha,
    exponent,
    normaliser,
    radius,
    spread,
)

__all__ = ["PlaneDensity", "two_by_two"]


@dataclass(frozen=True, eq=False)
class PlaneDensity(Density):
    """Densities on the plane whose score is `-(t - mu)^T Sigma^-1 (t - mu) / 2`.

    The Gaussian for alpha 1; otherwise `p(t) ~ (1 - r^2)^kappa` on an ellipse, where
    `t = mu + A x`, `r = |x|` and `A = R(alpha) |Sigma|^(-1 / (4 + 4 kappa)) Sigma^(1/2)`.

    Args:
        mu: `(..., 2)`.
        sigma_sq: `(..., 2, 2)`, the matrices Sigma, symmetric and positive definite.
        alpha: at least 1.
        weights: `(..., m)`, makes the dimension before the last of mu one of components.

    Example:
        >>> import torch, fewfold as ff
        >>> p = ff.PlaneDensity(torch.tensor([0.3, 0.6]), 0.04 * torch.eye(2), alpha=2.0)
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
        """The density with this mean `(..., 2)` and covariance `(..., 2, 2)`."""
        alpha = checked_alpha(alpha)
        if alpha == 1:
            return cls(mean, covariance, alpha, weights)
        scaled = covariance * (spread(2, alpha) / radius(2, alpha) ** 2)
        grown = _determinant(scaled)[..., None, None] ** ((alpha - 1) / 2)
        return cls(mean, grown * scaled, alpha, weights)

    @classmethod
    def from_attention(cls, probs: Tensor, positions: Tensor, alpha: float = 2.0) -> Self:
        """The density with the moments of discrete attention, and a variance of at least 1e-6.

        Args:
            probs: `(..., L)`.
            positions: `(L, 2)`.
        """
        mean = probs @ positions
        away = positions - mean.unsqueeze(-2)
        covariance = (probs.unsqueeze(-1) * away).mT @ away
        least = LEAST_VARIANCE * torch.eye(2, dtype=probs.dtype, device=probs.device)
        return cls.from_moments(mean, covariance + least, alpha)

    def _check_shapes(self) -> None:
        mu, sigma = tuple(self.mu.shape), tuple(self.sigma_sq.shape)
        if mu[-1:] != (2,) or sigma[-2:] != (2, 2):
            raise ValueError(
                f"on the plane mu must be (..., 2) and sigma_sq (..., 2, 2), got {mu} and {sigma}"
            )
        try:
            torch.broadcast_shapes(mu[:-1], sigma[:-2])
        except RuntimeError:
            raise ValueError(
                f"mu (..., 2) and sigma_sq (..., 2, 2) must agree before, got {mu} and {sigma}"
            ) from None
        check_positive(self.sigma_sq[..., 0, 0])
        check_positive(_determinant(self.sigma_sq))

    @property
    def shape(self) -> torch.Size:
        return joint_shape(self.mu.shape[:-1], self.sigma_sq.shape[:-2])

    @property
    def root(self) -> Tensor:
        """`(..., 2, 2)`: A, lower triangular, which carries the unit disc to the support.

        For the Gaussian, which carries the standard normal density to this.
        """
        s = self.sigma_sq
        one = s[..., 0, 0].sqrt()
        two = (s[..., 0, 1] + s[..., 1, 0]) / 2 / one
        det = _determinant(s)
        lower = two_by_two(one, torch.zeros_like(one), two, det.sqrt() / one)
        if self.alpha == 1:
            return lower
        power = -1 / (4 + 4 * exponent(self.alpha))
        grown: Tensor = radius(2, self.alpha) * (det**power)[..., None, None] * lower
        return grown

    @property
    def covariance(self) -> Tensor:
        """`(..., 2, 2)`, of each component."""
        if self.alpha == 1:
            return self.sigma_sq
        root = self.root
        return root @ root.mT / spread(2, self.alpha)

    def whitened(self, points: Tensor) -> Tensor:
        """`A^-1 (points - mu)`, for points `(..., 2)` that broadcast against mu."""
        root, away = self.root, points - self.mu
        first = away[..., 0] / root[..., 0, 0]
        second = (away[..., 1] - root[..., 1, 0] * first) / root[..., 1, 1]
        return torch.stack([first, second], -1)

    def pdf(self, points: Tensor) -> Tensor:
        """The density at points `(..., 2)` that broadcast against mu without components."""
        points = points if self.weights is None else points.unsqueeze(-2)
        square = self.whitened(points).square().sum(-1)
        root = self.root
        area = root[..., 0, 0] * root[..., 1, 1]
        if self.alpha == 1:
            found = torch.exp(-square / 2) / (2 * math.pi * area)
        else:
            kappa = exponent(self.alpha)
            found = normaliser(2, kappa) / area * (1 - square).clamp(min=0) ** kappa
        return found if self.weights is None else (found * self.weights).sum(-1)


def two_by_two(*entries: Tensor) -> Tensor:
    """Matrices `(..., 2, 2)` of four entries each, row by row."""
    rows: Tensor = torch.stack(torch.broadcast_tensors(*entries), -1)
    square: Tensor = rows.unflatten(-1, (2, 2))
    return square


def _determinant(matrices: Tensor) -> Tensor:
    """Of `(..., 2, 2)` symmetric matrices, of which both halves are read."""
    off = (matrices[..., 0, 1] + matrices[..., 1, 0]) / 2
    return matrices[..., 0, 0] * matrices[..., 1, 1] - off**2
