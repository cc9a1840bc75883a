"""Unbiasedness of estimators, checked by enumeration of all samples; nothing is random.

Each row of a batch holds one thing that may be drawn; the rows are weighted by its probability.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fewfold as ff
from fewfold.expectation.estimators import disarm as binary
from fewfold.expectation.latents import bernoulli as bits
from fewfold.expectation.latents.bernoulli import BernoulliLatent
from tests.expectation.cases import (
    BITS,
    CATEGORIES,
    FREE,
    LATENTS,
    ON_OFF,
    Cost,
    Latent,
    drawing,
    exact,
    over,
    tuples,
    two_noises,
)


def running() -> ff.expectation.RunningMean:
    """One that has seen something."""
    baseline = ff.expectation.RunningMean()
    baseline.mean, baseline.count = torch.tensor(1.7), torch.tensor(3)
    return baseline


def learned() -> ff.expectation.Learned:
    torch.manual_seed(0)
    return ff.expectation.Learned(nn.Linear(2, 1, dtype=torch.float64))


BASELINES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "running mean": running,
    "self-critic": ff.expectation.SelfCritic,
    "leave one out": ff.expectation.LeaveOneOut,
    "learned": learned,
}


def check(
    latent: Latent,
    chance: Tensor,
    run: Callable[..., ff.expectation.Expectation],
    tol: float = 1e-12,
) -> ff.expectation.Expectation:
    """The weighted mean over rows has the value and the gradients of the expected cost."""
    scores, cost = latent.scores().requires_grad_(), Cost(latent)
    structure, more = latent.live()
    value, *wanted = exact(latent, scores, cost, *more)
    rows = scores.expand(len(chance), *latent.event)
    context = torch.tensor([0.3, -0.8], dtype=torch.float64).expand(len(chance), 2)
    out = run(cost, rows, over=structure, context=context)
    assert out.value.shape == chance.shape
    torch.testing.assert_close((chance * out.value).sum(), value, rtol=0, atol=tol)
    found = torch.autograd.grad((chance * out.surrogate).sum(), [scores, cost.weight, *more])
    torch.testing.assert_close(found, tuple(wanted), rtol=0, atol=tol)
    assert len(cost.asked) == 1
    return out


@over(LATENTS)
@pytest.mark.parametrize(
    ("samples", "name"),
    [
        *((1, "none"), (2, "none"), (3, "none"), (1, "running mean"), (2, "running mean")),
        *((1, "self-critic"), (2, "self-critic"), (2, "leave one out"), (3, "leave one out")),
        *((1, "learned"), (2, "learned")),
    ],
)
def test_score_function(latent, samples, name):
    baseline = BASELINES[name]()
    draws = samples + (name == "self-critic")
    places, chance = tuples(latent.log_probs(latent.scores()).exp(), draws)
    estimator = ff.ScoreFunction(samples, baseline)
    with drawing(latent, latent.every[places]):
        out = check(latent, chance, partial(ff.expect, estimator=estimator))
    assert (out.calls == draws).all()


@over(FREE)
@pytest.mark.parametrize("name", ["none", "running mean", "self-critic", "learned"])
def test_sum_and_sample(latent, name, monkeypatch):
    probs = latent.log_probs(latent.scores()).exp()
    order = probs.argsort(descending=True)
    real = latent.dist.sample_excluding
    for k in range(1, len(probs) + 2):
        others = order[k:]
        draws = (1 + (name == "self-critic")) if len(others) else 0
        places, chance = tuples(probs[others] / probs[others].sum(), draws)
        given = latent.every[others][places]

        def outside(self, chosen, valid, wanted, generator, given=given):
            found, mass = real(self, chosen, valid, wanted, generator)
            return given if given.shape[1] else found, mass

        monkeypatch.setattr(latent.dist, "sample_excluding", outside)
        estimator = ff.SumAndSample(k, BASELINES[name]())
        out = check(latent, chance, partial(ff.expect, estimator=estimator))
        assert (out.calls == min(k, len(probs)) + draws).all()


@over(LATENTS)
@pytest.mark.parametrize("samples", [2, 3])
def test_vimco_is_the_gradient_of_its_bound(latent, samples):
    scores, cost = latent.scores().requires_grad_(), Cost(latent)
    structure, more = latent.live()
    log_probs = latent.log_probs(scores, more)
    places, chance = tuples(log_probs.exp(), samples)
    ratios = -cost.every(latent) - log_probs
    bounds = -(ratios[places].logsumexp(1) - np.log(samples))
    expected = (log_probs[places].sum(1).exp() * bounds).sum()
    inputs = [scores, cost.weight, *more]
    wanted = torch.autograd.grad(expected, inputs)
    rows = scores.expand(len(chance), *latent.event)
    with drawing(latent, latent.every[places]):
        out = ff.expect(cost, rows, ff.expectation.VIMCO(samples), structure)
    torch.testing.assert_close((chance * out.value).sum(), expected.detach(), rtol=0, atol=1e-12)
    found = torch.autograd.grad((chance * out.surrogate).sum(), inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)
    # between what one sample and what all of them would give
    total = -(-cost.every(latent)).logsumexp(0)
    possible = log_probs > -math.inf
    single = -(log_probs.exp() * ratios)[possible].sum()
    assert total < (chance * out.value).sum() < single


@over([BITS, ON_OFF])
def test_disarm(latent, monkeypatch):
    """It is constant between sigmoid(score) and its rest, so the midpoints tell everything."""
    chance = latent.scores().sigmoid()
    zero, one = torch.zeros_like(chance), torch.ones_like(chance)
    edges = torch.stack(
        [zero, torch.minimum(chance, 1 - chance), torch.maximum(chance, 1 - chance), one]
    )
    cells = torch.tensor(list(itertools.product(range(3), repeat=len(chance))))
    bit = torch.arange(len(chance))
    low, high = edges[cells, bit], edges[cells + 1, bit]
    monkeypatch.setattr(binary, "uniform", lambda *_: (low + high) / 2)
    out = check(latent, (high - low).prod(1), partial(ff.expect, estimator=ff.expectation.DisARM()))
    assert (out.calls == 2).all()


@pytest.mark.parametrize("score", [-2.5, 0.4])
@pytest.mark.parametrize(("temperature", "strength"), [(0.5, 1.0), (1.0, 0.7), (0.3, 0.0)])
def test_rebar_of_a_bit(score, temperature, strength, monkeypatch):
    """By quadrature over both noises, with a seam where the draw changes."""
    bit = Latent("bit", (1,), BITS.over, BITS.rule)
    monkeypatch.setattr(Latent, "scores", lambda self: torch.tensor([score], dtype=torch.float64))
    noise, chance = two_noises(score)
    monkeypatch.setattr(bits, "logistic", lambda *_: noise)
    estimator = ff.expectation.REBAR(temperature, strength)
    out = check(bit, chance, partial(ff.expect, estimator=estimator), tol=1e-6)
    assert (out.calls == 3).all()


@over([CATEGORIES, BITS])
def test_rebar_by_many_draws(latent):
    """Each of a few dozen numbers is off by more than 5 deviations once in two million seeds."""
    rows = 60_000
    scores, cost = latent.scores().requires_grad_(), Cost(latent)
    cost.shift.requires_grad_()
    value = (latent.log_probs(scores).exp() * cost.every(latent)).sum()
    wanted = [value, *torch.autograd.grad(value, [scores, cost.shift])]
    each = scores.detach().expand(rows, -1).clone().requires_grad_()
    cost.shift = cost.shift.detach().expand(rows, -1).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    out = ff.expect(cost, each, ff.expectation.REBAR(0.5), latent.over, generator=generator)
    estimates = [out.value, *torch.autograd.grad(out.surrogate.sum(), [each, cost.shift])]
    for found, expected in zip(estimates, wanted, strict=True):
        assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / rows**0.5).all()


@over([CATEGORIES, BITS])
def test_rebar_varies_less_than_the_score_function(latent):
    """Which is what it is for: the same draws without the comparison."""
    each = latent.scores().expand(5000, -1).clone().requires_grad_()
    spread = []
    for strength in (0.0, 1.0):
        generator = torch.Generator().manual_seed(0)
        estimator = ff.expectation.REBAR(0.5, strength)
        out = ff.expect(Cost(latent), each, estimator, latent.over, generator=generator)
        (found,) = torch.autograd.grad(out.surrogate.sum(), each)
        spread.append(found.var(0).sum())
    assert spread[1] < 0.7 * spread[0]


def test_relaxation_is_biased():
    """What the others are unbiased against: a softened draw has another expected cost."""
    scores, cost = CATEGORIES.scores().requires_grad_(), Cost(CATEGORIES)
    value, *_ = exact(CATEGORIES, scores, cost)
    generator = torch.Generator().manual_seed(0)
    out = ff.expect(cost, scores.expand(20_000, -1), ff.Gumbel(1.0), generator=generator)
    assert abs(out.value.mean() - value) > 20 * out.value.std() / 20_000**0.5


def test_bits_are_drawn_without_those_chosen(monkeypatch):
    """Just below the probability of a bit given those before it is on, just above it is off."""
    scores = BITS.scores()
    probs, every = BITS.log_probs(scores).exp(), BITS.every
    for count in range(len(probs)):
        order = probs.argsort(descending=True)
        chosen, others = order[:count], order[count:]
        left = torch.where(torch.isin(torch.arange(8), others), probs, 0.0)
        point = torch.empty(3, len(others), 1, dtype=torch.float64)
        for t, atom in enumerate(every[others]):
            for i in range(3):
                same = (every[:, :i] == atom[:i]).all(1)
                chance = (left * same * every[:, i]).sum() / (left * same).sum()
                point[i, t, 0] = (chance + (1e-9 if atom[i] == 0 else -1e-9)).clamp(0, 1)
        points = iter(point)
        monkeypatch.setattr(bits, "uniform", lambda *_, points=points: next(points))
        dist = BernoulliLatent(scores.expand(len(others), 3), BITS.over)
        given = every[chosen].expand(len(others), count, 3)
        valid = torch.ones(len(others), count, dtype=torch.bool)
        found, mass = dist.sample_excluding(given, valid, 1, None)
        assert torch.equal(found[:, 0], every[others])
        torch.testing.assert_close(mass, left.sum().expand(len(others)), rtol=1e-12, atol=0)
