"""What every distribution of this room shares: draws that take a generator, and their noise."""

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.types import _size

__all__ = ["Reparameterised", "gumbel", "logistic", "normal"]

_NOTHING = torch.Size()


class Reparameterised(Distribution):
    """A distribution whose draws are differentiable functions of its parameters."""

    has_rsample = True

    def rsample(
        self, sample_shape: _size = _NOTHING, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, *event_shape)` draws that carry gradients."""
        raise NotImplementedError

    def sample(
        self, sample_shape: _size = _NOTHING, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, *event_shape)` draws."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    @property
    def mean(self) -> Tensor:
        raise self._unknown("mean", "law.sample((10_000,)).mean(0)")

    @property
    def variance(self) -> Tensor:
        raise self._unknown("variance", "law.sample((10_000,)).var(0)")

    def entropy(self) -> Tensor:
        raise self._unknown("entropy", "direct_sum_entropy(law)")

    def _unknown(self, name: str, instead: str) -> NotImplementedError:
        return NotImplementedError(
            f"the {name} of {type(self).__name__} has no closed form; write {instead}"
        )


def normal(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal noise."""
    return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)


def gumbel(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Gumbel noise: minus the logarithm of an exponential."""
    drawn = torch.empty(shape, dtype=like.dtype, device=like.device)
    drawn.exponential_(generator=generator)
    return drawn.clamp_(min=torch.finfo(like.dtype).tiny).log_().neg_()


def logistic(shape: _size, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Logistic noise: the logit of a uniform draw."""
    point = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
    return point.logit_(eps=torch.finfo(like.dtype).eps)
