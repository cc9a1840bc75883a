"""Maximum of a Gaussian density times a product of normal distribution functions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.distributions.integrals.log_ndtr import log_ndtr
from fewfold.distributions.integrals.row_blocks import CHUNK

__all__ = ["DOUBLE", "SINGLE", "Digits", "find_peak", "log_product", "slopes"]

_NEAR = 0.6  # tolerance of the derivative at the peak


@dataclass(frozen=True)
class Digits:
    """Accuracy settings of a dtype: range of integration and tolerances."""

    drop: float  # nats below the peak at which the integrand is truncated
    error: float  # minus the logarithm of the relative error of the sum
    full: float  # argument beyond which Phi is 1
    plain: float  # argument above which log(erfc) is accurate
    least: float  # least product of factors that keeps all its digits
    step: float  # step of the points in the log distance to an end


SINGLE = Digits(13.5, 12.0, full=5.5, plain=-12.0, least=1e-30, step=0.14)
DOUBLE = Digits(32.0, 27.0, full=8.3, plain=-36.0, least=1e-290, step=0.06)


def slopes(shift: Tensor, slope: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and minus the second derivative of the log integrand.

    That is `-t^2 / 2 + sum_j log Phi(shift_j + slope_j t)`. Accurate to a few digits.
    `shift` and `slope` are (n, rows), `t` is (rows,).
    """
    x = torch.addcmul(shift, slope, t)
    body = x.clamp(min=-5)
    hazard = body.square().mul_(-0.5).exp_().div_(torch.erfc(body.mul_(-math.sqrt(0.5))))
    hazard *= math.sqrt(2 / math.pi)
    if x.numel() and bool(x.amin() < -5):
        far = -x.clamp(max=-5)
        hazard = torch.where(x < -5, far + 1 / (far + 2 / (far + 3 / far)), hazard)
    pull = slope * hazard
    bend = hazard.add_(x).mul_(pull).mul_(slope).sum(0)
    return pull.sum(0) - t, bend.clamp(min=0) + 1


def find_peak(shift: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the approximate peak of the integrand and minus its log's second derivative; (rows,).

    Bracketed Newton's method on the rows that have not converged. The second derivative is at most
    -1 everywhere, so the distance to the peak is at most the absolute first derivative.
    """
    t = shift.new_zeros(shift.shape[-1])
    rise, bend = slopes(shift, slope, t)
    low, high = rise.clamp(max=0), rise.clamp(min=0)
    rounding = 4 * torch.finfo(t.dtype).eps
    for _ in range(200):
        low, high = torch.where(rise > 0, t, low), torch.where(rise > 0, high, t)
        far = (rise.abs() > _NEAR + rounding * bend * t.abs()).nonzero()[:, 0]
        if len(far) == 0:
            break
        rows = far if 2 * len(far) < len(t) else slice(None)
        ahead = t[rows] + rise[rows] / bend[rows]
        inside = (ahead >= low[rows]) & (ahead <= high[rows])
        ahead = torch.where(inside, ahead, (low[rows] + high[rows]) / 2)
        t[rows] = ahead
        rise[rows], bend[rows] = slopes(shift[:, rows], slope[:, rows], ahead)
    return t, bend


def log_product(shift: Tensor, slope: Tensor, t: Tensor, lowest: float, digits: Digits) -> Tensor:
    """`sum_j log Phi(shift_j + slope_j t)` at t (points, rows).

    Differentiable in `shift` and `slope` (n, rows). `lowest` is a lower bound of the arguments of
    Phi. If it is high enough, log(erfc) is used: the sum is accurate, its terms may not be.
    """
    plain = lowest >= digits.plain
    root = -math.sqrt(0.5) if plain else 1.0
    capacity = max(1, CHUNK // max(t.numel(), 1))
    chunk = min(16, 1 << (capacity.bit_length() - 1))  # a power of two, as _log_of_product halves
    parts = zip(
        (root * shift).unsqueeze(1).split(chunk), (root * slope).unsqueeze(1).split(chunk),
        strict=True,
    )  # fmt: skip
    total = torch.zeros_like(t)
    for part in parts:
        x = torch.addcmul(*part, t)
        total = total + (_log_of_product(torch.erfc(x), digits) if plain else log_ndtr(x).sum(0))
    return total - len(shift) * math.log(2) if plain else total


def _log_of_product(factors: Tensor, digits: Digits) -> Tensor:
    """Log of the product of up to 16 factors (n, points, rows); a sum of logs if it underflows."""
    product = factors
    while len(product) > 1:
        half = len(product) // 2
        if len(product) % 2:
            product = torch.cat([product[:1] * product[-1:], product[1:-1]])
        else:
            product = product[:half] * product[half:]
    if bool(product.detach().amin() < digits.least):
        return factors.log().sum(0)
    return product[0].log()
