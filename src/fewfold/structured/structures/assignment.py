"""Bipartite assignments and matchings of rows to columns."""

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.assignment_kbest import best_assignment, best_assignments
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.score_errors import raise_infeasible
from fewfold.structured.structures.structure import Structure

__all__ = ["Assignment", "Matching", "Pairing"]


class Pairing(Structure):
    """Bipartite matchings: sets of pairs (row, column) without repeated rows or columns."""

    event_dim: ClassVar[int] = 2
    has_factor_kernel: ClassVar[bool] = True
    rows_optional: ClassVar[bool]
    """whether a row may remain unmatched"""

    def check(self, event: torch.Size) -> None:
        if not event.numel():
            raise ValueError(
                f"scores of {type(self).__name__} must have at least one row and one column, "
                f"got {tuple(event)}"
            )

    def slots(self, event: torch.Size) -> Tensor:
        return torch.arange(event[0]).repeat_interleave(event[1])

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros(scores.shape, dtype=torch.bool)
        feasible = torch.zeros(len(scores), dtype=torch.bool)
        for instance, one in enumerate(self._with_dummy_columns(scores).numpy()):
            if not (one < math.inf).all():  # NaN or +inf: the caller returns NaN
                feasible[instance] = True
                continue
            best = best_assignment(one)
            feasible[instance] = best is not None
            if best is not None:
                chosen = torch.from_numpy(best)
                row = ((chosen >= 0) & (chosen < scores.shape[2])).nonzero()[:, 0]
                found[instance, row, chosen[row]] = True
        return found, feasible

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        if not dispatch.enabled():
            return None
        codes = torch.empty(scores.shape[:2], dtype=torch.int32)
        values = scores.new_empty(len(scores))
        dispatch.kernel("best_assignments")(self._shape(scores), scores, codes, values)
        return codes, values.masked_fill(values.isnan(), 0.0)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_assignments")(
            request, self._shape(scores)
        )
        return found

    def project(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Marginals by Newton's method on the dual variables of rows and columns."""
        if not dispatch.enabled():
            return None
        marginals = torch.empty_like(scores)
        gap, turns = scores.new_empty(len(scores)), torch.empty(len(scores), dtype=torch.int64)
        outcome = torch.empty(len(scores), dtype=torch.int32)
        dispatch.kernel("project_assignments")(
            self._shape(scores), scores, marginals, gap, turns, outcome
        )
        raise_infeasible(outcome == 2, self)
        if bool((outcome == 1).any()):  # fall back to the active set
            return None
        return marginals, gap, turns, outcome == 0

    def project_jvp(self, scores: Tensor, marginals: Tensor, change: Tensor) -> Tensor:
        """Project the change on zero entries staying zero and tight row and column sums."""
        marginals, change = marginals.contiguous(), change.contiguous()
        moved = torch.empty_like(change)
        dispatch.kernel("face_assignments")(self._shape(scores), marginals, change, moved)
        return moved

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        factors.graph.add_assignments(factors.uses(), *factors.event, self.rows_optional)
        return None

    def enumerate(self, event: torch.Size) -> Tensor:
        rows, columns = event
        found = []
        for size in range(0 if self.rows_optional else rows, min(rows, columns) + 1):
            for chosen in itertools.combinations(range(rows), size):
                for taken in itertools.permutations(range(columns), size):
                    one = torch.zeros(event, dtype=torch.bool)
                    one[list(chosen), list(taken)] = True
                    found.append(one)
        return torch.stack(found)

    def count(self, event: torch.Size) -> int:
        rows, columns = event
        sizes = range(0 if self.rows_optional else rows, rows + 1)
        return sum(math.comb(rows, size) * math.perm(columns, size) for size in sizes)

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> NoReturn:
        """Not implemented: even counting the perfect matchings of a bipartite graph is #P-hard."""
        raise NotImplementedError(
            f"{type(self).__name__} has no log_partition: a sum over all assignments is a "
            "permanent, which is #P-hard; sparsemap and k_best are exact and fast"
        )

    def sample(
        self, scores: Tensor, n: int, *, mask: Tensor | None = None,
        generator: torch.Generator | None = None, temperature: float = 1.0,
    ) -> NoReturn:  # fmt: skip
        """Not implemented, for the same reason as `log_partition`."""
        raise NotImplementedError(
            f"{type(self).__name__} has no sample: exact sampling needs a permanent, which is "
            "#P-hard; sample from the weights of sparsemap_support"
        )

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        instances, rows, columns = scores.shape
        codes = torch.full((instances, k, rows), -1, dtype=torch.int32)
        values = scores.new_full((instances, k), -math.inf)
        if dispatch.enabled():
            dispatch.kernel("best_assignments_k")(self._shape(scores), scores, k, codes, values)
            return codes, values
        for instance, one in enumerate(self._with_dummy_columns(scores).numpy()):
            if not (one < math.inf).all():
                values[instance] = math.nan
                continue
            for rank, (value, chosen) in enumerate(best_assignments(one, k)):
                values[instance, rank] = value
                taken = torch.from_numpy(chosen)
                part = torch.arange(rows) * columns + taken
                codes[instance, rank] = torch.where((taken < 0) | (taken >= columns), -1, part)
        return codes, values

    def _with_dummy_columns(self, scores: Tensor) -> Tensor:
        """Append one dummy column per row if rows may remain unmatched."""
        if not self.rows_optional:
            return scores
        instances, rows, _ = scores.shape
        own = torch.where(torch.eye(rows, dtype=torch.bool), 0.0, -math.inf).to(scores)
        return torch.cat([scores, own.expand(instances, rows, rows)], 2)

    def _shape(self, scores: Tensor) -> Any:
        return dispatch.kernel("AssignmentShape")(
            *scores.shape, self.rows_optional, dispatch.threads()
        )


@registered
@dataclass(frozen=True, repr=False)
class Assignment(Pairing):
    """One column for every row, each column used at most once.

    Scores are (..., m, n) with m <= n. For m = n these are the permutations, and `sparsemap` is
    the nearest doubly stochastic matrix. In general it is

        mu = [t - a 1' - 1 b']_+,  rows sum to one, columns to at most one, with b_j = 0 if less.

    `argmax` uses shortest augmenting paths, O(m^2 n) in the worst case; marginals use Newton's
    method on b, and their derivative one linear system in n unknowns. A row without available
    columns (masked, or all -inf) is left out.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[1.0, 0.2, -0.3], [0.6, 0.5, 0.1], [0.0, 0.4, 0.3]])
        >>> ff.structures.Assignment().argmax(scores)
        tensor([[1., 0., 0.],
                [0., 1., 0.],
                [0., 0., 1.]])
        >>> ff.sparsemap(scores, ff.structures.Assignment())
        tensor([[0.7500, 0.2083, 0.0417],
                [0.2500, 0.4083, 0.3417],
                [0.0000, 0.3833, 0.6167]])

    References: Jonker and Volgenant, "A shortest augmenting path algorithm for dense and sparse
    linear assignment problems", 1987. Murty, "An algorithm for ranking all the assignments in
    order of increasing cost", 1968, for `k_best`.
    """

    rows_optional: ClassVar[bool] = False

    def check(self, event: torch.Size) -> None:
        super().check(event)
        if event[0] > event[1]:
            raise ValueError(
                f"scores of Assignment must have at most as many rows as columns, got "
                f"{tuple(event)}; write scores.mT, or use Matching, where rows may stay unmatched"
            )


@registered
@dataclass(frozen=True, repr=False)
class Matching(Pairing):
    """Pairs of rows and columns, each used at most once; any of them may stay unmatched.

    Scores are (..., m, n), for any m and n; the best matching has no pair with a negative score.
    `sparsemap` is the nearest non-negative matrix whose rows and columns sum to at most one.

    Example:
        >>> import torch, fewfold as ff
        >>> scores = torch.tensor([[0.9, 0.7], [0.6, -0.1], [0.2, 0.5]])
        >>> ff.structures.Matching().argmax(scores)
        tensor([[1., 0.],
                [0., 0.],
                [0., 1.]])
        >>> ff.sparsemap(scores, ff.structures.Matching())
        tensor([[0.5200, 0.4800],
                [0.4400, 0.0000],
                [0.0400, 0.5000]])
    """

    rows_optional: ClassVar[bool] = True
