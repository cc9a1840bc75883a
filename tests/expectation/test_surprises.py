"""Regression tests of reported bugs."""

import math

import pytest
import torch
from torch import nn

import fewfold as ff
from fewfold.expectation import Baseline
from fewfold.expectation.expect import latent_distribution
from fewfold.expectation.latents import noise

BITS = ff.structures.Bits()


def price(atoms: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return atoms.flatten(1).sum(1) + 5 if atoms.is_floating_point() else atoms + 5.0


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("estimator", [ff.SparseMarginal(), ff.SparseMarginal(k=2)], ids=repr)
def test_scores_that_are_no_numbers_have_no_expectation(
    estimator: ff.expectation.Estimator, odd: float
):
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
    estimator = ff.ScoreFunction(baseline=ff.expectation.Learned(network))
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
    baseline = ff.expectation.RunningMean()
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


def test_transitions_said_twice_must_be_the_same_ones() -> None:
    one, other = torch.zeros(2, 2), torch.ones(2, 2)
    estimator = ff.SparseMarginal(ff.SparseMAP(ff.structures.Sequence(one)))
    scores = torch.zeros(1, 3, 2)
    assert ff.expect(price, scores, estimator, ff.structures.Sequence(one)).value.isfinite().all()
    with pytest.raises(ValueError, match="leave over out"):
        ff.expect(price, scores, estimator, ff.structures.Sequence(other))


def test_the_turns_of_sparsemap_are_those_of_the_estimator() -> None:
    scores = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0)) / 3
    tree = ff.structures.DependencyTree()
    few, many = (
        ff.expect(price, scores, ff.SparseMarginal(ff.SparseMAP(tree, most))) for most in (2, 1000)
    )
    assert few.calls.max() < many.calls.max()


def test_settings_are_refused_before_the_cost_is_called() -> None:
    for make in (
        lambda: ff.ScoreFunction(baseline=ff.expectation.LeaveOneOut()),
        lambda: ff.SumAndSample(2, baseline=ff.expectation.LeaveOneOut()),
    ):
        with pytest.raises(ValueError, match="LeaveOneOut compares"):
            make()
    with pytest.raises(TypeError, match="strength must be a number, got str"):
        ff.expectation.REBAR(strength="a")  # type: ignore[arg-type]
    assert isinstance(ff.expectation.REBAR(0.5, torch.tensor(0.7)).strength, float)  # type: ignore[arg-type]


RELAXED = [
    *(ff.Gumbel(), ff.expectation.REBAR(), ff.expectation.MuProp()),
    *(ff.expectation.StraightThrough(), ff.expectation.RELAX(nn.Linear(4, 1))),
]


@pytest.mark.parametrize("estimator", RELAXED, ids=lambda estimator: type(estimator).__name__)
def test_vectors_of_an_empty_batch(estimator: ff.expectation.Estimator) -> None:
    out = ff.expect(price, torch.zeros(0, 4), estimator)
    assert out.support.atoms.shape == (0, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "over", [BITS, ff.structures.KSubset(40), ff.structures.Sequence(torch.zeros(4, 4))], ids=repr
)
def test_the_k_best_are_told_apart_in_narrow_numbers(over, dtype: torch.dtype) -> None:
    """Sums over many parts, which differ by less than a narrow number of their size can say."""
    shape = (2, 40, 4) if isinstance(over, ff.structures.Sequence) else (2, 128)
    scores = (0.5 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    wanted = ff.expect(price, scores.float(), ff.SparseMarginal(k=10), over)
    found = ff.expect(price, scores, ff.SparseMarginal(k=10), over)
    assert found.support.weights.dtype == dtype
    assert len(wanted.support.weights.unique()) > 5
    rounding = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-3}
    torch.testing.assert_close(found.support.weights.float(), wanted.support.weights, **rounding)
    with torch.autocast("cpu", dtype):
        mixed = ff.expect(price, scores.float(), ff.SparseMarginal(k=10), over)
    torch.testing.assert_close(mixed.support.weights, wanted.support.weights, rtol=0, atol=0)


def test_likelihoods_of_many_bits_in_narrow_numbers() -> None:
    """A latent that says nothing of the data: the likelihood is 1."""
    draw = torch.Generator().manual_seed(0)
    scores = (0.05 * torch.randn(8, 128, generator=draw)).bfloat16()
    for estimator in (ff.ScoreFunction(), ff.SparseMarginal(k=4)):
        found = ff.expectation.log_likelihood(
            lambda atoms, row: torch.zeros(len(row)),
            scores,
            estimator,
            BITS,
            samples=500,
            generator=draw,
        )
        assert found.dtype == torch.bfloat16
        assert float(found.float().abs().mean()) < 0.05
    for narrow in (ff.SparseMarginal(k=4), ff.ScoreFunction()):
        both = [ff.expect(price, s, narrow, BITS).kl() for s in (scores, scores.float())]
        torch.testing.assert_close(both[0].float(), both[1], rtol=0.01, atol=0.02)
    few = scores[:, :10]
    shares = ff.expect(price, few, ff.Dense(), BITS).support.reduce(torch.ones(8 * 1024))
    torch.testing.assert_close(shares, torch.ones(8), rtol=0.01, atol=0)


def infinite(atoms: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.where(atoms == 0, math.inf, 1.0)


@pytest.mark.parametrize(
    "estimator",
    [
        ff.Dense(),
        ff.SparseMarginal(),
        ff.ScoreFunction(8),
        ff.ScoreFunction(8, ff.expectation.LeaveOneOut()),
        ff.SumAndSample(1),
        ff.expectation.UnorderedSet(2),
    ],
    ids=lambda e: f"{type(e).__name__} {getattr(e, 'baseline', '')}",
)
def test_an_infinite_cost_is_infinite(estimator: ff.expectation.Estimator) -> None:
    scores = torch.zeros(3, 2, requires_grad=True)
    draw = torch.Generator().manual_seed(0)
    out = ff.expect(infinite, scores, estimator, generator=draw)
    assert (out.value == math.inf).all()


def test_an_infinite_cost_of_a_critic_compares_with_nothing() -> None:
    """And the gradient, averaged over all that may be drawn, is what it was."""
    scores = torch.zeros(4000, 2, requires_grad=True)
    draw = torch.Generator().manual_seed(0)
    out = ff.expect(
        infinite, scores, ff.ScoreFunction(baseline=ff.expectation.SelfCritic()), generator=draw
    )
    drawn = out.support.atoms.view(-1, 2)
    assert torch.equal(out.value, torch.where(drawn[:, 0] == 0, math.inf, 1.0))
    alone = (drawn[:, 0] == 1) & (drawn[:, 1] == 0)  # a cost of 1, next to an infinite one
    out.surrogate[alone].sum().backward()
    assert scores.grad is not None
    torch.testing.assert_close(
        scores.grad[alone], torch.tensor([-0.5, 0.5]).expand(int(alone.sum()), 2)
    )


def test_rows_may_be_weighed_and_the_baseline_still_learns() -> None:
    network = nn.Linear(3, 1)
    context = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    estimator = ff.ScoreFunction(samples=2, baseline=ff.expectation.Learned(network))
    out = ff.expect(price, torch.zeros(4, 5), estimator, context=context)
    costs = out.support.atoms.view(4, 2) + 5.0
    wanted = (costs - network(context)).square().mean(1)
    torch.testing.assert_close(out.error, wanted)
    torch.testing.assert_close(out.loss, (out.surrogate + out.error).mean())
    kept = torch.tensor([True, False, True, True])
    (out.surrogate + out.error)[kept].mean().backward()
    assert network.weight.grad is not None
    bare = ff.expect(price, torch.zeros(4, 5), ff.ScoreFunction())
    assert (bare.error == 0).all()


def test_the_k_best_stay_neighbours() -> None:
    """A map that fuses neighbours sees the kept categories in their order."""
    scores = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    out = ff.expect(price, scores, ff.SparseMarginal(ff.maps.Fused(0.2), k=4))
    for row in range(50):
        which = scores[row].topk(4).indices.sort().values
        wanted = torch.zeros(8).scatter(0, which, ff.fusedmax(scores[row, which], 0.2))
        torch.testing.assert_close(out.support.to_dense(8)[row], wanted)


@pytest.mark.parametrize("over", [None, BITS], ids=repr)
def test_entropies_have_a_graph_of_their_own(over: object) -> None:
    """They may be asked for after a backward pass, or after a call without gradients."""
    scores = torch.tensor([[0.3, -0.2, 0.5]], requires_grad=True)
    out = ff.expect(price, scores, ff.ScoreFunction(), over)  # type: ignore[arg-type]
    out.loss.backward()
    (out.entropy + out.kl() + out.kl(torch.ones(3))).sum().backward()
    with torch.no_grad():
        out = ff.expect(price, scores, ff.ScoreFunction(), over)  # type: ignore[arg-type]
    assert out.entropy.requires_grad
    assert out.kl().requires_grad


class Constant(Baseline):
    """A baseline of one's own."""

    def forward(self, costs, scored, context):  # type: ignore[no-untyped-def]
        return torch.tensor(2.0)


def test_a_baseline_of_ones_own() -> None:
    scores = torch.zeros(3, 2, requires_grad=True)
    draw = torch.Generator().manual_seed(0)
    out = ff.expect(price, scores, ff.ScoreFunction(baseline=Constant()), generator=draw)
    out.surrogate.sum().backward()
    took = nn.functional.one_hot(out.support.atoms, 2)
    wanted = (out.support.atoms + 5.0 - 2.0).unsqueeze(1) * (took - 0.5)
    torch.testing.assert_close(scores.grad, wanted)


def test_noise_is_finite_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A uniform number may be 0, and an exponential one."""
    scores = torch.zeros(2, 3)
    monkeypatch.setattr(torch, "rand", lambda shape, **given: torch.zeros(shape))
    assert ff.expect(price, scores, ff.Gumbel(1e-3), BITS).support.atoms.isfinite().all()
    assert noise.logistic((2, 3), scores, None).isfinite().all()
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, **given: self.zero_())
    assert noise.gumbel((2, 3), scores, None).isfinite().all()


def test_structures_of_single_numbers_are_summed_in_double() -> None:
    """Scores of thousands, whose differences decide."""
    draw = torch.Generator().manual_seed(0)
    scores = (3000 + torch.randn(3, 12, generator=draw)).requires_grad_()
    over = ff.structures.KSubset(6)
    out = ff.expect(price, scores, ff.ScoreFunction(64), over, generator=draw)
    dist = latent_distribution(scores.double(), ff.ScoreFunction(), over, None)
    atoms, row = out.support.atoms, out.support.row
    wanted = dist.log_prob(atoms.double(), row)
    found = out.latent.log_prob(atoms, row)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
