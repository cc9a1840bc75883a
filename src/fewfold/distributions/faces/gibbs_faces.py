"""Independent bits that are not all off."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.types import _size

from fewfold.distributions.faces.face_distribution import FaceLaw, expected, same_size
from fewfold.distributions.faces.faces_by_size import FacesBySize
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import check_vector, finite_vector
from fewfold.distributions.random_draws import gumbel

__all__ = ["GibbsFaces"]

_NOTHING = torch.Size()


class GibbsFaces(FaceLaw):
    """Independent bits, given that they are not all off.

    `P(f) = exp(sum_k w_k (2 f_k - 1)) / Z` over non-empty f, with
    `Z = prod_k 2 cosh(w_k) - exp(-sum_k w_k)`.

    Args:
        scores: (..., K) the w.

    Example:
        >>> import torch, fewfold as ff
        >>> law = ff.distributions.GibbsFaces(torch.tensor([0.5, -0.3, 0.1]))
        >>> law.marginals(), law.entropy(), law.mode
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
    def _on(self) -> Tensor:
        return F.logsigmoid(2 * self.scores)

    @property
    def _off(self) -> Tensor:
        return F.logsigmoid(-2 * self.scores)

    @property
    def _log_some(self) -> Tensor:
        """Of the probability that independent bits are not all off.

        Where that is small, it is a sum over which bit is the first that is on.
        """
        none = self._off.sum(-1)
        first = (self._before + self._on).logsumexp(-1)
        often = torch.log1p(-torch.where(self._rare, -1.0, none).exp())
        return torch.where(self._rare, first, often)

    @property
    def _rare(self) -> Tensor:
        """(...) whether independent bits would be off more often than not."""
        return self._off.detach().sum(-1) > -math.log(2)

    @property
    def _before(self) -> Tensor:
        """(..., K) log-probabilities that all bits before are off."""
        return self._off.cumsum(-1) - self._off

    @property
    def log_normaliser(self) -> Tensor:
        """(...) log Z."""
        size = self.scores.abs()
        return (size + torch.log1p((-2 * size).exp())).sum(-1) + self._log_some

    def log_prob(self, value: Tensor) -> Tensor:
        bits = self._checked(value)
        return torch.where(bits, self._on, self._off).sum(-1) - self._log_some.expand(
            torch.broadcast_shapes(bits.shape[:-1], self.batch_shape)
        )

    def sample(
        self, sample_shape: _size = _NOTHING, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """First the first bit that is on, then those after it."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            noise = gumbel(shape, self.scores, generator)
            first = (self._before + self._on + noise).argmax(-1, keepdim=True)
            place = torch.arange(self.size, device=first.device)
            point = torch.rand(
                shape, dtype=self.scores.dtype, device=first.device, generator=generator
            )
            later = (place > first) & (point < self._on.exp())
            return later | (place == first)

    def marginals(self) -> Tensor:
        return self._log_marginals.exp()

    @property
    def _log_marginals(self) -> Tensor:
        """(..., K): a difference of two logarithms, of which the larger part cancels before."""
        first = (self._before + self._on).log_softmax(-1) - self._before
        often = self._on - self._log_some.unsqueeze(-1)
        return torch.where(self._rare.unsqueeze(-1), first, often)

    def log_sizes(self) -> Tensor:
        """(..., K) log-probabilities of 1, ..., K corners: one coordinate after the other."""
        logs = torch.zeros_like(self.scores[..., :1])
        for on, off in zip(self._on.split(1, -1), self._off.split(1, -1), strict=True):
            fewer, more = logs + off, logs + on
            both = torch.logaddexp(fewer[..., 1:], more[..., :-1])
            logs = torch.cat([fewer[..., :1], both, more[..., -1:]], -1)
        return logs[..., 1:] - self._log_some.unsqueeze(-1)

    @property
    def mode(self) -> Tensor:
        best = F.one_hot(self.scores.argmax(-1), self.size).bool()
        return (self.scores > 0) | best

    def entropy(self) -> Tensor:
        return -self.expected_log_prob(self)

    def expected_log_prob(self, other: "GibbsFaces") -> Tensor:
        """`E log q(f)` of another such law q."""
        return other._expected(self.marginals())

    def _expected(self, on: Tensor) -> Tensor:
        """`E log P(f)` under a law with these marginals."""
        each = on * self._log_marginals + (1 - on) * self._off
        return each.sum(-1) + (on.sum(-1) - 1) * self._log_some


@divergence(GibbsFaces, GibbsFaces)
def _kl_gibbs(p: GibbsFaces, q: GibbsFaces) -> Tensor:
    same_size(p.size, q.size)
    return p.expected_log_prob(p) - p.expected_log_prob(q)


@divergence(GibbsFaces, FacesBySize)
def _kl_gibbs_sizes(p: GibbsFaces, q: FacesBySize) -> Tensor:
    """The other law looks only at sizes, whose law is that of a sum of bits."""
    same_size(p.size, q.size)
    logs = expected(p.log_sizes(), q.log_weights) - q.log_normaliser
    return p.expected_log_prob(p) - logs


@divergence(FacesBySize, GibbsFaces)
def _kl_sizes_gibbs(p: FacesBySize, q: GibbsFaces) -> Tensor:
    """The other law looks at one coordinate at a time."""
    same_size(p.size, q.size)
    return -p.entropy() - q._expected(p.marginals())
