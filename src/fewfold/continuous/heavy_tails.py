"""Heavy tails: a density with alpha below 1 is a mixture of Gaussians of many widths."""

import functools
import math

import torch
from torch import Tensor

from fewfold.continuous.profile import exponent

__all__ = ["gaussian_scales"]


def gaussian_scales(dim: int, alpha: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Variances and shares, both (count,), of Gaussians that make `c (1 + r^2)^kappa`.

    With g of the gamma law of shape `-kappa - dim / 2`, the density is that of a Gaussian vector
    of variance `1 / (2 g)`. The law of `log g` is summed by the trapezoidal rule, which is exact
    but for `exp(-pi^2 / step)`: no function averaged here has a singularity near the real line.
    """
    shape = -exponent(alpha) - dim / 2
    variances, shares = _constant(shape, like.dtype == torch.float64)
    return like.new_tensor(variances), like.new_tensor(shares)


@functools.lru_cache(maxsize=64)
def _trapezoid(shape: float, double: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    def log_weight(y: float) -> float:  # of y = log g, zero at its largest
        return shape * (y - top) - shape * math.expm1(y - top)

    top = math.log(shape)
    # wider than exp(25), or exp(13), units a Gaussian is nothing where there is something to see
    least = -50.0 if double else -26.0
    step = min(0.25 if double else 0.45, 0.45 / math.sqrt(shape))
    count = math.ceil((top - least) / step)
    low = next((j for j in range(count) if log_weight(top - j * step) < -45), count)
    high = next(j for j in range(1, 1000) if log_weight(top + j * step) < -45)
    places = [top + j * step for j in range(-low, high + 1)]
    weights = [step * math.exp(log_weight(y)) for y in places]
    if low == count:  # what is wider still counts as the widest
        whole = math.exp(math.lgamma(shape) - shape * top + shape)
        weights[0] += max(whole - sum(weights), 0.0)
    total = math.fsum(weights)
    return tuple(math.exp(-y) / 2 for y in places), tuple(w / total for w in weights)


def _looked_up(shape: float, double: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return _trapezoid(shape, double)


_constant = torch.compiler.assume_constant_result(_looked_up)  # a compiler need not look inside
