"""Negative entropies as regularisers: Shannon (softmax), Gini (sparsemax), Tsallis (entmax)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import positive_number
from fewfold.maps.entmax import entmax, entmax_candidates, row_alpha, softmax, sparsemax
from fewfold.maps.omega import KernelOrder, Omega, filled
from fewfold.maps.rows import Narrow, flat_rows, widened
from fewfold.maps.solvers.threshold import expm1_ratio

__all__ = ["Gini", "Shannon", "Tsallis"]


@dataclass(frozen=True)
class Shannon(Omega):
    """Negative Shannon entropy, `sum p log p`; its map is softmax.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Shannon().value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.6931)
    """

    zero_at_vertices: ClassVar[bool] = True
    dense: ClassVar[bool] = True

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        return (wide * filled(wide).log()).sum(dim).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return softmax(scores, dim, mask=mask)


@dataclass(frozen=True)
class Gini(Omega):
    """Half the Gini negentropy, `(sum p^2 - 1) / 2`; its map is sparsemax.

    The 1 is computed as `sum p`: equal on probabilities, and 0 for a row of zeros.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Gini().value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.2500)
    """

    zero_at_vertices: ClassVar[bool] = True
    euclidean: ClassVar[bool] = True
    margin: ClassVar[float] = 1.0
    kernel_order: ClassVar[KernelOrder] = KernelOrder(2.0)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        return ((wide * (wide - 1)).sum(dim) / 2).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return sparsemax(scores, dim, mask=mask)

    def candidates(self, rows: Tensor, scores: Tensor, dim: int) -> tuple[Narrow, Omega] | None:
        found = entmax_candidates(rows, 2.0)
        return None if found is None else (found, self)


@dataclass(frozen=True)
class Tsallis(Omega):
    """Tsallis negentropy, `(sum p^alpha - 1) / (alpha (alpha - 1))`; its map is entmax.

    At alpha = 1 it equals `Shannon`. The 1 is computed as `sum p`: equal on probabilities, and
    accurate near alpha = 1.

    Args:
        alpha: greater than 0; a number, or a tensor as in `entmax`, which may be learnable.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Tsallis(1.5).value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.3905)
    """

    zero_at_vertices: ClassVar[bool] = True
    learns_through_value: ClassVar[bool] = True
    alpha: float | Tensor = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        c = self.alpha - 1
        log = filled(wide).log()
        slope = log * expm1_ratio(c * log)  # (p^c - 1) / c
        slope = torch.where(wide.detach() > 0, slope, _at_zero(c))
        return (wide * slope / self.alpha).sum(dim).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, dim, mask=mask)

    @property
    def margin(self) -> float | Tensor | None:
        if isinstance(self.alpha, Tensor):
            above = self.alpha > 1
            return torch.where(above, 1 / torch.where(above, self.alpha - 1, 1.0), math.inf)
        return 1 / (self.alpha - 1) if self.alpha > 1 else None

    @property
    def dense(self) -> bool:  # type: ignore[override]
        return not isinstance(self.alpha, Tensor) and self.alpha <= 1

    @property
    def kernel_order(self) -> KernelOrder:
        return KernelOrder(self.alpha if isinstance(self.alpha, Tensor) else float(self.alpha))

    def candidates(self, rows: Tensor, scores: Tensor, dim: int) -> tuple[Narrow, Omega] | None:
        order = row_alpha(self.alpha, scores, dim, above=0.0)
        found = entmax_candidates(rows, order)
        return None if found is None else (found, replace(self, alpha=flat_rows(order, rows)))


def _at_zero(c: float | Tensor) -> float | Tensor:
    """Limit of `(p^c - 1) / c` as p goes to 0, which gives the slope there; 0 if infinite."""
    if not isinstance(c, Tensor):
        return -1 / c if c > 0 else 0.0
    finite = c.detach() > 0
    return torch.where(finite, -1 / torch.where(finite, c, 1.0), 0.0)
