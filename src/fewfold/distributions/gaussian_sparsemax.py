"""Gaussian-sparsemax: sparsemax of Gaussian scores, with a density on every face."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.utils import broadcast_all
from torch.types import _size

from fewfold._random import normal_
from fewfold.distributions.faces.face_distribution import same_size
from fewfold.distributions.faces.geometry import face_of, on_simplex
from fewfold.distributions.integrals.expected_product import log_expected_product
from fewfold.distributions.integrals.native_product import quick_densities
from fewfold.distributions.integrals.orthant import log_orthant
from fewfold.distributions.integrals.rectified import Rectified
from fewfold.distributions.integrals.row_blocks import by_rows
from fewfold.distributions.integrals.shared_grid import log_expected_on_grid
from fewfold.distributions.kl_registration import divergence
from fewfold.distributions.parameters import (
    check_square,
    check_vector,
    finite_vector,
    in_single,
    joined,
    lower_cholesky,
    positive,
)
from fewfold.distributions.random_draws import Reparameterised, normal
from fewfold.maps import sparsemax

__all__ = ["GaussianSparsemax", "log_shifted_normal"]

_EMPTY_SHAPE = torch.Size()
_PHI_IS_ONE = 40.0  # an argument at which Phi is 1 in any precision
_CHUNK = 2**18  # entries sampled at a time, so that they stay in the cache


class GaussianSparsemax(Reparameterised):
    """Distribution of the sparsemax of a Gaussian vector, often on a face of the simplex.

    `y = sparsemax(x)`, `x ~ N(loc, Sigma)`. On the face S of n corners, where y is positive, its
    density is

        n int prod_(i in S) N(y_i + t; loc_i, scale_i^2) prod_(j not in S) Phi((t - loc_j) / scale_j) dt

    with respect to the sum of the Lebesgue measures of all faces (counting at the corners). For a
    diagonal Sigma this is a one-dimensional integral, computed to about 1e-10 in double precision.
    For a full Sigma it contains an orthant probability in K - n dimensions. Up to five dimensions
    that is computed by nested integrals: for K up to 6 the density is exact to 1e-8, unless Sigma
    is nearly singular, and the total mass of all faces is 1 up to 1e-6. In more dimensions, or for
    a probability below 1e-5, it is a lattice rule with a relative error of typically 1e-4, and up
    to 5e-3 for 20 scores.

    Args:
        loc: (..., K).
        scale: (..., K) positive standard deviations, for independent scores.
        scale_tril: (..., K, K) lower triangular with `Sigma = scale_tril scale_tril^T`; given
            instead of `scale`.

    Example:
        >>> import torch, fewfold as ff
        >>> dist = ff.GaussianSparsemax(torch.tensor([0.5, 0.2, 0.0]), torch.tensor([0.4, 0.3, 0.5]))
        >>> dist.log_prob(torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]]))
        tensor([-3.0887, -0.5105,  0.4933])
        >>> dist.sample((2,), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])

    Reference: Farinhas, Aziz, Niculae and Martins, "Sparse communication via mixed
    distributions", 2022.
    """  # noqa: E501

    support = on_simplex

    def __init__(
        self,
        loc: Tensor,
        scale: Tensor | float | None = None,
        *,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_vector(loc, "loc")
        if (scale is None) == (scale_tril is None):
            received = "neither" if scale is None else "both"
            raise ValueError(
                f"one of scale (..., K) and scale_tril (..., K, K) must be given, got {received}; "
                "write GaussianSparsemax(loc, scale) for independent scores"
            )
        self.scale_tril = scale_tril
        if scale is not None:
            if isinstance(scale, Tensor):
                joined(loc=loc, scale=scale)
            self.loc, self.scale = broadcast_all(loc, scale)
            batch = self.loc.shape[:-1]
        elif scale_tril is not None:
            check_square(scale_tril, loc.shape[-1], "scale_tril", "loc")
            batch = joined(loc=loc[..., 0], scale_tril=scale_tril[..., 0, 0])
            self.loc = loc.expand(*batch, loc.shape[-1])
            self.scale_tril = scale_tril.expand(*batch, *scale_tril.shape[-2:])
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        if self.scale_tril is None:
            return {"loc": finite_vector, "scale": positive}
        return {"loc": finite_vector, "scale_tril": lower_cholesky}

    def expand(self, batch_shape: _size, _instance: Any = None) -> "GaussianSparsemax":
        new: GaussianSparsemax = self._get_checked_instance(GaussianSparsemax, _instance)
        batch = torch.Size(batch_shape)
        size = self.event_shape[0]
        new.loc = self.loc.expand(*batch, size)
        new.scale_tril = None
        if self.scale_tril is None:
            new.scale = self.scale.expand(*batch, size)
        else:
            new.scale_tril = self.scale_tril.expand(*batch, size, size)
        super(GaussianSparsemax, new).__init__(batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def covariance_matrix(self) -> Tensor:
        """(..., K, K) covariance of the scores."""
        if self.scale_tril is None:
            return torch.diag_embed(self.scale.square())
        return self.scale_tril @ self.scale_tril.mT

    def rsample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        noise = normal(self._extended_shape(sample_shape), self.loc, generator)
        return sparsemax(self._scores(noise))

    def sample(
        self, sample_shape: _size = _EMPTY_SHAPE, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Sample without gradient; the same values as `rsample`, computed in chunks."""
        shape = self._extended_shape(sample_shape)
        with torch.no_grad():
            if self.batch_shape or shape.numel() <= _CHUNK:
                return self.rsample(sample_shape, generator=generator)
            size = shape[-1]
            samples = self.loc.new_empty(shape.numel() // size, size)
            rows = 16 * max(1, _CHUNK // (16 * size))
            for part in samples.split(rows):
                part.copy_(sparsemax(self._scores(normal_(part, generator=generator))))
            return samples.view(shape)

    def _scores(self, noise: Tensor) -> Tensor:
        if self.scale_tril is None:
            return torch.addcmul(self.loc, self.scale, noise)
        return self.loc + (self.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)

    @in_single
    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        value = value.to(torch.promote_types(value.dtype, self.loc.dtype))
        shape = torch.broadcast_shapes(value.shape, self.loc.shape)
        rows = value.expand(shape).reshape(-1, shape[-1])
        if self.scale_tril is None and not self.batch_shape and shape[-1] > 2:
            shared = _log_prob_shared(rows, self.loc, self.scale)
            if shared is not None:
                return shared.view(shape[:-1])
        loc = self.loc.expand(shape).reshape(rows.shape)
        if self.scale_tril is None:
            scale = self.scale.expand(shape).reshape(rows.shape)
            return _log_prob_each(rows, loc, scale).view(shape[:-1])
        matrix = self.covariance_matrix.expand(*shape, shape[-1]).reshape(*rows.shape, shape[-1])
        return _log_prob_full(rows, loc, matrix).view(shape[:-1])

    def rectified(self) -> Rectified:
        """Distribution of the first of two coordinates: a Gaussian clipped to [0, 1].

        For K = 1 the coordinate is always 1, represented by a Gaussian far above 1.
        """
        if self.event_shape[0] == 1:
            far = 0 * self.loc[..., 0]
            return Rectified(far + 1e3, far + 0.1)
        if self.event_shape[0] != 2:
            raise NotImplementedError(
                "closed forms of the Gaussian-sparsemax are known for up to two coordinates, got "
                f"{self.event_shape[0]}; write direct_sum_entropy(p, samples=10_000), "
                "direct_sum_kl(p, q, samples=10_000) or p.sample((10_000,)).mean(0)"
            )
        matrix = self.covariance_matrix
        spread = matrix[..., 0, 0] + matrix[..., 1, 1] - 2 * matrix[..., 0, 1]
        return Rectified((1 + self.loc[..., 0] - self.loc[..., 1]) / 2, spread.sqrt() / 2)

    @in_single
    def entropy(self) -> Tensor:
        """Entropy with respect to the direct-sum measure, in nats; for at most two coordinates."""
        return self.rectified().entropy()

    @property
    @in_single
    def mean(self) -> Tensor:
        first = self.rectified().mean
        return torch.stack([first, 1 - first], -1)[..., : self.event_shape[0]]

    @property
    @in_single
    def variance(self) -> Tensor:
        both = self.rectified().variance
        return torch.stack([both, both], -1)[..., : self.event_shape[0]]


@divergence(GaussianSparsemax, GaussianSparsemax)
def _kl(p: GaussianSparsemax, q: GaussianSparsemax) -> Tensor:
    same_size(p.event_shape[0], q.event_shape[0])
    return p.rectified().kl(q.rectified())


def _log_prob_each(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Compute `_log_prob_diagonal`, by a native kernel for most rows if no gradient is needed."""
    quick = quick_densities(y, loc, scale)
    if quick is None:
        return by_rows(_log_prob_diagonal, y, loc, scale)
    logs, remaining = quick
    if len(remaining):
        rest = (part[remaining] for part in (y, loc, scale))
        logs[remaining] = by_rows(_log_prob_diagonal, *rest)
    return logs


def _log_prob_diagonal(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Log density (rows,) of points (rows, K), for independent scores."""
    on = face_of(y)
    density, place, width = log_shifted_normal(y - loc, scale, on)
    shift = torch.where(on, _PHI_IS_ONE, (place.unsqueeze(-1) - loc) / scale)
    slope = torch.where(on, 0.0, width.unsqueeze(-1) / scale)
    if y.shape[-1] == 2:  # at most one coordinate is zero
        off = on.int().argmin(-1, keepdim=True)
        shift, slope = shift.gather(-1, off), slope.gather(-1, off)
    return density + on.sum(-1).to(y.dtype).log() + log_expected_product(shift, slope)


def _log_prob_shared(y: Tensor, loc: Tensor, scale: Tensor) -> Tensor | None:
    """Log density (rows,) of many points under one distribution; None if one grid is not enough."""
    on = face_of(y)
    density, place, width = log_shifted_normal(y - loc, scale, on)
    logs = log_expected_on_grid(~on, loc, scale, place, width)
    return None if logs is None else density + on.sum(-1).to(y.dtype).log() + logs


def log_shifted_normal(offset: Tensor, scale: Tensor, on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`log int prod_(i on) N(offset_i + t; 0, scale_i^2) dt`, and mean and scale of t.

    Args:
        offset, scale: (..., K).
        on: (..., K) boolean, the factors of the product.

    Returns:
        (...) the logarithm, and mean and standard deviation of t given the offsets.
    """
    own = torch.where(on, scale, 1.0)
    precision = own.square().reciprocal() * on
    total = precision.sum(-1)
    place = -(precision * offset).sum(-1) / total
    spread = (precision * (offset + place.unsqueeze(-1)).square()).sum(-1)
    logs = own.log().sum(-1) + total.log() / 2
    free = on.sum(-1).to(offset.dtype) - 1
    return -(spread + free * math.log(2 * math.pi)) / 2 - logs, place, total.rsqrt()


def _log_prob_full(y: Tensor, loc: Tensor, matrix: Tensor) -> Tensor:
    """Log density (rows,) of points (rows, K), for scores with covariance (rows, K, K)."""
    logs = (y - loc).new_zeros(len(y))
    corners = face_of(y).sum(-1)
    for corner in corners.unique().tolist():
        at = (corners == corner).nonzero()[:, 0]
        order = face_of(y[at]).int().argsort(dim=-1, descending=True, stable=True)
        square = order.unsqueeze(-1).expand(-1, -1, order.shape[-1])
        sorted_matrix = matrix[at].gather(1, square).gather(2, square.mT)
        offset = (y - loc)[at].gather(-1, order)
        logs = logs.index_copy(0, at, _log_prob_sorted(offset, sorted_matrix, corner))
    return logs


def _log_prob_sorted(offset: Tensor, matrix: Tensor, corners: int) -> Tensor:
    """Log density from `offset = y - loc` and the covariance, corners of the face sorted first.

    Given y, the common shift t of its positive coordinates is Gaussian. The other scores minus t
    are Gaussian too, and the density contains the probability that all of them are negative.
    """
    first, cross = matrix[:, :corners, :corners], matrix[:, corners:, :corners]
    factor = torch.linalg.cholesky(first)
    ones = torch.ones_like(offset[:, :corners, None])
    on, off = offset[:, :corners, None], offset[:, corners:]
    solved = torch.cholesky_solve(torch.cat([ones, on, cross.mT], -1), factor)
    total = solved[..., 0].sum(-1)
    place = -solved[..., 1].sum(-1) / total
    centred = on + place.view(-1, 1, 1)
    spread: Tensor = (centred * torch.cholesky_solve(centred, factor)).sum((1, 2))
    logs = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + total.log() / 2
    log_face: Tensor = (
        math.log(corners) - (spread + (corners - 1) * math.log(2 * math.pi)) / 2 - logs
    )
    slope = (cross @ solved[..., :1]).squeeze(-1) - 1
    # y is 0 off the face, so the offset there is minus loc
    mean = (cross @ solved[..., 1:2]).squeeze(-1) - off + slope * place.unsqueeze(-1)
    rest = matrix[:, corners:, corners:] - cross @ solved[..., 2:]
    outer = slope.unsqueeze(-1) * slope.unsqueeze(-2) / total.view(-1, 1, 1)
    return log_face + log_orthant(mean, rest + outer)
