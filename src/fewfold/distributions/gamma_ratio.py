"""Ratios that stay exact where a q-Gaussian becomes a Gaussian."""

import torch
from torch import Tensor

__all__ = ["digamma_ratio", "expm1_ratio", "log1p_ratio", "log_gamma_ratio"]

_LARGE = 100.0  # from here on Stirling's series is exact
_SMALL = 1e-3  # up to here a few terms of a power series are


def log_gamma_ratio(c: Tensor, a: float) -> Tensor:
    """`log Gamma(x + a) - log Gamma(x) - a log|1 / c|`, going to 0 with c.

    x is `1 / c + 1` for positive c and `-1 / c - a` for negative, where it must be positive.

    Example:
        >>> import torch
        >>> log_gamma_ratio(torch.tensor([0.001, 1.0]), 0.5)
        tensor([0.0004, 0.2847])
    """
    x, stretched = _argument(c, a)
    large = x.detach() > _LARGE
    high = torch.where(large, x, _LARGE)
    series = (high + a - 0.5) * torch.log1p(a / high) - a + _stirling(high + a) - _stirling(high)
    low = torch.where(large, _LARGE, x)
    direct = torch.lgamma(low + a) - torch.lgamma(low) - a * low.log()
    return torch.where(large, series, direct) + a * torch.log1p(stretched)


def digamma_ratio(c: Tensor, a: float) -> Tensor:
    """`|1 / c| (psi(x + a) - psi(x))`, going to a with c; x as in `log_gamma_ratio`."""
    x, stretched = _argument(c, a)
    large = x.detach() > _LARGE
    high = torch.where(large, x, _LARGE)
    series = torch.log1p(a / high) + _psi(high + a) - _psi(high)
    low = torch.where(large, _LARGE, x)
    direct = torch.digamma(low + a) - torch.digamma(low)
    return torch.where(large, series, direct) * x / (1 + stretched)


def _argument(c: Tensor, a: float) -> tuple[Tensor, Tensor]:
    """x, and `x |c| - 1`."""
    stretched = torch.where(c > 0, c, a * c)
    return (1 + stretched) / c.abs(), stretched


def _stirling(x: Tensor) -> Tensor:
    """What `log Gamma(x)` is beyond `(x - 1/2) log x - x + log(2 pi) / 2`."""
    return 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


def _psi(x: Tensor) -> Tensor:
    """What `psi(x)` is beyond `log x`."""
    return -1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4)


def log1p_ratio(c: Tensor, u: Tensor) -> Tensor:
    """`log(1 + c u) / c`, which is u at c = 0.

    Example:
        >>> import torch
        >>> log1p_ratio(torch.tensor([1e-9, 1.0]), torch.tensor(-0.5))
        tensor([-0.5000, -0.6931])
    """
    z = c * u
    small = z.detach().abs() < _SMALL
    near = torch.where(small, z, 0.0)
    series = u * (1 - near * (1 / 2 - near * (1 / 3 - near * (1 / 4 - near * (1 / 5 - near / 6)))))
    far = torch.where(small, _SMALL, z)
    return torch.where(small, series, torch.log1p(far) / c)


def expm1_ratio(c: Tensor, u: Tensor) -> Tensor:
    """`(exp(c u) - 1) / c`, which is u at c = 0."""
    z = c * u
    small = z.detach().abs() < _SMALL
    near = torch.where(small, z, 0.0)
    series = u * (1 + near / 2 * (1 + near / 3 * (1 + near / 4 * (1 + near / 5))))
    return torch.where(small, series, torch.expm1(z) / c)
