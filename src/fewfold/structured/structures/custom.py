"""A structure defined by a function that returns its best member."""

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
    """Any set of structures, given by a maximisation oracle.

    Args:
        best: scores -> the best structure, a vector of the same shape: ones at its parts, or any
            finite numbers. Scores are float64 on the CPU.
        event_dim: number of dimensions of an instance.
        batched: whether `best` takes several instances at once, `(n, *event)`.

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

    binary = False

    def __post_init__(self) -> None:
        if not callable(self.best):
            raise TypeError(f"best must be a function of scores, got {type(self.best).__name__}")
        whole_number(self.event_dim, "event_dim")

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if self.batched:
            found = _checked(self.best(scores), scores)
        else:
            each = [_checked(self.best(one), one) for one in scores]
            found = torch.stack(each) if each else scores
        invalid = (scores.isnan() | (scores == math.inf)).flatten(1).any(1)  # any answer is fine
        bad = ~found.isfinite().flatten(1).all(1) & ~invalid
        if bool(bad.any()):
            first = int(bad.nonzero()[0, 0])
            raise ValueError(
                "best must return finite numbers, ones at the parts of a structure, got NaN or an "
                f"infinity: {found[first].tolist()} for scores {scores[first].tolist()}"
            )
        used = torch.where(found != 0, scores, 0.0).flatten(1)
        return found, (used > -math.inf).all(1)


def _checked(found: Tensor, scores: Tensor) -> Tensor:
    """Check what `best` returned and convert it to float64 on the CPU."""
    if not isinstance(found, Tensor) or found.shape != scores.shape:
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"best must return structures of the shape of the scores {tuple(scores.shape)}, "
            f"got {got}"
        )
    return found.detach().to("cpu", torch.float64)
