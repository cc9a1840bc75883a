"""Monotone alignments: paths through a grid, as in dynamic time warping."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fewfold._check import check_scores, fits
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.dynamic_program import DynamicProgram, present_first
from fewfold.structured.structures.semirings import Semiring

__all__ = ["Alignment"]


@registered
@dataclass(frozen=True, eq=False, repr=False)
class Alignment(DynamicProgram):
    """Monotone paths from the first to the last cell of an m x n grid; scores are `(..., m, n)`.

    A step goes down to the next row, right to the next column, or diagonally to both; the score of
    a path is the sum over its cells and steps. For dynamic time warping, scores are negative
    distances. For Needleman-Wunsch, scores are zero and `steps` has gap scores (down, right) and
    match scores (diagonal).

    A row or column whose cells are all masked is absent, and the ones around it become adjacent.
    So pairs of a batch may differ in both lengths.

    Args:
        steps: (3,) scores of a step down, right and diagonally; or a tensor that broadcasts to
            `(*batch, m, n, 3)`, where [i, j] holds the steps into that cell. -inf forbids a step.
            None: all zero.

    Example:
        >>> import torch, fewfold as ff
        >>> one, two = torch.tensor([0.0, 0.5, 2.0]), torch.tensor([0.0, 2.0])
        >>> ff.structures.Alignment().argmax(-(one.unsqueeze(1) - two).square())
        tensor([[1., 0.],
                [1., 0.],
                [0., 1.]])

    References: Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word
    recognition", 1978; Needleman and Wunsch, "A general method applicable to the search for
    similarities in the amino acid sequence of two proteins", 1970; Cuturi and Blondel, "Soft-DTW",
    2017, for the log-sum over all paths.
    """

    steps: Tensor | None = None

    event_dim: ClassVar[int] = 2
    additional_names: ClassVar[tuple[str, ...]] = ("steps",)

    def __post_init__(self) -> None:
        if self.steps is None:
            return
        check_scores(self.steps, "steps")
        if self.steps.shape[-1] != 3 or self.steps.dim() == 2:
            raise ValueError(
                "steps must be (3,), for down, right and diagonally, or (..., m, n, 3), got "
                f"{tuple(self.steps.shape)}; write steps.view(-1, 1, 1, 3) for three per instance"
            )

    def check(self, event: torch.Size) -> None:
        if not event.numel():
            raise ValueError(f"an alignment must have rows and columns, got {tuple(event)}")

    def slots(self, event: torch.Size) -> Tensor:
        return (torch.arange(event[0]).unsqueeze(1) + torch.arange(event[1])).flatten()

    def width(self, event: torch.Size) -> int:
        return event[0] + event[1] - 1

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        if self.steps is None:
            return self
        wanted = (*batch, *event, 3)
        if not fits(self.steps.shape, wanted):
            raise ValueError(
                f"steps must be (3,) or broadcast to (*batch, m, n, 3) = {wanted}, got "
                f"{tuple(self.steps.shape)}"
            )
        return replace(self, steps=self.steps.expand(wanted).reshape(-1, *event, 3))

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        if self.steps is None:
            return torch.zeros(len(codes), dtype=torch.float64)
        there = codes >= 0
        i, j = codes.clamp(min=0) // event[1], codes.clamp(min=0) % event[1]
        last = torch.where(there, torch.arange(codes.shape[1]), -1).cummax(1).values
        before = F.pad(last[:, :-1], (1, 0), value=-1)
        left = before.clamp(min=0)
        down, right = i.gather(1, left) != i, j.gather(1, left) != j
        kind = torch.where(down & right, 2, torch.where(right, 1, 0))
        step = self.steps[row.unsqueeze(1), i, j, kind]
        return torch.where(there & (before >= 0), step, 0.0).sum(1)

    def inside(self, scores: Tensor, ring: Semiring) -> Tensor:
        """Forward recursion over anti-diagonals, from upper right to lower left."""
        impossible = scores == -math.inf
        tall, height = present_first(~impossible.all(2))
        wide, width = present_first(~impossible.all(1))
        cells = _ordered(scores.unsqueeze(-1), tall, wide)
        own = _diagonals(cells)[..., 0]
        steps = self._steps(tall, wide)
        start = torch.full_like(own[:, 0, 1:], -math.inf)
        reached = [ring.lift(torch.cat([own[:, 0, :1], start], 1))]
        for k in range(1, own.shape[1]):
            ways = [_shifted(reached[-1]), reached[-1]]
            if k > 1:
                ways.append(_shifted(reached[-2]))
            if steps is not None:
                ways = [way + steps[:, k, :, kind] for kind, way in enumerate(ways)]
            reached.append(ring.pick(torch.stack(ways, -1)) + own[:, k])
        every = torch.stack(reached, -2).flatten(-2)
        last = ((height + width - 2) * own.shape[2] + height - 1).clamp(min=0).unsqueeze(-1)
        found = every.gather(-1, last.expand(*every.shape[:-1], 1)).squeeze(-1)
        return torch.where(height == 0, ring.lift(torch.zeros_like(own[:, 0, 0])), found)

    def _steps(self, tall: Tensor, wide: Tensor) -> Tensor | None:
        """Scores of the steps into each cell, (rows, diagonals, m, 3)."""
        if self.steps is None:
            return None
        return _diagonals(_ordered(self.steps, tall, wide))

    def count(self, event: torch.Size) -> int:
        m, n = event[0] - 1, event[1] - 1
        return sum(math.comb(m, k) * math.comb(n, k) * 2**k for k in range(min(m, n) + 1))

    def enumerate(self, event: torch.Size) -> Tensor:
        found = []
        for path in _paths(event[0] - 1, event[1] - 1):
            one = torch.zeros(event, dtype=torch.bool)
            rows, columns = zip(*path, strict=True)
            one[list(rows), list(columns)] = True
            found.append(one)
        return torch.stack(found)


def _ordered(cells: Tensor, tall: Tensor, wide: Tensor) -> Tensor:
    """Reorder the rows and columns of grids (rows, m, n, c)."""
    cells = cells.gather(1, tall[:, :, None, None].expand(cells.shape))
    return cells.gather(2, wide[:, None, :, None].expand(cells.shape))


def _diagonals(cells: Tensor) -> Tensor:
    """Anti-diagonals: (rows, m, n, c) -> (rows, m + n - 1, m, c), [k, i] is the cell [i, k - i]."""
    m, n = cells.shape[1:3]
    row = torch.arange(m, device=cells.device)
    column = torch.arange(m + n - 1, device=cells.device).unsqueeze(1) - row
    inside = (column >= 0) & (column < n)
    found = cells.flatten(1, 2)[:, (row * n + column.clamp(0, n - 1)).flatten()]
    found = found.view(len(cells), m + n - 1, m, cells.shape[3])
    return found.masked_fill(~inside.unsqueeze(-1), -math.inf)


def _shifted(values: Tensor) -> Tensor:
    """Values of the row above."""
    return F.pad(values[..., :-1], (1, 0), value=-math.inf)


def _paths(m: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """All paths to the cell (m, n)."""
    if not m and not n:
        yield [(0, 0)]
    for down, right in ((1, 0), (0, 1), (1, 1)):
        if m >= down and n >= right:
            for path in _paths(m - down, n - right):
                yield [*path, (m, n)]
