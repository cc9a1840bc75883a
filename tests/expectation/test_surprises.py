"""What went wrong once, or might surprise: each was a report."""

import math

import pytest
import torch
from torch import nn

import fewfold as ff

BITS = ff.structures.Bits()


def price(atoms: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return atoms.flatten(1).sum(1) + 5 if atoms.is_floating_point() else atoms + 5.0


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("estimator", [ff.SparseMarginal(), ff.SparseMarginal(k=2)], ids=repr)
def test_scores_that_are_no_numbers_have_no_expectation(estimator: ff.Estimator, odd: float):
    scores = torch.tensor([[odd, 0.0, 0.0], [0.3, 0.1, 0.2]], requires_grad=True)
    out = ff.expect(price, scores, estimator, BITS)
    assert out.value.isnan().tolist() == [True, False]
    assert out.loss.isnan()
    nothing = torch.full((2, 3), odd, requires_grad=True)
    lost = ff.expect(price, nothing, estimator, BITS)
    assert lost.value.isnan().all()
    lost.loss.backward()


def test_a_bit_that_is_certain_is_not_free() -> None:
    scores = torch.tensor([[0.0, math.inf]])
    out = ff.expect(price, scores, ff.SumAndSample(3), BITS)
    assert out.value.tolist() == pytest.approx([6.5])


def test_an_entropy_that_was_looked_at_keeps_its_gradient() -> None:
    scores = torch.tensor([[0.3, -0.2, 0.5]], requires_grad=True)
    out = ff.expect(price, scores, ff.SparseMarginal())
    with torch.no_grad():
        assert not out.entropy.requires_grad
    assert out.entropy.requires_grad


def test_a_baseline_teaches_nobody_else() -> None:
    hidden = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    network = nn.Linear(3, 1)
    estimator = ff.ScoreFunction(baseline=ff.Learned(network))
    out = ff.expect(price, torch.zeros(4, 5), estimator, context=hidden)
    out.loss.backward()
    assert hidden.grad is None
    assert network.weight.grad is not None


@pytest.mark.parametrize("k", [None, 3])
def test_parameters_of_each_row_in_any_batch(k: int | None) -> None:
    draw = torch.Generator().manual_seed(1)
    scores = torch.randn(2, 3, 5, generator=draw)
    alpha = 1.2 + 0.6 * torch.rand(2, 3, 1, generator=draw)
    out = ff.expect(price, scores, ff.SparseMarginal(ff.Tsallis(alpha), k=k))
    kept = scores.topk(k or 5).values.amin(-1, keepdim=True)
    probs = ff.entmax(scores.masked_fill(scores < kept, -math.inf), alpha=alpha)
    torch.testing.assert_close(out.value, (probs * (torch.arange(5) + 5.0)).sum(-1))


def test_the_state_of_a_running_mean_is_one() -> None:
    baseline = ff.RunningMean()
    mean, count = baseline.mean, baseline.count
    scores = torch.zeros(2, 3, requires_grad=True)
    for cost in (1.0, math.nan, 5.0):
        ff.expect(
            lambda atoms, row, cost=cost: torch.full(atoms.shape, cost),
            scores,
            ff.ScoreFunction(baseline=baseline),
        )
    assert baseline.mean is mean
    assert (float(mean), int(count)) == (3.0, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("over", [None, BITS], ids=repr)
def test_the_shares_of_narrow_numbers_sum_to_one(dtype: torch.dtype, over: object) -> None:
    size = 300 if over is None else 8
    scores = torch.zeros(1, size, dtype=dtype)
    one = ff.expect(lambda atoms, row: torch.ones(len(row)), scores, ff.SumAndSample(5), over).value  # type: ignore[arg-type]
    assert float(one) == pytest.approx(1.0, abs=2 * torch.finfo(dtype).eps)


def test_what_is_said_twice_must_be_the_same() -> None:
    estimator = ff.SparseMarginal(ff.SparseMAP(ff.structures.Bits()))
    assert ff.expect(price, torch.ones(1, 2), estimator, BITS).calls.item() >= 1
    with pytest.raises(ValueError, match="leave over out"):
        ff.expect(price, torch.ones(1, 2), estimator, ff.structures.KSubset(1))


def test_settings_are_refused_before_the_cost_is_called() -> None:
    for make in (
        lambda: ff.ScoreFunction(baseline=ff.LeaveOneOut()),
        lambda: ff.SumAndSample(2, baseline=ff.LeaveOneOut()),
    ):
        with pytest.raises(ValueError, match="LeaveOneOut compares"):
            make()
    with pytest.raises(TypeError, match="strength must be a number, got str"):
        ff.REBAR(strength="a")  # type: ignore[arg-type]
    assert isinstance(ff.REBAR(0.5, torch.tensor(0.7)).strength, float)  # type: ignore[arg-type]


@pytest.mark.parametrize("estimator", [ff.Gumbel(), ff.REBAR()], ids=repr)
def test_vectors_of_an_empty_batch(estimator: ff.Estimator) -> None:
    out = ff.expect(price, torch.zeros(0, 4), estimator)
    assert out.support.atoms.shape == (0, 4)
