"""The profile (1 - r^2)^kappa that all densities of finite width share, and its constants."""

import math

from torch import Tensor

__all__ = ["checked_alpha", "exponent", "is_polynomial", "normaliser", "radius", "spread"]

_LARGEST = 12  # powers of the profile that are still worked off as polynomials


def checked_alpha(alpha: float) -> float:
    """`alpha` as a float: finite, and at least one."""
    if isinstance(alpha, (bool, Tensor)) or not isinstance(alpha, (int, float)):
        raise TypeError(f"alpha must be a number, got {type(alpha).__name__}; write alpha=2.0")
    if not 1 <= alpha < math.inf:
        raise ValueError(
            f"alpha must be finite and at least 1, got {alpha}; 1 is the Gaussian, 4/3 the "
            "triweight, 3/2 the biweight, 2 the truncated parabola; below 1 tails are heavy and "
            "not offered"
        )
    return float.fromhex(float(alpha).hex())  # so that a compiler takes it for a constant


def exponent(alpha: float) -> float:
    """kappa = 1 / (alpha - 1), made whole where alpha = k / (k - 1) is meant."""
    kappa = 1 / (alpha - 1)
    near = round(kappa)
    return float(near) if near and abs(kappa - near) < 1e-9 * near else kappa


def is_polynomial(kappa: float) -> bool:
    """Whether the profile is a polynomial of moderate degree."""
    return kappa == round(kappa) and kappa <= _LARGEST


def radius(dim: int, alpha: float) -> float:
    """R: the support is where the distance to the mean is below `R |Sigma|^(-1/(2n + 4 kappa))`."""
    kappa = exponent(alpha)
    log = math.lgamma(dim / 2 + kappa + 1) - math.lgamma(kappa + 1)
    log += kappa * math.log(2 * kappa) - dim / 2 * math.log(math.pi)
    return math.exp(log / (2 * kappa + dim))


def spread(dim: int, alpha: float) -> float:
    """The squared radius of the support over the variance along an axis of the unit ball."""
    return dim + 2 * exponent(alpha) + 2


def normaliser(dim: int, kappa: float) -> float:
    """c with `c (1 - r^2)^kappa` a density on the unit ball."""
    log = math.lgamma(dim / 2 + kappa + 1) - math.lgamma(kappa + 1)
    return math.exp(log - dim / 2 * math.log(math.pi))
