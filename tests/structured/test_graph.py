"""Factor graphs: against enumeration where the relaxation is exact, and a solver elsewhere."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured.factor_graph import consensus, links
from fewfold.structured.factor_graph.graph import FactorGraph, Status
from fewfold.structured.sparsemap.active_set import solve_plain
from fewfold.structured.sparsemap.sparsemap import sparsemap
from fewfold.structured.structures.alignment import Alignment
from fewfold.structured.structures.assignment import Assignment
from fewfold.structured.structures.bits import Bits, Budget, KSubset
from fewfold.structured.structures.constituency import ConstituencyTree
from fewfold.structured.structures.custom import Custom
from fewfold.structured.structures.dependency_tree import DependencyTree
from fewfold.structured.structures.logic import (
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    OrOut,
    Pair,
    Xor,
    XorOut,
)  # fmt: skip
from fewfold.structured.structures.segmentation import Segmentation
from fewfold.structured.structures.sequence import Sequence
from fewfold.structured.structures.sequential_subset import SequentialSubset
from fewfold.structured.structures.spanning_tree import SpanningTree
from fewfold.structured.structures.structure import Structure

from .factors import draw, mixed


def exactly(atoms: Tensor, scores: Tensor, extra: Tensor) -> Tensor:
    """SparseMAP over all of these structures."""

    def oracle(left: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = (left @ atoms.T + extra).argmax(1)
        return atoms[best], extra[best], torch.ones(len(left), dtype=torch.bool)

    found = solve_plain(scores[None], oracle, 10_000, 1e-13)[0]
    return torch.from_numpy(found.weights @ found.atoms)


def every(bits: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=bits)), dtype=torch.float64)


def test_a_known_matching(path: str) -> None:
    """Every row one column, every column at most one row; to nine digits."""
    scores = torch.tensor([[1.2, 0.3, 0.1, -0.2], [0.9, 0.8, -0.4, 0.0]], dtype=torch.float64)
    scores.requires_grad_()
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Xor(), u)
    graph.add(AtMostOne(), u.T)
    solution = graph.solve()
    wanted = [[0.685714286, 0.257142857, 0.057142857, 0.0], [0.314285714, 0.685714286, 0.0, 0.0]]
    assert solution.converged
    assert solution.status == Status.FRACTIONAL
    torch.testing.assert_close(solution[u], torch.tensor(wanted).double(), atol=1e-7, rtol=0)
    assert float(solution.objective.detach()) == pytest.approx(1.1828571428570545, abs=1e-9)
    v = torch.tensor([[0.3, -0.2, 0.5, 0.1], [-0.4, 0.2, 0.7, -0.1]], dtype=torch.float64)
    (grad,) = torch.autograd.grad(solution[u], scores, v, retain_graph=True)
    wanted = [[0.214285714, -0.457142857, 0.242857143, 0.0], [-0.214285714, 0.214285714, 0.0, 0.0]]
    torch.testing.assert_close(grad, torch.tensor(wanted).double(), atol=1e-7, rtol=0)
    (slope,) = torch.autograd.grad(solution.objective, scores)
    torch.testing.assert_close(slope, solution[u].detach())


def test_a_known_tree_with_a_budget_for_heads(path: str) -> None:
    root, arcs = [0.9, 0.7, 0.4], [[0.0, 0.6, 0.3], [0.4, 0.0, 0.5], [0.1, 0.2, 0.0]]
    scores = torch.tensor(arcs, dtype=torch.float64)
    scores += torch.diag(torch.tensor(root, dtype=torch.float64))  # the root is on the diagonal
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(DependencyTree(), u)
    for head in range(3):
        others = [word for word in range(3) if word != head]
        graph.add(Knapsack([1.0, 1.0], 0.6), u[head, others])
    solution = graph.solve()
    wanted = [
        [0.796153846, 0.384615385, 0.215384615],
        [0.203846154, 0.557692308, 0.396153846],
        [0.0, 0.057692308, 0.388461538],
    ]
    torch.testing.assert_close(solution[u], torch.tensor(wanted).double(), atol=1e-7, rtol=0)
    assert float(solution.objective) == pytest.approx(1.1028846153845868, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_pairs_is_exact(path: str, seed: int) -> None:
    scores, edges = draw(seed, 6), draw(seed + 10, 5)
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Pair(edges), u[[[i, i + 1] for i in range(5)]])
    atoms = every(6)
    wanted = exactly(atoms, scores, (atoms[:, 1:] * atoms[:, :-1]) @ edges)
    solution = graph.solve()
    assert solution.converged
    torch.testing.assert_close(solution[u], wanted, atol=1e-8, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_a_tree_of_logic_is_exact(path: str, seed: int) -> None:
    """Factors that share single bits, some of them negated, without a cycle."""
    scores = draw(seed, 9)
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(OrOut(), u[:4])
    graph.add(AndOut(), [~u[3], u[4], u[5]])
    graph.add(XorOut(), [u[6], ~u[7], u[5]])
    graph.add(Imply(), [u[0], ~u[8]])
    atoms = every(9)
    b = atoms.bool()
    allowed = (
        (b[:, :3].any(1) == b[:, 3])
        & ((~b[:, 3] & b[:, 4]) == b[:, 5])
        & ~(b[:, 6] & ~b[:, 7])
        & ((b[:, 6] ^ ~b[:, 7]) == b[:, 5])
        & (~b[:, 0] | ~b[:, 8])
    )
    atoms = atoms[allowed]
    wanted = exactly(atoms, scores, torch.zeros(len(atoms), dtype=torch.float64))
    solution = graph.solve()
    assert solution.converged
    torch.testing.assert_close(solution[u], wanted, atol=1e-8, rtol=0)
    assert (solution[~u] == 1 - solution[u]).all()
    best = graph.solve_map()
    assert best.status == Status.INTEGER
    torch.testing.assert_close(best.objective, (atoms @ scores).max(), atol=1e-8, rtol=0)


def test_rows_and_columns_are_an_assignment(path: str) -> None:
    scores = draw(3, 4, 3, 5)
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Xor(), u)
    graph.add(AtMostOne(), u.T)
    torch.testing.assert_close(graph.solve()[u], sparsemap(scores, Assignment()), atol=1e-7, rtol=0)
    best = graph.solve_map()
    assert (best.status == Status.INTEGER).all()
    torch.testing.assert_close(best[u], Assignment().argmax(scores))


def test_a_cycle_of_pairs_is_the_relaxation(path: str) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    edges = np.array([-1.1, -0.9, -1.3])
    scores = np.array([0.8, 0.7, 0.9])
    ends = [(0, 1), (1, 2), (2, 0)]

    def loss(x: np.ndarray) -> float:
        mu, both = x[:3], x[3:]
        return float(-(scores @ mu + edges @ both - mu @ mu / 2))

    limits = [{"type": "ineq", "fun": lambda x, k=k, e=e: x[e] - x[3 + k]}
              for k, pair in enumerate(ends) for e in pair]  # fmt: skip
    limits += [
        {"type": "ineq", "fun": lambda x, k=k, a=a, b=b: x[3 + k] - x[a] - x[b] + 1}
        for k, (a, b) in enumerate(ends)
    ]
    found = optimize.minimize(
        loss, np.full(6, 0.4), bounds=[(0, 1)] * 6, constraints=limits, method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    graph = FactorGraph()
    u = graph.variable(torch.from_numpy(scores))
    graph.add(Pair(torch.from_numpy(edges)), u[ends])
    solution = graph.solve()
    torch.testing.assert_close(solution[u], torch.from_numpy(found.x[:3]), atol=1e-5, rtol=0)
    assert float(solution.objective) == pytest.approx(-found.fun, abs=1e-8)


ONE = [
    (Xor(), (4,)), (KSubset(2), (4,)), (Budget(1), (4,)), (Bits(), (3,)), (OrOut(), (4,)),
    (DependencyTree(), (3, 3)), (DependencyTree(projective=True, single_root=True), (3, 3)),
    (Sequence(0.5 * draw(1, 3, 3)), (4, 3)), (SequentialSubset(2, torch.tensor(0.4)), (5,)),
    (Assignment(), (3, 3)), (SpanningTree(torch.tensor([[0, 1], [1, 2], [2, 0], [2, 3]]), 4), (4,)),
    (ConstituencyTree(), (4, 4)), (Segmentation(0.5 * draw(2, 2, 2)), (3, 2, 2)),
    (Alignment(0.5 * draw(3, 3)), (3, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("structure", "event"), ONE)
def test_one_factor_is_sparsemap(path: str, structure: Structure, event: tuple[int, ...]) -> None:
    scores = draw(5, 3, *event)
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(structure, u)
    solution = graph.solve()
    assert (solution.iterations == 1).all()
    assert solution.converged.all()
    torch.testing.assert_close(solution[u], sparsemap(scores, structure), atol=1e-8, rtol=0)


def test_many_pairs_converge_to_the_same_from_any_step() -> None:
    """Every answer certifies itself: multipliers of a bit sum to zero, and the answers agree."""
    pairs = np.stack(np.triu_indices(10, 1), 1)
    scores, edges = draw(14, 30, 10), draw(15, 30, 45)
    found = []
    for step in (1.0, 6.0, 20.0):
        graph = FactorGraph(batch_dims=1)
        u = graph.variable(scores)
        graph.add(Pair(edges), u[pairs])
        solution = graph.solve(step_size=step)
        assert solution.converged.all()
        found.append(solution[u])
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(found[2], found[1], atol=1e-5, rtol=0)


def test_bits_that_are_off_and_numbers_that_are_none(path: str) -> None:
    scores = draw(19, 3, 2, 4)
    scores[0, :, 1] = -math.inf
    scores[1, 0, 0] = math.nan
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Xor(), u)
    graph.add(AtMostOne(), u.T)
    solution = graph.solve()
    assert solution.converged.tolist() == [True, False, True]
    assert solution[u][1].isnan().all()
    smaller = FactorGraph()
    w = smaller.variable(scores[0][:, [0, 2, 3]])
    smaller.add(Xor(), w)
    smaller.add(AtMostOne(), w.T)
    assert (solution[u][0, :, 1] == 0).all()
    kept = solution[u][0][:, [0, 2, 3]]
    torch.testing.assert_close(kept, smaller.solve()[w], atol=1e-8, rtol=0)


def test_bits_in_no_factor(path: str) -> None:
    scores = torch.tensor([1.5, 0.3, -0.2, 0.9, 0.8], dtype=torch.float64, requires_grad=True)
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Xor(), u[3:])
    found = graph.solve()[u]
    torch.testing.assert_close(found.detach(), torch.tensor([1.0, 0.3, 0.0, 0.55, 0.45]).double())
    (grad,) = torch.autograd.grad(found, scores, torch.ones_like(found))
    torch.testing.assert_close(grad, torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]).double())


def test_a_structure_of_ones_own() -> None:
    def neighbours(scores: Tensor) -> Tensor:
        first = int((scores[:-1] + scores[1:]).argmax())
        return torch.zeros_like(scores).index_fill(0, torch.tensor([first, first + 1]), 1.0)

    scores = draw(21, 5)
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Custom(neighbours), u)
    graph.add(Imply(), [u[1], u[0]])
    solution = graph.solve()
    assert solution.converged
    assert float(solution[u].sum()) == pytest.approx(2.0)
    assert float(solution[u][1]) <= float(solution[u][0]) + 1e-9
    atoms = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]).double()
    zeros = torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(solution[u], exactly(atoms, scores, zeros), atol=1e-8, rtol=0)


def test_what_cannot_agree_is_told(path: str) -> None:
    graph = FactorGraph()
    u = graph.variable(torch.zeros(2))
    graph.add(KSubset(2), u)
    graph.add(AtMostOne(), u)
    solution = graph.solve(max_iter=20)
    assert not solution.converged
    assert solution.status == Status.APPROXIMATE
    assert float(solution.primal_residual) > 0.1
    assert graph.solve_map(max_iter=20).status == Status.APPROXIMATE


def test_conjugate_gradients_solve_for_newtons_step_in_every_row() -> None:
    graph, size = FactorGraph(batch_dims=1), torch.full((3,), 1e-9, dtype=torch.float64)
    scores = 0.3 * draw(0, 3, 8, 8)
    u = graph.variable(scores)
    graph.add(AtMostOne(), u)
    graph.add(AtMostOne(), u.T)
    bits = links.Links(graph._groups, 64)
    search = consensus._DualSearch(
        bits, links.FactorProjections(bits, [AtMostOne(), AtMostOne()]), scores.flatten(1)
    )
    _, apart, faces = search.evaluate(torch.zeros(3, 128, dtype=torch.float64))
    step = search.newton(faces, apart, size)
    pushed = faces.push(step)
    left = pushed - bits.spread(bits.mean(pushed)) + 1e-8 * step + apart
    assert (search.inner(left, left) <= 1.01e-9 * search.inner(apart, apart)).all()


def test_few_turns_are_told(path: str) -> None:
    scores, transitions, edges = draw(6, 5, 4, 3), draw(7, 5, 1, 3, 3), draw(8, 5, 2)
    graph, _ = mixed(scores, transitions, edges)
    solution = graph.solve(max_iter=3)
    assert (solution.iterations <= 3).all()
    assert not solution.converged.all()


@pytest.mark.parametrize("scale", [1.0, 1e-6, 0.0])
def test_the_kernel_ends_when_the_plain_search_does(scale: float) -> None:
    """Where scores are small the limit of the disagreement is not: no turn is spent on rounding."""
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scale * draw(0, 6, 3, 4))
    graph.add(Xor(), u)
    graph.add(AtMostOne(), u.T)
    took = graph.solve().iterations
    with _native.disabled():
        assert torch.equal(graph.solve().iterations, took)


def test_lp_map_may_be_fractional(path: str) -> None:
    """Three bits that all want to differ: half of each is better than any structure."""
    graph = FactorGraph()
    u = graph.variable(torch.ones(3, dtype=torch.float64))
    graph.add(Pair(torch.tensor(-2.0)), u[[[0, 1], [1, 2], [2, 0]]])
    best = graph.solve_map()
    assert best.status == Status.FRACTIONAL
    assert float(best.objective) == pytest.approx(1.5)
    assert best[u].tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_dtype_and_shape_come_back() -> None:
    graph = FactorGraph(batch_dims=2)
    u = graph.variable(torch.zeros(2, 3, 4))
    w = graph.variable(torch.zeros(2, 3, 2, 2))
    graph.add(Xor(), u)
    graph.add(Xor(), [u[0], w[1]])
    solution = graph.solve()
    assert solution[u].shape == (2, 3, 4)
    assert solution[w].shape == (2, 3, 2, 2)
    assert solution[w[0]].shape == (2, 3, 2)
    assert solution[u].dtype == torch.float32
    assert solution.objective.shape == (2, 3)
    assert solution.converged.all()


def test_mistakes() -> None:
    graph = FactorGraph(batch_dims=1)
    with pytest.raises(ValueError, match="no bits"):
        graph.solve()
    u = graph.variable(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="share their batch"):
        graph.variable(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="twice"):
        graph.add(Xor(), [u[0], u[0]])
    with pytest.raises(ValueError, match="at least 2"):
        graph.add(Imply(), u[:1])
    with pytest.raises(ValueError, match="dimensions"):
        graph.add(Assignment(), u)
    with pytest.raises(ValueError, match="on_off"):
        graph.add(Bits(on_off=True), u)
    with pytest.raises(TypeError, match="structures"):
        graph.add("xor", u)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="variables of this graph"):
        graph.add(Xor(), FactorGraph().variable(torch.zeros(3)))
    graph.add(Xor(), u)
    with pytest.raises(TypeError, match="its own graph"):
        graph.solve()[FactorGraph().variable(torch.zeros(3))]
