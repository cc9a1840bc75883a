"""Base class of regularisers. Each regulariser Omega defines a map.

`argmax(scores)` solves `argmax_p <p, scores> - Omega(p)` over a polytope, by default the
probability simplex. A new regulariser is one class with `value` and `argmax`; `Map`, `map_support`,
the Fenchel-Young loss, chunked attention and Hopfield layers then accept it. The other members
enable faster implementations; their defaults are correct for every regulariser.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fewfold._torch import eager
from fewfold.maps.rows import Narrow, widened

__all__ = ["KernelOrder", "Omega", "check_omega", "filled"]


class KernelOrder(NamedTuple):
    """The native kernel that computes a map, as its parameters.

    Attributes:
        alpha: the order, a number or a tensor.
        norm: whether the regulariser is the norm (normmax) instead of the entropy (entmax).
    """

    alpha: float | Tensor
    norm: bool = False


class Omega(ABC):
    """Convex regulariser of probabilities and the map it defines.

    Subclasses are frozen dataclasses; tensor fields may be learnable. `value` and `argmax` are
    required.

    Attributes:
        on_simplex: whether the probabilities sum to 1. If not, a vertex may have several ones.
        zero_at_vertices: whether Omega is 0 at one-hot vectors.
        dense: whether every probability is positive for all finite scores.
        euclidean: whether the map is the Euclidean projection of the scores onto the simplex or
            onto the marginals of structures.
        margin: the smallest lead of the top score for which the result is one-hot; None if there
            is no such lead.
        chunkable: whether the rows of a score matrix can be mapped in chunks of rows.
        drops_masked: whether entries masked in all rows can be removed from the scores.
        learns_through_value: whether tensor fields enter through `value` alone, so that the
            gradient of the conjugate with respect to them is that of `-value(argmax)`.
        kernel_order: the native kernel that computes the map; None if there is none.
        event_dim: number of dimensions of the scores that are mapped together.
        structure: the structure whose marginals are regularised; None for probabilities.

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

    on_simplex: ClassVar[bool] = True
    zero_at_vertices: ClassVar[bool] = False
    dense: ClassVar[bool] = False
    euclidean: ClassVar[bool] = False
    drops_masked: ClassVar[bool] = True
    learns_through_value: ClassVar[bool] = False
    structure: Any = None

    @abstractmethod
    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        """Return Omega of the probabilities, reduced along `dim`."""

    @abstractmethod
    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Return the map of the scores: probabilities of the same shape."""

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """Return `max_p <p, scores> - Omega(p)`, whose gradient is the map; 0 for masked rows."""
        wide = widened(scores)
        probs = self.argmax(wide, dim, mask=mask)
        used = torch.where(probs.detach() != 0, wide, 0.0)  # 0 * -inf is NaN
        return ((probs * used).sum(dim) - self.value(probs, dim)).to(scores.dtype)

    @property
    def margin(self) -> float | Tensor | None:
        return None

    @property
    def chunkable(self) -> bool:
        return True

    @property
    def kernel_order(self) -> KernelOrder | None:
        return None

    @property
    def event_dim(self) -> int:
        return 1

    def candidates(self, rows: Tensor, scores: Tensor, dim: int) -> "tuple[Narrow, Omega] | None":
        """Return the entries of long rows that can be in the support, or None if unknown.

        Args:
            rows: the scores with `dim` last, -inf where masked.
            scores: the original scores, against which parameters of the regulariser broadcast.
            dim: the mapped dimension of the scores.

        Returns:
            The candidates, and the regulariser with its parameters expanded to one per row.
        """
        return None

    def for_size(self, size: int) -> "Omega":
        """Return the regulariser for rows of `size` entries."""
        return self

    def centred(self, scores: Tensor, probs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return the scores less a per-row offset, and a mask of rows with unmasked entries.

        On the simplex the offset does not change the loss: the largest score becomes 0, so that
        large scores lose no precision. In a row with +inf, those entries become 0 and all others
        -inf. Off the simplex an offset would change the loss and the scores are returned unchanged.
        """
        top = scores.detach().amax(dim, keepdim=True)
        live = top != -math.inf
        if not self.on_simplex:
            return scores, live
        if eager(scores) and not bool(top.isinf().any()):
            return scores - top, live
        limit = top.isinf() & (scores == top)
        return torch.where(limit, 0.0, scores - top), live

    def check_class_indices(self) -> None:  # noqa: B027  (optional: accepts by default)
        """Raise if one-hot targets are not points of the polytope."""

    def check_target(self, scores: Tensor, target: Tensor) -> None:  # noqa: B027
        """Raise if a target of the shape of the scores is not a point of the polytope."""

    def attains(self, vertex: Tensor, scores: Tensor) -> Tensor:
        """Return whether the map of each row of scores (last dimension) is this vertex."""
        return (self.argmax(scores) == vertex).all(-1)


def check_omega(omega: object) -> None:
    """Raise unless `omega` is an instance of `Omega`."""
    if isinstance(omega, type) or not isinstance(omega, Omega):
        got = getattr(omega, "__name__", repr(omega))
        raise TypeError(
            f"omega must be a regulariser such as Gini() or Tsallis(1.5), got {got}; "
            "to define your own, derive from ff.Omega"
        )


def filled(probs: Tensor) -> Tensor:
    """Replace zeros by 1, so that logarithms and their gradients stay finite."""
    return torch.where(probs.detach() > 0, probs, 1.0)
