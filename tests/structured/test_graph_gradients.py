"""Factor graphs: derivatives, batches, transforms and compilation."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from fewfold import _native
from fewfold.structured.factor_graph.graph import FactorGraph
from fewfold.structured.structures.logic import (
    AtMostOne,
    Or,
    Pair,
    Xor,
)  # fmt: skip
from fewfold.structured.structures.sequence import Sequence

from .factors import draw, mixed


def difference(
    f: Callable[[Tensor], Tensor], at: Tensor, along: Tensor, step: float = 1e-6
) -> Tensor:
    return (f(at + step * along) - f(at - step * along)) / (2 * step)


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


def test_gradients_of_all_scores(path: str) -> None:
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


def test_double_backward(path: str) -> None:
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


def test_batch_is_one_by_one(path: str) -> None:
    scores, transitions, edges = draw(16, 3, 4, 3), draw(17, 3, 1, 3, 3), draw(18, 3, 2)
    graph, u = mixed(scores, transitions, edges)
    whole = graph.solve()[u]
    for i in range(3):
        own = slice(i, i + 1)
        graph, u = mixed(scores[own], transitions[own], edges[own])
        torch.testing.assert_close(graph.solve()[u], whole[own], atol=1e-8, rtol=0)


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


def test_vmap_is_one_by_one(path: str) -> None:
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
def test_transforms_of_functions(path: str, place: int) -> None:
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


def test_second_derivatives_by_transforms(path: str) -> None:
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


def test_second_derivatives_of_the_objective(path: str) -> None:
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
