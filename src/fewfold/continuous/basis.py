"""Basis functions of signals: values at points and expectations under densities."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from fewfold._check import whole_number
from fewfold.continuous.density import Density, LineDensity, check_finite, check_positive
from fewfold.continuous.gaussian_expectation import expected_bump, normal
from fewfold.continuous.plane_density import PlaneDensity
from fewfold.continuous.plane_expectation import expected_boxes, expected_bumps
from fewfold.continuous.profile import exponent

__all__ = ["Basis", "GaussianBasis", "RectangularBasis", "numbers"]


class Basis(ABC):
    """Base class of basis functions `psi` on the line or the plane.

    Attributes:
        dim: 1 on the line, 2 on the plane.
        fits: cached matrices of ridge regressions on these functions.
    """

    def __init__(self, dim: int, **tensors: Tensor) -> None:
        self.dim = dim
        self.tensors = tensors
        self.fits: dict[Any, Tensor] = {}
        self._versions: tuple[int, ...] = ()

    @property
    def learns(self) -> bool:
        """Whether the functions require a gradient, which rules out caching."""
        return any(one.requires_grad for one in self.tensors.values())

    def cached_fit(self, key: Any) -> Tensor | None:
        """Entry of `fits`, cleared if tensors changed in place, as by load_state_dict."""
        if torch.compiler.is_compiling():  # tensor versions are unavailable
            frozen = any(isinstance(one, Parameter) for one in self.tensors.values())
            return None if frozen else self.fits.get(key)
        tensors = self.tensors.values()
        versions = tuple(0 if one.is_inference() else one._version for one in tensors)
        if versions != self._versions:
            self.fits.clear()
            self._versions = versions
        return self.fits.get(key)

    def replaced(self, tensors: dict[str, Tensor]) -> Self:
        """Copy of the basis with other tensors; the basis itself if they are the same."""
        if all(one is self.tensors[name] for name, one in tensors.items()):
            return self
        other = copy.copy(self)
        other.tensors, other.fits = tensors, {}
        return other

    @abstractmethod
    def __len__(self) -> int:
        """Number of functions."""

    @abstractmethod
    def __call__(self, points: Tensor) -> Tensor:
        """Evaluate the functions, `(..., n)`, at points `(...)` (line) or `(..., 2)` (plane)."""

    def expect(self, density: Density) -> Tensor:
        """Expectations `E_p[psi]`, `(..., n)`, under densities `(...)` or their mixtures."""
        if not isinstance(density, Density):
            raise TypeError(f"expected a LineDensity or a PlaneDensity, got {density!r}")
        if density.dim != self.dim:
            kind = "PlaneDensity" if self.dim == 2 else "LineDensity"
            raise ValueError(
                f"{type(self).__name__} of dimension {self.dim} needs a {kind}, got a "
                f"{type(density).__name__}"
            )
        own = density.working
        return density.mixed(self._expect(own) if own.alpha >= 1 else self._heavy(own))

    def _heavy(self, density: Any) -> Tensor:
        """Expectations for alpha below 1, as a mixture of Gaussians."""
        many, shares = density.gaussians()
        each: Tensor = self._expect(many) * shares.unsqueeze(-1)
        return each.sum(-2)

    @abstractmethod
    def _expect(self, density: Any) -> Tensor:
        """Expectations `(*density.shape, n)` for alpha of at least 1."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} functions, dim={self.dim})"


class GaussianBasis(Basis):
    """`psi_j(t) = N(t; m_j, s_j^2)`, on the line or on the plane.

    Args:
        centres: `(n,)` on the line, `(n, 2)` on the plane.
        widths: standard deviations, positive: `(n,)`, one number for all, or, on the plane,
            `(n, 2)` along the two axes.

    Example:
        >>> import torch, fewfold as ff
        >>> basis = ff.continuous.GaussianBasis([0.3, 0.7], [0.1, 0.2])
        >>> density = ff.continuous.LineDensity(torch.tensor(0.4), torch.tensor(0.05), alpha=2.0)
        >>> basis.expect(density), basis(torch.tensor(0.3))
        (tensor([1.5786, 0.8272]), tensor([3.9894, 0.2700]))

    Reference: Martins et al., "Sparse and continuous attention mechanisms", 2020.
    """

    def __init__(
        self, centres: Tensor | Sequence[Any], widths: Tensor | Sequence[Any] | float
    ) -> None:
        centres, widths = numbers(centres), numbers(widths)
        plane = centres.dim() == 2
        if centres.dim() not in (1, 2) or (plane and centres.shape[1] != 2) or not len(centres):
            raise ValueError(
                f"centres must be (n,) on the line or (n, 2) on the plane with n >= 1, got "
                f"{tuple(centres.shape)}"
            )
        check_finite(centres, "centres")
        allowed = [(), centres.shape[:1], *([centres.shape] if plane else [])]
        if widths.shape not in allowed:
            raise ValueError(
                f"widths must be one or as many as centres {len(centres)}, got "
                f"{tuple(widths.shape)}"
            )
        check_finite(widths, "widths")
        check_positive(widths, "widths")
        super().__init__(2 if plane else 1, centres=centres, widths=widths)

    @classmethod
    def grid(
        cls, count: int, widths: Sequence[float] = (0.1, 0.5), dim: int = 1
    ) -> "GaussianBasis":
        """`count` centres evenly spread over [0, 1], in each direction, for each of the widths."""
        whole_number(count, "count")
        if dim not in (1, 2):
            raise ValueError(f"dim must be 1, the line, or 2, the plane, got {dim}")
        if not isinstance(widths, Sequence) or not len(widths):
            raise TypeError(
                f"widths must be a non-empty list of numbers, got {widths!r}; write [0.1, 0.5]"
            )
        line = torch.linspace(0, 1, count, dtype=torch.float64)
        centres = line if dim == 1 else torch.cartesian_prod(line, line)
        each = torch.as_tensor(list(widths), dtype=torch.float64)
        many = centres.repeat(len(each), *[1] * (dim - 1))
        return cls(many, each.repeat_interleave(len(centres)))

    def __len__(self) -> int:
        return len(self.tensors["centres"])

    def __call__(self, points: Tensor) -> Tensor:
        centres, widths = self._at(points)
        if self.dim == 1:
            return normal((points.unsqueeze(-1) - centres) / widths) / widths
        z = (points.unsqueeze(-2) - centres) / widths
        return (normal(z) / widths).prod(-1)

    def _expect(self, density: LineDensity | PlaneDensity) -> Tensor:
        centres, widths = self._at(density.mu)
        if isinstance(density, PlaneDensity):
            return expected_bumps(density, centres, widths)
        offset = centres - density.mu.unsqueeze(-1)
        if density.alpha == 1:
            total = (density.sigma_sq.unsqueeze(-1) + widths**2).sqrt()
            return normal(offset / total) / total
        half = density.half_width.unsqueeze(-1)
        return expected_bump(half, offset, widths, exponent(density.alpha))

    def _at(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Centres and widths, `(n,)` or `(n, 2)`, with the device and dtype of `like`."""
        centres, widths = (self.tensors[name].to(like) for name in ("centres", "widths"))
        widths = widths.unsqueeze(-1) if self.dim == 2 and widths.dim() == 1 else widths
        return centres, widths.expand(centres.shape)


class RectangularBasis(Basis):
    """`psi_j(t) = 1` in the j-th of adjoining intervals, or of the boxes of a grid, else 0.

    Expectations are probabilities: exact integrals of polynomials on the line and, as sums over the
    sides of a box, on the plane; numerical quadrature is used only for the Gaussian and for an
    alpha that is not `k / (k - 1)`.

    Args:
        edges: `(n + 1,)`, increasing.
        edges_across: `(m + 1,)`, for the boxes of a grid on the plane; functions are numbered row
            by row, `n m` of them.

    Example:
        >>> import torch, fewfold as ff
        >>> basis = ff.continuous.RectangularBasis([0.0, 0.25, 0.5, 1.0])
        >>> basis.expect(ff.continuous.LineDensity(torch.tensor(0.4), torch.tensor(0.05)))
        tensor([0.2425, 0.4300, 0.3255])
    """

    def __init__(
        self, edges: Tensor | Sequence[float], edges_across: Tensor | Sequence[float] | None = None
    ) -> None:
        given = {"edges": edges, "edges_across": edges_across}
        axes = {name: numbers(one) for name, one in given.items() if one is not None}
        for name, one in axes.items():
            if one.dim() != 1 or len(one) < 2 or not bool((one.diff() > 0).all()):
                raise ValueError(
                    f"{name} must be (n + 1,), at least two numbers that increase, got shape "
                    f"{tuple(one.shape)}, {one.flatten()[:5].tolist()}; write "
                    "torch.linspace(0, 1, n + 1)"
                )
            check_finite(one, name)
        super().__init__(len(axes), **axes)

    def __len__(self) -> int:
        return math.prod([len(one) - 1 for one in self.tensors.values()])

    def __call__(self, points: Tensor) -> Tensor:
        if self.dim == 1:
            return _indicators(points, self.tensors["edges"])
        rows = _indicators(points[..., 0], self.tensors["edges"])
        columns = _indicators(points[..., 1], self.tensors["edges_across"])
        return (rows.unsqueeze(-1) * columns.unsqueeze(-2)).flatten(-2)

    def _expect(self, density: LineDensity | PlaneDensity) -> Tensor:
        axes = [one.to(density.mu) for one in self.tensors.values()]
        if isinstance(density, PlaneDensity):
            return expected_boxes(density, *axes)
        each = LineDensity(density.mu.unsqueeze(-1), density.sigma_sq.unsqueeze(-1), density.alpha)
        return each.mass(axes[0][:-1], axes[0][1:])


def _indicators(points: Tensor, edges: Tensor) -> Tensor:
    """`(..., n)` indicators of intervals, closed below and open above except for the last."""
    edges, points = edges.to(points), points.unsqueeze(-1)
    inside = (points >= edges[:-1]) & (points < edges[1:])
    last = (points == edges[-1]) & (edges[1:] == edges[-1])
    return (inside | last).to(points)


def numbers(values: Any) -> Tensor:
    """Return floating-point tensors unchanged, and convert other values to float64."""
    if isinstance(values, Tensor) and values.is_floating_point():
        return values
    return torch.as_tensor(values, dtype=torch.float64)
