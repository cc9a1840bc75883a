"""Bits, subsets and budgets: closed forms, k best, sums, samples."""

import math

import pytest
import torch

import fewfold as ff
from fewfold._native import disabled
from fewfold.structured.structures import Bits, Budget, KSubset
from fewfold.structured.structures.bits import Choice

CHOICES = [Bits(), KSubset(0), KSubset(2), KSubset(5), Budget(0), Budget(2), Budget(9)]
EVENT = torch.Size([5])


def scores(seed: int = 0, rows: int = 6) -> torch.Tensor:
    return torch.randn(
        rows, 5, dtype=torch.double, generator=torch.Generator().manual_seed(seed)
    ).mul_(0.8)


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_closed_forms_are_what_the_active_set_finds(choice: Choice) -> None:
    x = scores().requires_grad_()
    closed = ff.sparsemap(x, choice)
    solved = ff.structured.sparsemap_solution(x, choice)
    torch.testing.assert_close(closed, solved.marginals, atol=1e-9, rtol=0)
    assert solved.converged.all()
    g = scores(1)
    one = torch.autograd.grad((closed * g).sum(), x)[0]
    two = torch.autograd.grad((solved.marginals * g).sum(), x)[0]
    torch.testing.assert_close(one, two, atol=1e-8, rtol=0)


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
@pytest.mark.parametrize("plain", [False, True])
def test_best_and_k_best_by_enumeration(choice: Choice, plain: bool) -> None:
    x, every = scores(2), choice.enumerate(EVENT)
    assert len(every) == choice.count(EVENT)
    values = x @ every.double().T
    best = choice.argmax(x)
    torch.testing.assert_close((best * x).sum(1), values.max(1).values)
    assert (best.bool().unsqueeze(1) == every).all(2).any(1).all()
    found = choice.k_best(x, 7)
    known = min(7, len(every))
    torch.testing.assert_close(
        found.scores[:, :known], values.sort(1, descending=True).values[:, :known]
    )
    assert found.valid[:, :known].all()
    assert not found.valid[:, known:].any()
    torch.testing.assert_close(
        (found.structures[:, :known] * x.unsqueeze(1)).sum(2), found.scores[:, :known]
    )
    with disabled() if plain else torch.no_grad():
        solution = ff.structured.sparsemap_solution(x, choice)
    assert (solution.gap <= 1e-9).all()


@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_sums_over_all_structures(choice: Choice) -> None:
    x, every = scores(3).requires_grad_(), choice.enumerate(EVENT).double()
    total = choice.log_partition(x)
    torch.testing.assert_close(total, (x @ every.T).logsumexp(1))
    probs = (x.detach() @ every.T).softmax(1)
    marginals = ff.structured.gibbs_marginals(x.detach(), choice)
    torch.testing.assert_close(marginals, probs @ every)
    draws = choice.sample(x.detach(), 3000, generator=torch.Generator().manual_seed(0))
    assert (draws.unsqueeze(2) == every.bool()).all(3).any(2).all()
    # 30 frequencies within 5 standard errors: wrong by chance in one of 50,000 seeds
    assert (draws.double().mean(0) - marginals).abs().max() < 5 * 0.5 / math.sqrt(3000)


def test_masked_parts_are_as_good_as_absent() -> None:
    x = scores(4)
    keep = torch.tensor([True, False, True, True, False])
    for choice in (Bits(), KSubset(2), Budget(2)):
        few = ff.sparsemap(x[:, keep], choice)
        masked = ff.sparsemap(x, choice, mask=keep)
        torch.testing.assert_close(masked[:, keep], few)
        assert (masked[:, ~keep] == 0).all()
        torch.testing.assert_close(
            choice.log_partition(x, mask=keep), choice.log_partition(x[:, keep])
        )
        assert not choice.sample(x, 50, mask=keep)[..., ~keep].any()


def test_on_and_off_as_parts_of_their_own() -> None:
    x = scores(5).requires_grad_()
    both = Bits(on_off=True)
    torch.testing.assert_close(ff.sparsemap(x, both), ((1 + x) / 2).clamp(0, 1))
    # the same as a choice of one of two parts for every bit, those with score 0 the other
    doubled = torch.stack([torch.zeros_like(x), x], 2)
    pairs = ff.sparsemax(doubled)
    torch.testing.assert_close(ff.sparsemap(x, both), pairs[..., 1])
    solution = ff.structured.sparsemap_solution(x, both)
    mu = solution.marginals
    half = (mu.square() + (1 - mu).square()).sum(1) / 2
    torch.testing.assert_close(solution.objective, (mu * x).sum(1) - half)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="k must be at most the 5 parts"):
        ff.sparsemap(scores(), KSubset(6))
    with pytest.raises(ValueError, match=r"instance 0 has no structure of KSubset\(k=2\)"):
        ff.sparsemap(scores(), KSubset(2), mask=torch.tensor([True, False, False, False, False]))
    with pytest.raises(ValueError, match="k must be"):
        Budget(-1)


def test_a_row_with_nothing_to_choose_from_is_the_empty_structure() -> None:
    x = scores()
    x[0] = -math.inf
    subsets = KSubset(2)
    assert not subsets.argmax(x)[0].any()
    found = subsets.k_best(x, 3)
    assert found.valid[0].tolist() == [True, False, False]
    assert found.scores[0, 0] == 0
    assert subsets.log_partition(x)[0] == 0
    assert not subsets.sample(x, 20)[:, 0].any()
    with pytest.raises(ValueError, match="instance 0 has no structure"):
        subsets.sample(x.masked_fill(torch.arange(5) == 0, 1.0), 2)
