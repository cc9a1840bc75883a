"""log_ndtr: the logarithm of the normal distribution function, far into its tail."""

import math

import torch
from torch import Tensor

__all__ = ["log_ndtr"]

_TAIL = -8.0
_TERMS = 16  # of the continued fraction: at -8 this many leave nothing of its error


def log_ndtr(x: Tensor) -> Tensor:
    """The logarithm of the standard normal distribution function.

    `log Phi(x)`, to twelve digits as far as -40 and beyond, and so are its first and second
    derivatives, which `torch.special.log_ndtr` loses to cancellation.

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
    if not bool(low.any()):
        return body
    return torch.where(low, _tail(torch.where(low, x, _TAIL)), body)


def _tail(x: Tensor) -> Tensor:
    """For x below -8: log phi(x) + log of `1 / (t + 1 / (t + 2 / (t + ...)))` at t = -x."""
    t = -x
    fraction = t
    for term in range(_TERMS, 0, -1):
        fraction = t + term / fraction
    return -t * t / 2 - fraction.log() - math.log(2 * math.pi) / 2
