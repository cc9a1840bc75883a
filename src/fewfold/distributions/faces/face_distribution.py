"""Base class of distributions of faces: random non-empty sets of coordinates."""

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.types import _size

from fewfold.distributions.faces.geometry import MOST, all_faces, nonempty_bits
from fewfold.distributions.kl_registration import divergence

__all__ = ["FaceDistribution", "expected", "log_of", "same_size"]

_EMPTY_SHAPE = torch.Size()


class FaceDistribution(Distribution):
    """Distribution of non-empty boolean vectors; `parameter` is the name of its only tensor."""

    support = nonempty_bits
    parameter: str
    size: int

    def __init__(
        self, tensor: Tensor, width: int, *, validate_args: bool | None, name: str, size: int
    ) -> None:
        setattr(self, name, tensor)
        self.size, self.parameter = size, name
        self._width = width
        batch = tensor.shape[:-1]
        super().__init__(batch, torch.Size([size]), validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        new: Self = self._get_checked_instance(type(self), _instance)
        tensor = getattr(self, self.parameter).expand(*batch_shape, self._width)
        names = {"name": self.parameter, "size": self.size}
        FaceDistribution.__init__(new, tensor, self._width, validate_args=False, **names)  # type: ignore[arg-type]
        new._validate_args = self._validate_args
        return new

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, K)` boolean samples."""
        raise NotImplementedError

    def every(self) -> Tensor:
        """(..., 2^K - 1) log-probabilities, in the order of `all_faces`."""
        tensor: Tensor = getattr(self, self.parameter)
        if self.size > MOST:
            raise NotImplementedError(
                f"this enumerates all 2^K - 1 faces, for K up to {MOST}, got {self.size}; write "
                "direct_sum_entropy(p, samples=10_000) or direct_sum_kl(p, q, samples=10_000), "
                "and for a mean write p.sample((10_000,)).mean(0)"
            )
        faces = all_faces(self.size, tensor.device)
        spread = faces.view(len(faces), *(1,) * len(self.batch_shape), self.size)
        return self.log_prob(spread).movedim(0, -1)

    def entropy(self) -> Tensor:
        return -expected(self.every(), self.every())

    def marginals(self) -> Tensor:
        """(..., K) probability that each coordinate is in the face."""
        probs = self.every().exp()
        return probs @ all_faces(self.size, probs.device).to(probs)

    @property
    def mean(self) -> Tensor:
        return self.marginals()

    def _to_bool(self, value: Tensor) -> Tensor:
        """Validate a sample and convert it to bool."""
        if self._validate_args:
            self._validate_sample(value)
        return value.bool()


@divergence(FaceDistribution, FaceDistribution)
def _kl_faces(p: FaceDistribution, q: FaceDistribution) -> Tensor:
    same_size(p.size, q.size)
    log_p = p.every()
    return expected(log_p, log_p) - expected(log_p, q.every())


def same_size(ours: int, theirs: int) -> None:
    """Raise unless two distributions have the same number of coordinates."""
    if ours != theirs:
        raise ValueError(
            f"p and q must have the same number of coordinates, got {ours} and {theirs}"
        )


def expected(log_probs: Tensor, values: Tensor) -> Tensor:
    """Expectation `sum exp(log_probs) values`; values of probability 0 are ignored."""
    used = log_probs.detach() > -math.inf
    return (log_probs.exp() * torch.where(used, values, 0.0)).sum(-1)


def log_of(probs: Tensor, at_zero: float = -math.inf) -> Tensor:
    """Logarithm of probabilities, with a constant (without gradient) where they are 0."""
    on = probs.detach() > 0
    return torch.where(on, torch.where(on, probs, 1.0).log(), at_zero)
