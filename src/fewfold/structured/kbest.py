"""Result of a k-best search."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["KBest"]


@dataclass(frozen=True, eq=False)
class KBest:
    """The k best structures of each instance of a batch, best first.

    Attributes:
        structures: `(..., k, *event)` bool, ones at the parts; zeros where there are fewer than k.
        scores: (..., k) score of each structure; -inf where there are fewer than k.
        valid: (..., k) bool, whether the entry is a structure.
    """

    structures: Tensor
    scores: Tensor
    valid: Tensor
