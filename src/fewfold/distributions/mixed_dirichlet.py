"""Mixtures over the faces of the simplex: a random face with a Dirichlet on it."""

import math
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence
from torch.types import _size

from fewfold._check import non_negative_number, whole_number
from fewfold._random import exponential, standard_gamma
from fewfold.distributions.faces.face_distribution import FaceDistribution, same_size
from fewfold.distributions.faces.faces_by_size import FacesBySize
from fewfold.distributions.faces.geometry import all_faces, face_dimension, face_of, on_simplex
from fewfold.distributions.faces.gibbs_faces import GibbsFaces
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import Each, check_vector, in_single, joined, positive

__all__ = ["FaceMixture", "MaxEntropyMixed", "MixedDirichlet"]

_EMPTY_SHAPE = torch.Size()
_SMALL = 0.3  # below this concentration gamma samples may underflow; computed in logarithms


class FaceMixture(Distribution):
    """Mixture of Dirichlet distributions on the faces of the simplex, with random face.

    `p(y) = P(f) Dirichlet(y_f; concentration_f)` on the face f of y, with respect to the sum of
    the Lebesgue measures of all faces (counting at the corners). Samples are not
    reparameterised, because the face is discrete; given a face they are, see `rsample_on`. Entropy,
    mean and KL divergence enumerate all faces, for up to 20 coordinates; for more coordinates use
    the sampling estimates `direct_sum_entropy` and `direct_sum_kl`.

    Args:
        faces: distribution of the face.
        concentration: (..., K) positive, shared by all faces.

    Example:
        John is at home 15 hours of 24, at work for 8, and on the road between for one:

        >>> import torch, fewfold as ff
        >>> hours = torch.tensor([15.0, 8.0, 1.0])
        >>> from fewfold.distributions import FaceMixture, ListedFaces
        >>> john = FaceMixture(ListedFaces(hours / 24), torch.ones(2))
        >>> print(f"{john.entropy():.4f} nats, {john.entropy() / math.log(2):.4f} bits")
        0.7924 nats, 1.1432 bits

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """

    arg_constraints = {"concentration": Each(positive)}  # noqa: RUF012
    support = on_simplex

    def __init__(
        self, faces: FaceDistribution, concentration: Tensor, *, validate_args: bool | None = None
    ) -> None:
        if not isinstance(faces, FaceDistribution):
            raise TypeError(
                f"faces must be a FaceDistribution, got {type(faces).__name__}; "
                "write ListedFaces(probs), or MixedDirichlet(scores, concentration)"
            )
        check_vector(concentration, "concentration")
        size = faces.event_shape[0]
        if concentration.shape[-1] != size:
            raise ValueError(
                f"concentration must have K={size} entries, one for each corner, got "
                f"{concentration.shape[-1]}"
            )
        batch = joined(faces=faces.batch_shape, concentration=concentration[..., 0])
        self.faces = faces.expand(batch)
        self.concentration = concentration.expand(*batch, size)
        super().__init__(batch, torch.Size([size]), validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        new: Self = self._get_checked_instance(type(self), _instance)
        new.faces = self.faces.expand(batch_shape)
        new.concentration = self.concentration.expand(*batch_shape, *self.event_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """`(*sample_shape, *batch_shape, K)` samples with exact zeros."""
        with torch.no_grad():
            faces = self.faces.sample(sample_shape, generator=generator)
            return self.rsample_on(faces, generator=generator)

    def rsample_on(self, faces: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Sample one point on each of the given faces, differentiable in the concentration.

        Args:
            faces: (..., K) boolean.
            generator: random generator.

        Returns:
            (..., K) positive exactly where `faces` is True.
        """
        if not bool(face_dimension(faces).ge(0).all()):
            raise ValueError("faces must each have at least one corner, got an empty face")
        proportions = self._sample_proportions(faces, generator=generator)
        return torch.where(faces, proportions.clamp(min=torch.finfo(proportions.dtype).tiny), 0.0)

    @in_single
    def _sample_proportions(self, faces: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Sample normalised gamma variables, in logarithms because small ones underflow.

        `Gamma(a)` is `Gamma(a + 1) U^(1 / a)`, and -log U is exponential.
        """
        a = self.concentration.expand(torch.broadcast_shapes(faces.shape, self.concentration.shape))
        small = a.detach() < _SMALL
        gamma = standard_gamma(torch.where(small, a + 1, a), generator=generator)
        log_factor = (
            exponential(gamma.shape, gamma.device, dtype=gamma.dtype, generator=generator) / a
        )
        logs = gamma.clamp(min=torch.finfo(gamma.dtype).tiny).log()
        logs = torch.where(small, logs - log_factor, logs)
        return torch.where(faces, logs, -math.inf).softmax(-1)

    @in_single
    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        on = face_of(value)
        inside = torch.where(on, value, 1.0).log()
        powers = torch.where(on, self.concentration - 1, 0.0)
        density = (powers * inside).sum(-1) - _log_beta(self.concentration, on)
        return self.faces.log_prob(on) + density

    @in_single
    def entropy(self) -> Tensor:
        """Entropy with respect to the direct-sum measure, in nats."""
        on, probs = self._enumerate_faces()
        within = _dirichlet_entropy(self.concentration.unsqueeze(-2), on)
        return self.faces.entropy() + (probs * within).sum(-1)

    @property
    @in_single
    def mean(self) -> Tensor:
        on, probs = self._enumerate_faces()
        shares = torch.where(on, self.concentration.unsqueeze(-2), 0.0)
        shares = shares / shares.sum(-1, keepdim=True)
        return (probs.unsqueeze(-1) * shares).sum(-2)

    def _enumerate_faces(self) -> tuple[Tensor, Tensor]:
        """All faces, (2^K - 1, K), and their probabilities, (..., 2^K - 1)."""
        probs = self.faces.every().exp()
        return all_faces(self.event_shape[0], probs.device), probs


class MixedDirichlet(FaceMixture):
    """Mixed Dirichlet: a face from `GibbsFaces(scores)` and a Dirichlet on that face.

    `p(y) ∝ exp(sum_k w_k (2 f_k - 1)) Dirichlet(y_f; concentration_f)`, f the face of y.

    Args:
        scores: (..., K) the real scores w.
        concentration: (..., K) positive.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.MixedDirichlet(torch.tensor([0.5, -0.3, 0.1]), torch.ones(3))
        >>> dist.log_prob(torch.tensor([[1.0, 0.0, 0.0], [0.2, 0.5, 0.3]]))
        tensor([-1.4675, -1.1743])
        >>> dist.entropy()
        tensor(1.6787)

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """

    def __init__(
        self, scores: Tensor, concentration: Tensor, *, validate_args: bool | None = None
    ) -> None:
        faces = GibbsFaces(scores, validate_args=validate_args)
        check_vector(concentration, "concentration")
        joined(scores=scores[..., 0], concentration=concentration[..., 0])
        super().__init__(faces, concentration, validate_args=validate_args)

    @property
    def scores(self) -> Tensor:
        """(..., K) scores of the distribution of faces."""
        assert isinstance(self.faces, GibbsFaces)
        return self.faces.scores


class MaxEntropyMixed(FaceMixture):
    """Maximum entropy mixed distribution: the largest expected code length.

    The code is lossless for the face and uses `bits` bits for each coordinate of the point on it.

    `P(f) ∝ 2^(bits (|f| - 1)) / (|f| - 1)!` and uniform on each face. Its code length
    `entropy + bits log(2) E[dimension]` is the maximum
    `log sum_k C(K, k) 2^(bits (k - 1)) / (k - 1)!`, the logarithm of a Laguerre polynomial.

    Args:
        size: K, the number of corners.
        bits: bits for each coordinate, at least 0.
        dtype, device: of the parameters.

    Example:
        >>> import fewfold as ff
        >>> ff.distributions.MaxEntropyMixed(2).entropy().exp()
        tensor(3.)
        >>> ff.distributions.MaxEntropyMixed(3, bits=1).code_length.exp()
        tensor(11.0000)

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022. Unlike there, each size k is weighted by its number of faces C(K, k).
    The published version is `FaceMixture(FacesBySize.of_sizes(p.faces.log_weights),
    p.concentration)`.
    """

    def __init__(
        self, size: int, bits: float = 0, *, dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.bits = non_negative_number(bits, "bits")
        dims = torch.arange(whole_number(size, "size"), dtype=torch.float64)
        weights = (dims * (self.bits * math.log(2)) - (dims + 1).lgamma()).to(dtype)
        faces = FacesBySize(weights.to(device), validate_args=validate_args)
        ones = torch.ones(size, dtype=dtype, device=faces.log_weights.device)
        super().__init__(faces, ones, validate_args=validate_args)

    def expand(self, batch_shape: _size, _instance: Any = None) -> Self:
        new = super().expand(batch_shape, _instance)
        new.bits = self.bits
        return new

    @property
    def code_length(self) -> Tensor:
        """(...) the maximum expected code length, in nats."""
        assert isinstance(self.faces, FacesBySize)
        return self.faces.log_normaliser

    @property
    def mean(self) -> Tensor:
        """The centre of the simplex, by symmetry."""
        return torch.full_like(self.concentration, 1 / self.event_shape[0])

    def entropy(self) -> Tensor:
        assert isinstance(self.faces, FacesBySize)
        sizes = self.faces.sizes()
        dims = torch.arange(self.event_shape[0], device=sizes.device)
        return self.code_length - self.bits * math.log(2) * (sizes * dims).sum(-1)


@divergence(FaceMixture, FaceMixture)
def _kl(p: FaceMixture, q: FaceMixture) -> Tensor:
    same_size(p.event_shape[0], q.event_shape[0])
    on, probs = p._enumerate_faces()
    within = _dirichlet_kl(p.concentration.unsqueeze(-2), q.concentration.unsqueeze(-2), on)
    return kl_divergence(p.faces, q.faces) + (probs * within).sum(-1)


def _log_beta(concentration: Tensor, on: Tensor) -> Tensor:
    """Log normaliser of the Dirichlet on a face."""
    inside = torch.where(on, concentration, 1.0).lgamma().sum(-1)
    return inside - torch.where(on, concentration, 0.0).sum(-1).lgamma()


def _dirichlet_entropy(a: Tensor, on: Tensor) -> Tensor:
    """Entropy of a Dirichlet on a face; 0 at a corner."""
    total = torch.where(on, a, 0.0).sum(-1)
    each = torch.where(on, (a - 1) * a.digamma(), 0.0).sum(-1)
    return _log_beta(a, on) + (total - on.sum(-1)) * total.digamma() - each


def _dirichlet_kl(a: Tensor, b: Tensor, on: Tensor) -> Tensor:
    """KL divergence between Dirichlets on the same face."""
    total = torch.where(on, a, 0.0).sum(-1, keepdim=True).digamma()
    each = torch.where(on, (a - b) * (a.digamma() - total), 0.0).sum(-1)
    return _log_beta(b, on) - _log_beta(a, on) + each
