"""Omega: a map is a regulariser, with a value and an argmax.

`argmax(scores)` solves `argmax_p <p, scores> - Omega(p)` over probabilities (or over k-subsets),
`conjugate(scores)` is the value reached there, and `margin` is the lead over all other scores from
which one entry takes everything.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fewfold._check import non_negative_number, positive_number
from fewfold.maps.entmax import entmax, softmax, sparsemax
from fewfold.maps.ksubset import ksubset
from fewfold.maps.normmax import normmax
from fewfold.maps.rows import widened
from fewfold.maps.threshold import expm1_ratio

__all__ = ["Gini", "Norm", "Omega", "Shannon", "Subset", "Tsallis", "conjugate"]


@runtime_checkable
class Omega(Protocol):
    """A convex regulariser of probabilities and the map it defines.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([-2.0, 0.0, 0.5])
        >>> for omega in (ff.Shannon(), ff.Tsallis(1.5), ff.Gini()):
        ...     print(omega.argmax(scores), omega.margin)
        tensor([0.0486, 0.3592, 0.5922]) None
        tensor([0.0000, 0.3260, 0.6740]) 2.0
        tensor([0.0000, 0.2500, 0.7500]) 1.0

    Reference: Blondel, Martins and Niculae, "Learning with Fenchel-Young losses", 2020.
    """

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        """Omega of the probabilities along `dim`, which disappears from the shape."""

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """The map: probabilities of the shape of the scores."""

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """`max_p <p, scores> - Omega(p)`, whose gradient is the map; 0 where nothing is kept."""

    @property
    def margin(self) -> float | Tensor | None:
        """The lead from which one entry takes everything; None when no lead is enough."""


def conjugate(omega: Omega, scores: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """`max_p <p, scores> - omega(p)` for any omega, by its map."""
    wide = widened(scores)
    probs = omega.argmax(wide, dim, mask=mask)
    used = torch.where(probs.detach() != 0, wide, 0.0)  # an unused score may be -inf
    return ((probs * used).sum(dim) - omega.value(probs, dim)).to(scores.dtype)


@dataclass(frozen=True)
class Shannon:
    """Negative Shannon entropy, `sum p log p`; its map is softmax.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Shannon().value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.6931)
    """

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        return (wide * _filled(wide).log()).sum(dim).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return softmax(scores, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> None:
        return None


@dataclass(frozen=True)
class Gini:
    """Half the Gini negentropy, `(sum p^2 - 1) / 2`; its map is sparsemax.

    The 1 is counted as `sum p`, which is the same on probabilities and 0 for an empty row.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Gini().value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.2500)
    """

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        return ((wide * (wide - 1)).sum(dim) / 2).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return sparsemax(scores, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Tsallis:
    """Tsallis negentropy, `(sum p^alpha - 1) / (alpha (alpha - 1))`; its map is entmax.

    At alpha = 1 it is Shannon's. The 1 is counted as `sum p`, which is the same on probabilities
    and keeps all digits near alpha = 1.

    Args:
        alpha: greater than 0; a number, or a tensor as `entmax` takes it, which may learn.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Tsallis(1.5).value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.3905)
    """

    alpha: float | Tensor = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        c = self.alpha - 1
        log = _filled(wide).log()
        slope = log * expm1_ratio(c * log)  # (p^c - 1) / c
        slope = torch.where(wide.detach() > 0, slope, _at_zero(c))
        return (wide * slope / self.alpha).sum(dim).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float | Tensor | None:
        if isinstance(self.alpha, Tensor):
            above = self.alpha > 1
            return torch.where(above, 1 / torch.where(above, self.alpha - 1, 1.0), math.inf)
        return 1 / (self.alpha - 1) if self.alpha > 1 else None


@dataclass(frozen=True)
class Norm:
    """The alpha-norm less one, `||p||_alpha - 1`; its map is normmax.

    The 1 is counted as `sum p`, which is the same on probabilities and 0 for an empty row.

    Args:
        alpha: greater than 1; a number, or a tensor as `normmax` takes it, which may learn.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Norm(2.0).value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.2929)
    """

    alpha: float | Tensor = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha", above=1.0)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        powers = torch.where(wide.detach() > 0, _filled(wide) ** self.alpha, 0.0)
        total = powers.sum(dim, keepdim=True)
        norm = torch.where(total.detach() > 0, _filled(total) ** (1 / self.alpha), 0.0)
        return (norm.squeeze(dim) - wide.sum(dim)).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return normmax(scores, self.alpha, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Subset:
    """Half the squared norm, `||p||^2 / 2`, where p sums to k; its map is ksubset.

    Its margin is between every chosen entry and every other one.

    Args:
        k: how many to choose; a number, or a tensor as `ksubset` takes it, which may learn.
        at_most: choose up to k.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Subset(2).argmax(torch.tensor([3.0, 0.5, 0.2, -4.0]))
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """

    k: float | Tensor
    at_most: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.k, Tensor):
            non_negative_number(self.k, "k")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return (widened(probs).square().sum(dim) / 2).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return ksubset(scores, self.k, dim, mask=mask, at_most=self.at_most)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0


def _filled(probs: Tensor) -> Tensor:
    """1 where a probability is 0, so that neither its logarithm nor its gradient is infinite."""
    return torch.where(probs.detach() > 0, probs, 1.0)


def _at_zero(c: float | Tensor) -> float | Tensor:
    """The limit of `(p^c - 1) / c` as p goes to 0, where finite: Tsallis has this slope there."""
    if not isinstance(c, Tensor):
        return -1 / c if c > 0 else 0.0
    finite = c.detach() > 0
    return torch.where(finite, -1 / torch.where(finite, c, 1.0), 0.0)
