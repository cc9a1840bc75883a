"""Distribution of independent bits conditioned on at least one being on."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.types import _size

from fewfold._random import rand
from fewfold.distributions.faces.face_distribution import FaceDistribution, expected, same_size
from fewfold.distributions.faces.faces_by_size import FacesBySize
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import check_vector, finite_vector
from fewfold.distributions.random_draws import gumbel

__all__ = ["GibbsFaces"]

_EMPTY_SHAPE = torch.Size()


class GibbsFaces(FaceDistribution):
    """Independent bits, conditioned on at least one being on.

    `P(f) = exp(sum_k w_k (2 f_k - 1)) / Z` over non-empty f, with
    `Z = prod_k 2 cosh(w_k) - exp(-sum_k w_k)`.

    Args:
        scores: (..., K) the scores w.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.distributions.GibbsFaces(torch.tensor([0.5, -0.3, 0.1]))
        >>> dist.marginals(), dist.entropy(), dist.mode
        (tensor([0.7931, 0.3844, 0.5965]), tensor(1.7858), tensor([ True, False,  True]))

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """

    arg_constraints = {"scores": finite_vector}  # noqa: RUF012
    scores: Tensor

    def __init__(self, scores: Tensor, *, validate_args: bool | None = None) -> None:
        check_vector(scores, "scores")
        size = scores.shape[-1]
        super().__init__(scores, size, validate_args=validate_args, name="scores", size=size)

    @property
    def _log_on(self) -> Tensor:
        """(..., K) log-probabilities that independent bits are on."""
        return F.logsigmoid(2 * self.scores)

    @property
    def _log_off(self) -> Tensor:
        """(..., K) log-probabilities that independent bits are off."""
        return F.logsigmoid(-2 * self.scores)

    @property
    def _log_any_on(self) -> Tensor:
        """(...) log-probability that at least one independent bit is on.

        If it is small, computed as a sum over the first bit that is on, without cancellation.
        """
        none = self._log_off.sum(-1)
        first = (self._log_off_before + self._log_on).logsumexp(-1)
        often = torch.log1p(-torch.where(self._mostly_off, -1.0, none).exp())
        return torch.where(self._mostly_off, first, often)

    @property
    def _mostly_off(self) -> Tensor:
        """(...) whether independent bits are all off with probability above 1/2."""
        return self._log_off.detach().sum(-1) > -math.log(2)

    @property
    def _log_off_before(self) -> Tensor:
        """(..., K) log-probabilities that all preceding bits are off."""
        return self._log_off.cumsum(-1) - self._log_off

    @property
    def log_normaliser(self) -> Tensor:
        """(...) log Z."""
        size = self.scores.abs()
        return (size + torch.log1p((-2 * size).exp())).sum(-1) + self._log_any_on

    def log_prob(self, value: Tensor) -> Tensor:
        bits = self._to_bool(value)
        return torch.where(bits, self._log_on, self._log_off).sum(-1) - self._log_any_on.expand(
            torch.broadcast_shapes(bits.shape[:-1], self.batch_shape)
        )

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample the first bit that is on, then the bits after it."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            noise = gumbel(shape, self.scores, generator)
            first = (self._log_off_before + self._log_on + noise).argmax(-1, keepdim=True)
            place = torch.arange(self.size, device=first.device)
            point = rand(shape, first.device, dtype=self.scores.dtype, generator=generator)
            later = (place > first) & (point < self._log_on.exp())
            return later | (place == first)

    def marginals(self) -> Tensor:
        return self._log_marginals.exp()

    @property
    def _log_marginals(self) -> Tensor:
        """(..., K) log-probabilities that each bit is on, computed without cancellation."""
        first = (self._log_off_before + self._log_on).log_softmax(-1) - self._log_off_before
        often = self._log_on - self._log_any_on.unsqueeze(-1)
        return torch.where(self._mostly_off.unsqueeze(-1), first, often)

    def log_sizes(self) -> Tensor:
        """(..., K) log-probabilities of 1, ..., K corners, by a recursion over coordinates."""
        logs = torch.zeros_like(self.scores[..., :1])
        for on, off in zip(self._log_on.split(1, -1), self._log_off.split(1, -1), strict=True):
            fewer, more = logs + off, logs + on
            both = torch.logaddexp(fewer[..., 1:], more[..., :-1])
            logs = torch.cat([fewer[..., :1], both, more[..., -1:]], -1)
        return logs[..., 1:] - self._log_any_on.unsqueeze(-1)

    @property
    def mode(self) -> Tensor:
        best = F.one_hot(self.scores.argmax(-1), self.size).bool()
        return (self.scores > 0) | best

    def entropy(self) -> Tensor:
        return -self.expected_log_prob(self)

    def expected_log_prob(self, other: "GibbsFaces") -> Tensor:
        """Expectation of `log q(f)` for another such distribution q."""
        return other._expected_log_prob(self.marginals())

    def _expected_log_prob(self, on: Tensor) -> Tensor:
        """Expectation of `log P(f)` under a distribution with marginals `on`."""
        each = on * self._log_marginals + (1 - on) * self._log_off
        return each.sum(-1) + (on.sum(-1) - 1) * self._log_any_on


@divergence(GibbsFaces, GibbsFaces)
def _kl_gibbs(p: GibbsFaces, q: GibbsFaces) -> Tensor:
    same_size(p.size, q.size)
    return p.expected_log_prob(p) - p.expected_log_prob(q)


@divergence(GibbsFaces, FacesBySize)
def _kl_gibbs_sizes(p: GibbsFaces, q: FacesBySize) -> Tensor:
    """`log q` depends only on the size, which is distributed as a sum of bits."""
    same_size(p.size, q.size)
    logs = expected(p.log_sizes(), q.log_weights) - q.log_normaliser
    return p.expected_log_prob(p) - logs


@divergence(FacesBySize, GibbsFaces)
def _kl_sizes_gibbs(p: FacesBySize, q: GibbsFaces) -> Tensor:
    """`log q` is a sum over coordinates, so the marginals of p are enough."""
    same_size(p.size, q.size)
    return -p.entropy() - q._expected_log_prob(p.marginals())
