"""Structures over bits whose SparseMAP is a closed-form projection on a simple polytope."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import non_negative_number
from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.lattice import nan_where_invalid
from fewfold.structured.structures.native_factors import LinearConstraint, NativeFactors
from fewfold.structured.structures.nearest import Face, nearest_linear, nearest_pair
from fewfold.structured.structures.structure import Structure

__all__ = ["ClosedForm", "Knapsack", "Pair", "is_feasible"]

LARGE = 1e6  # for larger scores a kernel may be wrong in the tenth digit


def is_feasible(constraint: LinearConstraint, off: Tensor, on: Tensor) -> Tensor:
    """Whether a constraint can hold with bits (rows, n) fixed at 0 and at 1, (rows,)."""
    costs, bound, equal = constraint
    low = torch.where(off, 0.0, torch.where(on, costs, costs.clamp(max=0))).sum(1)
    high = torch.where(off, 0.0, torch.where(on, costs, costs.clamp(min=0))).sum(1)
    rounding = 1e-12 * costs.abs().sum()
    met = low <= bound + rounding
    return met & (high >= bound - rounding) if equal else met


class ClosedForm(Structure):
    """Bits with a closed-form nearest point in a weighted norm, which factor graphs use."""

    has_factor_kernel: ClassVar[bool] = True

    def constraint(self, size: int) -> LinearConstraint | None:
        """The linear constraint that defines the polytope of this many bits, or None."""
        return None

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        constraint = self.constraint(off.shape[1])
        assert constraint is not None
        return is_feasible(constraint, off, on)

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        constraint = self.constraint(y.shape[1])
        assert constraint is not None
        costs, bound, equal = constraint
        return nearest_linear(y, w, costs.expand_as(y), y.new_full((len(y),), bound), equal)

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        constraint = self.constraint(factors.bits.shape[1])
        assert constraint is not None
        factors.add_linear(constraint)
        return None

    def native_nearest(self, scores: Tensor) -> Tensor:
        """Compute `nearest` with unit weights by a kernel."""
        row = self.constraint(scores.shape[1])
        assert row is not None
        scores, costs = scores.contiguous(), row.costs.contiguous()
        z = torch.empty_like(scores)
        dispatch.kernel("nearest_linear")(
            scores, *scores.shape, costs, row.bound, row.equal, z, dispatch.threads()
        )
        return z

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        if dispatch.enabled() and not _large(scores):
            z = self.native_nearest(scores)
        else:
            z, _ = self.nearest(scores, torch.ones_like(scores))
        invalid = (scores.isnan() | (scores == math.inf)).any(1)
        z = z.masked_fill((scores == -math.inf).all(1, keepdim=True), 0.0)
        z = z.masked_fill(invalid.unsqueeze(1), math.nan)
        return z, scores.new_zeros(len(z)), torch.zeros(len(z), dtype=torch.int64), ~invalid

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        one = torch.ones_like(scores)
        constraint = self.constraint(scores.shape[1])
        if constraint is None:
            return self.nearest(scores, one)[1].push(change)
        free = (marginals > 0) & (marginals < 1)
        tight = (constraint.costs * scores.clamp(0, 1)).sum(1, keepdim=True) > constraint.bound
        normal = torch.where(tight | constraint.equal, constraint.costs, 0.0)
        return Face(free, normal, torch.zeros_like(free), one).push(change)


def _large(scores: Tensor) -> bool:
    """Whether scores are so large that a kernel would lose accuracy."""
    return bool(((scores.abs() > LARGE) & scores.isfinite()).any())


@registered
@dataclass(frozen=True, repr=False)
class Knapsack(ClosedForm):
    """Fractional knapsack: z in [0, 1]^n with <costs, z> <= budget.

    With unequal costs this polytope is larger than the convex hull of the sets of bits within the
    budget, so there is no `argmax` and no support. For costs that are all one use `Budget`.

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

    def constraint(self, size: int) -> LinearConstraint:
        return LinearConstraint(torch.tensor(self.costs, dtype=torch.float64), self.budget, False)

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(
            "the vertices of Knapsack may be fractional: use it with sparsemap and "
            "FactorGraph.solve; for sets of at most k bits write Budget(k)"
        )

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        return None


_FOUR = torch.tensor(list(itertools.product([False, True], repeat=2)))


@registered
@dataclass(frozen=True, repr=False, eq=False)
class Pair(ClosedForm):
    """Two bits and a score for both being on.

    Args:
        score: `(...)`, broadcast to the batch; differentiable.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemap(torch.tensor([0.3, 0.6]), ff.structures.Pair(torch.tensor(0.4)))
        tensor([0.6500, 0.6500])
    """

    score: Tensor

    additional_names = ("score",)

    def __post_init__(self) -> None:
        if isinstance(self.score, (int, float)):  # stored as a tensor, like all additional scores
            object.__setattr__(self, "score", torch.tensor(float(self.score), dtype=torch.float64))
        elif not isinstance(self.score, Tensor) or not self.score.is_floating_point():
            got = self.score.dtype if isinstance(self.score, Tensor) else type(self.score).__name__
            raise TypeError(
                f"score must be a number or a floating-point tensor, got {got}; write "
                "torch.as_tensor(score, dtype=torch.float32)"
            )

    def check(self, event: torch.Size) -> None:
        if event[0] != 2:
            raise ValueError(f"a Pair has 2 bits, got {event[0]}")

    def flat(self, batch: torch.Size, event: torch.Size) -> Self:
        return self.with_additional([self.score.expand(batch).reshape(-1)])

    def additional_score(self, codes: Tensor, row: Tensor, event: torch.Size) -> Tensor:
        return torch.where((codes >= 0).all(1), self.score[row], 0.0)

    def possible(self, off: Tensor, on: Tensor) -> Tensor:
        return ~(on.all(1) & (self.score == -math.inf))

    def nearest(self, y: Tensor, w: Tensor) -> tuple[Tensor, Face]:
        return nearest_pair(y, w, self.score)

    def additional_usage(self, marginals: Tensor) -> Tensor:
        """Probability that both bits are on: the largest possible, or least if score < 0."""
        least = (marginals.sum(1) - 1).clamp(min=0)
        return torch.where(self.score >= 0, marginals.amin(1), least)

    def additional_usage_grad(self, marginals: Tensor) -> Tensor:
        first = (marginals[:, 0] <= marginals[:, 1]).to(marginals)
        lower = torch.stack([first, 1 - first], 1)
        above = (marginals.sum(1, keepdim=True) > 1).to(marginals).expand(-1, 2)
        return torch.where(self.score.unsqueeze(1) >= 0, lower, above)

    def add_factors(self, factors: NativeFactors) -> Tensor:
        factors.graph.add_pairs(factors.uses())
        return self.score

    def native_nearest(self, scores: Tensor) -> Tensor:
        return self.nearest(scores, torch.ones_like(scores))[0]

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        first, second = scores[:, :1], scores[:, 1:]
        both = first + second + self.score.unsqueeze(1)
        value, which = torch.cat([torch.zeros_like(first), second, first, both], 1).max(1)
        return nan_where_invalid(_FOUR[which], value), torch.ones(len(scores), dtype=torch.bool)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        score = self.score.contiguous()
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_pairs")(request, score)
        return found

    def enumerate(self, event: torch.Size) -> Tensor:
        return _FOUR

    def count(self, event: torch.Size) -> int:
        return 4
