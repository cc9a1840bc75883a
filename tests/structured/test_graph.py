"""Factor graphs: against enumeration where the relaxation is exact, and a solver elsewhere."""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured import links
from fewfold.structured.alignments import Alignment
from fewfold.structured.assignments import Assignment
from fewfold.structured.choices import Bits, Budget, KSubset
from fewfold.structured.constituency import ConstituencyTree
from fewfold.structured.custom import Custom
from fewfold.structured.graph import FactorGraph, Status, Variable
from fewfold.structured.logic import (
    AndOut,
    AtMostOne,
    Imply,
    Knapsack,
    Or,
    OrOut,
    Pair,
    Xor,
    XorOut,
)  # fmt: skip
from fewfold.structured.plain import solve_plain
from fewfold.structured.segments import Segmentation
from fewfold.structured.sequences import Sequence
from fewfold.structured.sequential import SequentialSubset
from fewfold.structured.spanning import SpanningTree
from fewfold.structured.sparsemap import sparsemap
from fewfold.structured.structure import Structure
from fewfold.structured.trees import DependencyTree


@pytest.fixture(params=["native", "plain"])
def path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything in a test, with and without kernels."""
    if request.param == "native" and not _native.enabled():
        pytest.skip("no kernels")
    with _native.disabled() if request.param == "plain" else nullcontext():
        yield


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exactly(atoms: Tensor, scores: Tensor, extra: Tensor) -> Tensor:
    """SparseMAP over all of these structures."""

    def oracle(left: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        best = (left @ atoms.T + extra).argmax(1)
        return atoms[best], extra[best], torch.ones(len(left), dtype=torch.bool)

    found = solve_plain(scores[None], oracle, 10_000, 1e-13)[0]
    return torch.from_numpy(found.weights @ found.atoms)


def every(bits: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=bits)), dtype=torch.float64)


def difference(
    f: Callable[[Tensor], Tensor], at: Tensor, along: Tensor, step: float = 1e-6
) -> Tensor:
    return (f(at + step * along) - f(at - step * along)) / (2 * step)


def test_a_known_matching(path: None) -> None:
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


def test_a_known_tree_with_a_budget_for_heads(path: None) -> None:
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
def test_a_chain_of_pairs_is_exact(path: None, seed: int) -> None:
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
def test_a_tree_of_logic_is_exact(path: None, seed: int) -> None:
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


def test_rows_and_columns_are_an_assignment(path: None) -> None:
    scores = draw(3, 4, 3, 5)
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Xor(), u)
    graph.add(AtMostOne(), u.T)
    torch.testing.assert_close(graph.solve()[u], sparsemap(scores, Assignment()), atol=1e-7, rtol=0)
    best = graph.solve_map()
    assert (best.status == Status.INTEGER).all()
    torch.testing.assert_close(best[u], Assignment().argmax(scores))


def test_a_cycle_of_pairs_is_the_relaxation(path: None) -> None:
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
def test_one_factor_is_sparsemap(path: None, structure: Structure, event: tuple[int, ...]) -> None:
    scores = draw(5, 3, *event)
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(structure, u)
    solution = graph.solve()
    assert (solution.iterations == 1).all()
    assert solution.converged.all()
    torch.testing.assert_close(solution[u], sparsemap(scores, structure), atol=1e-8, rtol=0)


def mixed(scores: Tensor, transitions: Tensor, edges: Tensor) -> tuple[FactorGraph, Variable]:
    """A sequence, a budget for a state, pairs and logic over the same bits: cycles."""
    graph = FactorGraph(batch_dims=1)
    u = graph.variable(scores)
    graph.add(Sequence(transitions, by_position=transitions.dim() > 2), u)
    graph.add(Budget(2), u[:, 0])
    graph.add(Pair(edges), u[[0, 1], 1:])
    graph.add(Or(), [u[0, 0], ~u[2, 1], u[3, 2]])
    return graph, u


def test_native_is_plain() -> None:
    if not _native.enabled():
        pytest.skip("no kernels")
    scores, transitions, edges = draw(6, 5, 4, 3), draw(7, 5, 1, 3, 3), draw(8, 5, 2)
    grads = []
    for context in (nullcontext(), _native.disabled()):
        given = [value.clone().requires_grad_() for value in (scores, transitions, edges)]
        with context:
            graph, u = mixed(*given)
            solution = graph.solve()
            assert solution.converged.all()
            total = (solution[u] * draw(9, 5, 4, 3)).sum() + solution.objective.sum()
            grads.append([solution[u].detach(), *torch.autograd.grad(total, given)])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=0)


def test_gradients_of_all_scores(path: None) -> None:
    scores, transitions, edges = draw(10, 1, 4, 3), draw(11, 1, 1, 3, 3), draw(12, 1, 2)
    v = draw(13, 1, 4, 3)
    given = [value.clone().requires_grad_() for value in (scores, transitions, edges)]
    graph, u = mixed(*given)
    grads = torch.autograd.grad((graph.solve()[u] * v).sum(), given)

    def value(*tensors: Tensor) -> Tensor:
        other, w = mixed(*tensors)
        return (other.solve(tol=1e-9)[w] * v).sum()

    tensors = [scores, transitions, edges]
    for place, tensor in enumerate(tensors):
        along = draw(20 + place, *tensor.shape)

        def moved(x: Tensor, place: int = place) -> Tensor:
            return value(*tensors[:place], x, *tensors[place + 1 :])

        slope = difference(moved, tensor, along)
        torch.testing.assert_close((grads[place] * along).sum(), slope, atol=1e-5, rtol=1e-5)


def test_double_backward(path: None) -> None:
    tensors = [draw(10, 1, 4, 3), draw(11, 1, 1, 3, 3), draw(12, 1, 2)]
    given = [value.requires_grad_() for value in tensors]

    def marginals(*values: Tensor) -> Tensor:
        graph, u = mixed(*values)
        return graph.solve(tol=1e-9)[u].square()  # a square, so that the second derivative is not 0

    v = draw(13, 1, 4, 3).requires_grad_()
    first = torch.autograd.grad(marginals(*given), given, v, create_graph=True)
    along = [draw(20 + i, *value.shape) for i, value in enumerate(given)]
    total = sum((g * a).sum() for g, a in zip(first, along, strict=True))
    second = torch.autograd.grad(total, [*given, v])

    def slope(*values: Tensor) -> Tensor:
        own = [value.detach().requires_grad_() for value in values[:3]]
        grads = torch.autograd.grad(marginals(*own), own, values[3])
        return sum((g * a).sum() for g, a in zip(grads, along, strict=True))

    everything = [value.detach() for value in [*given, v]]
    for place, value in enumerate(everything):
        way = draw(30 + place, *value.shape)

        def moved(x: Tensor, place: int = place) -> Tensor:
            return slope(*everything[:place], x, *everything[place + 1 :])

        wanted = difference(moved, value, way)
        torch.testing.assert_close((second[place] * way).sum(), wanted, atol=1e-5, rtol=1e-5)


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


def test_batch_is_one_by_one(path: None) -> None:
    scores, transitions, edges = draw(16, 3, 4, 3), draw(17, 3, 1, 3, 3), draw(18, 3, 2)
    graph, u = mixed(scores, transitions, edges)
    whole = graph.solve()[u]
    for i in range(3):
        own = slice(i, i + 1)
        graph, u = mixed(scores[own], transitions[own], edges[own])
        torch.testing.assert_close(graph.solve()[u], whole[own], atol=1e-8, rtol=0)


def test_bits_that_are_off_and_numbers_that_are_none(path: None) -> None:
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


def test_bits_in_no_factor(path: None) -> None:
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


def test_what_cannot_agree_is_told(path: None) -> None:
    graph = FactorGraph()
    u = graph.variable(torch.zeros(2))
    graph.add(KSubset(2), u)
    graph.add(AtMostOne(), u)
    solution = graph.solve(max_iter=20)
    assert not solution.converged
    assert solution.status == Status.APPROXIMATE
    assert float(solution.primal_residual) > 0.1
    assert graph.solve_map(max_iter=20).status == Status.APPROXIMATE


def test_few_turns_are_told(path: None) -> None:
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


def test_compiles_around_it() -> None:
    def layer(scores: Tensor) -> Tensor:
        graph = FactorGraph(batch_dims=1)
        u = graph.variable(2 * scores)
        graph.add(Xor(), u[:3])
        graph.add(Or(), u[2:])
        return graph.solve()[u] + 1

    scores = draw(22, 3, 5)
    compiled = torch.compile(layer, backend="eager")
    torch.testing.assert_close(compiled(scores), layer(scores))


def test_lp_map_may_be_fractional(path: None) -> None:
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
def test_additional_scores_that_are_no_numbers(path: None, which: str, value: float) -> None:
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
def test_numbers_that_are_too_large_are_refused(path: None, which: str, value: float) -> None:
    structure, event = odd("Pair" if which == "scores" else which, value)
    graph = FactorGraph(batch_dims=1)
    scores = draw(40, 2, *event)
    if which == "scores":
        structure, scores[1, 0] = Pair(0.3), value
    graph.add(structure, graph.variable(scores))
    for solve in (graph.solve, graph.solve_map):
        with pytest.raises(ValueError, match=r"at most 1e\+150 in size, got .*; write -inf"):
            solve()


def test_what_has_no_answer_leaves_shared_scores_alone(path: None) -> None:
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


def test_a_pair_that_cannot_be(path: None) -> None:
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
    path: None, structure: Structure, scores: list[float], negated: list[bool],
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


def test_the_factor_without_a_structure_is_named(path: None) -> None:
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


def test_bits_that_cannot_be_negated(path: None) -> None:
    graph = FactorGraph()
    u = graph.variable(torch.tensor([0.3, -INF, 0.2], dtype=torch.float64))
    graph.add(SequentialSubset(2, 0.1), ~u)
    with pytest.raises(ValueError, match="-inf cannot be negated in SequentialSubset"):
        graph.solve()


def test_a_factor_that_is_not_solved_is_told(path: None, monkeypatch: pytest.MonkeyPatch) -> None:
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


def small(scores: Tensor, transitions: Tensor, edge: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals, objective and whether they converged, of one instance."""
    graph = FactorGraph()
    u = graph.variable(scores)
    graph.add(Sequence(transitions, by_position=transitions.dim() > 2), u)
    graph.add(AtMostOne(), u[:, 1])
    graph.add(Pair(edge), [u[0, 0], u[2, 2]])
    graph.add(Or(), ~u[:, 0])
    solution = graph.solve(tol=1e-9)
    return solution[u], solution.objective, solution.converged


def three() -> tuple[Tensor, Tensor, Tensor]:
    return 0.3 * draw(55, 3, 3, 3), 0.3 * draw(75, 3, 3, 3), torch.full((3,), 0.3).double()


def test_vmap_is_one_by_one(path: None) -> None:
    given = three()
    marginals, objective, converged = torch.func.vmap(small)(*given)
    for i, own in enumerate(zip(*given, strict=True)):
        one = small(*own)
        torch.testing.assert_close(marginals[i], one[0])
        torch.testing.assert_close(objective[i], one[1])
        assert converged[i]
    shared = torch.func.vmap(small, (0, None, None))(given[0], given[1][0], given[2][0])
    torch.testing.assert_close(shared[0][2], small(given[0][2], given[1][0], given[2][0])[0])


@pytest.mark.parametrize("place", [0, 1])
def test_transforms_of_functions(path: None, place: int) -> None:
    """Of marginals, and of objectives."""

    def value(*given: Tensor) -> Tensor:
        return small(*given)[place]

    def total(*given: Tensor) -> Tensor:
        return value(*given).pow(3).sum()

    given, every = three(), (0, 1, 2)
    one = tuple(tensor[1] for tensor in given)
    wanted = torch.autograd.functional.jacobian(value, one)
    assert all(float(part.abs().max()) > 0.01 for part in wanted)
    back, ahead = (way(value, every)(*one) for way in (torch.func.jacrev, torch.func.jacfwd))
    many = torch.func.vmap(torch.func.jacrev(value, every))(*given)
    for parts in zip(wanted, back, ahead, [part[1] for part in many], strict=True):
        for part in parts[1:]:
            torch.testing.assert_close(part, parts[0], atol=1e-10, rtol=0)
    tracked = [tensor.clone().requires_grad_() for tensor in given]
    sums = sum(total(*own) for own in zip(*tracked, strict=True))
    slopes = torch.autograd.grad(sums, tracked)
    inside = torch.func.vmap(torch.func.grad(total, every))(*given)
    outside = torch.func.grad(lambda *x: torch.func.vmap(total)(*x).sum(), every)(*given)
    for slope, *parts in zip(slopes, inside, outside, strict=True):
        for part in parts:
            torch.testing.assert_close(part, slope, atol=1e-10, rtol=0)


def test_second_derivatives_by_transforms(path: None) -> None:
    scores, transitions, edge = (tensor[0] for tensor in three())

    def total(*given: Tensor) -> Tensor:
        return small(*given)[0].pow(3).sum()

    every, given = (0, 1, 2), (scores, transitions, edge)
    wanted = torch.autograd.functional.hessian(total, given)
    for row, other in zip(torch.func.hessian(total, every)(*given), wanted, strict=True):
        for one, two in zip(row, other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-9, rtol=0)
    curved = torch.func.hessian(lambda x: small(x, transitions, edge)[1])(scores)
    slope = torch.func.jacrev(lambda x: small(x, transitions, edge)[0])(scores)
    torch.testing.assert_close(curved, slope, atol=1e-9, rtol=0)


def test_second_derivatives_of_the_objective(path: None) -> None:
    """By scores and additional ones: against differences of the slope, and by transforms."""
    given = tuple(tensor[0] for tensor in three())
    sizes = [tensor.numel() for tensor in given]

    def objective(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        return small(*[part.view_as(own) for part, own in zip(parts, given, strict=True)])[1]

    at = torch.cat([tensor.flatten() for tensor in given])
    slope, which = (
        torch.func.grad(objective),
        torch.arange(3).repeat_interleave(torch.tensor(sizes)),
    )
    ways = [torch.where(which == kind, draw(90, len(at)), 0.0) for kind in range(3)]
    wanted = torch.stack([difference(slope, at, along) for along in ways])
    assert all(float(part.abs().max()) > 0.01 for own in wanted for part in own.split(sizes))
    by_product = [torch.autograd.functional.vhp(objective, at, along)[1] for along in ways]
    torch.testing.assert_close(torch.stack(by_product), wanted, atol=1e-7, rtol=0)
    for hessian in (
        torch.func.hessian(objective)(at),
        torch.func.jacrev(torch.func.jacfwd(objective))(at),
        torch.func.vmap(torch.func.hessian(objective))(torch.stack([at + 0.1, at]))[1],
    ):
        torch.testing.assert_close(torch.stack(ways) @ hessian, wanted, atol=1e-7, rtol=0)


def test_no_instances(path: None) -> None:
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


def test_factors_of_nothing(path: None) -> None:
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


def test_a_graph_without_factors(path: None) -> None:
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
