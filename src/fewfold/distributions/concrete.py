"""Distributions on the interior of the simplex, without zeros, for comparison."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.distributions.utils import broadcast_all
from torch.types import _size

from fewfold.distributions.faces.face_distribution import same_size
from fewfold.distributions.faces.geometry import on_simplex
from fewfold.distributions.gaussian_sparsemax import log_shifted_normal
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import check_vector, finite_vector, joined, positive
from fewfold.distributions.random_draws import Reparameterised, gumbel, normal

__all__ = ["Concrete", "LogisticNormal"]

_EMPTY_SHAPE = torch.Size()


class Concrete(Reparameterised):
    """Concrete (Gumbel-softmax) distribution: softmax of scores with Gumbel noise.

    `y = softmax((scores + gumbel) / temperature)`, with the density
    `(K - 1)! T^(K - 1) prod_i e^(s_i) y_i^(-T - 1) / (sum_i e^(s_i) y_i^(-T))^K`.

    Args:
        scores: (..., K).
        temperature: (...) positive.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.distributions.Concrete(torch.tensor([0.2, -0.1, 0.4]), 0.7)
        >>> dist.log_prob(torch.tensor([0.5, 0.3, 0.2]))
        tensor(-0.0450)

    Reference: Maddison, Mnih and Teh, "The concrete distribution", 2017.
    """

    arg_constraints = {  # noqa: RUF012
        "scores": finite_vector,
        "temperature": positive,
    }
    support = on_simplex

    def __init__(
        self, scores: Tensor, temperature: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        check_vector(scores, "scores")
        joined(scores=scores[..., 0], temperature=temperature)
        _, self.temperature = broadcast_all(scores[..., 0], temperature)
        self.scores = scores.expand(*self.temperature.shape, scores.shape[-1])
        super().__init__(self.temperature.shape, scores.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> "Concrete":
        new: Concrete = self._get_checked_instance(Concrete, _instance)
        new.scores = self.scores.expand(*batch_shape, *self.event_shape)
        new.temperature = self.temperature.expand(batch_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = gumbel(self._extended_shape(sample_shape), self.scores, generator)
        soft = ((self.scores + noise) / self.temperature.unsqueeze(-1)).softmax(-1)
        return soft.clamp(min=torch.finfo(soft.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        size = self.event_shape[0]
        inside, log_y = _log_inside(value)
        score = self.scores - self.temperature.unsqueeze(-1) * log_y
        normaliser = torch.lgamma(self.temperature.new_tensor(float(size)))
        normaliser = normaliser + (size - 1) * self.temperature.log()
        logs = normaliser + (score - log_y).sum(-1) - size * score.logsumexp(-1)
        return torch.where(inside, logs, -math.inf)


class LogisticNormal(Reparameterised):
    """Logistic-normal distribution: softmax of independent Gaussian scores.

    `y = softmax(x)`, `x ~ N(loc, diag(scale^2))`, with the density
    `int prod_i N(log y_i + t; loc_i, scale_i^2) dt / prod_i y_i`.

    Args:
        loc: (..., K).
        scale: (..., K) positive.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.distributions import LogisticNormal
        >>> LogisticNormal(torch.zeros(3), torch.ones(3)).log_prob(torch.tensor([0.5, 0.3, 0.2]))
        tensor(0.9086)

    Reference: Aitchison and Shen, "Logistic-normal distributions", 1980.
    """

    arg_constraints = {"loc": finite_vector, "scale": positive}  # noqa: RUF012
    support = on_simplex

    def __init__(
        self, loc: Tensor, scale: Tensor | float, *, validate_args: bool | None = None
    ) -> None:
        check_vector(loc, "loc")
        joined(loc=loc, scale=scale)
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape[:-1], self.loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> "LogisticNormal":
        new: LogisticNormal = self._get_checked_instance(LogisticNormal, _instance)
        new.loc = self.loc.expand(*batch_shape, *self.event_shape)
        new.scale = self.scale.expand(*batch_shape, *self.event_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = normal(self._extended_shape(sample_shape), self.loc, generator)
        soft = torch.addcmul(self.loc, self.scale, noise).softmax(-1)
        return soft.clamp(min=torch.finfo(soft.dtype).tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        inside, log_y = _log_inside(value)
        everywhere = torch.ones_like(log_y, dtype=torch.bool)
        density, _, _ = log_shifted_normal(log_y - self.loc, self.scale, everywhere)
        return torch.where(inside, density - log_y.sum(-1), -math.inf)


def _log_inside(value: Tensor) -> tuple[Tensor, Tensor]:
    """Mask of the points inside the simplex, and their logarithms (0 at other points)."""
    inside = (value.detach() > 0).all(-1)
    return inside, torch.where(inside.unsqueeze(-1), value, 1.0).log()


@divergence(LogisticNormal, LogisticNormal)
def _kl(p: LogisticNormal, q: LogisticNormal) -> Tensor:
    """KL divergence of the Gaussian score differences, which softmax maps one to one."""
    same_size(p.event_shape[0], q.event_shape[0])
    if p.event_shape[0] == 1:  # both distributions are a point mass at 1
        return 0 * (p.loc + q.loc).squeeze(-1)
    normals = []
    for dist in (p, q):
        first = dist.scale[..., :1].square()
        matrix = torch.diag_embed(dist.scale[..., 1:].square()) + first.unsqueeze(-1)
        mean = dist.loc[..., 1:] - dist.loc[..., :1]
        normals.append(torch.distributions.MultivariateNormal(mean, matrix))
    return torch.distributions.kl_divergence(*normals)
