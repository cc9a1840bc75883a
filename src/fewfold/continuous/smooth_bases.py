"""Global basis functions: powers and Fourier waves."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.continuous.basis import Basis, numbers
from fewfold.continuous.density import LineDensity, check_finite
from fewfold.continuous.plane_density import PlaneDensity
from fewfold.continuous.profile import exponent
from fewfold.continuous.quadrature import gegenbauer

__all__ = ["FourierBasis", "PowerBasis"]

_NODES = 128  # quadrature nodes, sufficient for 60 periods within the support


class PowerBasis(Basis):
    """Powers `psi_j(t) = t^j`, j = 0, ..., degree, on the line; expectations are exact.

    Under heavy tails, alpha below 1, only powers below `2 / (1 - alpha) - 1` have an expectation.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.continuous import LineDensity, PowerBasis
        >>> PowerBasis(2).expect(LineDensity(torch.tensor(0.4), torch.tensor(0.05)))
        tensor([1.0000, 0.4000, 0.1956])
    """

    def __init__(self, degree: int) -> None:
        self.degree = whole_number(degree, "degree", least=0)
        super().__init__(1)

    def __len__(self) -> int:
        return self.degree + 1

    def __call__(self, points: Tensor) -> Tensor:
        powers = [torch.ones_like(points)]
        for _ in range(self.degree):
            powers.append(powers[-1] * points)
        return torch.stack(powers, -1)

    def _expect(self, density: LineDensity) -> Tensor:
        if density.alpha == 1:
            return self._gaussian(density.mu, density.sigma_sq)
        # Gauss quadrature is exact for polynomials, without terms of alternating sign.
        nodes, weights = gegenbauer(self.degree // 2 + 1, exponent(density.alpha), density.mu)
        points = density.mu.unsqueeze(-1) + density.half_width.unsqueeze(-1) * nodes
        return (self(points) * weights.unsqueeze(-1)).sum(-2)

    def _heavy(self, density: LineDensity) -> Tensor:
        """Expectations from the moments of Student's t, as far as they exist."""
        shape = -exponent(density.alpha) - 0.5
        if self.degree >= 2 * shape:
            least = (self.degree - 1) / (self.degree + 1)
            raise ValueError(
                f"alpha must be above {least:.4g} for t^{self.degree} to have an average, got "
                f"{density.alpha:g}, whose tails are too heavy; write PowerBasis of a lower degree"
            )
        mu, square = density.mu, density.unit**2 + 0 * density.mu
        central = [torch.ones_like(square)]  # of order 0, 2, 4, ...
        for k in range(1, self.degree // 2 + 1):
            central.append(central[-1] * square * (k - 0.5) / (shape - k))
        found = []
        for j in range(self.degree + 1):
            terms = [
                math.comb(j, 2 * k) * mu ** (j - 2 * k) * central[k] for k in range(j // 2 + 1)
            ]
            found.append(torch.stack(terms).sum(0))
        return torch.stack(found, -1)

    def _gaussian(self, mu: Tensor, sigma_sq: Tensor) -> Tensor:
        found = [torch.ones_like(mu + sigma_sq), mu + 0 * sigma_sq]
        for j in range(2, self.degree + 1):
            found.append(mu * found[-1] + (j - 1) * sigma_sq * found[-2])
        return torch.stack(found[: self.degree + 1], -1)


class FourierBasis(Basis):
    """`cos(2 pi f_j t)`, then `sin(2 pi f_j t)`, on the line or on the plane.

    A projection of a density of this family is one of the family on the line, so that averages are
    those at the mean times the average of one cosine. It is precise while no more than 60 waves
    fit into the support; beyond, it is set to zero, from which it then differs by less than 1e-4
    if alpha is at most 2.

    Args:
        frequencies: `(n,)`, or `(n, 2)` on the plane; there are `2 n` functions.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.continuous import FourierBasis, LineDensity
        >>> FourierBasis([1.0]).expect(LineDensity(torch.tensor(0.1), torch.tensor(0.05)))
        tensor([0.3663, 0.2661])
    """

    def __init__(self, frequencies: Tensor | Sequence[float]) -> None:
        given = numbers(frequencies)
        flat = given.dim() == 1
        if not (flat or (given.dim() == 2 and given.shape[1] == 2)) or not len(given):
            raise ValueError(
                f"frequencies must be (n,) on the line or (n, 2) on the plane with n >= 1, got "
                f"{tuple(given.shape)}"
            )
        check_finite(given, "frequencies")
        super().__init__(given.dim(), frequencies=given)

    def __len__(self) -> int:
        return 2 * len(self.tensors["frequencies"])

    def __call__(self, points: Tensor) -> Tensor:
        waves = 2 * math.pi * self.tensors["frequencies"].to(points)
        angle = points.unsqueeze(-1) * waves if self.dim == 1 else points @ waves.mT
        return torch.cat([angle.cos(), angle.sin()], -1)

    def _expect(self, density: LineDensity | PlaneDensity) -> Tensor:
        waves = 2 * math.pi * self.tensors["frequencies"].to(density.mu)
        if isinstance(density, LineDensity):
            half = density.sigma_sq.sqrt() if density.alpha == 1 else density.half_width
            square = (half.unsqueeze(-1) * waves) ** 2
        else:
            square = (waves @ density.root).square().sum(-1)
        if density.alpha == 1:
            damping = torch.exp(-square / 2)
        else:
            damping = _average_cosine(square, exponent(density.alpha) + (self.dim - 1) / 2)
        return self(density.mu) * torch.cat([damping, damping], -1)


def _average_cosine(square: Tensor, kappa: float) -> Tensor:
    """`E cos(x U)` of `x^2`, where U has a density ~ (1 - u^2)^kappa."""
    # Steep profiles are close to a Gaussian and negligible well before 1.
    near = square < max((1.5 * _NODES) ** 2, 200 * kappa)
    x = torch.where(near, square, 1.0).clamp(min=1e-30).sqrt().unsqueeze(-1)
    nodes, weights = gegenbauer(_NODES, kappa, square)
    return torch.where(near, (torch.cos(x * nodes) * weights).sum(-1), 0.0)
