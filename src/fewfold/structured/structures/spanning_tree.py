"""Spanning trees of an undirected graph."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._random import multinomial
from fewfold.structured.sparsemap.sparsemap_operator import registered
from fewfold.structured.structures.arborescence import FORBIDDEN, draw_heads, log_total
from fewfold.structured.structures.batch_rows import flatten_with_grad
from fewfold.structured.structures.native_factors import NativeFactors
from fewfold.structured.structures.partition_kbest import best_trees, k_best_by_partition
from fewfold.structured.structures.structure import Structure

__all__ = ["SpanningTree"]


@registered
@dataclass(frozen=True, eq=False, repr=False)
class SpanningTree(Structure):
    """Spanning trees of a graph with E edges; scores are `(..., E)`.

    Args:
        edges: (E, 2) int tensor or list of pairs, the two nodes of each edge; parallel edges are
            allowed.
        nodes: number of nodes, numbered from 0.

    Raises:
        ValueError: if the edges do not connect all nodes.

    Example:
        >>> import torch, fewfold as ff
        >>> triangle = torch.tensor([[0, 1], [1, 2], [2, 0]])
        >>> ff.sparsemap(torch.tensor([0.5, 0.2, 0.0]), SpanningTree(triangle, 3))
        tensor([0.9333, 0.6333, 0.4333])

    References: Kruskal, "On the shortest spanning subtree of a graph and the traveling salesman
    problem", 1956; Kirchhoff's matrix-tree theorem for the sum over all trees.
    """

    edges: Tensor
    nodes: int

    has_factor_kernel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole_number(self.nodes, "nodes")
        edges = _as_tensor(self.edges)
        object.__setattr__(self, "edges", edges)
        whole = edges.dtype != torch.bool and not edges.is_floating_point()
        if edges.dim() != 2 or edges.shape[1] != 2 or not whole or edges.is_complex():
            raise ValueError(
                f"edges must be (E, 2) whole numbers, got {edges.dtype} of {tuple(edges.shape)}"
            )
        if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= self.nodes):
            raise ValueError(
                f"edges must name nodes from 0 to {self.nodes - 1}, got {int(edges.min())} to "
                f"{int(edges.max())}; give more nodes"
            )
        if _kruskal(edges.tolist(), range(len(edges)), self.nodes) is None:
            raise ValueError(
                f"edges must connect all {self.nodes} nodes; solve each component on its own"
            )

    def check(self, event: torch.Size) -> None:
        if event[0] != len(self.edges):
            raise ValueError(f"scores must end in E={len(self.edges)} edges, got {tuple(event)}")

    def plain_best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros_like(scores, dtype=torch.bool)
        feasible = torch.ones(len(scores), dtype=torch.bool)
        for row, own in enumerate(scores):
            chosen = self._best(own, [])
            feasible[row] = chosen is not None
            if chosen:
                found[row, chosen] = True
        return found, feasible

    def _best(self, scores: Tensor, forced: list[int]) -> list[int] | None:
        order = scores.argsort(descending=True).tolist()
        allowed = [e for e in order if float(scores[e]) != -math.inf]
        return _kruskal(self.edges.tolist(), [*forced, *allowed], self.nodes)

    def native(self, request: Any, scores: Tensor) -> tuple[Any, Any, Any] | None:
        ends = self._ends()
        found: tuple[Any, Any, Any] = dispatch.kernel("sparsemap_spanning")(
            request, ends, self.nodes
        )
        return found

    def native_best(self, scores: Tensor) -> tuple[Tensor, Tensor] | None:
        if not dispatch.enabled():
            return None
        codes, values = self._k_best(scores, 1)
        return codes[:, 0], values[:, 0].nan_to_num(nan=0.0, neginf=-math.inf)

    def _k_best(self, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        count = len(self.edges)
        if dispatch.enabled():
            ends, kernel = self._ends(), dispatch.kernel("best_spanning")
            return best_trees(kernel, scores, count, k, ends, self.nodes)
        codes = torch.full((len(scores), k, count), -1, dtype=torch.int32)
        values = torch.full((len(scores), k), -math.inf, dtype=torch.float64)
        for row, own in enumerate(scores):

            def solve(
                forced: list[int], forbidden: list[int], own: Tensor = own
            ) -> tuple[Tensor, float] | None:
                allowed = own.clone()
                allowed[forbidden] = -math.inf
                chosen = self._best(allowed, forced)
                if chosen is None:
                    return None
                return torch.tensor(chosen, dtype=torch.int64), float(own[chosen].sum())

            for place, (chosen, value) in enumerate(k_best_by_partition(solve, k)):
                codes[row, place, chosen] = chosen.int()
                values[row, place] = value
        return codes, values

    def _ends(self) -> Tensor:
        return self.edges.to("cpu", torch.int32).contiguous()

    def add_factors(self, factors: NativeFactors) -> Tensor | None:
        factors.graph.add_spanning(factors.uses(), self._ends(), self.nodes)
        return None

    def count(self, event: torch.Size) -> int:
        links = torch.zeros(self.nodes, self.nodes, dtype=torch.float64)
        for a, b in self.edges.tolist():
            if a != b:
                links[[a, b, a, b], [a, b, b, a]] += torch.tensor([1.0, 1, -1, -1]).double()
        return round(float(torch.linalg.det(links[1:, 1:])))

    def enumerate(self, event: torch.Size) -> Tensor:
        count = len(self.edges)
        picks = torch.combinations(torch.arange(count), self.nodes - 1)
        every = torch.zeros(len(picks), count, dtype=torch.bool).scatter_(1, picks, True)
        ends = self.edges.tolist()
        trees = [
            len(_kruskal(ends, pick, self.nodes) or []) == self.nodes - 1 for pick in picks.tolist()
        ]
        return every[torch.tensor(trees, dtype=torch.bool)]

    def log_partition(self, scores: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log of the sum of exp(score) over all trees; its gradient is the marginals."""
        rows, _, batch = flatten_with_grad(self, scores, mask)
        if self.nodes == 1:
            return scores.new_zeros(batch)
        return log_total(self._arcs(rows.double()), single=False).view(batch).to(scores.dtype)

    def _draws(self, scores: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        every = scores.expand(n, *scores.shape).flatten(0, 1)
        found = torch.zeros_like(every, dtype=torch.bool)
        if self.nodes > 1:
            heads = draw_heads(self._arcs(every), False, generator)
            words = torch.arange(self.nodes - 1).expand_as(heads)
            joins = torch.stack([torch.where(heads == words, -1, heads), words], -1) + 1
            low, high = self.edges.cpu().min(1).values, self.edges.cpu().max(1).values
            first, second = joins.min(-1).values.unsqueeze(-1), joins.max(-1).values.unsqueeze(-1)
            between = (first == low) & (second == high)  # (m, nodes - 1, E), parallel edges
            weights = torch.where(between, every.unsqueeze(1), -math.inf).softmax(-1)
            edge = multinomial(weights.flatten(0, 1), 1, generator=generator)
            found.scatter_(1, edge.view(len(found), -1), True)
        return found

    def _arcs(self, scores: Tensor) -> Tensor:
        """Arc scores (rows, nodes - 1, nodes - 1) in both directions, with node 0 as the root."""
        ends = self.edges.to(scores.device).long()
        ends = torch.cat([ends, ends.flip(1)])
        values = torch.where(scores == -math.inf, FORBIDDEN, scores).repeat(1, 2)
        place = ends[:, 0] * self.nodes + ends[:, 1]
        table = _scatter_logsumexp(place, values, self.nodes**2).view(-1, self.nodes, self.nodes)
        diagonal = torch.diag_embed(table[:, 0, 1:])
        eye = torch.eye(self.nodes - 1, dtype=torch.bool, device=scores.device)
        return torch.where(eye, diagonal, table[:, 1:, 1:])


def _as_tensor(edges: Any) -> Tensor:
    try:
        return torch.as_tensor(edges)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            "edges must be an (E, 2) tensor of whole numbers, or a list of pairs, got "
            f"{type(edges).__name__}"
        ) from None


def _scatter_logsumexp(place: Tensor, values: Tensor, size: int) -> Tensor:
    """Log-sum-exp of the values at each place, (rows, size); -inf where there are none."""
    places = place.expand_as(values)
    none = torch.full((len(values), size), -math.inf).to(values)
    top = none.scatter_reduce(1, places, values.detach(), "amax")
    sums = torch.zeros_like(top).scatter_add(1, places, (values - top.gather(1, places)).exp())
    there = top > -math.inf
    return torch.where(there, torch.where(there, sums, 1.0).log() + top, -math.inf)


def _kruskal(ends: list[list[int]], order: Any, nodes: int) -> list[int] | None:
    """Greedy spanning tree from edges in this order; None if they do not connect all nodes."""
    group = list(range(nodes))

    def leader(node: int) -> int:
        while group[node] != node:
            node = group[node]
        return node

    chosen = []
    for edge in order:
        first, second = leader(ends[edge][0]), leader(ends[edge][1])
        if first != second:
            group[first] = second
            chosen.append(edge)
    return chosen if len(chosen) == nodes - 1 else None
