"""Samples follow their distribution.

Statistical tests fix their seed; unless stated otherwise each number in them is off by more than 5
standard deviations once in two million seeds.
"""

import math

import pytest
import torch

import fewfold as ff
from fewfold.expectation.expect import latent_distribution
from fewfold.expectation.latents import categorical as categories
from fewfold.expectation.latents.bernoulli import BernoulliLatent
from fewfold.expectation.latents.categorical import CategoricalLatent
from tests.expectation.cases import BITS, CATEGORIES, FREE, LATENTS, Cost, over


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def near(share, probs, draws):
    """Shares of so many draws, and probabilities."""
    return ((share - probs).abs() <= 5 * (probs * (1 - probs) / draws).sqrt()).all()


@over(LATENTS)
def test_draws_follow_the_law(latent):
    draws = 10_000
    scores = latent.scores(2)
    dist = latent_distribution(scores, ff.Dense(), latent.over, None)
    found = dist.sample(draws, seeded())
    assert found.shape[:2] == (2, draws)
    every = latent.every
    same = found.unsqueeze(2) == every
    share = same.flatten(3).all(3) if every.dim() > 1 else same
    assert share.any(2).all(), "what was drawn is one of them"
    assert near(share.double().mean(1), latent.log_probs(scores).exp(), draws)


@over(LATENTS)
def test_log_probabilities(latent):
    scores = latent.scores(2)
    dist = latent_distribution(scores, ff.Dense(), latent.over, None)
    every = latent.every
    row = torch.arange(2).repeat_interleave(len(every))
    found = dist.log_prob(torch.cat([every, every]), row)
    torch.testing.assert_close(found.view(2, -1), latent.log_probs(scores), rtol=0, atol=1e-12)


def test_categories_are_drawn_without_those_chosen(monkeypatch):
    scores = CATEGORIES.scores(3)
    dist = CategoricalLatent(scores)
    asked = []
    real = categories._sample
    monkeypatch.setattr(
        categories, "_sample", lambda logs, *more: (asked.append(logs.exp()), real(logs, *more))[1]
    )
    for k in (1, 2, 3):
        chosen, valid = dist.k_best(k)
        found, mass = dist.sample_excluding(chosen, valid, 7, seeded())
        left = scores.softmax(1).scatter(1, chosen, 0.0)
        torch.testing.assert_close(mass, left.sum(1), rtol=1e-12, atol=0)
        torch.testing.assert_close(asked.pop(), left / left.sum(1, keepdim=True))
        assert not (found.unsqueeze(2) == chosen.unsqueeze(1)).any()


@over(FREE)
def test_the_best_are_the_most_probable(latent):
    scores = latent.scores(3)
    dist = latent_distribution(scores, ff.Dense(), latent.over, None)
    probs = latent.log_probs(scores).exp()
    for k in (1, 3, len(latent.every)):
        chosen, valid = dist.k_best(k)
        assert valid.all()
        order = probs.topk(k).indices
        assert torch.equal(chosen, latent.every[order].to(chosen))


DRAWING = {
    "score function": ff.ScoreFunction(2, ff.expectation.LeaveOneOut()),
    "self-critic": ff.ScoreFunction(baseline=ff.expectation.SelfCritic()),
    "sum and sample": ff.SumAndSample(),
    "gumbel": ff.Gumbel(0.5),
    "straight through": ff.Gumbel(0.5, straight_through=True, samples=3),
    "rebar": ff.expectation.REBAR(0.5),
    "vimco": ff.expectation.VIMCO(3),
    "disarm": ff.expectation.DisARM(),
    "muprop": ff.expectation.MuProp(),
    "plain straight through": ff.expectation.StraightThrough(),
    "unordered set": ff.expectation.UnorderedSet(2),
    "relax": ff.expectation.RELAX(torch.nn.AdaptiveAvgPool1d(1), strength=0.0),
}


@pytest.mark.parametrize("name", DRAWING)
@pytest.mark.parametrize("kind", ["categories", "bits"])
def test_a_generator_repeats_itself(kind, name):
    latent = BITS if kind == "bits" or name == "disarm" else CATEGORIES
    scores = latent.scores(40).requires_grad_()

    def run(seed):
        cost = Cost(latent)
        out = ff.expect(cost, scores, DRAWING[name], latent.over, generator=seeded(seed))
        return torch.autograd.grad(out.surrogate.sum(), scores)[0], cost.asked[0][0]

    state = torch.get_rng_state()
    first, second, other = run(0), run(0), run(1)
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[1], other[1])


@over([CATEGORIES, BITS])
def test_noise_given_a_draw_leads_to_the_draw(latent):
    dist = latent_distribution(latent.scores(2000), ff.Dense(), latent.over, None)
    draw, noisy, again = dist.sample_coupled(seeded())
    for scores in (noisy, again):
        if latent is BITS:
            assert torch.equal(scores > 0, draw > 0.5)
        else:
            assert torch.equal(scores.argmax(1), draw.argmax(1))
    assert (noisy != again).all()


@over(FREE)
def test_relaxed_draws_round_to_the_law(latent):
    draws, scores = 10_000, latent.scores()
    out = ff.expect(
        lambda atoms, row: atoms.sum(1),
        scores.expand(draws, -1),
        ff.Gumbel(0.7, straight_through=True),
        latent.over,
        generator=seeded(),
    )
    atoms = out.support.atoms
    assert set(atoms.unique().tolist()) == {0.0, 1.0}, "rounded without a rest"
    share = (atoms.unsqueeze(1) == latent.vectors).all(2).double().mean(0)
    assert near(share, latent.log_probs(scores).exp(), draws)


@over(FREE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_straight_through_passes_the_gradient_of_the_soft_draw(latent, dtype):
    scores = latent.scores(5).to(dtype).requires_grad_()
    weight = torch.linspace(-1, 2, latent.event[0], dtype=dtype)
    grads = [
        torch.autograd.grad(
            ff.expect(
                lambda atoms, row: atoms @ weight,
                scores,
                ff.Gumbel(0.7, straight_through=hard),
                latent.over,
                generator=seeded(),
            ).loss,
            scores,
        )[0]
        for hard in (False, True)
    ]
    torch.testing.assert_close(*grads)
    assert grads[0].abs().sum() > 0


@over(FREE)
def test_a_relaxed_draw_without_noise(latent, monkeypatch):
    """Softmax, or sigmoid, of the scores at a temperature, with its gradient."""
    monkeypatch.setattr(categories, "gumbel", lambda shape, like, _: torch.zeros(shape).to(like))
    monkeypatch.setattr(
        "fewfold.expectation.latents.bernoulli.logistic",
        lambda shape, like, _: torch.zeros(shape).to(like),
    )
    scores, cost = latent.scores(2).requires_grad_(), Cost(latent)
    out = ff.expect(cost, scores, ff.Gumbel(0.4, samples=2), latent.over)
    soft = (scores / 0.4).softmax(1) if latent.over is None else (scores / 0.4).sigmoid()
    wanted = cost(soft, torch.arange(2)).mean()
    torch.testing.assert_close(out.loss, wanted)
    assert out.calls.tolist() == [2, 2]
    inputs = [scores, cost.weight]
    torch.testing.assert_close(
        torch.autograd.grad(out.loss, inputs), torch.autograd.grad(wanted, inputs)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_draws_what_is_rare_as_seldom_as_it_is(dtype):
    """Uniform numbers of bfloat16 are below 2^-10 three times too often."""
    chance, draws = 2.0**-10, 400_000
    scores = torch.full((draws, 1), math.log(chance / (1 - chance)), dtype=dtype)
    chance = scores[0, 0].double().sigmoid()
    dist = BernoulliLatent(scores, ff.structures.Bits())
    assert near(dist.sample(1, seeded()).double().mean(), chance, draws)
    assert near((dist.sample_coupled(seeded())[1] > 0).double().mean(), chance, draws)
    out = ff.expect(
        lambda atoms, row: atoms[:, 0],
        scores,
        ff.expectation.DisARM(),
        dist.over,
        generator=seeded(),
    )
    assert near(out.support.atoms.double().mean(), chance, 2 * draws)
    assert out.value.dtype == dtype


def test_half_precision_draws_of_many_categories():
    scores = torch.zeros(1, 600, dtype=torch.bfloat16)
    found = CategoricalLatent(scores).sample(300_000, seeded())
    share = torch.bincount(found[0], minlength=600) / 300_000
    assert near(share, torch.full((600,), 1 / 600), 300_000)


def test_temperatures_fall_in_steps():
    for step in (0, 1, 499, 500, 1499, 70_000):
        wanted = max(0.5, math.exp(-1e-5 * (step // 500 * 500)))
        assert ff.expectation.annealed(step, rate=1e-5, every=500) == wanted
    assert ff.expectation.annealed(10**9, rate=1e-4, least=0.1) == 0.1
