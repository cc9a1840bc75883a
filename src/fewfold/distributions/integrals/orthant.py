"""Orthant probabilities: that every coordinate of a Gaussian vector is negative."""

import math

import torch
from torch import Tensor

from fewfold.distributions.integrals.expected_product import log_expected_product
from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.plackett import plackett

__all__ = ["log_orthant"]

_POINTS = 4096  # of the lattice
_CHUNK = 2**21  # entries at a time
_MAX_NESTED = 5  # coordinates up to which nested integrals are cheaper than the lattice
_LEAST = 1e-5  # least probability for which the absolute error of the integrals is small enough


def log_orthant(mean: Tensor, covariance: Tensor) -> Tensor:
    """Compute `log P(v <= 0)` for `v ~ N(mean, covariance)`.

    Exact for one coordinate, a one-dimensional integral for two. For three to five coordinates,
    nested one-dimensional integrals: compared with more nodes, their absolute error is 1e-10 if the
    smallest eigenvalue of the correlation matrix is above 0.02, and 1e-6 if it is 1e-5.
    Probabilities below 1e-5 and more coordinates use a lattice rule over sequential conditional
    probabilities (Genz). Its relative error is typically 1e-4, and at most 6e-4 for up to 11
    coordinates with a common factor, up to 5e-3 for 19 coordinates, and 5e-2 for nearly singular
    correlations. The lattice is fixed, so the result is deterministic.

    Args:
        mean: (rows, d).
        covariance: (rows, d, d).

    Returns:
        (rows,), differentiable.

    Example:
        >>> import torch
        >>> log_orthant(torch.zeros(1, 2), torch.tensor([[[1.0, 0.5], [0.5, 1.0]]])).exp()
        tensor([0.3333])

    Reference: Plackett, "A reduction formula for normal multivariate integrals", 1954; Genz,
    "Numerical computation of multivariate normal probabilities", 1992.
    """
    size = mean.shape[-1]
    if size == 0 or len(mean) == 0:
        return mean.new_zeros(len(mean))
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    bound = -mean / deviation
    if size == 1:
        return log_ndtr(bound).squeeze(-1)
    correlation = covariance / (deviation.unsqueeze(-1) * deviation.unsqueeze(-2))
    if size == 2:
        return _log_pair(bound, correlation[:, 0, 1])
    if size <= _MAX_NESTED:
        return _log_nested(bound, correlation)
    return _log_lattice_chunked(bound, correlation)


def _log_nested(bound: Tensor, correlation: Tensor) -> Tensor:
    """Nested integrals, with the lattice rule where the probability is too small for them."""
    chunk = max(1, _CHUNK // 2 ** (5 + 5 * (bound.shape[-1] // 2)))
    parts = zip(bound.double().split(chunk), correlation.double().split(chunk), strict=True)
    probs = torch.cat([plackett(*part) for part in parts])
    large = probs.detach() > _LEAST
    logs = torch.where(large, probs, 1.0).log().to(bound.dtype)
    tail = (~large).nonzero()[:, 0]
    if len(tail) == 0:
        return logs
    return logs.index_copy(0, tail, _log_lattice_chunked(bound[tail], correlation[tail]))


def _log_lattice_chunked(bound: Tensor, correlation: Tensor) -> Tensor:
    """`_log_lattice` in chunks of rows of bounded memory."""
    rows = max(1, _CHUNK // (_POINTS * bound.shape[-1]))
    parts = zip(bound.split(rows), correlation.split(rows), strict=True)
    return torch.cat([_log_lattice(part, matrix) for part, matrix in parts])


def _log_pair(bound: Tensor, correlation: Tensor) -> Tensor:
    """Two coordinates with a common factor t: `a_i t + sqrt(1 - a_i^2) noise`, a_1 a_2 = rho."""
    first = ((1 + correlation.detach().abs()) / 2).sqrt()  # the result does not depend on a_1
    loading = torch.stack([first, correlation / first], -1)
    rest = (1 - loading.square()).clamp(min=torch.finfo(bound.dtype).tiny).sqrt()
    return log_expected_product(bound / rest, -loading / rest)


def _log_lattice(bound: Tensor, correlation: Tensor) -> Tensor:
    """Lattice rule over sequential conditional probabilities, least likely coordinate first."""
    order = bound.detach().argsort(-1)
    bound = bound.gather(-1, order)
    size = bound.shape[-1]
    matrix = correlation.gather(1, order.unsqueeze(-1).expand_as(correlation))
    matrix = matrix.gather(2, order.unsqueeze(1).expand_as(correlation))
    factor = torch.linalg.cholesky(matrix)
    points = _points(size - 1).to(bound)
    total = bound.new_zeros(len(bound), len(points))
    sampled: list[Tensor] = []
    for i in range(size):
        shift = bound[:, i : i + 1]
        if sampled:
            shift = shift - (factor[:, i, :i].unsqueeze(-1) * torch.stack(sampled, 1)).sum(1)
        log_below = log_ndtr(shift / factor[:, i, i : i + 1])
        total = total + log_below
        if i + 1 < size:
            below = log_below.exp() * points[:, i]
            tiny = torch.finfo(bound.dtype).tiny
            sampled.append(torch.special.ndtri(below.clamp(min=tiny)))
    return total.logsumexp(-1) - math.log(len(points))


def _points(size: int) -> Tensor:
    """Richtmyer lattice (points, size) with the baker's transform, for non-periodic functions."""
    primes: list[int] = []
    number = 2
    while len(primes) < size:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    roots = torch.tensor(primes, dtype=torch.float64).sqrt()
    place = (torch.arange(1, _POINTS + 1, dtype=torch.float64).unsqueeze(-1) * roots) % 1
    return ((2 * place - 1).abs()).clamp(1e-12, 1 - 1e-12)
