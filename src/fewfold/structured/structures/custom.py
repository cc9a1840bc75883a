"""A structure of one's own, known by how its best is found."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.structured.structures.structure import Structure

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
            found = _shaped(self.best(scores), scores)
        else:
            each = [_shaped(self.best(one), one) for one in scores]
            found = torch.stack(each) if each else scores
        odd = (scores.isnan() | (scores == math.inf)).flatten(1).any(1)  # may have odd answers
        bad = ~found.isfinite().flatten(1).all(1) & ~odd
        if bool(bad.any()):
            first = int(bad.nonzero()[0, 0])
            raise ValueError(
                "best must return finite numbers, ones at the parts of a structure, got NaN or an "
                f"infinity: {found[first].tolist()} for scores {scores[first].tolist()}"
            )
        used = torch.where(found != 0, scores, 0.0).flatten(1)
        return found, (used > -math.inf).all(1)


def _shaped(found: Tensor, scores: Tensor) -> Tensor:
    """What a function returned as float64 on the CPU, checked."""
    if not isinstance(found, Tensor) or found.shape != scores.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"best must return structures of the shape of the scores {tuple(scores.shape)}, "
            f"got {got}"
        )
    return found.detach().to("cpu", torch.float64)
