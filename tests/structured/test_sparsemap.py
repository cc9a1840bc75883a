"""Features common to all structures: warm starts, large scores, empty events, compiled graphs."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold._native import disabled
from fewfold.structured.structures.structure import Structure

S = ff.structures
PATHS = [contextlib.nullcontext, disabled]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_structures_are_the_same_set_by_kind_and_settings_not_by_additional_scores() -> None:
    assert S.KSubset(2).same_set(S.KSubset(2))
    assert not S.KSubset(2).same_set(S.KSubset(1))
    assert not S.Xor().same_set(S.AtMostOne())
    assert S.Sequence(torch.zeros(2, 2)).same_set(S.Sequence(torch.ones(2, 2)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("structure", "event"),
    [(S.Sequence(), (4, 3)), (S.DependencyTree(), (4, 4)), (S.Assignment(), (3, 4))],
    ids=str,
)
def test_a_warm_start_never_brings_what_is_impossible(
    structure: Structure, event: tuple[int, ...], path: Any
) -> None:
    x = drawn(20, *event)
    keep = torch.ones(event, dtype=torch.bool)
    keep[-1] = keep[:, -1] = False  # one word, or position, or row fewer
    with path():
        masked = ff.structured.sparsemap_solution(x, structure, mask=keep)
        cold = ff.structured.sparsemap_solution(x - 2, structure)
        warm = ff.structured.sparsemap_solution(x - 2, structure, warm=masked)
        torch.testing.assert_close(warm.marginals, cold.marginals, atol=1e-8, rtol=0)
        again = ff.structured.sparsemap_solution(x - 2, structure, warm=cold)
        torch.testing.assert_close(again.marginals, cold.marginals, atol=1e-8, rtol=0)
        assert (again.iterations == 1).all()


def test_a_warm_start_from_another_set_begins_anew() -> None:
    x = drawn(30, 6)
    many = ff.structured.sparsemap_solution(x, S.KSubset(4))
    few = ff.structured.sparsemap_solution(x, S.KSubset(2), warm=many)
    torch.testing.assert_close(few.marginals, ff.sparsemap(x, S.KSubset(2)), atol=1e-8, rtol=0)
    free = ff.structured.sparsemap_solution(drawn(30, 5, 5), S.DependencyTree())
    nested = S.DependencyTree(projective=True)
    found = ff.structured.sparsemap_solution(drawn(30, 5, 5), nested, warm=free)
    torch.testing.assert_close(found.marginals, ff.sparsemap(drawn(30, 5, 5), nested))
    forbidden = torch.zeros(3, 3, dtype=torch.float64)
    old = ff.structured.sparsemap_solution(drawn(30, 5, 3), S.Sequence(forbidden))
    forbidden = forbidden.masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf)
    new = ff.structured.sparsemap_solution(drawn(30, 5, 3), S.Sequence(forbidden), warm=old)
    torch.testing.assert_close(
        new.marginals, ff.sparsemap(drawn(30, 5, 3), S.Sequence(forbidden)), atol=1e-8, rtol=0
    )


def test_a_warm_start_of_another_shape_is_refused() -> None:
    large = ff.structured.sparsemap_solution(drawn(2, 30, 30), S.Assignment())
    with pytest.raises(ValueError, match="same shape"):
        ff.structured.sparsemap_solution(drawn(2, 3, 3), S.Assignment(), warm=large)
    with pytest.raises(TypeError, match="must be a Solution"):
        ff.structured.sparsemap_solution(drawn(2, 3, 3), S.Assignment(), warm=True)  # type: ignore[arg-type]


def test_infinite_scores_stay_no_numbers_after_a_warm_start() -> None:
    x = drawn(2, 4, 3)
    before = ff.structured.sparsemap_solution(x, S.Sequence())
    x[0, 1, 1] = torch.inf
    after = ff.structured.sparsemap_solution(x, S.Sequence(), warm=before)
    assert after.marginals[0].isnan().all()
    assert after.marginals[1].isfinite().all()


@pytest.mark.parametrize("path", PATHS)
def test_scores_may_be_large(path: Any) -> None:
    with path():
        ties = torch.full((5, 3), 1e8, dtype=torch.float64)
        torch.testing.assert_close(ff.sparsemap(ties, S.Sequence()), torch.full_like(ties, 1 / 3))
        subsets = ff.structured.sparsemap_solution(ties[:, 0], S.KSubset(2))
        torch.testing.assert_close(subsets.marginals, torch.full_like(ties[:, 0], 0.4))
        assert float(subsets.support.weights.sum()) == pytest.approx(1, abs=1e-12)
        x = (drawn(10, 6, 4) + 2**24) - 2**24  # so that nothing is lost by adding
        torch.testing.assert_close(
            ff.sparsemap(x + 2**24, S.Sequence()), ff.sparsemap(x, S.Sequence()), atol=1e-7, rtol=0
        )
    for scale in (1e3, 1e6):
        for structure, event in ((S.Sequence(), (10, 5)), (S.DependencyTree(), (10, 10))):
            found = ff.structured.sparsemap_solution(scale * drawn(100, *event), structure)
            assert found.converged.all()
            assert (found.gap <= 1e-9).all()


@pytest.mark.parametrize("path", PATHS)
def test_events_without_parts_have_the_empty_structure(path: Any) -> None:
    alone = S.SpanningTree(torch.zeros(0, 2, dtype=torch.long), 1)
    with path():
        for structure in (S.Bits(), S.KSubset(0), S.Budget(1), alone):
            x = torch.zeros(2, 0, requires_grad=True)
            solution = ff.structured.sparsemap_solution(x, structure)
            assert solution.support.counts.tolist() == [1, 1]
            assert ff.sparsemap(x, structure).shape == (2, 0)
        assert ff.sparsemap(torch.zeros(0, 4, 3), S.Sequence()).shape == (0, 4, 3)


def test_all_alike_takes_no_longer() -> None:
    x = torch.zeros(1, 40, 40, requires_grad=True)
    ff.sparsemap(x, S.DependencyTree()).square().sum().backward()  # seconds, were all ties followed
    assert x.grad is not None
    assert x.grad.isfinite().all()
    small = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    weight = drawn(3, 3)
    (slope,) = torch.autograd.grad(ff.sparsemap(small, S.Assignment()), small, weight)
    centred = weight - weight.mean(0) - weight.mean(1, keepdim=True) + weight.mean()
    torch.testing.assert_close(slope, centred)


def test_one_tensor_given_twice_in_a_compiled_graph() -> None:
    x, weight = drawn(4, 5, 3), drawn(4, 5, 3, seed=1)

    def loss(ends: Tensor) -> Tensor:
        return (ff.sparsemap(x, S.Sequence(start=ends, stop=ends)) * weight).sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        ends = drawn(3, seed=2).requires_grad_()
        function(ends).backward()
        grads.append(ends.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_compiled_graphs_take_other_numbers_and_kinds() -> None:
    compiled = torch.compile(lambda x, k: ff.sparsemap(x, S.KSubset(k)), fullgraph=True)
    for k in (1, 2, 3):
        torch.testing.assert_close(
            compiled(drawn(2, 5), k), ff.sparsemap(drawn(2, 5), S.KSubset(k))
        )
    sack = S.Knapsack(torch.tensor([1.0, 2.0, 3.0]), 3.0)
    x = drawn(2, 3)
    torch.testing.assert_close(
        torch.compile(lambda t: ff.sparsemap(t, sack), fullgraph=True)(x), ff.sparsemap(x, sack)
    )


def test_losses_under_transforms() -> None:
    omega, x = ff.SparseMAP(S.Sequence()), drawn(4, 5, 3)
    gold = S.Sequence().argmax(drawn(4, 5, 3, seed=1))
    (slope,) = (torch.func.grad(lambda t: ff.fenchel_young_loss(t, gold, omega))(x),)
    torch.testing.assert_close(slope, (ff.sparsemap(x, S.Sequence()) - gold) / 4)
    each = torch.func.vmap(lambda t, y: ff.fenchel_young_loss(t, y, omega))(x, gold)
    torch.testing.assert_close(each, ff.fenchel_young_loss(x, gold, omega, reduction="none"))
    with pytest.raises(RuntimeError, match="use sparsemap"):
        torch.func.grad(
            lambda t: ff.structured.sparsemap_solution(t, S.Sequence()).objective.sum()
        )(x)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("structure", [S.Bits(on_off=True), S.KSubset(2), S.Sequence()], ids=repr)
def test_a_temperature_does_not_overflow_half_precision(structure: Structure, path: Any) -> None:
    x = torch.tensor([[60.0, 59.99], [-60.0, 0.01], [3.0, 2.0]], dtype=torch.float16)
    x = x if structure.event_dim == 2 else x.flatten()
    with path():
        found = ff.sparsemap(x, structure, temperature=1e-4)
        solution = ff.structured.sparsemap_solution(x, structure, temperature=1e-4)
        wanted = ff.sparsemap(x.double(), structure, temperature=1e-4)
    assert found.dtype == solution.marginals.dtype == torch.float16
    torch.testing.assert_close(found, wanted.half())
    torch.testing.assert_close(solution.marginals, wanted.half())


def test_what_is_not_offered_says_so() -> None:
    with pytest.raises(NotImplementedError, match="sum over all Xor"):
        ff.structured.gibbs_marginals(drawn(3), S.Xor())
    with pytest.raises(NotImplementedError, match="sampling of Custom"):
        S.Custom(lambda scores: scores).sample(drawn(3), 2)
    with pytest.raises(TypeError, match="must be a value such as"):
        ff.sparsemap(drawn(3), S.KSubset)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="temperature must be a number"):
        ff.sparsemap(drawn(3), S.Bits(), temperature=torch.tensor(2.0))  # type: ignore[arg-type]


PROGRAMS = [
    *((S.Alignment(), (3, 3)), (S.ConstituencyTree(), (3, 3)), (S.Segmentation(), (3, 2, 2))),
    *((S.DependencyTree(), (3, 3)), (S.DependencyTree(projective=True), (3, 3))),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("structure", "event"), PROGRAMS, ids=str)
def test_large_negative_scores_are_not_impossible(
    structure: Any, event: tuple[int, ...], path: Any
) -> None:
    x = torch.full(event, -1e40, dtype=torch.float64)
    with path():
        assert ff.sparsemap(x, structure).sum() > 0
        assert structure.log_partition(x).isfinite()
        assert structure.sample(x, 1).any()
