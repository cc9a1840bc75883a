"""Edge cases of factor graphs: infeasible, NaN and empty input."""

import math

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured.factor_graph import links
from fewfold.structured.factor_graph.graph import FactorGraph, Status
from fewfold.structured.sparsemap.active_set import solve_plain
from fewfold.structured.structures.assignment import Assignment
from fewfold.structured.structures.bits import Budget, KSubset
from fewfold.structured.structures.dependency_tree import DependencyTree
from fewfold.structured.structures.logic import (
    AndOut,
    AtMostOne,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)  # fmt: skip
from fewfold.structured.structures.sequence import Sequence
from fewfold.structured.structures.sequential_subset import SequentialSubset
from fewfold.structured.structures.structure import Structure

from .factors import draw

INF = math.inf


def odd(which: str, value: float) -> tuple[Structure, tuple[int, ...]]:
    """A structure with such an additional score for the second of two instances."""
    bad = torch.tensor([0.3, value], dtype=torch.float64)
    transitions = draw(39, 2, 1, 3, 3)
    transitions[1, 0, 0, 2] = value
    made: dict[str, tuple[Structure, tuple[int, ...]]] = {
        "Sequence": (Sequence(transitions, by_position=True), (4, 3)),
        "SequentialSubset": (SequentialSubset(2, bad.unsqueeze(1)), (4,)),
        "Pair": (Pair(bad), (2,)),
    }
    return made[which]


@pytest.mark.parametrize("value", [math.nan, INF])
@pytest.mark.parametrize("which", ["Sequence", "SequentialSubset", "Pair"])
def test_additional_scores_that_are_no_numbers(path: str, which: str, value: float) -> None:
    """The instance that has them has no answer; the other one is as if it were alone."""
    structure, event = odd(which, value)
    graph = FactorGraph(batch_dims=1)
    scores = draw(40, 2, *event).requires_grad_()
    u = graph.variable(scores)
    graph.add(structure, u)
    for solution in (graph.solve(), graph.solve_map()):
        assert solution.converged.tolist() == [True, False]
        assert int(solution.status[1]) == Status.APPROXIMATE
        assert solution[u][1].isnan().all()
        assert solution.objective[1].isnan()
        assert solution[u][0].isfinite().all()
    (grad,) = torch.autograd.grad(graph.solve()[u][0].square().sum(), scores)
    assert grad[0].isfinite().all()


@pytest.mark.parametrize("value", [1e200, -1.7e308])
@pytest.mark.parametrize("which", ["scores", "Sequence", "SequentialSubset", "Pair"])
def test_numbers_that_are_too_large_are_refused(path: str, which: str, value: float) -> None:
    structure, event = odd("Pair" if which == "scores" else which, value)
    graph = FactorGraph(batch_dims=1)
    scores = draw(40, 2, *event)
    if which == "scores":
        structure, scores[1, 0] = Pair(0.3), value
    graph.add(structure, graph.variable(scores))
    for solve in (graph.solve, graph.solve_map):
        with pytest.raises(ValueError, match=r"at most 1e\+150 in size, got .*; write -inf"):
            solve()


def test_what_has_no_answer_leaves_shared_scores_alone(path: str) -> None:
    scores, transitions = draw(42, 3, 4, 3), draw(43, 3, 3).requires_grad_()
    scores[1, 0, 0] = math.nan

    def total(rows: list[int], given: list[int]) -> Tensor:
        graph = FactorGraph(batch_dims=1)
        u = graph.variable(scores[given])
        graph.add(Sequence(transitions, by_position=transitions.dim() > 2), u)
        graph.add(Budget(1), u[:, 0])
        solution = graph.solve()
        return solution[u][rows].pow(3).sum() + solution.objective[rows].sum()

    (alone,) = torch.autograd.grad(total([0, 1], [0, 2]), transitions)
    (among,) = torch.autograd.grad(total([0, 2], [0, 1, 2]), transitions)
    torch.testing.assert_close(among, alone)


def test_a_pair_that_cannot_be(path: str) -> None:
    """A score of -inf for both is "at most one"."""
    scores = draw(41, 6, 2).requires_grad_()
    found = []
    for structure in (Pair(torch.tensor(-INF)), AtMostOne()):
        graph = FactorGraph(batch_dims=1)
        u = graph.variable(scores)
        graph.add(structure, u)
        solution = graph.solve()
        assert solution.converged.all()
        (grad,) = torch.autograd.grad(solution[u].square().sum(), scores)
        found.append((solution[u].detach(), solution.objective.detach(), grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("structure", "scores", "negated", "instance", "told"),
    [
        (KSubset(2), [1.0, -INF, -INF], [False] * 3, 0, "KSubset"),
        (XorOut(), [-INF, -INF, 2.0], [False, False, False], None, ""),
        (XorOut(), [-INF, -INF, -INF], [False, False, True], 0, "XorOut"),
        (Xor(), [-INF, -INF, -INF], [False] * 3, None, ""),
        (Xor(), [-INF, -INF, 0.2], [True, True, False], 0, "Xor"),
        (OrOut(), [-INF, 0.3, -INF], [True, False, False], 0, "OrOut"),
        (OrOut(), [-INF, -INF, -INF], [False, False, True], 0, "OrOut"),
        (AndOut(), [-INF, -INF, -INF], [True, True, False], 0, "AndOut"),
        (AndOut(), [-INF, 0.3, -INF], [False, False, True], 0, "AndOut"),
        (Or(), [-INF, 0.5, -INF], [False, True, False], None, ""),
        (Knapsack([1.0, 2.0, 1.0], 1.5), [0.4, -INF, 0.1], [False, True, False], 0, "Knapsack"),
        (Knapsack([1.0, 2.0, 1.0], 2.0), [0.4, -INF, 0.1], [False, True, False], None, ""),
        (Budget(1), [-INF, -INF, 0.1], [True, True, False], 0, "Budget"),
    ],
)  # fmt: skip
def test_what_has_no_structure(
    path: str, structure: Structure, scores: list[float], negated: list[bool],
    instance: int | None, told: str,
) -> None:  # fmt: skip
    graph = FactorGraph()
    u = graph.variable(torch.tensor(scores, dtype=torch.float64))
    graph.add(Budget(3), u)
    graph.add(structure, [~u[i] if turned else u[i] for i, turned in enumerate(negated)])
    if instance is None:
        solution = graph.solve()
        assert solution.converged
        off = torch.tensor(scores) == -INF
        assert (solution[u][off] == 0).all()
        return
    for solve in (graph.solve, graph.solve_map):
        with pytest.raises(ValueError, match=f"instance 0 has no structure of {told}"):
            solve()


def test_the_factor_without_a_structure_is_named(path: str) -> None:
    scores = torch.zeros(2, 4, 3, 3, dtype=torch.float64)
    # words 0 and 1 can only be each other's heads
    scores[1, 2] = torch.tensor([[-INF, 0, -INF], [0, -INF, -INF], [-INF, -INF, 0]])
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Budget(3), u[0])
    graph.add(DependencyTree(), u)
    with pytest.raises(
        ValueError, match=r"instance 1 has no structure of DependencyTree.*factor 2"
    ):
        graph.solve()


def test_bits_that_cannot_be_negated(path: str) -> None:
    graph = FactorGraph()
    u = graph.variable(torch.tensor([0.3, -INF, 0.2], dtype=torch.float64))
    graph.add(SequentialSubset(2, 0.1), ~u)
    with pytest.raises(ValueError, match="-inf cannot be negated in SequentialSubset"):
        graph.solve()


def test_a_factor_that_is_not_solved_is_told(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that agrees with nobody else still has to be the best one."""

    def short(scores: Tensor, oracle: object, *rest: object) -> object:
        return solve_plain(scores, oracle, 2, *rest[1:])  # type: ignore[arg-type]

    monkeypatch.setattr(links, "solve_plain", short)
    shape = (400, 8) if _native.enabled() else (5, 3)  # takes the kernel more than a thousand turns
    graph = FactorGraph()
    u = graph.variable(0.01 * draw(0, *shape))
    graph.add(Sequence(0.01 * draw(1, shape[1], shape[1])), u)
    solution = graph.solve()
    assert float(solution.primal_residual) == 0
    assert not solution.converged
    assert solution.status == Status.APPROXIMATE


def test_no_instances(path: str) -> None:
    scores = torch.zeros(0, 4, 3, requires_grad=True)
    transitions = torch.zeros(3, 3, requires_grad=True)
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Sequence(transitions, by_position=transitions.dim() > 2), u)
    graph.add(Budget(1), u[:, 0])
    for solution in (graph.solve(), graph.solve_map()):
        assert solution[u].shape == (0, 4, 3)
        assert solution.objective.shape == solution.status.shape == (0,)
    solution = graph.solve()
    total = solution[u].sum() + solution.objective.sum()
    grads = torch.autograd.grad(total, (scores, transitions))
    assert [tuple(grad.shape) for grad in grads] == [(0, 4, 3), (3, 3)]
    assert (grads[1] == 0).all()


def test_factors_of_nothing(path: str) -> None:
    scores = draw(60, 3, 4)
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Xor(), u[:0])  # no factors
    graph.add(Budget(1), u[0, :0])  # one without bits
    solution = graph.solve()
    torch.testing.assert_close(solution[u], scores.clamp(0, 1))
    with pytest.raises(ValueError, match="at least 1 bits"):
        graph.add(Xor(), u[0, :0])
    for structure in (Xor(), Assignment()):
        with pytest.raises(ValueError, match="an empty list"):
            graph.add(structure, [])
    nothing = FactorGraph()
    w = nothing.variable(torch.zeros(0))
    for solution in (nothing.solve(), nothing.solve_map()):
        assert solution[w].shape == (0,)
        assert solution.converged
        assert solution.objective == 0


def test_a_graph_without_factors(path: str) -> None:
    scores = torch.tensor([[0.5, 2.0, -1.0], [0.2, -INF, 1.0]], dtype=torch.float64)
    scores.requires_grad_()
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    solution = graph.solve()
    assert solution.converged.all()
    torch.testing.assert_close(solution[u], scores.clamp(0, 1))
    (grad,) = torch.autograd.grad(solution[u].sum(), scores)
    assert grad.tolist() == [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert graph.solve_map()[u].tolist() == [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
