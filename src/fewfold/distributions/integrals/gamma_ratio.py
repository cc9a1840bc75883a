"""Ratios of special functions that stay accurate as a q-Gaussian tends to a Gaussian (c = 0)."""

import torch
from torch import Tensor

__all__ = ["digamma_ratio", "expm1_ratio", "log1p_ratio", "log_gamma_ratio"]

_LARGE = 100.0  # argument from which Stirling's series is accurate
_SMALL = 1e-3  # argument up to which the power series is accurate


def log_gamma_ratio(c: Tensor, a: float) -> Tensor:
    """`log Gamma(x + a) - log Gamma(x) - a log|1 / c|`, which tends to 0 as c does.

    x is `1 / c + 1` for positive c and `-1 / c - a` for negative, where it must be positive.

    Example:
        >>> import torch
        >>> log_gamma_ratio(torch.tensor([0.001, 1.0]), 0.5)
        tensor([0.0004, 0.2847])
    """
    x, part, stretched = _argument(c, a)
    large = part.detach() * _LARGE < 1
    near = torch.where(large, part, 1 / _LARGE)
    z = a * near
    series = a * (log1p_ratio(z, torch.ones_like(z)) - 1) + (a - 0.5) * torch.log1p(z)
    series = series + _stirling(near / (1 + z)) - _stirling(near)
    low = torch.where(large, _LARGE, x)
    direct = torch.lgamma(low + a) - torch.lgamma(low) - a * low.log()
    return torch.where(large, series, direct) + a * torch.log1p(stretched)


def digamma_ratio(c: Tensor, a: float) -> Tensor:
    """`|1 / c| (psi(x + a) - psi(x))`, which tends to a as c to 0; x as in `log_gamma_ratio`."""
    x, part, stretched = _argument(c, a)
    large = part.detach() * _LARGE < 1
    near = torch.where(large, part, 1 / _LARGE)
    z = a * near
    less = 1 / (1 + z)
    series = a * log1p_ratio(z, torch.ones_like(z)) + z * less / 2
    series = series + near * (1 - less**2) / 12 - near**3 * (1 - less**4) / 120
    low = torch.where(large, _LARGE, x)
    direct = (torch.digamma(low + a) - torch.digamma(low)) * low
    return torch.where(large, series, direct) / (1 + stretched)


def _argument(c: Tensor, a: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, `1 / x` (the bounded variable of the series as c tends to 0) and `x |c| - 1`."""
    stretched = torch.where(c > 0, c, a * c)
    part = c.abs() / (1 + stretched)
    return 1 / part, part, stretched


def _stirling(part: Tensor) -> Tensor:
    """Stirling remainder `log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2` at `part = 1 / x`."""
    return part / 12 - part**3 / 360 + part**5 / 1260


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
