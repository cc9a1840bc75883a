"""Omega: a map is a regulariser, with a value and an argmax."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from fewfold._check import positive_number
from fewfold.maps.entmax import entmax, softmax, sparsemax
from fewfold.maps.ksubset import ksubset
from fewfold.maps.normmax import normmax

__all__ = ["Gini", "Norm", "Omega", "Shannon", "Subset", "Tsallis"]


@runtime_checkable
class Omega(Protocol):
    """A convex regulariser of probabilities and the map it defines."""

    def value(self, probs: Tensor, dim: int = -1) -> Tensor: ...
    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor: ...
    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor: ...

    @property
    def margin(self) -> float | Tensor | None: ...


def conjugate(omega: Omega, scores: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """`max_p <p, scores> - omega(p)`, whose gradient is the argmax."""
    probs = omega.argmax(scores, dim, mask=mask)
    used = probs.detach() != 0
    return (probs * torch.where(used, scores, 0.0)).sum(dim) - omega.value(probs, dim)


@dataclass(frozen=True)
class Shannon:
    """Negative Shannon entropy `sum p log p`; its map is softmax."""

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        positive = torch.where(probs.detach() > 0, probs, 1.0)
        return torch.where(probs.detach() > 0, probs * positive.log(), 0.0 * probs).sum(dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return softmax(scores, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> None:
        return None


@dataclass(frozen=True)
class Gini:
    """Half the Gini negentropy `(sum p^2 - 1) / 2`; its map is sparsemax."""

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return (probs * (probs - 1)).sum(dim) / 2

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return sparsemax(scores, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Tsallis:
    """Tsallis negentropy `(sum p^alpha - 1) / (alpha (alpha - 1))`; its map is entmax."""

    alpha: float | Tensor = 1.5

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        c = self.alpha - 1
        positive = torch.where(probs.detach() > 0, probs, 1.0)
        log = positive.log()
        w = c * log
        near = abs(w) < 1e-3
        far = torch.where(near, 1.0, w)
        ratio = torch.where(near, 1 + w / 2 + w.square() / 6, far.expm1() / far)
        return (probs * log * ratio / self.alpha).sum(dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return entmax(scores, self.alpha, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float | Tensor | None:
        if isinstance(self.alpha, Tensor):
            return torch.where(self.alpha > 1, 1 / (self.alpha - 1), math.inf)
        return 1 / (self.alpha - 1) if self.alpha > 1 else None


@dataclass(frozen=True)
class Norm:
    """The alpha-norm less one, `||p||_alpha - 1`; its map is normmax."""

    alpha: float | Tensor = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha", above=1.0)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        positive = torch.where(probs.detach() > 0, probs, 1.0)
        total = torch.where(probs.detach() > 0, positive**self.alpha, 0.0).sum(dim, keepdim=True)
        return ((total ** (1 / self.alpha)) - 1).squeeze(dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return normmax(scores, self.alpha, dim, mask=mask)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Subset:
    """Half the squared norm on vectors in [0, 1] that sum to k; its map is ksubset."""

    k: float | Tensor
    at_most: bool = False

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return probs.square().sum(dim) / 2

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return ksubset(scores, self.k, dim, mask=mask, at_most=self.at_most)

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return conjugate(self, scores, dim, mask)

    @property
    def margin(self) -> float:
        return 1.0
