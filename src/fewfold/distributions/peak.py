"""The peak of a Gaussian times a product of normal distribution functions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.distributions.log_ndtr import log_ndtr
from fewfold.distributions.parts import CHUNK

__all__ = ["DOUBLE", "SINGLE", "Digits", "find_peak", "folded", "log_product", "slopes"]


@dataclass(frozen=True)
class Digits:
    """What a dtype is worth: how far to look below the peak, and how exact to be."""

    drop: float  # nats below the peak at which the integrand is left out
    error: float  # nats below 1 that the error of a sum may have
    full: float  # beyond this Phi is 1
    plain: float  # from this on log(erfc) is exact enough
    fold: float  # from this on four factors may be multiplied before their logarithm


SINGLE = Digits(13.5, 12.0, full=5.5, plain=-12.0, fold=-5.6)
DOUBLE = Digits(32.0, 27.0, full=8.3, plain=-36.0, fold=-15.0)


def slopes(shift: Tensor, slope: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """First and minus second derivative of `-t^2 / 2 + sum_j log Phi(shift_j + slope_j t)`.

    To a few digits, at t (rows,), for shift and slope (rows, n).
    """
    x = torch.addcmul(shift, slope, t.unsqueeze(-1))
    body = x.clamp(min=-5)
    hazard = (body.square() * -0.5).exp_().div_(torch.erfc(body.mul_(-math.sqrt(0.5))))
    hazard *= math.sqrt(2 / math.pi)
    if bool(x.amin() < -5):
        far = -x.clamp(max=-5)
        hazard = torch.where(x < -5, far + 1 / (far + 2 / (far + 3 / far)), hazard)
    pull = slope * hazard
    bend = hazard.add_(x).mul_(pull).mul_(slope).sum(-1)
    return pull.sum(-1) - t, bend.clamp(min=0) + 1


def find_peak(shift: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Nearly where the integrand is largest, and the curvature of its logarithm there; (rows,).

    Newton's method between bounds. The second derivative is at most -1 everywhere, so that where
    the first is below 0.3 the peak is not farther away, and not a tenth of a nat higher.
    """
    t = shift.new_zeros(len(shift))
    rise, bend = slopes(shift, slope, t)
    low, high = rise.clamp(max=0), rise.clamp(min=0)
    rounding = 4 * torch.finfo(t.dtype).eps
    for _ in range(200):
        low, high = torch.where(rise > 0, t, low), torch.where(rise > 0, high, t)
        if bool((rise.abs() <= 0.3 + rounding * bend * t.abs()).all()):
            break
        ahead = t + rise / bend
        inside = (ahead >= low) & (ahead <= high)
        t = torch.where(inside, ahead, (low + high) / 2)
        rise, bend = slopes(shift, slope, t)
    return t, bend


def log_product(shift: Tensor, slope: Tensor, t: Tensor, lowest: float, digits: Digits) -> Tensor:
    """`sum_j log Phi(shift_j + slope_j t)` at t (rows, points), whose arguments are not below.

    Differentiable in shift and slope. What is plain is exact as a sum of logarithms, not for each.
    """
    if lowest < digits.plain:
        x = torch.addcmul(shift.unsqueeze(1), slope.unsqueeze(1), t.unsqueeze(-1))
        return log_ndtr(x).sum(-1)
    chunk = max(1, CHUNK // (t.shape[-1] * shift.shape[-1]))
    root = -math.sqrt(0.5)
    parts = ((root * shift).unsqueeze(1), (root * slope).unsqueeze(1), t.unsqueeze(-1))
    folds = 2 if lowest >= digits.fold else 0
    found = [
        folded(torch.erfc(torch.addcmul(*part)), folds).log().sum(-1)
        for part in zip(*(part.split(chunk) for part in parts), strict=True)
    ]
    return torch.cat(found) - shift.shape[-1] * math.log(2)


def folded(factors: Tensor, times: int) -> Tensor:
    """Half as many factors with the same product: fewer logarithms."""
    for _ in range(times):
        half = factors.shape[-1] // 2
        if half > 1 and factors.shape[-1] == 2 * half:
            factors = factors[..., :half] * factors[..., half:]
    return factors
