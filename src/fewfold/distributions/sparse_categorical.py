"""A categorical distribution with exact zeros."""

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size

from fewfold._random import multinomial
from fewfold.distributions.faces.face_distribution import log_of
from fewfold.distributions.faces.geometry import probabilities
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import check_vector, some_finite
from fewfold.maps import Omega

__all__ = ["SparseCategorical"]

_EMPTY_SHAPE = torch.Size()


class SparseCategorical(Distribution):
    """Categorical distribution whose probabilities are a sparse map of scores.

    `p = omega.argmax(scores)`; outcomes outside the support have probability exactly 0.

    Args:
        omega: the regulariser whose map gives the probabilities, such as `Gini()` for sparsemax.
        scores: (..., K).

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.distributions.SparseCategorical(ff.Gini(), torch.tensor([-2.0, 0.0, 0.5]))
        >>> dist.log_prob(torch.arange(3)), dist.entropy()
        (tensor([   -inf, -1.3863, -0.2877]), tensor(0.5623))
    """

    arg_constraints = {"scores": some_finite, "probs": probabilities}  # noqa: RUF012
    has_enumerate_support = True

    def __init__(self, omega: Omega, scores: Tensor, *, validate_args: bool | None = None) -> None:
        check_vector(scores, "scores")
        if not hasattr(omega, "argmax"):
            raise TypeError(
                f"omega must be a regulariser with an argmax, got {type(omega).__name__}; "
                "write Gini() for sparsemax"
            )
        self.omega, self.scores = omega, scores
        self.probs = omega.argmax(scores)
        super().__init__(scores.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=0)
    def support(self) -> constraints.Constraint:
        """Ids from 0 to K - 1; `face` marks those with positive probability."""
        return constraints.integer_interval(0, self.probs.shape[-1] - 1)

    @property
    def face(self) -> Tensor:
        """(..., K) boolean: the outcomes with positive probability."""
        return self.probs.detach() > 0

    def expand(self, batch_shape: _size, _instance: Any = None) -> "SparseCategorical":
        new: SparseCategorical = self._get_checked_instance(SparseCategorical, _instance)
        size = self.probs.shape[-1]
        new.omega = self.omega
        new.scores = self.scores.expand(*batch_shape, size)
        new.probs = self.probs.expand(*batch_shape, size)
        Distribution.__init__(new, torch.Size(batch_shape), validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape)` int64 ids."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            if shape.numel() == 0:
                return torch.empty(shape, dtype=torch.int64, device=self.probs.device)
            rows = self.probs.reshape(-1, self.probs.shape[-1])
            count = torch.Size(sample_shape).numel()
            samples = multinomial(rows, count, replacement=True, generator=generator)
            return samples.T.reshape(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        probs = self.probs.expand(*shape, self.probs.shape[-1])
        picked = probs.gather(-1, value.long().expand(shape).unsqueeze(-1)).squeeze(-1)
        return log_of(picked)

    def entropy(self) -> Tensor:
        """Shannon entropy in nats."""
        return -(self.probs * log_of(self.probs, 0.0)).sum(-1)

    @property
    def mode(self) -> Tensor:
        return self.probs.argmax(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """`(K, *batch_shape)`: all ids, including those with probability 0."""
        values = torch.arange(self.probs.shape[-1], device=self.probs.device)
        values = values.view(-1, *(1,) * len(self.batch_shape))
        return values.expand(-1, *self.batch_shape) if expand else values


@divergence(SparseCategorical, SparseCategorical)
def _kl(p: SparseCategorical, q: SparseCategorical) -> Tensor:
    """Infinite where q gives probability 0 to an outcome that p does not."""
    log_q = torch.where(p.face, log_of(q.probs), 0.0)
    return (p.probs * (log_of(p.probs, 0.0) - log_q)).sum(-1)
