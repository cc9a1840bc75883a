"""Distributions of faces given by their size, or by the probability of each face."""

import torch
from torch import Tensor
from torch.types import _size

from fewfold._check import check_scores, whole_number
from fewfold._random import rand
from fewfold.distributions.faces.face_distribution import (
    FaceDistribution,
    expected,
    log_of,
    same_size,
)
from fewfold.distributions.faces.geometry import all_faces, face_index, probabilities
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import check_vector, some_finite
from fewfold.distributions.random_draws import gumbel

__all__ = ["FacesBySize", "ListedFaces", "uniform_faces"]

_EMPTY_SHAPE = torch.Size()


class FacesBySize(FaceDistribution):
    """Distribution of faces that depends only on the number of corners.

    `P(f) = exp(w_|f|) / Z` with `Z = sum_k C(K, k) exp(w_k)`.

    Args:
        log_weights: (..., K) log weights w of faces with 1, ..., K corners.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.FacesBySize(torch.zeros(3)).sizes()
        tensor([0.4286, 0.4286, 0.1429])
    """

    arg_constraints = {"log_weights": some_finite}  # noqa: RUF012
    log_weights: Tensor

    def __init__(self, log_weights: Tensor, *, validate_args: bool | None = None) -> None:
        check_vector(log_weights, "log_weights")
        size = log_weights.shape[-1]
        super().__init__(
            log_weights, size, validate_args=validate_args, name="log_weights", size=size
        )

    @classmethod
    def of_sizes(cls, log_sizes: Tensor, *, validate_args: bool | None = None) -> "FacesBySize":
        """Return the distribution with these log-probabilities (..., K) of 1, ..., K corners.

        They need not be normalised; faces of the same size are equally likely.

        Example:
            >>> import torch, fewfold as ff
            >>> ff.distributions.FacesBySize.of_sizes(torch.zeros(3)).sizes()
            tensor([0.3333, 0.3333, 0.3333])
        """
        check_vector(log_sizes, "log_sizes")
        return cls(log_sizes - _log_choose(log_sizes), validate_args=validate_args)

    @property
    def _log_sizes(self) -> Tensor:
        return _log_choose(self.log_weights) + self.log_weights

    @property
    def log_normaliser(self) -> Tensor:
        """(...) log Z."""
        return self._log_sizes.logsumexp(-1)

    def sizes(self) -> Tensor:
        """(..., K) the probabilities of 1, ..., K corners."""
        return self._log_sizes.softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        corners = self._to_bool(value).sum(-1)
        batch = torch.broadcast_shapes(corners.shape, self.batch_shape)
        weights = self.log_weights.expand(*batch, self.size)
        at = (corners.expand(batch) - 1).clamp(min=0).unsqueeze(-1)
        return weights.gather(-1, at).squeeze(-1) - self.log_normaliser

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample the number of corners, then a uniform set of that size."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            corners = (self._log_sizes + gumbel(shape, self.log_weights, generator)).argmax(-1) + 1
            keys = rand(shape, corners.device, dtype=torch.float64, generator=generator)
            return keys.argsort(-1).argsort(-1) < corners.unsqueeze(-1)

    def entropy(self) -> Tensor:
        return self.log_normaliser - expected(self._log_sizes.log_softmax(-1), self.log_weights)

    def marginals(self) -> Tensor:
        corners = torch.arange(1, self.size + 1, device=self.log_weights.device)
        share = (self.sizes() * corners).sum(-1, keepdim=True) / self.size
        return share.expand(*self.batch_shape, self.size)

    @property
    def mode(self) -> Tensor:
        """The first of the most likely faces."""
        best = self.log_weights.argmax(-1, keepdim=True)
        return torch.arange(self.size, device=best.device) <= best


class ListedFaces(FaceDistribution):
    """Distribution of faces given by the probability of each.

    Args:
        probs: (..., 2^K - 1) in the order of `all_faces`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.ListedFaces(torch.tensor([15.0, 8.0, 1.0]) / 24).mode
        tensor([ True, False])
    """

    arg_constraints = {"probs": probabilities}  # noqa: RUF012
    probs: Tensor

    def __init__(self, probs: Tensor, *, validate_args: bool | None = None) -> None:
        check_scores(probs, "probs")
        count = probs.shape[-1]
        size = (count + 1).bit_length() - 1
        if count < 1 or 2**size - 1 != count:
            raise ValueError(
                f"probs must have 2^K - 1 entries, one for each face, got {count}; "
                "all_faces(K) lists them"
            )
        super().__init__(probs, count, validate_args=validate_args, name="probs", size=size)

    def every(self) -> Tensor:
        return log_of(self.probs)

    def log_prob(self, value: Tensor) -> Tensor:
        at = face_index(self._to_bool(value))
        batch = torch.broadcast_shapes(at.shape, self.batch_shape)
        probs = self.probs.expand(*batch, self.probs.shape[-1])
        return log_of(probs.gather(-1, at.expand(batch).unsqueeze(-1)).squeeze(-1))

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        shape = (*sample_shape, *self.probs.shape)
        with torch.no_grad():
            index = (self.probs.log() + gumbel(shape, self.probs, generator)).argmax(-1)
            return all_faces(self.size, index.device)[index]

    @property
    def mode(self) -> Tensor:
        return all_faces(self.size, self.probs.device)[self.probs.argmax(-1)]


def uniform_faces(size: int, *, device: torch.device | str | None = None) -> FacesBySize:
    """Uniform distribution over the faces of a simplex with `size` corners.

    Example:
        >>> import fewfold as ff
        >>> ff.distributions.uniform_faces(3).entropy().exp()
        tensor(7.0000)
    """
    return FacesBySize(torch.zeros(whole_number(size, "size"), device=device))


def _log_choose(like: Tensor) -> Tensor:
    """(K,) log binomial coefficients: the number of faces with 1, ..., K corners."""
    whole = like.new_tensor(like.shape[-1] + 1.0)
    corners = torch.arange(1, like.shape[-1] + 1, device=like.device).to(like)
    return whole.lgamma() - (corners + 1).lgamma() - (whole - corners).lgamma()


@divergence(FacesBySize, FacesBySize)
def _kl_sizes(p: FacesBySize, q: FacesBySize) -> Tensor:
    same_size(p.size, q.size)
    log_p, log_q = p._log_sizes.log_softmax(-1), q._log_sizes.log_softmax(-1)
    return expected(log_p, log_p) - expected(log_p, log_q)
