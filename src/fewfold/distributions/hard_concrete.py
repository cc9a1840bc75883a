"""Hard concrete distributions: a relaxed choice, stretched beyond the simplex and cut back."""

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

_NOTHING = torch.Size()
_NEVER = 1e30  # a logit
_FAR = 45.0  # logistic scales beyond which nothing is left
_TAIL = 30.0  # a logit beyond which s or 1 - s need not be a number


class BinaryHardConcrete(Reparameterised):
    """A relaxed bit that is exactly 0 or 1 with positive probability.

    `s = sigmoid((logistic + logits) / temperature)`, `y = clip(stretch s - (stretch - 1) / 2)`
    to between 0 and 1. A stretch of 1.2 is the usual interval (-0.1, 1.1).

    Args:
        logits: (...) of the bit.
        temperature: positive.
        stretch: at least 1; at 1 there is no mass at 0 and 1.

    Example:
        >>> import torch, fewfold as ff
        >>> law = ff.distributions.BinaryHardConcrete(torch.tensor(0.5), 0.7, 1.2)
        >>> law.log_prob(torch.tensor([0.0, 0.4, 1.0])).exp()  # P(0), a density, P(1)
        tensor([0.1017, 0.5256, 0.2353])
        >>> law.nonzero, law.mean, law.entropy()
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
        self, sample_shape: _size = _NOTHING, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = logistic(self._extended_shape(sample_shape), self.logits, generator)
        soft = ((noise + self.logits) / self.temperature).sigmoid()
        drawn = (self.stretch * soft - (self.stretch - 1) / 2).clamp(0, 1)
        # without a stretch 0 and 1 come of rounding only, and have no density
        info = torch.finfo(drawn.dtype)
        return torch.where(self.stretch > 1, drawn, drawn.clamp(info.tiny, 1 - info.eps))

    @property
    def _end(self) -> Tensor:
        """The logit of s at which y becomes 1; minus it, y becomes 0. Huge without a stretch."""
        some = self.stretch > 1
        stretch = torch.where(some, self.stretch, 2.0)
        return torch.where(some, ((stretch + 1) / (stretch - 1)).log(), _NEVER)

    @property
    def log_zero(self) -> Tensor:
        """(...) log P(y = 0)."""
        found = F.logsigmoid(-self.temperature * self._end - self.logits)
        return torch.where(self.stretch > 1, found, -math.inf)

    @property
    def log_one(self) -> Tensor:
        """(...) log P(y = 1)."""
        found = F.logsigmoid(self.logits - self.temperature * self._end)
        return torch.where(self.stretch > 1, found, -math.inf)

    @property
    def nonzero(self) -> Tensor:
        """(...) P(y != 0), the expected L0 norm; differentiable."""
        found = (self.logits + self.temperature * self._end.clamp(max=1e4)).sigmoid()
        return torch.where(self.stretch > 1, found, torch.ones_like(found))

    def log_prob(self, value: Tensor) -> Tensor:
        """Of the points at 0 and 1, and of the density between."""
        if self._validate_args:
            self._validate_sample(value)
        return self._log_prob(value, 1 - value)

    def _log_prob(self, value: Tensor, rest: Tensor) -> Tensor:
        """At y and 1 - y, of which the smaller may be less than the rounding of the other."""
        inside = (value > 0) & (rest > 0)
        ends = (torch.where(inside, part, 0.5) + (self.stretch - 1) / 2 for part in (value, rest))
        low, high = (part.log() for part in ends)  # of stretch times s, and times 1 - s
        density = self._log_density(low - high)
        return torch.where(inside, density, torch.where(value <= 0, self.log_zero, self.log_one))

    def _log_density(self, v: Tensor) -> Tensor:
        """Of y between 0 and 1, at the logit v of s."""
        a = self.temperature * v - self.logits
        logistic_part = self.temperature.log() + F.logsigmoid(a) + F.logsigmoid(-a)
        return logistic_part - self.stretch.log() - F.logsigmoid(v) - F.logsigmoid(-v)

    def _inside(self, *others: "BinaryHardConcrete") -> tuple[Tensor, Tensor, Tensor]:
        """Points y between 0 and 1, their logits v, and weights that contain the density."""
        centre, scale = self.logits / self.temperature, 1 / self.temperature
        high = torch.minimum(self._end, centre + _FAR * scale)
        low = torch.maximum(-self._end, centre - _FAR * scale)
        marks = 2.0 ** torch.arange(-1, 14, device=low.device).to(low)
        marks = torch.cat([-marks.flip(0), marks.new_zeros(1), marks])
        cuts = [(0 * centre).unsqueeze(-1) + marks]
        for law in (self, *others):
            width = 1 / law.temperature.unsqueeze(-1)
            cuts.append((law.logits / law.temperature).unsqueeze(-1) + marks * width)
        for law in others:  # which change elsewhere, and if hardly stretched fast at the ends
            cuts[-1] = law._unsqueezed()._logit_in(self._unsqueezed(), cuts[-1]).detach()
            close = self._end.detach().unsqueeze(-1) - 4.0 ** -torch.arange(15).to(marks)
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
        """The logit of s in another law at the y where it is v in this."""
        more = (other.stretch - self.stretch) / 2
        least = ((other.stretch - 1) / 2).detach().clamp(min=torch.finfo(v.dtype).tiny)
        low, high = (
            torch.maximum(self.stretch * part.sigmoid() + more, least).log() for part in (v, -v)
        )
        same = (more.detach() == 0) & (v.detach().abs() > _TAIL)
        return torch.where(same, v, low - high)

    @property
    def mean(self) -> Tensor:
        y, _, weight = self._inside()
        return self.log_one.exp() + (weight * y).sum(-1)

    @property
    def variance(self) -> Tensor:
        y, _, weight = self._inside()
        return self.log_one.exp() + (weight * y.square()).sum(-1) - self.mean.square()

    def entropy(self) -> Tensor:
        """Of the two points and the density between, in nats."""
        _, v, weight = self._inside()
        density = self._unsqueezed()._log_density(v)
        points = _cross(self.log_zero, self.log_zero) + _cross(self.log_one, self.log_one)
        return -points - (weight * density).sum(-1)

    def _unsqueezed(self) -> "BinaryHardConcrete":
        parts = (self.logits, self.temperature, self.stretch)
        return BinaryHardConcrete(*(part.unsqueeze(-1) for part in parts), validate_args=False)


class HardConcrete(Reparameterised):
    """A relaxed choice among K, stretched and projected back: often on a face of the simplex.

    `y = sparsemax(stretch softmax((scores + gumbel) / temperature))`. For K = 2 the first
    coordinate is `BinaryHardConcrete(scores_1 - scores_2, temperature, stretch)`; for more the
    density has no closed form.

    Args:
        scores: (..., K).
        temperature: (...) positive.
        stretch: (...) at least 1; at 1 this is the concrete distribution.

    Example:
        >>> import torch, fewfold as ff
        >>> law = ff.HardConcrete(torch.tensor([0.5, 0.0]), 0.7, 1.2)
        >>> law.log_prob(torch.tensor([1.0, 0.0])).exp()
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
        self, sample_shape: _size = _NOTHING, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = gumbel(self._extended_shape(sample_shape), self.scores, generator)
        soft = ((self.scores + noise) / self.temperature.unsqueeze(-1)).softmax(-1)
        stretch = self.stretch.unsqueeze(-1)
        # without a stretch zeros come of rounding only, and have no density
        inside = soft.clamp(min=torch.finfo(soft.dtype).tiny)
        return torch.where(stretch > 1, sparsemax(stretch * soft), inside)

    def binary(self) -> BinaryHardConcrete:
        """The first of two coordinates."""
        if self.event_shape[0] == 1:  # which is 1
            sure = torch.full_like(self.temperature, 1e4)
            return BinaryHardConcrete(sure, 1.0, 3.0, validate_args=False)
        if self.event_shape[0] != 2:
            raise NotImplementedError(
                "the density of the hard concrete distribution has no closed form beyond two "
                f"coordinates, got {self.event_shape[0]}; GaussianSparsemax and MixedDirichlet "
                "have one on every face; for moments write law.sample((10_000,)).mean(0)"
            )
        logits = self.scores[..., 0] - self.scores[..., 1]
        return BinaryHardConcrete(logits, self.temperature, self.stretch, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        law = self.binary()
        if self._validate_args:
            self._validate_sample(value)
        rest = value[..., 1] if self.event_shape[0] == 2 else 0 * value[..., 0]
        return law._log_prob(value[..., 0], rest)

    def entropy(self) -> Tensor:
        """With respect to the direct-sum measure, in nats, for two coordinates."""
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
    _, v, weight = p._inside(q)
    ours, theirs = p._unsqueezed(), q._unsqueezed()
    apart = ours._log_density(v) - theirs._log_density(ours._logit_in(theirs, v))
    within = (weight * apart).sum(-1)
    zero = _cross(p.log_zero, p.log_zero) - _cross(p.log_zero, q.log_zero)
    return within + zero + _cross(p.log_one, p.log_one) - _cross(p.log_one, q.log_one)


@divergence(HardConcrete, HardConcrete)
def _kl(p: HardConcrete, q: HardConcrete) -> Tensor:
    same_size(p.event_shape[0], q.event_shape[0])
    return _kl_binary(p.binary(), q.binary())


def _cross(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`p log q`, where 0 times anything is 0."""
    return log_p.exp() * torch.where(log_p.detach() > -math.inf, log_q, 0.0)
