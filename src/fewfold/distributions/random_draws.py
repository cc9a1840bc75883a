"""Base class of reparameterised distributions whose sampling takes a generator; noise samplers."""

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.types import _size

from fewfold._random import exponential, rand, randn

__all__ = ["Reparameterised", "gumbel", "logistic", "normal"]

_EMPTY_SHAPE = torch.Size()


class Reparameterised(Distribution):
    """A distribution whose samples are differentiable functions of its parameters."""

    has_rsample = True

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, *event_shape)` samples, differentiable in parameters."""
        raise NotImplementedError

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, *event_shape)` samples, without gradient."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    @property
    def mean(self) -> Tensor:
        raise self._unknown("mean", "p.sample((10_000,)).mean(0)")

    @property
    def variance(self) -> Tensor:
        raise self._unknown("variance", "p.sample((10_000,)).var(0)")

    def entropy(self) -> Tensor:
        raise self._unknown("entropy", "direct_sum_entropy(p)")

    def _unknown(self, name: str, instead: str) -> NotImplementedError:
        return NotImplementedError(
            f"the {name} of {type(self).__name__} has no closed form; write {instead}"
        )


def normal(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample standard normal noise with the dtype and device of `like`."""
    return randn(shape, like.device, dtype=like.dtype, generator=generator)


def gumbel(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample Gumbel noise: minus the logarithm of an exponential variable."""
    noise = exponential(shape, like.device, dtype=like.dtype, generator=generator)
    return noise.clamp_(min=torch.finfo(like.dtype).tiny).log_().neg_()


def logistic(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Sample logistic noise: the logit of a uniform variable."""
    point = rand(shape, like.device, dtype=like.dtype, generator=generator)
    return point.logit_(eps=torch.finfo(like.dtype).eps)
