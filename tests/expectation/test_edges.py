"""Edge cases of expectations: few, huge, tiny and no values."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.structured.structures.structure import Structure

BITS = ff.structures.Bits()
LOW = (torch.bfloat16, torch.float16)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one(atoms: Tensor, row: Tensor) -> Tensor:
    return torch.ones(len(row), dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "estimator",
    [ff.Dense(), ff.SparseMarginal(), ff.ScoreFunction(1000), ff.Gumbel(samples=1000)],
    ids=repr,
)
def test_sums_of_many_in_half_precision(
    estimator: ff.expectation.Estimator, dtype: torch.dtype
) -> None:
    scores = torch.zeros(2, 1000, dtype=dtype)
    out = ff.expect(one, scores, estimator, generator=seeded())
    torch.testing.assert_close(out.value.float(), torch.ones(2), atol=0.01, rtol=0)
    torch.testing.assert_close(
        out.entropy.float(), torch.full((2,), math.log(1000)), atol=0.05, rtol=0
    )


def test_likelihood_in_half_precision() -> None:
    scores = torch.zeros(1, 4, dtype=torch.bfloat16)
    found = ff.expectation.log_likelihood(
        lambda atoms, row: torch.zeros(len(row), dtype=torch.bfloat16),
        scores, ff.ScoreFunction(), samples=1024, generator=seeded(),
    )  # fmt: skip
    assert found.dtype == torch.bfloat16
    assert abs(float(found)) < 0.02


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("estimator", [ff.ScoreFunction(), ff.expectation.DisARM()], ids=repr)
def test_rare_bits_are_drawn_in_half_precision(
    estimator: ff.expectation.Estimator, sign: int
) -> None:
    """400,000 bits that are rare, 0.09 %: their share is 13 standard errors wide."""
    scores = torch.full((400_000, 1), sign * 7.0, dtype=torch.bfloat16)

    def rare(atoms: Tensor, row: Tensor) -> Tensor:
        return (atoms[:, 0].float() - (sign + 1) / 2).abs()

    share = ff.expect(rare, scores, estimator, BITS, generator=seeded()).value.mean()
    assert abs(float(share) / torch.tensor(-7.0).sigmoid() - 1) < 0.7


def test_what_is_all_but_impossible_is_not_drawn() -> None:
    scores = torch.full((100, 1), -40.0)
    found = ff.expectation.log_likelihood(
        lambda atoms, row: torch.zeros(len(row)), scores, ff.ScoreFunction(), BITS,
        samples=400_000, pairs=10**7, generator=seeded(),
    )  # fmt: skip
    assert float(found.max()) <= 0


@pytest.mark.parametrize("over", [None, BITS, ff.structures.KSubset(2)], ids=repr)
@pytest.mark.parametrize("estimator", [ff.SparseMarginal(), ff.Dense()], ids=repr)
def test_scores_that_are_no_numbers_summed(
    estimator: ff.expectation.Estimator, over: Structure | None
) -> None:
    scores = torch.zeros(2, 4)
    scores[0, 0] = math.nan

    def cost(atoms: Tensor, row: Tensor) -> Tensor:
        return torch.ones(len(row))

    out = ff.expect(cost, scores, estimator, over)
    likelihood = ff.expectation.log_likelihood(
        cost, scores, estimator, over, samples=3, generator=seeded()
    )
    for found in (out.value, out.entropy, out.kl(), likelihood):
        assert found.isnan().tolist() == [True, False]


@pytest.mark.parametrize("estimator", [ff.ScoreFunction(), ff.expectation.VIMCO(2)], ids=repr)
def test_scores_that_are_no_numbers_drawn(estimator: ff.expectation.Estimator) -> None:
    scores = torch.zeros(2, 4)
    scores[1, 0] = math.nan

    def cost(atoms: Tensor, row: Tensor) -> Tensor:
        return torch.ones(len(row))

    for over in (BITS, ff.structures.KSubset(2)):
        out = ff.expect(cost, scores, estimator, over, generator=seeded())
        for found in (out.value, out.entropy):
            assert found.isnan().tolist() == [False, True]
    with pytest.raises(ValueError, match="row 1 has a score that is NaN"):
        ff.expect(cost, scores, estimator)


def test_a_running_mean_in_a_model_of_half_precision() -> None:
    mean = ff.expectation.RunningMean().bfloat16()
    estimator = ff.ScoreFunction(baseline=mean)
    scores = torch.zeros(1, 3, requires_grad=True)
    for cost in [100.0] * 500 + [200.0] * 500:
        ff.expect(lambda atoms, row, c=cost: torch.full(row.shape, c), scores, estimator)
    assert float(mean.mean) == pytest.approx(150)


def test_vimco_with_impossible_draws() -> None:
    def cost(atoms: Tensor, row: Tensor) -> Tensor:
        return torch.where(atoms == 0, math.inf, 1.0)

    scores = torch.zeros(300, 3, requires_grad=True)
    out = ff.expect(cost, scores, ff.expectation.VIMCO(4), generator=seeded())
    possible = torch.zeros(300).index_add(0, out.support.row, (out.support.atoms > 0).float())
    assert torch.equal(out.value.isfinite(), possible > 0)
    assert not out.value.isnan().any()
    out.surrogate[possible > 0].sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_vimco_compares_each_draw_with_the_others() -> None:
    """Its gradient, worked out draw by draw: comparing less would be unbiased too."""
    torch.manual_seed(0)
    scores = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    price = torch.randn(4, dtype=torch.double)
    out = ff.expect(
        lambda atoms, row: price[atoms], scores, ff.expectation.VIMCO(3), generator=seeded()
    )
    out.surrogate.sum().backward()
    assert scores.grad is not None
    found, expected = scores.grad, torch.zeros_like(scores)
    log_q = scores.detach().log_softmax(-1)
    for row, atoms in enumerate(out.support.atoms.view(3, 3)):
        logs = -price[atoms] - log_q[row, atoms]
        bound = logs.logsumexp(0)
        for s in range(3):
            others = torch.cat([logs[:s], logs[s + 1 :]])
            signal = bound - torch.cat([others, others.mean()[None]]).logsumexp(0)
            slope = -log_q[row].exp()
            slope[atoms[s]] += 1  # of log q(z_s)
            expected[row] -= (signal - (logs[s] - bound).exp()) * slope
    torch.testing.assert_close(found, expected)


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    costs = torch.tensor([[1.0, 2.0, 6.0]])
    assert ff.expectation.LeaveOneOut()(costs, 3, None).tolist() == [[4.0, 3.5, 1.5]]


@pytest.mark.parametrize("name", ["Xor", "Or", "AtMostOne", "Imply", "OrOut", "XorOut", "AndOut"])
@pytest.mark.parametrize("estimator", [ff.Dense(), ff.SparseMarginal()], ids=repr)
def test_divergence_of_structures_that_are_listed(
    name: str, estimator: ff.expectation.Estimator
) -> None:
    torch.manual_seed(0)
    over: Structure = getattr(ff.structures, name)()
    scores = torch.randn(2, 4)
    out = ff.expect(lambda atoms, row: atoms[:, 0], scores, estimator, over)
    count = over.count(torch.Size([4]))
    torch.testing.assert_close(out.kl(), math.log(count) - out.entropy)
    every = over.enumerate(torch.Size([4])).float()
    exact = ff.expectation.log_likelihood(
        lambda atoms, row: atoms[:, 0], scores, ff.Dense(), over, samples=0
    )
    torch.testing.assert_close(exact, (-every[:, 0]).exp().mean().log().expand(2))


@pytest.mark.parametrize("temperature", [torch.tensor(0.5), np.float32(0.5), 0.5])
def test_temperatures_are_numbers(temperature: float) -> None:
    assert ff.Gumbel(temperature) == ff.Gumbel(0.5)
    assert ff.expectation.REBAR(temperature) == ff.expectation.REBAR(0.5)
    assert type(ff.expectation.RELAX(torch.nn.ReLU(), temperature).temperature) is float


@pytest.mark.parametrize("estimator", [ff.Gumbel(1e-38), ff.expectation.REBAR(1e-38)], ids=repr)
@pytest.mark.parametrize("over", [None, BITS], ids=repr)
def test_no_temperature_is_too_low(
    estimator: ff.expectation.Estimator, over: Structure | None
) -> None:
    scores = torch.randn(5, 3, requires_grad=True)
    out = ff.expect(lambda atoms, row: atoms.sum(1), scores, estimator, over, generator=seeded())
    out.loss.backward()
    assert scores.grad is not None
    assert out.value.isfinite().all()
    assert scores.grad.isfinite().all()


def test_no_bits_at_all() -> None:
    out = ff.expect(
        lambda atoms, row: atoms.sum(1), torch.zeros(2, 0), ff.expectation.REBAR(), BITS
    )
    assert out.value.tolist() == [0, 0]
