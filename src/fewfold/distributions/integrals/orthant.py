"""The probability that every coordinate of a Gaussian vector is negative."""

import math

import torch
from torch import Tensor

from fewfold.distributions.integrals.expected_product import log_expected_product
from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.plackett import plackett

__all__ = ["log_orthant"]

_POINTS = 4096
_CHUNK = 2**21
_FEW = 5  # coordinates up to which the integrals are cheaper than the lattice
_LEAST = 1e-5  # a probability of which their error is a small part


def log_orthant(mean: Tensor, covariance: Tensor) -> Tensor:
    """`log P(v <= 0)` for `v ~ N(mean, covariance)`.

    Exact for one coordinate, a one-dimensional integral for two. For three to five, integrals of
    one dimension in one another: measured against more points, an absolute error of 1e-10 where
    the least eigenvalue of the correlations is above 0.02, and of 1e-6 where it is 1e-5. That is
    no use for a probability below 1e-5, nor for more coordinates; these are a lattice rule over
    the conditional probabilities of one coordinate after the other. Its relative error is
    typically 1e-4 and at most 6e-4 up to 11 coordinates with a common cause, up to 5e-3 at 19 and
    5e-2 where correlations are nearly singular. The lattice is fixed, so that the same arguments
    give the same value.

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
        return _pair(bound, correlation[:, 0, 1])
    return _small(bound, correlation) if size <= _FEW else _in_parts(bound, correlation)


def _small(bound: Tensor, correlation: Tensor) -> Tensor:
    """Integrals, and the lattice where the probability is too small for their error."""
    chunk = max(1, _CHUNK // 2 ** (5 + 5 * (bound.shape[-1] // 2)))
    parts = zip(bound.double().split(chunk), correlation.double().split(chunk), strict=True)
    probs = torch.cat([plackett(*part) for part in parts])
    large = probs.detach() > _LEAST
    found = torch.where(large, probs, 1.0).log().to(bound.dtype)
    tail = (~large).nonzero()[:, 0]
    if len(tail) == 0:
        return found
    return found.index_copy(0, tail, _in_parts(bound[tail], correlation[tail]))


def _in_parts(bound: Tensor, correlation: Tensor) -> Tensor:
    rows = max(1, _CHUNK // (_POINTS * bound.shape[-1]))
    parts = zip(bound.split(rows), correlation.split(rows), strict=True)
    return torch.cat([_lattice(part, matrix) for part, matrix in parts])


def _pair(bound: Tensor, correlation: Tensor) -> Tensor:
    """Two coordinates that share a Gaussian t: `a_i t + sqrt(1 - a_i^2) noise`, a_1 a_2 = rho."""
    first = ((1 + correlation.detach().abs()) / 2).sqrt()  # any split has the same value
    loading = torch.stack([first, correlation / first], -1)
    rest = (1 - loading.square()).clamp(min=torch.finfo(bound.dtype).tiny).sqrt()
    return log_expected_product(bound / rest, -loading / rest)


def _lattice(bound: Tensor, correlation: Tensor) -> Tensor:
    """Coordinates in turn, the least likely first, each given where those before it fell."""
    order = bound.detach().argsort(-1)
    bound = bound.gather(-1, order)
    size = bound.shape[-1]
    matrix = correlation.gather(1, order.unsqueeze(-1).expand_as(correlation))
    matrix = matrix.gather(2, order.unsqueeze(1).expand_as(correlation))
    factor = torch.linalg.cholesky(matrix)
    points = _points(size - 1).to(bound)
    total = bound.new_zeros(len(bound), len(points))
    placed: list[Tensor] = []
    for i in range(size):
        shift = bound[:, i : i + 1]
        if placed:
            shift = shift - (factor[:, i, :i].unsqueeze(-1) * torch.stack(placed, 1)).sum(1)
        log_below = log_ndtr(shift / factor[:, i, i : i + 1])
        total = total + log_below
        if i + 1 < size:
            below = log_below.exp() * points[:, i]
            tiny = torch.finfo(bound.dtype).tiny
            placed.append(torch.special.ndtri(below.clamp(min=tiny)))
    return total.logsumexp(-1) - math.log(len(points))


def _points(size: int) -> Tensor:
    """Richtmyer's lattice, folded so that a function need not be periodic; (points, size)."""
    primes: list[int] = []
    number = 2
    while len(primes) < size:
        if all(number % prime for prime in primes):
            primes.append(number)
        number += 1
    roots = torch.tensor(primes, dtype=torch.float64).sqrt()
    place = (torch.arange(1, _POINTS + 1, dtype=torch.float64).unsqueeze(-1) * roots) % 1
    return ((2 * place - 1).abs()).clamp(1e-12, 1 - 1e-12)
