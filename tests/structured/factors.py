"""Random scores, and a graph with cycles, for the tests of factors."""

import torch
from torch import Tensor

from fewfold.structured.factor_graph.graph import FactorGraph, Variable
from fewfold.structured.structures.bits import Budget
from fewfold.structured.structures.logic import Or, Pair
from fewfold.structured.structures.sequence import Sequence


def draw(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(scores: Tensor, transitions: Tensor, edges: Tensor) -> tuple[FactorGraph, Variable]:
    """A sequence, a budget for a state, pairs and logic over the same bits: cycles."""
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Sequence(transitions, by_position=transitions.dim() > 2), u)
    graph.add(Budget(2), u[:, 0])
    graph.add(Pair(edges), u[[0, 1], 1:])
    graph.add(Or(), [u[0, 0], ~u[2, 1], u[3, 2]])
    return graph, u
