"""Custom structures, and sparsemax over the k best."""

import math

import pytest
import torch

import fewfold as ff
from fewfold.structured.structures import Bits, Custom, KSubset


def two_best(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1.0)


@pytest.mark.parametrize("batched", [False, True])
def test_a_function_is_enough(batched: bool) -> None:
    x = torch.randn(3, 4, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    own, known = Custom(two_best, batched=batched), KSubset(2)
    torch.testing.assert_close(ff.sparsemap(x, own), ff.sparsemap(x, known), atol=1e-9, rtol=0)
    assert torch.autograd.gradcheck(lambda t: ff.sparsemap(t, own), x, eps=1e-7, atol=1e-6)
    solution = ff.structured.sparsemap_solution(x, own)
    again = ff.structured.sparsemap_solution(x, own, warm=solution)
    assert (again.iterations < solution.iterations).any()
    torch.testing.assert_close(again.marginals, solution.marginals, atol=1e-9, rtol=0)
    torch.testing.assert_close(
        solution.support.reduce(solution.support.atoms).view_as(x), solution.marginals
    )


def test_structures_may_be_any_vectors() -> None:
    corners = torch.tensor([[1.0, 0.0], [-1.0, 2.0], [0.5, -3.0]], dtype=torch.double)

    def best(scores: torch.Tensor) -> torch.Tensor:
        return corners[(corners @ scores).argmax()]

    point = torch.tensor([0.2, 0.1], dtype=torch.double)
    # the nearest point of the triangle is the point itself: it lies inside
    torch.testing.assert_close(ff.sparsemap(point, Custom(best)), point)


def test_it_works_inside_a_compiled_function() -> None:
    own = Custom(two_best)
    compiled = torch.compile(lambda t: ff.sparsemap(2 * t, own).square())
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(compiled(x), ff.sparsemap(2 * x, own).square())


def test_errors() -> None:
    with pytest.raises(ValueError, match="of the shape of the scores"):
        ff.sparsemap(torch.randn(3), Custom(lambda scores: scores.sum()))
    with pytest.raises(ValueError, match=r"of the shape of the scores .* got ndarray"):
        ff.sparsemap(torch.randn(3), Custom(lambda scores: scores.numpy()))  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="function of scores"):
        Custom(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_structure_must_be_finite(odd: float, batched: bool) -> None:
    own = Custom(lambda scores: torch.full_like(scores, odd), batched=batched)
    for ask in (own.argmax, lambda scores: ff.sparsemap(scores, own)):
        with pytest.raises(ValueError, match="best must return finite numbers"):
            ask(torch.zeros(2, 3))


def test_scores_that_are_no_numbers_may_have_any_answer() -> None:
    own = Custom(lambda scores: two_best(scores) + 0 * scores)
    x = torch.tensor([[0.1, 0.2, 0.3], [0.1, math.nan, 0.3]])
    best = own.argmax(x)
    assert best[0].tolist() == [0, 1, 1]
    assert best[1].isnan().all()


def test_sparsemax_over_the_k_best() -> None:
    x = torch.randn(5, 6, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    x.requires_grad_()
    every = Bits().enumerate(torch.Size([6])).double()
    whole = ff.sparsemax(x @ every.T)
    found = ff.structured.topk_support(x, Bits(), 40)
    assert found.certified.all()
    torch.testing.assert_close(found.support.reduce(found.support.atoms), whole @ every)
    g = torch.randn(5, 6, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    one = torch.autograd.grad((found.support.reduce(found.support.atoms) * g).sum(), x)[0]
    two = torch.autograd.grad(((whole @ every) * g).sum(), x)[0]
    torch.testing.assert_close(one, two)
    few = ff.structured.topk_support(x, Bits(), 2)
    assert not few.certified.all()
    assert ff.structured.topk_support(x[:, :2], Bits(), 4).certified.all()  # there are no more


def test_nothing_to_choose_from_has_no_k_best() -> None:
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(4))
    keep = torch.ones(3, 4, dtype=torch.bool)
    keep[1, 1:] = False
    with pytest.raises(ValueError, match=r"instance 1 has no structure of KSubset\(k=2\)"):
        ff.structured.topk_support(x, KSubset(2), 3, mask=keep)
    x[1, 0] = math.nan
    found = ff.structured.topk_support(x, KSubset(2), 3)
    assert found.support.counts[1] == 0
    assert not found.certified[1]
