"""Semi-Markov sequences: partitions of a sequence into labelled segments."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import check_scores
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.batch_rows import expand_to_batch
from fewfold.structured.structures.dynamic_program import DynamicProgram
from fewfold.structured.structures.semirings import Semiring

__all__ = ["Segmentation"]


@registered
@dataclass(frozen=True, eq=False, repr=False)
class Segmentation(DynamicProgram):
    """Segments of length at most L that cover n positions, each with one of S labels.

    Scores are `(..., n, L, S)`: [j, l, s] is the score of a segment of l + 1 positions that ends at
    j, with label s; segments that begin before the first position are ignored. The score of a
    segmentation is the sum over its segments and over the transitions between adjacent labels.

    A position that no segment can cover is left out, and the segments around it become adjacent.
    As segments are indexed by their last position, `mask[length:] = False` shortens an instance.

    Args:
        transitions: (S, S), from row to column, or `(..., S, S)` that broadcasts to the batch.
            -inf forbids a transition. None: all zero.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[[0.5], [0.0]], [[0.2], [0.9]], [[0.3], [0.4]]])
        >>> ff.structures.Segmentation().argmax(scores)[..., 0]
        tensor([[0., 0.],
                [0., 1.],
                [1., 0.]])

    Reference: Sarawagi and Cohen, "Semi-Markov conditional random fields for information
    extraction", 2004.
    """

    transitions: Tensor | None = None

    event_dim: ClassVar[int] = 3
    additional_names: ClassVar[tuple[str, ...]] = ("transitions",)

    def __post_init__(self) -> None:
        if self.transitions is not None:
            check_scores(self.transitions, "transitions")

    def check(self, event: torch.Size) -> None:
        if not event.numel():
            raise ValueError(
                "a segmentation must have positions, lengths and labels, scores (..., n, L, S), "
                f"got {tuple(event)}"
            )
        wanted = (event[2], event[2])
        if self.transitions is not None and self.transitions.shape[-2:] != wanted:
            raise ValueError(
                f"transitions must end in {wanted} for {event[2]} labels, got "
                f"{tuple(self.transitions.shape)}"
            )

    def slots(self, event: torch.Size) -> Tensor:
        return torch.arange(event[0]).repeat_interleave(event[1] * event[2])

    def width(self, event: torch.Size) -> int:
        return event[0]

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        return replace(self, transitions=expand_to_batch(self.transitions, batch, 2, "transitions"))

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        if self.transitions is None:
            return torch.zeros(len(codes), dtype=torch.float64)
        there = codes >= 0
        label = codes.clamp(min=0) % event[2]
        last = torch.where(there, torch.arange(event[0]), -1).cummax(1).values
        before = F.pad(last[:, :-1], (1, 0), value=-1)  # end of the previous segment
        step = self.transitions[row.unsqueeze(1), label.gather(1, before.clamp(min=0)), label]
        return torch.where(there & (before >= 0), step, 0.0).sum(1)

    def inside(self, scores: Tensor, ring: Semiring) -> Tensor:
        """Forward recursion over positions, with values by the last label."""
        rows, n, longest, labels = scores.shape
        absent = ~_covered(scores)
        never = torch.full_like(scores[:, 0, 0], -math.inf)
        begin = torch.zeros_like(never[:, 0])  # 0 until the first present position
        ended = ring.lift(never)
        steps = None if self.transitions is None else self.transitions.transpose(1, 2)
        enter: list[Tensor] = []
        for j in range(n):
            into = ended.unsqueeze(-2) + (0.0 if steps is None else steps)
            into = into.expand(*into.shape[:-2], labels, labels)
            fresh = ring.lift(begin.view(rows, 1, 1).expand(rows, labels, 1))
            enter.append(ring.pick(torch.cat([into, fresh], -1)))
            ways = [enter[j - back] + scores[:, j, back] for back in range(min(longest, j + 1))]
            grown = ring.pick(torch.stack(ways, -1))
            ended = torch.where(absent[:, j].unsqueeze(-1), ended, grown)
            begin = torch.where(absent[:, j], begin, -math.inf)
        return ring.pick(torch.cat([ended, ring.lift(begin.unsqueeze(-1))], -1))

    def count(self, event: torch.Size) -> int:
        n, longest, labels = event
        found = [1]
        for j in range(n):
            found.append(labels * sum(found[max(0, j + 1 - longest) :]))
        return found[n]

    def enumerate(self, event: torch.Size) -> Tensor:
        n, longest, labels = event
        found = []
        for lengths in _compositions(n, longest):
            ends = [end - 1 for end in itertools.accumulate(lengths)]
            for chosen in itertools.product(range(labels), repeat=len(lengths)):
                one = torch.zeros(event, dtype=torch.bool)
                one[ends, [length - 1 for length in lengths], list(chosen)] = True
                found.append(one)
        return torch.stack(found)


def _covered(scores: Tensor) -> Tensor:
    """Whether an available segment covers each position, (rows, n)."""
    n, longest = scores.shape[1:3]
    usable = ~(scores == -math.inf).all(3)
    usable = usable & (torch.arange(longest) <= torch.arange(n).unsqueeze(1)).to(scores.device)
    covered = usable.any(2)
    for back in range(1, min(longest, n)):  # segments that end `back` later and are long enough
        later = usable[:, back:, back:].any(2)
        covered = covered | F.pad(later, (0, back))
    return covered


def _compositions(n: int, largest: int) -> Iterator[list[int]]:
    """All ordered lists of numbers from 1 to `largest` that sum to n."""
    if not n:
        yield []
    for first in range(1, min(n, largest) + 1):
        for rest in _compositions(n - first, largest):
            yield [first, *rest]
