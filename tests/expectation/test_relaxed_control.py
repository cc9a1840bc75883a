"""RELAX: unbiased for any network, which learns to lower the variance and changes nothing else."""

from functools import partial

import pytest
import torch
from torch import nn

import fewfold as ff
from fewfold.expectation.latents import bernoulli as bits
from tests.expectation.cases import BITS, CATEGORIES, Cost, Latent, over, two_noises
from tests.expectation.test_unbiased import check
from tests.nightly import first


def network(inputs: int, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 1))
    return layers.double()


def large(inputs: int) -> nn.Module:
    """A network that matters: its gradients are of the size of the cost's."""
    found = network(inputs)
    with torch.no_grad():
        for own in found.parameters():
            own *= 3
    return found


@pytest.mark.parametrize("score", [-2.5, 0.4])
@pytest.mark.parametrize(("temperature", "strength"), [(0.5, 1.0), (1.0, 0.7), (0.7, 0.0)])
def test_the_mean_gradient_of_a_bit(score, temperature, strength, monkeypatch):
    """By quadrature over both noises, with a seam where the sample changes."""
    bit = Latent("bit", (1,), BITS.over, BITS.rule)
    monkeypatch.setattr(Latent, "scores", lambda self: torch.tensor([score], dtype=torch.float64))
    noise, chance = two_noises(score)
    monkeypatch.setattr(bits, "logistic", lambda *_: noise)
    estimator = ff.expectation.RELAX(large(3), temperature, strength)
    out = check(bit, chance, partial(ff.expect, estimator=estimator), tol=1e-6)
    assert (out.calls == (3 if strength else 1)).all()


@over([CATEGORIES, BITS])
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_the_mean_gradient_by_many_draws(latent, strength):
    """Each of a few dozen numbers is off by more than 5 deviations once in two million seeds."""
    rows = 40_000
    scores, cost = latent.scores().requires_grad_(), Cost(latent)
    value = (latent.log_probs(scores).exp() * cost.every(latent)).sum()
    wanted = [value, *torch.autograd.grad(value, [scores])]
    each = scores.detach().expand(rows, -1).clone().requires_grad_()
    estimator = ff.expectation.RELAX(large(latent.event[0]), 0.5, strength)
    draw = torch.Generator().manual_seed(0)
    out = ff.expect(cost, each, estimator, latent.over, generator=draw)
    estimates = [out.value, *torch.autograd.grad(out.surrogate.sum(), [each])]
    for found, expected in zip(estimates, wanted, strict=True):
        assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / rows**0.5).all()


@over([CATEGORIES, BITS])
def test_a_network_of_nothing_is_rebar(latent):
    """Sample by sample."""
    control = network(latent.event[0])
    with torch.no_grad():
        for own in control.parameters():
            own.zero_()
    scores, cost = latent.scores(20).requires_grad_(), Cost(latent)
    found = []
    for estimator in (ff.expectation.REBAR(0.4, 0.7), ff.expectation.RELAX(control, 0.4, 0.7)):
        draw = torch.Generator().manual_seed(0)
        out = ff.expect(cost, scores, estimator, latent.over, generator=draw)
        found.append(torch.autograd.grad(out.surrogate.sum(), scores)[0])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@over([CATEGORIES, BITS])
@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_the_network_learns_by_the_square_of_the_gradient(latent, strength):
    """Which is the error; its gradient, by finite differences, and nobody else's."""
    rows = latent.scores(5)
    scores, cost = rows.clone().requires_grad_(), Cost(latent)
    estimator = ff.expectation.RELAX(network(latent.event[0]), 0.5, strength)

    def run():
        draw = torch.Generator().manual_seed(3)
        out = ff.expect(cost, scores, estimator, latent.over, generator=draw)
        (found,) = torch.autograd.grad(out.surrogate.sum(), scores, retain_graph=True)
        return out, found.square().sum(1)

    out, squares = run()
    torch.testing.assert_close(out.error, squares)
    torch.testing.assert_close(out.loss, (out.surrogate + out.error).mean())
    scores.grad = cost.weight.grad = None
    out.error.sum().backward()
    assert scores.grad is None
    assert cost.weight.grad is None
    own = next(estimator.network.parameters())
    step = torch.zeros_like(own)
    step[1, 0] = 1e-6
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            own += sign * step
        ends.append(float(run()[1].sum()))
        with torch.no_grad():
            own -= sign * step
    assert float(own.grad[1, 0]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)


@pytest.mark.parametrize("latent", first(1, [CATEGORIES, BITS]), ids=["categories", "bits"])
def test_a_trained_network_varies_less(latent):
    """Without relaxed costs than the score function, and with them than REBAR."""
    each, cost = latent.scores().expand(4000, -1).clone().requires_grad_(), Cost(latent)

    def spread(estimator):
        draw = torch.Generator().manual_seed(0)
        out = ff.expect(cost, each, estimator, latent.over, generator=draw)
        return float(torch.autograd.grad(out.surrogate.sum(), each)[0].var(0).sum())

    for strength, peer, least in (
        (0.0, ff.ScoreFunction(), 0.3),
        (1.0, ff.expectation.REBAR(), 0.7),
    ):
        estimator = ff.expectation.RELAX(network(latent.event[0]), 0.5, strength)
        optimizer = torch.optim.Adam(estimator.network.parameters(), 0.05)
        draw = torch.Generator().manual_seed(1)
        for _ in range(150):
            out = ff.expect(cost, each[:60], estimator, latent.over, generator=draw)
            optimizer.zero_grad()
            out.error.mean().backward()
            optimizer.step()
        assert spread(estimator) < least * spread(peer)


def test_the_network_sees_the_context():
    """Next to the relaxed sample, of its row."""
    seen = []

    class Watching(nn.Module):
        def forward(self, inputs):
            seen.append(inputs)
            return inputs.sum(1)

    context = torch.arange(12.0).view(3, 2, 2)
    ff.expect(
        lambda atoms, row: atoms.sum(1),
        torch.zeros(3, 5, requires_grad=True),
        ff.expectation.RELAX(Watching(), strength=0.0),
        context=context,
    )
    assert seen[0].shape == (6, 9)
    assert torch.equal(seen[0][:, 5:], context.flatten(1).repeat_interleave(2, 0))
    torch.testing.assert_close(seen[0][:, :5].sum(1), torch.ones(6))
