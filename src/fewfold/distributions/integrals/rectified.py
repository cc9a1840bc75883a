"""Gaussian clipped to [0, 1]: closed forms of the two-coordinate Gaussian-sparsemax."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.panels import gauss_legendre

__all__ = ["Rectified"]


@dataclass(frozen=True, eq=False)
class Rectified:
    """`clip(x, 0, 1)` of a Gaussian x: point masses at 0 and 1, and a density between.

    Attributes:
        loc: (...) mean of x.
        scale: (...) its standard deviation.

    Example:
        >>> import torch
        >>> Rectified(torch.tensor(0.3), torch.tensor(0.5)).entropy()
        tensor(0.8214)
    """

    loc: Tensor
    scale: Tensor

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The standardised values of 0 and 1."""
        return -self.loc / self.scale, (1 - self.loc) / self.scale

    @property
    def log_zero(self) -> Tensor:
        """Log-probability of 0."""
        return log_ndtr(self.ends[0])

    @property
    def log_one(self) -> Tensor:
        """Log-probability of 1."""
        return log_ndtr(-self.ends[1])

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """`int u^k phi(u) du` between the ends, for k = 0, 1, 2."""
        low, high = self.ends
        flip = low.detach() > 0  # subtract small probabilities, not two close to 1
        near, far = torch.where(flip, -high, low), torch.where(flip, -low, high)
        mass = torch.special.ndtr(far) - torch.special.ndtr(near)
        at_low, at_high = _density(low), _density(high)
        return mass, at_low - at_high, mass + low * at_low - high * at_high

    @property
    def mean(self) -> Tensor:
        mass, first, _ = self.moments()
        closed = self.log_one.exp() + self.loc * mass + self.scale * first
        # int_0^1 P(x > y) dy
        points, weights = (part.to(self.loc) for part in gauss_legendre(16))
        scale = torch.where(self._wide, self.scale, 1.0).unsqueeze(-1)
        above = torch.special.ndtr((self.loc.unsqueeze(-1) - (1 + points) / 2) / scale)
        return torch.where(self._wide, (weights / 2 * above).sum(-1), closed)

    @property
    def variance(self) -> Tensor:
        mean, zero, one = self.mean, self.log_zero.exp(), self.log_one.exp()
        ends = zero * mean.square() + one * (1 - mean).square()
        return ends + torch.where(self._wide, self._by_points(mean), self._by_moments(mean))

    @property
    def _wide(self) -> Tensor:
        """Where the closed form suffers from cancellation."""
        return self.scale.detach() > 0.5

    def _by_moments(self, mean: Tensor) -> Tensor:
        """`E[(x - mean)^2; 0 < x < 1]` in closed form."""
        mass, first, second = self.moments()
        difference = self.loc - mean
        square = self.scale.square() * second + 2 * difference * self.scale * first
        return square + difference.square() * mass

    def _by_points(self, mean: Tensor) -> Tensor:
        """The same by quadrature, accurate because a wide Gaussian is smooth on [0, 1]."""
        points, weights = (part.to(self.loc) for part in gauss_legendre(16))
        y = (1 + points) / 2
        scale = torch.where(self._wide, self.scale, 1.0).unsqueeze(-1)
        density = _density((y - self.loc.unsqueeze(-1)) / scale) / scale
        return (weights / 2 * density * (y - mean.unsqueeze(-1)).square()).sum(-1)

    def entropy(self) -> Tensor:
        """Entropy of the point masses and the density between, in nats."""
        mass, _, second = self.moments()
        points = sum(log.exp() * log for log in (self.log_zero, self.log_one))
        return mass * (math.sqrt(2 * math.pi) * self.scale).log() + second / 2 - points

    def kl(self, other: "Rectified") -> Tensor:
        """KL divergence from another clipped Gaussian."""
        mass, first, second = self.moments()
        logs_p, logs_q = (self.log_zero, self.log_one), (other.log_zero, other.log_one)
        points = sum(a.exp() * (a - b) for a, b in zip(logs_p, logs_q, strict=True))
        ratio, difference = self.scale / other.scale, (self.loc - other.loc) / other.scale
        square = (
            ratio.square() * second + 2 * ratio * difference * first + difference.square() * mass
        )
        return points - mass * ratio.log() + (square - second) / 2


def _density(u: Tensor) -> Tensor:
    return (-u.square() / 2).exp() / math.sqrt(2 * math.pi)
