"""Bits whose SparseMAP is the nearest point of a simple polytope."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold._native import dispatch
from fewfold.structured.sparsemap.operator import registered
from fewfold.structured.structures.bits import Choice
from fewfold.structured.structures.lattice import told
from fewfold.structured.structures.nearest import Face, nearest_linear, nearest_pair
from fewfold.structured.structures.structure import Structure

__all__ = ["ClosedForm", "Knapsack", "Pair", "Row", "reachable", "row_of"]

LARGE = 1e6  # a score next to which a kernel may be wrong in the tenth digit


class Row(NamedTuple):
    """One condition on bits: <costs, z> <= bound, or `equal` to it."""

    costs: Tensor
    bound: float
    equal: bool


def reachable(row: Row, off: Tensor, on: Tensor) -> Tensor:
    """(rows,) whether a condition can be met with these bits, (rows, n), held at 0 and at 1."""
    low = torch.where(off, 0.0, torch.where(on, row.costs, row.costs.clamp(max=0))).sum(1)
    high = torch.where(off, 0.0, torch.where(on, row.costs, row.costs.clamp(min=0))).sum(1)
    rounding = 1e-12 * row.costs.abs().sum()
    met = low <= row.bound + rounding
    return met & (high >= row.bound - rounding) if row.equal else met


class ClosedForm(Structure):
    """Bits whose nearest point in a weighted norm is known; graphs ask for it."""

    def row(self, size: int) -> Row | None:
        """The condition on so many bits that is all there is to know, or None."""
        return None

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        """(rows,) whether there is a structure with these bits held at 0 and at 1; self is flat."""
        row = self.row(off.shape[1])
        assert row is not None
        return reachable(row, off, on)

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        """argmin sum w (z - y)^2 / 2, less additional scores, by rows; self is flat."""
        row = self.row(y.shape[1])
        assert row is not None
        bound = y.new_full((len(y),), row.bound)
        return nearest_linear(y, w, row.costs.expand_as(y), bound, row.equal)

    def native_nearest(self, scores: Tensor) -> Tensor:
        """The same with weights of one, by a kernel."""
        row = self.row(scores.shape[1])
        assert row is not None
        scores, costs = scores.contiguous(), row.costs.contiguous()
        z = torch.empty_like(scores)
        dispatch.kernel("nearest_linear")(
            scores, *scores.shape, costs, row.bound, row.equal, z, dispatch.threads()
        )
        return z

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if dispatch.enabled() and not _large(scores):
            z = self.native_nearest(scores)
        else:
            z, _ = self.nearest(scores, torch.ones_like(scores))
        odd = (scores.isnan() | (scores == math.inf)).any(1)
        z = z.masked_fill((scores == -math.inf).all(1, keepdim=True), 0.0)
        z = z.masked_fill(odd.unsqueeze(1), math.nan)
        return z, scores.new_zeros(len(z)), torch.zeros(len(z), dtype=torch.int64), ~odd

    def face_apply(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        one = torch.ones_like(scores)
        row = self.row(scores.shape[1])
        if row is None:
            return self.nearest(scores, one)[1].push(change)
        free = (marginals > 0) & (marginals < 1)
        tight = (row.costs * scores.clamp(0, 1)).sum(1, keepdim=True) > row.bound
        across = torch.where(tight | row.equal, row.costs, 0.0)
        return Face(free, across, torch.zeros_like(free), one).push(change)


def _large(scores: Tensor) -> bool:
    """Whether a kernel, whose prices are of the size of the scores, would lose what is small."""
    return bool(((scores.abs() > LARGE) & scores.isfinite()).any())


def row_of(structure: Structure, size: int) -> Row | None:
    """The condition on so many bits that is all there is to know of a structure, or None."""
    if isinstance(structure, ClosedForm):
        return structure.row(size)
    if not isinstance(structure, Choice):
        return None
    least, most = structure.bounds(size)
    return Row(torch.ones(size, dtype=torch.float64), float(most), least == most)


@registered
@dataclass(frozen=True, repr=False)
class Knapsack(ClosedForm):
    """Shares of bits that cost at most a budget: z in [0, 1]^n with <costs, z> <= budget.

    With costs that differ this holds more than the mixes of sets of bits within the budget, so it
    has no `argmax` and no support, which are about sets: for costs that are all one see `Budget`.

    Args:
        costs: (bits,), not negative.
        budget: not negative.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.9, 0.8]), ff.structures.Knapsack([2.0, 1.0], 1.6))
        tensor([0.5000, 0.6000])
    """

    costs: tuple[float, ...]
    budget: float

    def __post_init__(self) -> None:
        given = self.costs.tolist() if isinstance(self.costs, Tensor) else self.costs
        costs = tuple(non_negative_number(cost, "costs") for cost in given)
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "budget", non_negative_number(self.budget, "budget"))

    def check(self, event: torch.Size) -> None:
        if event[0] != len(self.costs):
            raise ValueError(f"scores must have {len(self.costs)} bits, as costs, got {event[0]}")

    def row(self, size: int) -> Row:
        return Row(torch.tensor(self.costs, dtype=torch.float64), self.budget, False)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(
            "Knapsack is about shares, not sets of bits: sparsemap and FactorGraph.solve know it; "
            "for sets of at most k bits write Budget(k)"
        )

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        return None


_FOUR = torch.tensor(list(itertools.product([False, True], repeat=2)))


@registered
@dataclass(frozen=True, repr=False, eq=False)
class Pair(ClosedForm):
    """Two bits and a score for both being on.

    Args:
        score: `(...)`, broadcast to the batch; gets a gradient.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.3, 0.6]), ff.structures.Pair(torch.tensor(0.4)))
        tensor([0.6500, 0.6500])
    """

    score: Tensor

    additional_names = ("score",)

    def __post_init__(self) -> None:
        if isinstance(self.score, (int, float)):  # a tensor from here on, as all additional scores
            object.__setattr__(self, "score", torch.tensor(float(self.score), dtype=torch.float64))
        elif not isinstance(self.score, Tensor) or not self.score.is_floating_point():
            came = self.score.dtype if isinstance(self.score, Tensor) else type(self.score).__name__
            raise TypeError(
                f"score must be a number or a floating-point tensor, got {came}; write "
                "torch.as_tensor(score, dtype=torch.float32)"
            )

    def check(self, event: torch.Size) -> None:
        if event[0] != 2:
            raise ValueError(f"a Pair has 2 bits, got {event[0]}")

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        return self.with_additional([self.score.expand(batch).reshape(-1)])

    def extra(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        return torch.where((codes >= 0).all(1), self.score[row], 0.0)

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        return ~(on.all(1) & (self.score == -math.inf))

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        return nearest_pair(y, w, self.score)

    def native_nearest(self, scores: Tensor) -> Tensor:
        return self.nearest(scores, torch.ones_like(scores))[0]

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        first, second = scores[:, :1], scores[:, 1:]
        both = first + second + self.score.unsqueeze(1)
        value, which = torch.cat([torch.zeros_like(first), second, first, both], 1).max(1)
        return told(_FOUR[which], value), torch.ones(len(scores), dtype=torch.bool)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        score = self.score.contiguous()
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_pairs")(request, score)
        return found

    def enumerate(self, event: torch.Size) -> Tensor:
        return _FOUR

    def count(self, event: torch.Size) -> int:
        return 4
