"""Hard concrete distributions: concrete variables stretched and projected back to the simplex."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.utils import broadcast_all
from torch.types import _size

from fewfold.distributions.faces.face_distribution import same_size
from fewfold.distributions.faces.geometry import on_simplex
from fewfold.distributions.integrals.panels import panels
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import (
    Finite,
    check_vector,
    finite,
    finite_vector,
    joined,
    positive,
)
from fewfold.distributions.random_draws import Reparameterised, gumbel, logistic
from fewfold.maps import sparsemax

__all__ = ["BinaryHardConcrete", "HardConcrete"]

_EMPTY_SHAPE = torch.Size()
_NEVER = 1e30  # a logit that is never reached
_FAR = 45.0  # the mass beyond 45 logistic scales is negligible
_TAIL = 30.0  # beyond this logit s or 1 - s may underflow


class BinaryHardConcrete(Reparameterised):
    """Relaxed Bernoulli variable that is exactly 0 or 1 with positive probability.

    `y = clip(stretch s - (stretch - 1) / 2, 0, 1)` with
    `s = sigmoid((logistic + logits) / temperature)`.
    A stretch of 1.2 is the usual interval (-0.1, 1.1).

    Args:
        logits: (...) log-odds of 1.
        temperature: positive.
        stretch: at least 1; at 1 there is no mass at 0 and 1.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.distributions.BinaryHardConcrete(torch.tensor(0.5), 0.7, 1.2)
        >>> dist.log_prob(torch.tensor([0.0, 0.4, 1.0])).exp()  # P(0), a density, P(1)
        tensor([0.1017, 0.5256, 0.2353])
        >>> dist.nonzero, dist.mean, dist.entropy()
        (tensor(0.8983), tensor(0.6066), tensor(0.8218))

    Reference: Louizos, Welling and Kingma, "Learning sparse neural networks through L0
    regularization", 2018.
    """

    arg_constraints = {  # noqa: RUF012
        "logits": finite,
        "temperature": positive,
        "stretch": Finite(least=1),
    }
    support = constraints.unit_interval

    def __init__(
        self,
        logits: Tensor | float,
        temperature: Tensor | float,
        stretch: Tensor | float = 1.2,
        *,
        validate_args: bool | None = None,
    ) -> None:
        joined(logits=logits, temperature=temperature, stretch=stretch)
        self.logits, self.temperature, self.stretch = broadcast_all(logits, temperature, stretch)
        super().__init__(self.logits.shape, validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> "BinaryHardConcrete":
        new: BinaryHardConcrete = self._get_checked_instance(BinaryHardConcrete, _instance)
        for name in ("logits", "temperature", "stretch"):
            setattr(new, name, getattr(self, name).expand(batch_shape))
        Distribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = logistic(self._extended_shape(sample_shape), self.logits, generator)
        soft = ((noise + self.logits) / self.temperature).sigmoid()
        sample = (self.stretch * soft - (self.stretch - 1) / 2).clamp(0, 1)
        # without stretch 0 and 1 are rounding artefacts with probability 0
        info = torch.finfo(sample.dtype)
        return torch.where(self.stretch > 1, sample, sample.clamp(info.tiny, 1 - info.eps))

    @property
    def _clip_logit(self) -> Tensor:
        """Logit of s from which y is 1 (and below minus it 0); very large if stretch is 1."""
        stretched = self.stretch > 1
        stretch = torch.where(stretched, self.stretch, 2.0)
        return torch.where(stretched, ((stretch + 1) / (stretch - 1)).log(), _NEVER)

    @property
    def log_zero(self) -> Tensor:
        """(...) log P(y = 0)."""
        log_prob = F.logsigmoid(-self.temperature * self._clip_logit - self.logits)
        return torch.where(self.stretch > 1, log_prob, -math.inf)

    @property
    def log_one(self) -> Tensor:
        """(...) log P(y = 1)."""
        log_prob = F.logsigmoid(self.logits - self.temperature * self._clip_logit)
        return torch.where(self.stretch > 1, log_prob, -math.inf)

    @property
    def nonzero(self) -> Tensor:
        """(...) P(y != 0), the expected L0 norm; differentiable."""
        prob = (self.logits + self.temperature * self._clip_logit.clamp(max=1e4)).sigmoid()
        return torch.where(self.stretch > 1, prob, torch.ones_like(prob))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability at 0 and 1, log density between."""
        if self._validate_args:
            self._validate_sample(value)
        return self._log_prob(value, 1 - value)

    def _log_prob(self, value: Tensor, rest: Tensor) -> Tensor:
        """`log_prob` from y and 1 - y, both given because the smaller may be lost to rounding."""
        inside = (value > 0) & (rest > 0)
        ends = (torch.where(inside, part, 0.5) + (self.stretch - 1) / 2 for part in (value, rest))
        low, high = (part.log() for part in ends)  # logs of stretch * s and stretch * (1 - s)
        density = self._log_density(low - high)
        return torch.where(inside, density, torch.where(value <= 0, self.log_zero, self.log_one))

    def _log_density(self, v: Tensor) -> Tensor:
        """Log density of y in (0, 1), at the logit v of s."""
        a = self.temperature * v - self.logits
        logistic_part = self.temperature.log() + F.logsigmoid(a) + F.logsigmoid(-a)
        return logistic_part - self.stretch.log() - F.logsigmoid(v) - F.logsigmoid(-v)

    def _quadrature(self, *others: "BinaryHardConcrete") -> tuple[Tensor, Tensor, Tensor]:
        """Quadrature nodes y in (0, 1), their logits v, and weights times the density.

        Panels are refined where the densities of this distribution and of `others` change fast.
        """
        centre, scale = self.logits / self.temperature, 1 / self.temperature
        high = torch.minimum(self._clip_logit, centre + _FAR * scale)
        low = torch.maximum(-self._clip_logit, centre - _FAR * scale)
        marks = 2.0 ** torch.arange(-1, 14, device=low.device).to(low)
        marks = torch.cat([-marks.flip(0), marks.new_zeros(1), marks])
        cuts = [(0 * centre).unsqueeze(-1) + marks]
        for dist in (self, *others):
            width = 1 / dist.temperature.unsqueeze(-1)
            cuts.append((dist.logits / dist.temperature).unsqueeze(-1) + marks * width)
        for dist in others:  # steep at other y, and at the ends for a stretch near 1
            cuts[-1] = dist._unsqueezed()._logit_in(self._unsqueezed(), cuts[-1]).detach()
            close = self._clip_logit.detach().unsqueeze(-1) - 4.0 ** -torch.arange(15).to(marks)
            cuts += [close, -close]
        edges = torch.cat(cuts, -1)
        low, high = low.unsqueeze(-1), torch.maximum(low, high).unsqueeze(-1)
        edges = torch.cat([low, edges.maximum(low).minimum(high), high], -1)
        v, weight = panels(edges.sort(-1).values)
        a = self.temperature.unsqueeze(-1) * v - self.logits.unsqueeze(-1)
        weight = weight * self.temperature.unsqueeze(-1) * a.sigmoid() * (-a).sigmoid()
        stretch = self.stretch.unsqueeze(-1)
        return (stretch * v.sigmoid() - (stretch - 1) / 2).clamp(0, 1), v, weight

    def _logit_in(self, other: "BinaryHardConcrete", v: Tensor) -> Tensor:
        """Logit of s under `other` at the y where it is v under this distribution."""
        more = (other.stretch - self.stretch) / 2
        least = ((other.stretch - 1) / 2).detach().clamp(min=torch.finfo(v.dtype).tiny)
        low, high = (
            torch.maximum(self.stretch * part.sigmoid() + more, least).log() for part in (v, -v)
        )
        same = (more.detach() == 0) & (v.detach().abs() > _TAIL)
        return torch.where(same, v, low - high)

    @property
    def mean(self) -> Tensor:
        y, _, weight = self._quadrature()
        return self.log_one.exp() + (weight * y).sum(-1)

    @property
    def variance(self) -> Tensor:
        y, _, weight = self._quadrature()
        return self.log_one.exp() + (weight * y.square()).sum(-1) - self.mean.square()

    def entropy(self) -> Tensor:
        """Entropy of the point masses at 0 and 1 and the density between, in nats."""
        _, v, weight = self._quadrature()
        density = self._unsqueezed()._log_density(v)
        points = _cross(self.log_zero, self.log_zero) + _cross(self.log_one, self.log_one)
        return -points - (weight * density).sum(-1)

    def _unsqueezed(self) -> "BinaryHardConcrete":
        """The same distribution with a last batch dimension of 1, for quadrature nodes."""
        parts = (self.logits, self.temperature, self.stretch)
        return BinaryHardConcrete(*(part.unsqueeze(-1) for part in parts), validate_args=False)


class HardConcrete(Reparameterised):
    """Hard concrete distribution: a concrete variable, stretched and projected to the simplex.

    `y = sparsemax(stretch softmax((scores + gumbel) / temperature))`. For K = 2 the first
    coordinate is `BinaryHardConcrete(scores_1 - scores_2, temperature, stretch)`; for more the
    density has no closed form.

    Args:
        scores: (..., K).
        temperature: (...) positive.
        stretch: (...) at least 1; at 1 this is the concrete distribution.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.HardConcrete(torch.tensor([0.5, 0.0]), 0.7, 1.2)
        >>> dist.log_prob(torch.tensor([1.0, 0.0])).exp()
        tensor(0.2353)

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """

    arg_constraints = {  # noqa: RUF012
        "scores": finite_vector,
        "temperature": positive,
        "stretch": Finite(least=1),
    }
    support = on_simplex

    def __init__(
        self,
        scores: Tensor,
        temperature: Tensor | float,
        stretch: Tensor | float = 1.2,
        *,
        validate_args: bool | None = None,
    ) -> None:
        check_vector(scores, "scores")
        joined(scores=scores[..., 0], temperature=temperature, stretch=stretch)
        _, self.temperature, self.stretch = broadcast_all(scores[..., 0], temperature, stretch)
        batch = self.temperature.shape
        self.scores = scores.expand(*batch, scores.shape[-1])
        super().__init__(batch, scores.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> "HardConcrete":
        new: HardConcrete = self._get_checked_instance(HardConcrete, _instance)
        new.scores = self.scores.expand(*batch_shape, *self.event_shape)
        new.temperature = self.temperature.expand(batch_shape)
        new.stretch = self.stretch.expand(batch_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = gumbel(self._extended_shape(sample_shape), self.scores, generator)
        soft = ((self.scores + noise) / self.temperature.unsqueeze(-1)).softmax(-1)
        stretch = self.stretch.unsqueeze(-1)
        # without stretch zeros are rounding artefacts with probability 0
        inside = soft.clamp(min=torch.finfo(soft.dtype).tiny)
        return torch.where(stretch > 1, sparsemax(stretch * soft), inside)

    def binary(self) -> BinaryHardConcrete:
        """Distribution of the first of two coordinates; for K = 1 a point mass at 1."""
        if self.event_shape[0] == 1:
            logits = torch.full_like(self.temperature, 1e4)
            return BinaryHardConcrete(logits, 1.0, 3.0, validate_args=False)
        if self.event_shape[0] != 2:
            raise NotImplementedError(
                "the density of the hard concrete distribution has no closed form beyond two "
                f"coordinates, got {self.event_shape[0]}; GaussianSparsemax and MixedDirichlet "
                "have one on every face; for moments write p.sample((10_000,)).mean(0)"
            )
        logits = self.scores[..., 0] - self.scores[..., 1]
        return BinaryHardConcrete(logits, self.temperature, self.stretch, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        first = self.binary()
        if self._validate_args:
            self._validate_sample(value)
        rest = value[..., 1] if self.event_shape[0] == 2 else 0 * value[..., 0]
        return first._log_prob(value[..., 0], rest)

    def entropy(self) -> Tensor:
        """Entropy with respect to the direct-sum measure, in nats; for at most two coordinates."""
        return self.binary().entropy()

    @property
    def mean(self) -> Tensor:
        first = self.binary().mean
        return torch.stack([first, 1 - first], -1)[..., : self.event_shape[0]]

    @property
    def variance(self) -> Tensor:
        both = self.binary().variance
        return torch.stack([both, both], -1)[..., : self.event_shape[0]]


@divergence(BinaryHardConcrete, BinaryHardConcrete)
def _kl_binary(p: BinaryHardConcrete, q: BinaryHardConcrete) -> Tensor:
    batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape)
    p, q = p.expand(batch), q.expand(batch)
    _, v, weight = p._quadrature(q)
    p_nodes, q_nodes = p._unsqueezed(), q._unsqueezed()
    log_ratio = p_nodes._log_density(v) - q_nodes._log_density(p_nodes._logit_in(q_nodes, v))
    within = (weight * log_ratio).sum(-1)
    zero = _cross(p.log_zero, p.log_zero) - _cross(p.log_zero, q.log_zero)
    return within + zero + _cross(p.log_one, p.log_one) - _cross(p.log_one, q.log_one)


@divergence(HardConcrete, HardConcrete)
def _kl(p: HardConcrete, q: HardConcrete) -> Tensor:
    same_size(p.event_shape[0], q.event_shape[0])
    return _kl_binary(p.binary(), q.binary())


def _cross(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`p log q` from logarithms, with `0 log q = 0`."""
    return log_p.exp() * torch.where(log_p.detach() > -math.inf, log_q, 0.0)
