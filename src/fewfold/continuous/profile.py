"""Radial profile (1 - r^2)^kappa or (1 + r^2)^kappa of the densities, and its constants."""

import math

import torch
from torch import Tensor

__all__ = [
    "STEEP",
    "checked_alpha",
    "exponent",
    "is_polynomial",
    "normaliser",
    "profile",
    "radius",
    "spread",
]

STEEP = 50.0  # exponents above which the profile is negligible well before radius 1

_LARGEST = 12  # largest exponent that is evaluated as a polynomial


def checked_alpha(alpha: float, dim: int) -> float:
    """Validate the `alpha` of densities on the line or the plane, and return it as a float."""
    if isinstance(alpha, (bool, Tensor)) or not isinstance(alpha, (int, float)):
        raise TypeError(f"alpha must be a number, got {type(alpha).__name__}; write alpha=2.0")
    if not 0 <= alpha < math.inf:
        raise ValueError(
            f"alpha must be finite and not negative, got {alpha}; 1 is the Gaussian, 4/3 the "
            "triweight, 3/2 the biweight, 2 the truncated parabola; below 1 tails are heavy, and 0 "
            "is the Cauchy density"
        )
    if alpha == 0 and dim > 1:
        raise ValueError(
            "alpha must be above 0 on the plane, where no density of alpha 0 integrates to one, "
            f"got {alpha}; on the line 0 is the Cauchy density"
        )
    return float.fromhex(float(alpha).hex())  # so that a compiler takes it for a constant


def exponent(alpha: float) -> float:
    """kappa = 1 / (alpha - 1), rounded to an integer if alpha is k / (k - 1) up to rounding."""
    kappa = 1 / (alpha - 1)
    near = round(kappa)
    return float(near) if near and abs(kappa - near) < 1e-9 * near else kappa


def is_polynomial(kappa: float) -> bool:
    """Whether the profile is a polynomial of moderate degree."""
    return kappa == round(kappa) and 0 < kappa <= _LARGEST


def profile(square: Tensor, kappa: float) -> Tensor:
    """`(1 - square)^kappa` where that is positive, else 0; `(1 + square)^kappa` of heavy tails."""
    if kappa < 0:
        return torch.exp(kappa * torch.log1p(square))
    if kappa <= STEEP:
        return (1 - square).clamp(min=0) ** kappa
    inside = square < 1  # log1p avoids the rounding of 1 - square
    return torch.where(
        inside, torch.exp(kappa * torch.log1p(-torch.where(inside, square, 0.0))), 0.0
    )


def radius(dim: int, alpha: float) -> float:
    """Factor R of the scale of the profile, `R |Sigma|^(-1/(2n + 4 kappa)) Sigma^(1/2)`.

    For alpha above 1 the scale is the radius of the support.
    """
    kappa = exponent(alpha)
    log = math.log(normaliser(dim, kappa)) + kappa * math.log(2 * abs(kappa))
    return math.exp(log / (2 * kappa + dim))


def spread(dim: int, alpha: float) -> float:
    """Squared scale of the profile over the variance along an axis; 0 if that is infinite."""
    found = dim + 2 * exponent(alpha) + 2
    return found if alpha > 1 else max(-found, 0.0)


def normaliser(dim: int, kappa: float) -> float:
    """Normalising constant c of `c (1 - r^2)^kappa` on the unit ball or `c (1 + r^2)^kappa`."""
    start = kappa + 1 if kappa > 0 else -kappa - dim / 2
    return math.exp(_log_gamma_ratio(start, dim) - dim / 2 * math.log(math.pi))


def _log_gamma_ratio(x: float, dim: int) -> float:
    """`log Gamma(x + dim / 2) - log Gamma(x)`, without cancellation for large x."""
    if dim == 2:
        return math.log(x)
    if dim != 1 or x < 1e3:
        return math.lgamma(x + dim / 2) - math.lgamma(x)
    return math.log(x - 1 / 4 + 1 / (32 * x) + 1 / (128 * x**2)) / 2
