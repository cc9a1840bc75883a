"""Logarithm of the normal distribution function, accurate in the lower tail."""

import math

import torch
from torch import Tensor

from fewfold._torch import untransformed

__all__ = ["log_ndtr"]

_TAIL = -8.0
_TERMS = 16  # terms of the continued fraction, enough for double precision at -8


def log_ndtr(x: Tensor) -> Tensor:
    """Compute the logarithm of the standard normal distribution function.

    `log Phi(x)` and its first and second derivatives are accurate to twelve digits, also at -40
    and below, where the derivatives of `torch.special.log_ndtr` suffer from cancellation.

    Args:
        x: any shape.

    Returns:
        The shape and dtype of `x`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.distributions.log_ndtr(torch.tensor([-40.0, 0.0, 3.0]))
        tensor([-8.0461e+02, -6.9315e-01, -1.3508e-03])

    Reference: Laplace's continued fraction of Mills' ratio; Abramowitz and Stegun 26.2.14.
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return log_ndtr(x.float()).to(x.dtype)
    low, high = x.detach() < _TAIL, x.detach() > 0
    half = torch.special.erfc(torch.where(low | high, -1.0, x) * -math.sqrt(0.5)) / 2
    rest = torch.special.erfc(torch.where(high, x, 1.0) * math.sqrt(0.5)) / 2
    body = torch.where(high, torch.log1p(-rest), half.log())
    if untransformed(low) and not bool(low.any()):
        return body
    return torch.where(low, _tail(torch.where(low, x, _TAIL)), body)


def _tail(x: Tensor) -> Tensor:
    """`log Phi(x)` for x below -8, by a continued fraction.

    `log phi(x) + log(1 / (t + 1 / (t + 2 / (t + ...))))` at t = -x.
    """
    t = -x
    fraction = t
    for term in range(_TERMS, 0, -1):
        fraction = t + term / fraction
    return -t * t / 2 - fraction.log() - math.log(2 * math.pi) / 2
