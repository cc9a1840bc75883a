"""Solver of factor graphs by native kernels, with the interface of `PlainSolver`."""

import bisect

import numpy as np
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.factor_graph.consensus import SolverResult
from fewfold.structured.factor_graph.links import Links, raise_infeasible_factor
from fewfold.structured.structures.batch_rows import by_row
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.structure import Structure

__all__ = ["NativeSolver", "has_kernels"]


def has_kernels(links: Links) -> bool:
    """Whether native kernels are enabled and exist for all factors."""
    return dispatch.enabled() and all(group.structure.has_factor_kernel for group in links.groups)


class NativeSolver:
    """Solver of a factor graph by native kernels."""

    def __init__(self, links: Links, structures: list[Structure], rows: int) -> None:
        self.links, self.structures, self.rows = links, structures, rows
        self._first = np.cumsum([0, *[len(group.bits) for group in links.groups]]).tolist()
        self._graph = dispatch.kernel("Graph")(links.size)
        scores = [torch.zeros(rows, 0, dtype=torch.float64)]
        for group, structure in zip(links.groups, structures, strict=True):
            bits, negated = (
                torch.from_numpy(np.ascontiguousarray(x)) for x in (group.bits, group.negated)
            )
            factors = NativeFactors(self._graph, bits, negated, group.event)
            added = structure.add_factors(factors)
            if added is not None:
                scores.append(by_row(added, rows))
        self._pairs = torch.cat(scores, 1).contiguous()

    def solve(
        self, scores: Tensor, *, turns: int, tolerance: float, step: Tensor, warm: bool = False
    ) -> SolverResult:
        """As `PlainSolver.solve`."""
        scores, step = scores.contiguous(), step.contiguous()
        marginals = torch.empty_like(scores)
        iterations = torch.empty(self.rows, dtype=torch.int64)
        disagreement, moved = scores.new_empty(self.rows), scores.new_empty(self.rows)
        outcome, failed = torch.empty(2, self.rows, dtype=torch.int32)
        self._graph.solve(
            scores, self.rows, self._pairs, turns, tolerance, step, warm, marginals, iterations,
            disagreement, moved, outcome, failed, dispatch.threads(),
        )  # fmt: skip
        factors_converged, impossible = failed == -1, (outcome == 2).nonzero()[:, 0].tolist()
        if impossible:
            factor = int(failed[impossible[0]])
            place = bisect.bisect_right(self._first, factor) - 1
            raise_infeasible_factor(
                self.links.groups[place], impossible[0], factor - self._first[place]
            )
        return SolverResult(marginals, iterations, disagreement, moved, factors_converged)

    def pull(self, grad: Tensor) -> Tensor:
        """As `PlainSolver.pull`."""
        grad, to = grad.contiguous(), torch.empty_like(grad, memory_format=torch.contiguous_format)
        self._graph.pull(grad, to, dispatch.threads())
        return to

    def active(self, place: int, change: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `PlainSolver.active`."""
        change = None if change is None else change.contiguous()
        count = len(self.links.groups[place].bits)
        codes, weights, by, offsets = (
            torch.from_numpy(part) for part in self._graph.active(self._first[place], count, change)
        )
        row = torch.repeat_interleave(torch.arange(len(offsets) - 1), offsets.diff())
        return codes.long(), weights, by, row

    def as_bit_scores(self, place: int, values: Tensor) -> Tensor:
        """As `PlainSolver.as_bit_scores`."""
        values = values.contiguous()
        to = values.new_zeros(self.rows, self.links.size)
        count = len(self.links.groups[place].bits)
        self._graph.weigh(self._first[place], count, values, to)
        return to
