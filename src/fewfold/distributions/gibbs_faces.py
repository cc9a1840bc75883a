"""Independent bits that are not all off."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import constraints
from torch.types import _size

from fewfold._check import check_scores
from fewfold.distributions.divergence import divergence
from fewfold.distributions.draws import gumbel
from fewfold.distributions.face_laws import FaceLaw

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
        >>> law = ff.GibbsFaces(torch.tensor([0.5, -0.3, 0.1]))
        >>> law.marginals(), law.entropy(), law.mode
        (tensor([0.7931, 0.3844, 0.5965]), tensor(1.7858), tensor([ True, False,  True]))

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """

    arg_constraints = {"scores": constraints.real_vector}  # noqa: RUF012
    scores: Tensor

    def __init__(self, scores: Tensor, *, validate_args: bool | None = None) -> None:
        check_scores(scores)
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
        """Of the probability that independent bits are not all off."""
        return (-torch.expm1(self._off.sum(-1))).log()

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
            before = self._off.cumsum(-1) - self._off
            noise = gumbel(shape, self.scores, generator)
            first = (before + self._on + noise).argmax(-1, keepdim=True)
            place = torch.arange(self.size, device=first.device)
            point = torch.rand(
                shape, dtype=self.scores.dtype, device=first.device, generator=generator
            )
            later = (place > first) & (point < self._on.exp())
            return later | (place == first)

    def marginals(self) -> Tensor:
        return (self._on - self._log_some.unsqueeze(-1)).exp()

    @property
    def mode(self) -> Tensor:
        best = F.one_hot(self.scores.argmax(-1), self.size).bool()
        return (self.scores > 0) | best

    def entropy(self) -> Tensor:
        return -self.expected_log_prob(self)

    def expected_log_prob(self, other: "GibbsFaces") -> Tensor:
        """`E log q(f)` of another such law q."""
        on = self.marginals()
        total = (on * other._on + (1 - on) * other._off).sum(-1)
        return total - other._log_some


@divergence(GibbsFaces, GibbsFaces)
def _kl_gibbs(p: GibbsFaces, q: GibbsFaces) -> Tensor:
    return p.expected_log_prob(p) - p.expected_log_prob(q)
