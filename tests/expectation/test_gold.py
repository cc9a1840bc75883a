"""Reference values computed independently: four categories and their costs."""

import pytest
import torch

import fewfold as ff
from tests.expectation.cases import CATEGORIES, drawing, tuples

SCORES = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64)
COSTS = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
PROBS = [0.27422322240856983, 0.16632479199599406, 0.3349370002013969, 0.2245149853940393]
LOSS = 1.4478862626833742
GRADIENT = [-0.12282081422556605, 0.0918302025173187, -0.3174821813552826, 0.34847279306353]
ENTROPY = 1.3548908169792337
ENTROPY_GRADIENT = [
    *(-0.01674900406872421, 0.07300361151066416),
    *(-0.08744467980625502, 0.031190072364315095),
]


def cost(atoms, row):
    return COSTS[atoms]


def near(found, wanted):
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-13)


def test_all_of_them(path):
    scores = SCORES.clone().requires_grad_()
    out = ff.expect(cost, scores, ff.Dense())
    near(out.value, LOSS)
    near(out.support.weights.detach(), PROBS)
    near(torch.autograd.grad(out.loss, scores, retain_graph=True)[0], GRADIENT)
    assert out.calls == 4
    near(out.entropy.detach(), ENTROPY)
    near(torch.autograd.grad(out.entropy, scores)[0], ENTROPY_GRADIENT)


def test_a_few_of_them(path):
    scores = SCORES.clone().requires_grad_()
    out = ff.expect(cost, scores, ff.SparseMarginal())
    near(out.value, 1.0)
    near(out.support.to_dense(4).detach(), [[1 / 3, 0.0, 8 / 15, 2 / 15]])
    near(torch.autograd.grad(out.loss, scores)[0], [-0.5, 0.0, -1.0, 1.5])
    assert out.calls == 3


def spread(estimator, places, chance, monkeypatch=None):
    """The mean and the total variance of the gradients of all that may be drawn."""
    rows = SCORES.expand(len(chance), 4).clone().requires_grad_()
    if isinstance(estimator, ff.SumAndSample):
        real = CATEGORIES.dist.sample_excluding
        monkeypatch.setattr(CATEGORIES.dist, "sample_excluding", lambda *a: (places, real(*a)[1]))
        out = ff.expect(cost, rows, estimator)
    else:
        with drawing(CATEGORIES, places):
            out = ff.expect(cost, rows, estimator)
    (found,) = torch.autograd.grad(out.surrogate.sum(), rows)
    mean = chance @ found
    return mean, (chance @ (found - mean).square()).sum()


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("none", 2.271027638883405),
        ("expected cost", 0.46179932597143153),
        ("self-critic", 1.1577958741890124),
    ],
)
def test_total_variance_of_the_score_function(name, variance):
    baseline = None
    if name == "expected cost":
        baseline = ff.expectation.RunningMean().double()
        baseline.mean = torch.tensor(LOSS, dtype=torch.float64)
    if name == "self-critic":
        baseline = ff.expectation.SelfCritic()
    places, chance = tuples(SCORES.softmax(0), 2 if name == "self-critic" else 1)
    mean, found = spread(ff.ScoreFunction(baseline=baseline), places, chance)
    near(mean, GRADIENT)
    near(found, variance)


def test_total_variance_of_sum_and_sample(monkeypatch):
    probs = SCORES.softmax(0)
    probs[2] = 0.0  # the most likely one is summed
    places, chance = tuples(probs / probs.sum(), 1)
    mean, found = spread(ff.SumAndSample(1), places, chance, monkeypatch)
    near(mean, GRADIENT)
    near(found, 1.2874367536865765)
