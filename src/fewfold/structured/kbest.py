"""The k best structures."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["KBest"]


@dataclass(frozen=True, eq=False)
class KBest:
    """The k best structures of each instance of a batch, the best first.

    Attributes:
        structures: `(..., k, *event)` bool, the parts of each; none where there are fewer than k.
        scores: (..., k) of each; -inf where there are fewer.
        valid: (..., k) whether there is one.
    """

    structures: Tensor
    scores: Tensor
    valid: Tensor
