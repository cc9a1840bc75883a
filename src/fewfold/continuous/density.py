"""Attention densities and their mixtures: the base class, and densities on the line."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._torch import untransformed
from fewfold.continuous.heavy_tails import gaussian_scales
from fewfold.continuous.profile import (
    checked_alpha,
    exponent,
    is_polynomial,
    normaliser,
    profile,
    radius,
    spread,
)
from fewfold.continuous.quadrature import graded_masses, polynomial_mass
from fewfold.distributions.faces.geometry import probabilities

__all__ = [
    "LEAST_VARIANCE",
    "Density",
    "LineDensity",
    "check_finite",
    "check_positive",
    "joint_shape",
    "moments_exist",
    "working",
]

LEAST_VARIANCE = 1e-6  # lower bound of the variances predicted by a model


@dataclass(frozen=True, eq=False)
class Density:
    """Base class of the densities on the line and on the plane."""

    mu: Tensor
    sigma_sq: Tensor
    alpha: float = 2.0
    weights: Tensor | None = None

    dim: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_finite(self.mu, "mu")
        check_finite(self.sigma_sq, "sigma_sq")
        object.__setattr__(self, "alpha", checked_alpha(self.alpha, self.dim))
        self._check_shapes()
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_weights(self, weights: Tensor) -> None:
        check_finite(weights, "weights")
        if weights.shape != self.shape or not self.shape:
            raise ValueError(
                f"weights must have one number per component, {tuple(self.shape)} as mu has and "
                f"at least one dimension, got {tuple(weights.shape)}"
            )
        if untransformed(weights) and bool((weights < 0).any()):
            raise ValueError(
                f"weights must not be negative, got {float(weights.detach().min()):g}; write "
                "raw.softmax(-1)"
            )
        if untransformed(weights) and not bool(probabilities.check(weights).all()):
            total = weights.detach().sum(-1).flatten()
            invalid = total[(total - 1).abs().argmax()]
            raise ValueError(
                f"weights must sum to 1, got a sum of {float(invalid):g}; write "
                "weights / weights.sum(-1, True)"
            )

    def _check_shapes(self) -> None:
        raise NotImplementedError

    @property
    def shape(self) -> torch.Size:
        """Batch shape of the densities, including the components of mixtures."""
        raise NotImplementedError

    @property
    def working(self) -> Self:
        """The density with parameters of at least float32."""
        dtype = torch.promote_types(self.mu.dtype, self.sigma_sq.dtype)
        dtype = torch.promote_types(dtype, torch.float32)
        return replace(self, mu=self.mu.to(dtype), sigma_sq=self.sigma_sq.to(dtype))

    def gaussians(self) -> tuple["Density", Tensor]:
        """For alpha below 1: a mixture of Gaussians `(*shape, count)` with weights `(count,)`."""
        raise NotImplementedError

    def mixed(self, values: Tensor) -> Tensor:
        """Reduce expectations `(*shape, n)` of components to those of mixtures, `(..., n)`."""
        values = values.to(self.mu.dtype)
        if self.weights is None:
            return values
        return (values * self.weights.to(values).unsqueeze(-1)).sum(-2)


@dataclass(frozen=True, eq=False)
class LineDensity(Density):
    """Densities on the line whose score is `-(t - mu)^2 / (2 sigma_sq)`.

    `p = argmax E_p[score] + H_alpha(p)`, with Tsallis' entropy: the Gaussian for alpha 1, and for
    alpha above 1

        p(t) = c/a (1 - ((t - mu) / a)^2)^kappa  on  [mu - a, mu + a],

    `kappa = 1 / (alpha - 1)` and `a = R(alpha) sigma_sq^(1 / (alpha + 1))`: the truncated parabola
    for alpha 2, the biweight for 3/2, the triweight for 4/3. For alpha below 1 tails are heavy,
    those of Student's t with `2 / (1 - alpha) - 1` degrees of freedom:

        p(t) = c/a (1 + ((t - mu) / a)^2)^kappa,  of infinite variance for alpha up to 1/3.

    For alpha 0 this is the Cauchy density of scale `a = 2 pi sigma_sq`. It has neither mean nor
    variance, and `from_moments`, `from_attention` and averages of `t` raise; densities, masses and
    averages of bounded functions exist.

    Args:
        mu: `(...)`, the means; for alpha below 1 the medians.
        sigma_sq: `(...)`, positive; the variance for alpha 1, and grows with it otherwise.
        alpha: at least 0.
        weights: `(..., m)` weights of a mixture; the last dimension of mu and sigma_sq then indexes
            its components.

    Example:
        >>> import torch, fewfold as ff
        >>> p = ff.continuous.LineDensity(torch.tensor([0.4]), torch.tensor([0.05]), alpha=2.0)
        >>> p.half_width, p.pdf(torch.tensor([0.4, 0.9])), p.variance
        (tensor([0.4217]), tensor([1.7784, 0.0000]), tensor([0.0356]))

    Reference: Martins et al., "Sparse continuous distributions and Fenchel-Young losses", 2022.
    """

    dim: ClassVar[int] = 1

    @classmethod
    def from_moments(
        cls, mean: Tensor, variance: Tensor, alpha: float = 2.0, weights: Tensor | None = None
    ) -> Self:
        """Return the density with the given mean and variance, both `(...)`."""
        alpha = checked_alpha(alpha, 1)
        check_positive(variance, "variance")
        if alpha == 1:
            return cls(mean, variance, alpha, weights)
        moments_exist(1, alpha)
        scaled = variance * (spread(1, alpha) / radius(1, alpha) ** 2)
        return cls(mean, scaled ** ((alpha + 1) / 2), alpha, weights)

    @classmethod
    def from_attention(cls, probs: Tensor, positions: Tensor, alpha: float = 2.0) -> Self:
        """Return the density with the moments of discrete attention and variance at least 1e-6.

        Args:
            probs: `(..., L)`.
            positions: broadcasts to `(..., L)`.
        """
        probs = working(probs)
        if joint_shape(probs.shape, positions.shape) is None:
            raise ValueError(
                f"probs and positions must be (..., L), got {tuple(probs.shape)} and "
                f"{tuple(positions.shape)}"
            )
        mean = (probs * positions).sum(-1)
        variance = (probs * (positions - mean.unsqueeze(-1)) ** 2).sum(-1)
        return cls.from_moments(mean, variance + LEAST_VARIANCE, alpha)

    def _check_shapes(self) -> None:
        if joint_shape(self.mu.shape, self.sigma_sq.shape) is None:
            raise ValueError(
                f"mu and sigma_sq must have the same shape, got {tuple(self.mu.shape)} and "
                f"{tuple(self.sigma_sq.shape)}"
            )
        check_positive(self.sigma_sq, "sigma_sq")

    @property
    def shape(self) -> torch.Size:
        return torch.Size(torch.broadcast_shapes(self.mu.shape, self.sigma_sq.shape))

    @property
    def half_width(self) -> Tensor:
        """`(...)` half the width of the support; infinite for alpha up to 1."""
        if self.alpha <= 1:
            return torch.full_like(self.sigma_sq, math.inf)
        return self.unit

    @property
    def unit(self) -> Tensor:
        """`(...)` scale a of the profile."""
        return radius(1, self.alpha) * self.sigma_sq ** (1 / (self.alpha + 1))

    @property
    def variance(self) -> Tensor:
        """`(...)` variance of each component; infinite for alpha up to 1/3."""
        if self.alpha == 1:
            return self.sigma_sq
        return self.unit**2 / spread(1, self.alpha)

    def gaussians(self) -> tuple["LineDensity", Tensor]:
        variances, shares = gaussian_scales(1, self.alpha, self.sigma_sq)
        widths = self.unit.square().unsqueeze(-1) * variances
        return LineDensity(self.mu.unsqueeze(-1), widths, 1.0), shares

    def pdf(self, points: Tensor) -> Tensor:
        """Evaluate the density at points broadcastable with `(...)` without components."""
        points = points if self.weights is None else points.unsqueeze(-1)
        away = points - self.mu
        if self.alpha == 1:
            found = torch.exp(-(away**2) / (2 * self.sigma_sq))
            found = found / (2 * math.pi * self.sigma_sq).sqrt()
        else:
            kappa, unit = exponent(self.alpha), self.unit
            found = normaliser(1, kappa) / unit * profile((away / unit) ** 2, kappa)
        return found if self.weights is None else (found * self.weights).sum(-1)

    def mass(self, low: Tensor, high: Tensor) -> Tensor:
        """Probability of intervals broadcastable with the components `(...)`.

        A polynomial density is integrated exactly, as a sum of positive terms instead of a
        difference of values of the distribution function.
        """
        if self.alpha == 1:
            scale = (2 * self.sigma_sq).sqrt()
            low, high = (low - self.mu) / scale, (high - self.mu) / scale
            flip = low + high < 0  # subtract small tails, not numbers close to one
            low, high = torch.where(flip, -high, low), torch.where(flip, -low, high)
            return (torch.erfc(low) - torch.erfc(high)) / 2
        if self.alpha < 1:
            many, shares = self.gaussians()
            return many.mass(low.unsqueeze(-1), high.unsqueeze(-1)) @ shares
        kappa, half = exponent(self.alpha), self.half_width
        low, high = ((end - self.mu) / half for end in (low, high))
        low, high = low.clamp(-1, 1), high.clamp(-1, 1)
        if is_polynomial(kappa):
            return polynomial_mass(low, high, kappa)
        return graded_masses(low, high, kappa)[1].sum(-1)


def joint_shape(one: torch.Size, other: torch.Size) -> torch.Size | None:
    """Return the broadcast shape, or None if the shapes are incompatible."""
    try:
        return torch.Size(torch.broadcast_shapes(one, other))
    except RuntimeError:
        return None


def working(values: Tensor) -> Tensor:
    """Convert to at least float32, in which small variances are representable."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def moments_exist(dim: int, alpha: float) -> None:
    """Raise unless densities with this alpha have a variance."""
    if not spread(dim, alpha):
        raise ValueError(
            f"alpha must be above {dim / (dim + 2):.4g} for a density of dimension {dim} with a "
            f"variance, got {alpha:g}, whose tails are too heavy; give sigma_sq instead"
        )


def check_finite(values: Tensor, name: str) -> None:
    """Raise unless values are finite and real; finiteness is not checked under transforms."""
    check_scores(values.reshape(-1) if isinstance(values, Tensor) else values, name)
    if untransformed(values) and not bool(values.isfinite().all()):
        invalid = values.detach().flatten()
        raise ValueError(f"{name} must be finite, got {float(invalid[~invalid.isfinite()][0])}")


def check_positive(values: Tensor, name: str) -> None:
    """Raise unless all values are positive; not checked under transforms."""
    if untransformed(values) and not bool((values > 0).all()):
        raise ValueError(
            f"{name} must be positive, got {float(values.detach().min()):g}; write "
            "torch.nn.functional.softplus(raw) + 1e-6"
        )
