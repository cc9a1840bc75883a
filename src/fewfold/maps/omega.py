"""Omega: the base class of regularisers, each of which defines a map.

`argmax(scores)` solves `argmax_p <p, scores> - Omega(p)` over a polytope, the probability simplex
unless the class says otherwise. A new regulariser is one class with `value` and `argmax`: the map
as a module, its support, its Fenchel-Young loss, chunked attention and Hopfield layers follow. The
other members describe it to these, and have defaults that are always right, if not always fast.
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
    """The member of the native kernels' family that computes a map.

    Attributes:
        alpha: the order, a number or a tensor.
        norm: whether the regulariser is the norm (normmax) instead of the entropy (entmax).
    """

    alpha: float | Tensor
    norm: bool = False


class Omega(ABC):
    """A convex regulariser of probabilities and the map it defines.

    Subclasses are frozen dataclasses; their fields that are tensors may learn. `value` and
    `argmax` are required.

    Attributes:
        on_simplex: whether the map sums to 1. If not, its vertices may have several ones.
        zero_at_vertices: whether Omega is 0 where one entry has all the mass.
        dense: whether every probability is positive, however far one score leads.
        euclidean: whether the map is the Euclidean projection of the scores onto the simplex or
            onto the marginals of structures.
        margin: the lead from which one entry takes everything; None if there is none.
        chunkable: whether the rows of a matrix of scores can be mapped a few at a time.
        drops_masked: whether entries masked in all rows can be left out of the scores.
        learns_through_value: whether tensors in the fields act through `value` alone, so that the
            gradient of the conjugate with respect to them is that of `-value(argmax)`.
        kernel_order: the native kernel that computes the map; None if there is none.
        event_dim: number of dimensions of the scores that are mapped together.
        structure: what a regulariser of marginals ranges over; None for one of probabilities.

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
        """Omega of the probabilities along `dim`, which disappears from the shape."""

    @abstractmethod
    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """The map: probabilities of the shape of the scores."""

    def conjugate(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        """`max_p <p, scores> - Omega(p)`, whose gradient is the map; 0 for an empty row."""
        wide = widened(scores)
        probs = self.argmax(wide, dim, mask=mask)
        used = torch.where(probs.detach() != 0, wide, 0.0)  # an unused score may be -inf
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
        """The entries of long rows that can be in the support, or None if they are not known.

        Args:
            rows: the scores with `dim` last, -inf where masked.
            scores: as the user gave them; parameters of the regulariser broadcast to these.
            dim: of the scores.

        Returns:
            The entries, and the regulariser with its parameters spread over their rows.
        """
        return None

    def for_size(self, size: int) -> "Omega":
        """The regulariser for rows of `size` entries."""
        return self

    def centred(self, scores: Tensor, probs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Scores less an offset that does not change the loss, and which rows have entries.

        On the simplex the largest score becomes 0, so that a large offset costs no precision;
        +inf is the limit of a large score: such entries become 0 and all others -inf. Where the
        mass is not fixed an offset matters, and the scores are returned as they are.
        """
        top = scores.detach().amax(dim, keepdim=True)
        live = top != -math.inf
        if not self.on_simplex:
            return scores, live
        if eager(scores) and not bool(top.isinf().any()):
            return scores - top, live
        limit = top.isinf() & (scores == top)
        return torch.where(limit, 0.0, scores - top), live

    def check_class_indices(self) -> None:  # noqa: B027  (most have nothing to refuse)
        """Raise where a single class is not a point of the polytope."""

    def check_target(self, scores: Tensor, target: Tensor) -> None:  # noqa: B027
        """Raise where a target of the shape of the scores is not a point of the polytope."""

    def attains(self, vertex: Tensor, scores: Tensor) -> Tensor:
        """Whether the map of each row of scores, along the last dimension, is this vertex."""
        return (self.argmax(scores) == vertex).all(-1)


def check_omega(omega: object) -> None:
    """Raise unless this is a regulariser, and not its class."""
    if isinstance(omega, type) or not isinstance(omega, Omega):
        came = getattr(omega, "__name__", repr(omega))
        raise TypeError(
            f"omega must be a regulariser such as Gini() or Tsallis(1.5), got {came}; "
            "one of your own derives from ff.Omega"
        )


def filled(probs: Tensor) -> Tensor:
    """1 where a probability is 0, so that neither its logarithm nor its gradient is infinite."""
    return torch.where(probs.detach() > 0, probs, 1.0)
