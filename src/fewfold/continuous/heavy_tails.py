"""Heavy-tailed densities (alpha below 1) as scale mixtures of Gaussians."""

import functools
import math

import torch
from torch import Tensor

from fewfold.continuous.profile import exponent

__all__ = ["gaussian_scales"]


def gaussian_scales(dim: int, alpha: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Variances and weights, both (count,), of the Gaussian mixture `c (1 + r^2)^kappa`.

    For g of the gamma distribution of shape `-kappa - dim / 2`, the density is that of a Gaussian
    vector of variance `1 / (2 g)`. The distribution of `log g` is discretised by the trapezoidal
    rule, whose error is `exp(-pi^2 / step)`, as the integrands are analytic near the real line.
    """
    shape = -exponent(alpha) - dim / 2
    variances, shares = _constant(shape, like.dtype == torch.float64)
    return like.new_tensor(variances), like.new_tensor(shares)


@functools.lru_cache(maxsize=64)
def _trapezoid(shape: float, double: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    def log_weight(y: float) -> float:  # of y = log g, 0 at the mode
        return shape * (y - top) - shape * math.expm1(y - top)

    top = math.log(shape)
    # Gaussians wider than exp(25), or exp(13), units have no mass where signals are nonzero.
    least = -50.0 if double else -26.0
    step = min(0.25 if double else 0.45, 0.45 / math.sqrt(shape))
    count = math.ceil((top - least) / step)
    low = next((j for j in range(count) if log_weight(top - j * step) < -45), count)
    high = next(j for j in range(1, 1000) if log_weight(top + j * step) < -45)
    places = [top + j * step for j in range(-low, high + 1)]
    weights = [step * math.exp(log_weight(y)) for y in places]
    if low == count:  # the mass of wider ones goes to the widest
        whole = math.exp(math.lgamma(shape) - shape * top + shape)
        weights[0] += max(whole - sum(weights), 0.0)
    total = math.fsum(weights)
    return tuple(math.exp(-y) / 2 for y in places), tuple(w / total for w in weights)


def _cached(shape: float, double: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _trapezoid(shape, double)


_constant = torch.compiler.assume_constant_result(_cached)  # not traced by compilers
