"""Straight-through gradients, worked out from the probabilities and the gradients of the cost."""

import math

import pytest
import torch

import fewfold as ff
from tests.expectation.cases import (
    BARRED,
    BITS,
    FREE,
    LATENTS,
    Cost,
    Latent,
    drawing,
    exact,
    over,
    tuples,
)

POSSIBLE = [latent for latent in LATENTS if latent is not BARRED]


def means(latent: Latent, scores: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """(*event,) the probability of each part, by going through all values."""
    probs = latent.log_probs(scores, more).exp()
    return (probs @ latent.vectors).view(latent.event)


@over(LATENTS)
@pytest.mark.parametrize("argmax", [False, True])
def test_linear_costs_are_exact(latent, argmax):
    """Their gradient at every atom is that of the mean, whatever is drawn."""
    price = torch.linspace(-1, 2, math.prod(latent.event), dtype=torch.float64).view(latent.event)
    scores = latent.scores().requires_grad_()
    structure, more = latent.live()
    given = [scores, *more]
    wanted = torch.autograd.grad((means(latent, scores, *more) * price).sum(), given)
    estimator = ff.expectation.StraightThrough(argmax=argmax)
    out = ff.expect(
        lambda atoms, row: (atoms * price).flatten(1).sum(1), scores, estimator, structure
    )
    found = torch.autograd.grad(out.surrogate.sum(), given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_bits_are_unbiased_where_each_bit_is_linear():
    """The mean over all draws is exact for products of different bits."""
    scores = BITS.scores().requires_grad_()
    table = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).double().triu(1)

    def pairs(atoms, row):
        return ((atoms @ table) * atoms).sum(1) + 2 * atoms.prod(1) - atoms[:, 0]

    probs = BITS.log_probs(scores).exp()
    wanted = (probs * pairs(BITS.every, None)).sum()
    places, chance = tuples(probs, 2)
    with drawing(BITS, BITS.every[places]):
        out = ff.expect(
            pairs, scores.expand(len(chance), 3), ff.expectation.StraightThrough(2), BITS.over
        )
    torch.testing.assert_close((chance * out.value).sum(), wanted.detach(), rtol=0, atol=1e-12)
    found = torch.autograd.grad((chance * out.surrogate).sum(), scores)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, scores), rtol=0, atol=1e-12)


@over(POSSIBLE)
@pytest.mark.parametrize("identity", [False, True])
def test_the_gradient_at_a_draw_goes_to_the_probabilities(latent, identity):
    """Of a cost that is not linear; the value and the parameters of the cost are unbiased."""
    scores, cost = latent.scores().requires_grad_(), Cost(latent)
    structure, more = latent.live()
    value, _, slope, *_ = exact(latent, scores, cost, *more)
    places, chance = tuples(latent.log_probs(scores, more).exp(), 1)
    atoms = latent.vectors.clone().requires_grad_()
    at = (atoms @ cost.weight + cost.shift[0]).square().sum(-1)
    (each,) = torch.autograd.grad(at.sum(), atoms)  # (m, parts)
    passed = (chance @ each[places[:, 0]]).view(latent.event)
    soft = scores if identity else means(latent, scores, *more)
    (wanted,) = torch.autograd.grad((soft * passed).sum(), scores)
    with drawing(latent, latent.every[places]):
        out = ff.expect(
            cost,
            scores.expand(len(chance), *latent.event),
            ff.expectation.StraightThrough(identity=identity),
            structure,
        )
    torch.testing.assert_close((chance * out.value).sum(), value, rtol=0, atol=1e-12)
    found = torch.autograd.grad((chance * out.surrogate).sum(), [scores, cost.weight])
    torch.testing.assert_close(found, (wanted, slope), rtol=0, atol=1e-10)


@over(LATENTS)
def test_the_most_likely_value(latent):
    scores = latent.scores(4)
    out = ff.expect(
        lambda atoms, row: atoms.flatten(1).sum(1),
        scores,
        ff.expectation.StraightThrough(argmax=True),
        latent.over,
    )
    best = latent.totals(scores).argmax(1)
    torch.testing.assert_close(out.support.atoms.flatten(1), latent.vectors[best], rtol=0, atol=0)


def test_a_structure_without_sums():
    """Only the most likely one, whose gradient goes to the scores themselves."""
    scores = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    price = torch.arange(9.0).view(3, 3)
    out = ff.expect(
        lambda atoms, row: (atoms * price).flatten(1).sum(1),
        scores,
        ff.expectation.StraightThrough(argmax=True, identity=True),
        ff.structures.Assignment(),
    )
    assert (out.support.atoms.sum(1) == 1).all()
    (found,) = torch.autograd.grad(out.surrogate.sum(), scores)
    torch.testing.assert_close(found, price.expand(2, 3, 3))


@over(FREE)
def test_it_varies_less_than_straight_through_gumbel_of_a_low_temperature(latent):
    """There is no noise in the backward pass."""
    each = latent.scores().expand(4000, -1).clone().requires_grad_()
    spread = []
    for estimator in (ff.expectation.StraightThrough(), ff.Gumbel(0.3, straight_through=True)):
        draw = torch.Generator().manual_seed(0)
        out = ff.expect(Cost(latent), each, estimator, latent.over, generator=draw)
        spread.append(torch.autograd.grad(out.surrogate.sum(), each)[0].var(0).sum())
    assert spread[0] < 0.7 * spread[1]
