"""Baselines: state, training, and independence of other gradients."""

import copy

import pytest
import torch
from torch import nn

import fewfold as ff
from tests.expectation.cases import BITS, CATEGORIES, Cost, drawing, over


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def means(estimator, batches=3, samples=2):
    """Costs of some batches, one after the other."""
    found = []
    for seed in range(batches):
        cost = Cost(CATEGORIES)
        scores = CATEGORIES.scores(5).requires_grad_()
        out = ff.expect(cost, scores, estimator, generator=seeded(seed))
        ids = out.support.atoms
        found.append((cost.every(CATEGORIES).detach()[ids].mean(), ids))
    return found


def test_a_running_mean_is_of_all_batches():
    baseline = ff.expectation.RunningMean().double()
    found = means(ff.ScoreFunction(2, baseline), batches=4)
    torch.testing.assert_close(baseline.mean, torch.stack([mean for mean, _ in found]).mean())
    assert baseline.count == 4


def test_a_running_mean_is_used_before_it_is_updated():
    baseline = ff.expectation.RunningMean().double()
    scores = CATEGORIES.scores(3).requires_grad_()
    grads = []
    for _ in range(2):
        out = ff.expect(Cost(CATEGORIES), scores, ff.ScoreFunction(2, baseline), generator=seeded())
        grads.append(torch.autograd.grad(out.loss, scores)[0])
    plain = ff.expect(Cost(CATEGORIES), scores, ff.ScoreFunction(2), generator=seeded())
    (first,) = torch.autograd.grad(plain.loss, scores)
    torch.testing.assert_close(grads[0], first)
    # the second time the mean is compared with: twice the mean of log-probability is left out
    atoms, row = plain.support.atoms, plain.support.row
    log_probs = scores.log_softmax(1)[row, atoms].mean()
    (apart,) = torch.autograd.grad(log_probs, scores)
    torch.testing.assert_close(grads[1], first - baseline.mean * apart)


def test_a_running_mean_rests_outside_of_training():
    baseline = ff.expectation.RunningMean()
    estimator = ff.ScoreFunction(baseline=baseline)
    baseline.eval()
    means(estimator, 1)
    assert baseline.count == 0
    baseline.train()
    with torch.no_grad():
        means(estimator, 1)
    assert baseline.count == 0
    assert baseline.mean == 0
    means(estimator, 1)
    assert baseline.count == 1


def test_a_running_mean_is_saved():
    baseline = ff.expectation.RunningMean()
    means(ff.ScoreFunction(baseline=baseline))
    state = copy.deepcopy(baseline.state_dict())
    assert set(state) == {"mean", "count"}
    other = ff.expectation.RunningMean()
    other.load_state_dict(state)
    means(ff.ScoreFunction(baseline=baseline), 1)
    means(ff.ScoreFunction(baseline=other), 1)
    assert baseline.mean == other.mean
    assert other.count == 4


def test_a_running_mean_of_sum_and_sample_is_of_what_was_drawn():
    baseline = ff.expectation.RunningMean().double()
    cost = Cost(CATEGORIES)
    scores = CATEGORIES.scores(5).requires_grad_()
    ff.expect(cost, scores, ff.SumAndSample(2, baseline), generator=seeded())
    ids = cost.asked[0][0][10:]
    torch.testing.assert_close(baseline.mean, cost.every(CATEGORIES).detach()[ids].mean())


class Affine(nn.Module):
    """A network whose parameters are easy to follow."""

    def __init__(self):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor([0.7, -0.2], dtype=torch.float64))

    def forward(self, context):
        return context @ self.slope


@over([CATEGORIES, BITS])
@pytest.mark.parametrize(
    ("make", "scored"),
    [
        (lambda baseline: ff.ScoreFunction(1, baseline), 1),
        (lambda baseline: ff.ScoreFunction(3, baseline), 3),
        (lambda baseline: ff.SumAndSample(2, baseline), 1),
    ],
    ids=["one", "three", "sum and sample"],
)
def test_a_learned_baseline_learns_the_costs_and_nothing_else(latent, make, scored):
    network, cost = Affine(), Cost(latent, rows=6)
    scores = latent.scores(2, 3).requires_grad_()
    context = torch.randn(2, 3, 2, generator=seeded(), dtype=torch.float64).requires_grad_()
    estimator = make(ff.expectation.Learned(network))
    out = ff.expect(cost, scores, estimator, latent.over, context=context, generator=seeded())
    atoms, row = cost.asked[0]
    drawn = slice(-6 * scored, None)  # the summed ones come first
    costs = torch.stack(
        [cost(atoms[i : i + 1], row[i : i + 1])[0] for i in range(len(row))]
    ).detach()[drawn]
    guess = context.view(6, 2)[row[drawn]] @ network.slope
    error = (costs - guess).square().mean()
    torch.testing.assert_close(out.loss, out.surrogate.mean() + error)
    found = torch.autograd.grad(out.loss, network.slope, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(error, network.slope))
    # the estimate itself gives it nothing, nor does its error give anything to the others
    inputs = [network.slope, context]
    nothing = torch.autograd.grad(out.surrogate.sum(), inputs, retain_graph=True, allow_unused=True)
    assert nothing == (None, None)
    assert torch.autograd.grad(out.loss, context, retain_graph=True, allow_unused=True) == (None,)
    apart = [scores, cost.weight]
    whole = torch.autograd.grad(out.loss, apart, retain_graph=True)
    torch.testing.assert_close(whole, torch.autograd.grad(out.surrogate.mean(), apart))


def test_a_learned_baseline_takes_one_column():
    context = torch.randn(5, 2, generator=seeded())
    scores = torch.zeros(5, 3)
    estimators = [
        ff.ScoreFunction(2, ff.expectation.Learned(network))
        for network in (nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)))
    ]
    estimators[1].baseline.network[0].load_state_dict(estimators[0].baseline.network.state_dict())
    losses = [
        ff.expect(
            lambda atoms, row: atoms + 0.5 * row,
            scores,
            estimator,
            context=context,
            generator=seeded(),
        ).loss
        for estimator in estimators
    ]
    torch.testing.assert_close(*losses)
    assert list(estimators[0].baseline.parameters())


def test_a_learned_baseline_sees_the_rows_that_are_drawn_in():
    """In the first row there is nothing to draw, so its context is not asked about."""
    seen = []

    class Watch(nn.Module):
        def forward(self, context):
            seen.append(context)
            return context[:, 0]

    scores = torch.tensor([[1e4, 0.0, 0.0], [0.3, 0.2, 0.1]])
    context = torch.tensor([[1.0], [2.0]], requires_grad=True)
    out = ff.expect(
        lambda atoms, row: atoms + 0.0,
        scores,
        ff.SumAndSample(1, ff.expectation.Learned(Watch())),
        context=context,
    )
    assert seen[0].tolist() == [[2.0]]
    assert out.calls.tolist() == [1, 2]
    certain = ff.expect(
        lambda atoms, row: atoms + 0.0,
        scores[:1],
        ff.SumAndSample(1, ff.expectation.Learned(Watch())),
        context=context[:1],
    )
    assert certain.loss == 0


@pytest.mark.parametrize("kind", ["score function", "sum and sample"])
def test_a_self_critic_gives_the_cost_no_gradient(kind, monkeypatch):
    """What it is compared with has no weight: neither in the value nor for the parameters."""
    estimators = {
        "score function": ff.ScoreFunction(1, ff.expectation.SelfCritic()),
        "sum and sample": ff.SumAndSample(1, ff.expectation.SelfCritic()),
    }
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([[0.9, 0.1, 0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    drawn, critic = 1, 3
    given = torch.tensor([[drawn, critic]])
    if kind == "score function":
        with drawing(CATEGORIES, given):
            out = ff.expect(lambda atoms, row: weight[atoms], scores, estimators[kind])
    else:
        real = CATEGORIES.dist.sample_excluding
        monkeypatch.setattr(CATEGORIES.dist, "sample_excluding", lambda *a: (given, real(*a)[1]))
        out = ff.expect(lambda atoms, row: weight[atoms], scores, estimators[kind])
    (grad,) = torch.autograd.grad(out.loss, weight, retain_graph=True)
    assert grad[critic] == 0
    assert grad[drawn] > 0
    # the gradient to the scores is in proportion to the difference of the two costs
    (found,) = torch.autograd.grad(out.loss, scores)
    probs = scores.softmax(1)
    if kind == "score function":
        wanted = (weight[drawn] - weight[critic]).detach() * scores.log_softmax(1)[0, drawn]
    else:
        rest = 1 - probs[0, 0]
        conditional = (probs[0, drawn] / rest).log()
        apart = (weight[drawn] - weight[critic]).detach()
        wanted = probs[0, 0] * weight[0].detach() + rest * weight[drawn].detach()
        wanted = wanted + rest.detach() * apart * conditional
    torch.testing.assert_close(found, torch.autograd.grad(wanted, scores)[0])


def test_baselines_are_modules_of_the_estimator():
    """Moved and saved as modules are, within a value that compares by what it holds."""
    baseline = ff.expectation.RunningMean()
    assert ff.ScoreFunction(2, baseline) == ff.ScoreFunction(2, baseline)
    assert ff.ScoreFunction(2, baseline) != ff.ScoreFunction(2, ff.expectation.RunningMean())
    assert ff.ScoreFunction(2, baseline).baseline.double().mean.dtype == torch.float64
