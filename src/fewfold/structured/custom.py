"""A structure of one's own, known by how its best is found."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.structured.structure import Structure

__all__ = ["Custom"]


@dataclass(frozen=True)
class Custom(Structure):
    """Any set of structures whose best member can be found.

    Args:
        best: scores -> the best structure, a vector of the same shape: ones at its parts, or any
            numbers. Nothing else is asked of it; scores are float64 on the CPU.
        event_dim: dimensions of the scores of an instance.
        batched: whether `best` takes `(n, *event)`, several instances at once.

    Example:
        >>> import torch, fewfold as ff
        >>> def neighbours(scores):  # two parts next to each other
        ...     first = (scores[:-1] + scores[1:]).argmax()
        ...     return torch.zeros_like(scores).index_fill(0, torch.stack([first, first + 1]), 1.0)
        >>> ff.sparsemap(torch.tensor([0.5, 1.0, 0.0, 0.7]), ff.structures.Custom(neighbours))
        tensor([0.7000, 0.7000, 0.3000, 0.3000])
    """

    best: Callable[[Tensor], Tensor]
    event_dim: int = 1  # type: ignore[misc]
    batched: bool = False

    coded = False

    def __post_init__(self) -> None:
        if not callable(self.best):
            raise TypeError(f"best must be a function of scores, got {type(self.best).__name__}")
        whole_number(self.event_dim, "event_dim")

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.batched:
            found = self.best(scores)
        else:
            found = torch.stack([self.best(one) for one in scores]) if len(scores) else scores
        if not isinstance(found, Tensor) or found.shape != scores.shape:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"best must return structures of the shape of the scores {tuple(scores.shape)}, "
                f"got {got}"
            )
        found = found.detach().to("cpu", torch.float64)
        used = torch.where(found != 0, scores, 0.0).flatten(1)
        return found, (used > -math.inf).all(1)
