"""Factor graphs by the kernels; the same questions as `PlainSolver`."""

import bisect
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.structured.factor_graph.consensus import Told
from fewfold.structured.factor_graph.links import Group, Links, raise_impossible
from fewfold.structured.structures.assignment import Pairing
from fewfold.structured.structures.bit_polytopes import Knapsack, Pair, row_of
from fewfold.structured.structures.bits import Choice
from fewfold.structured.structures.dependency_tree import DependencyTree
from fewfold.structured.structures.logic import Logic
from fewfold.structured.structures.sequence import Sequence
from fewfold.structured.structures.sequential_subset import SequentialSubset
from fewfold.structured.structures.spanning_tree import SpanningTree
from fewfold.structured.structures.structure import Structure, by_row

__all__ = ["NativeSolver", "known"]

_KNOWN = (
    Choice,
    Knapsack,
    Logic,
    Pair,
    Sequence,
    SequentialSubset,
    DependencyTree,
    SpanningTree,
    Pairing,
)


def known(links: Links) -> bool:
    """Whether there are kernels for all factors."""
    return dispatch.enabled() and all(isinstance(group.structure, _KNOWN) for group in links.groups)


class NativeSolver:
    """A graph with additional scores, solved by the kernels."""

    def __init__(self, links: Links, made: list[Structure], rows: int) -> None:
        self.links, self.made, self.rows = links, made, rows
        self._first = np.cumsum([0, *[len(group.bits) for group in links.groups]]).tolist()
        self._graph = dispatch.kernel("Graph")(links.size)
        scores = [torch.zeros(rows, 0, dtype=torch.float64)]
        for group, structure in zip(links.groups, made, strict=True):
            self._add(group, structure)
            if isinstance(structure, Pair):
                scores.append(by_row(structure.score, rows))
        self._pairs = torch.cat(scores, 1).contiguous()

    def solve(
        self, scores: Tensor, *, turns: int, tolerance: float, step: Tensor, warm: bool = False
    ) -> Told:
        """As `PlainSolver.solve`."""
        scores, step = scores.contiguous(), step.contiguous()
        marginals = torch.empty_like(scores)
        took = torch.empty(self.rows, dtype=torch.int64)
        apart, moved = scores.new_empty(self.rows), scores.new_empty(self.rows)
        outcome, failed = torch.empty(2, self.rows, dtype=torch.int32)
        self._graph.solve(
            scores, self.rows, self._pairs, turns, tolerance, step, warm, marginals, took, apart,
            moved, outcome, failed, dispatch.threads(),
        )  # fmt: skip
        settled, impossible = failed == -1, (outcome == 2).nonzero()[:, 0].tolist()
        if impossible:
            factor = int(failed[impossible[0]])
            place = bisect.bisect_right(self._first, factor) - 1
            raise_impossible(self.links.groups[place], impossible[0], factor - self._first[place])
        return Told(marginals, took, apart, moved, settled)

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

    def weigh(self, place: int, values: Tensor) -> Tensor:
        """As `PlainSolver.weigh`."""
        values = values.contiguous()
        to = values.new_zeros(self.rows, self.links.size)
        count = len(self.links.groups[place].bits)
        self._graph.weigh(self._first[place], count, values, to)
        return to

    def _add(self, group: Group, structure: Structure) -> None:
        graph, event, size = self._graph, group.event, group.bits.shape[1]
        negated = torch.from_numpy(group.negated)
        row = row_of(structure, size)
        if row is not None:
            # <c, 1 - z> <= b is <-c, z> <= b - <c, 1>
            signed = torch.where(negated, -row.costs, row.costs).contiguous()
            bounds = row.bound - torch.where(negated, row.costs, 0.0).sum(1)
            uses = self._uses(group, torch.zeros_like(negated))
            graph.add_linear(uses, signed, bounds, row.equal)
        elif isinstance(structure, Logic):
            graph.add_any_out(self._uses(group, negated ^ structure.turned(size)))
        elif isinstance(structure, Pair):
            graph.add_pairs(self._uses(group, negated))
        else:
            uses = self._uses(group, negated)
            shape = torch.empty(0, *event)
            if isinstance(structure, Sequence):
                graph.add_sequences(uses, structure._chains(shape))
            elif isinstance(structure, SequentialSubset):
                graph.add_subsets(uses, structure._subsets(shape))
            elif isinstance(structure, DependencyTree):
                graph.add_dependencies(uses, event[0], structure.projective, structure.single_root)
            elif isinstance(structure, SpanningTree):
                graph.add_spanning(uses, structure._ends(), structure.nodes)
            else:
                assert isinstance(structure, Pairing)
                graph.add_assignments(uses, *event, structure.alone)

    def _uses(self, group: Group, negated: Tensor) -> Any:
        bits = torch.from_numpy(np.ascontiguousarray(group.bits))
        sign = torch.where(negated, -1.0, 1.0).to(torch.float64).contiguous()
        return dispatch.kernel("Uses")(*bits.shape, bits, sign)
