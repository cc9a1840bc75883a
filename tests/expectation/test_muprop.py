"""MuProp: unbiased by enumeration, exact for linear costs."""

import math
from functools import partial

import pytest
import torch

import fewfold as ff
from tests.expectation.cases import CATEGORIES, FREE, LATENTS, Cost, drawing, over, tuples
from tests.expectation.test_gold import COSTS, GRADIENT, LOSS, SCORES
from tests.expectation.test_unbiased import check

MuProp = ff.expectation.MuProp


@over(LATENTS)
@pytest.mark.parametrize("samples", [1, 2])
def test_the_mean_gradient_is_exact(latent, samples):
    """Over all that may be drawn, with respect to scores, additional scores and the cost."""
    places, chance = tuples(latent.log_probs(latent.scores()).exp(), samples)
    with drawing(latent, latent.every[places]):
        out = check(latent, chance, partial(ff.expect, estimator=MuProp(samples)), tol=1e-10)
    assert (out.calls == samples + 1).all()


def test_linear_costs_have_no_variance():
    places, chance = tuples(SCORES.softmax(0), 1)
    rows = SCORES.expand(4, 4).clone().requires_grad_()
    with drawing(CATEGORIES, places):
        out = ff.expect(lambda atoms, row: atoms @ COSTS, rows, MuProp())
    assert float((chance * out.value).sum()) == pytest.approx(LOSS)
    (found,) = torch.autograd.grad(out.surrogate.sum(), rows)
    wanted = torch.tensor(GRADIENT, dtype=torch.float64).expand(4, 4)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@over(FREE)
def test_it_varies_less_than_the_score_function(latent):
    """For a cost that is linear but for a tenth, over all that may be drawn."""
    cost = Cost(latent)
    places, chance = tuples(latent.log_probs(latent.scores()).exp(), 1)
    spread = []
    for estimator in (MuProp(), ff.ScoreFunction()):
        rows = latent.scores().expand(len(chance), -1).clone().requires_grad_()

        def nearly(atoms, row):
            vectors = atoms if atoms.is_floating_point() else latent.vectors[atoms]
            return vectors.sum(1) + vectors @ cost.weight[:, 0] + 0.1 * cost(atoms, row)

        with drawing(latent, latent.every[places]):
            out = ff.expect(nearly, rows, estimator, latent.over)
        (found,) = torch.autograd.grad(out.surrogate.sum(), rows)
        mean = chance @ found
        spread.append(chance @ (found - mean).square().sum(1))
    assert spread[0] < 0.3 * spread[1]


def test_a_cost_without_an_expansion_has_no_baseline():
    """Where the cost or its slope at the mean is infinite: then it is the score function."""
    scores = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)

    def cost(atoms, row):  # at the mean of the first row, a slope that is infinite
        centre = torch.where(row == 0, 0.5, -1.0)
        return (atoms[:, 0] - centre).abs().sqrt()

    grads = []
    for estimator in (MuProp(), ff.ScoreFunction()):
        draw = torch.Generator().manual_seed(0)
        own = (lambda ids, row: cost(CATEGORIES.vectors[ids][:, :2], row)) if grads else cost
        out = ff.expect(own, scores, estimator, generator=draw)
        grads.append(torch.autograd.grad(out.surrogate.sum(), scores)[0])
        assert out.value.isfinite().all()
    torch.testing.assert_close(grads[0][0], grads[1][0])
    assert not torch.allclose(grads[0][1], grads[1][1])


def test_inside_another_expectation():
    """As the inner estimator, whose surrogate is the cost of the outer one."""
    scores = torch.tensor([[0.4, -0.3]], dtype=torch.float64, requires_grad=True)
    inner = torch.tensor([[0.2, 0.1, -0.5]], dtype=torch.float64, requires_grad=True)
    table = torch.tensor([[1.0, 2.0, 0.5], [0.0, 3.0, -1.0]], dtype=torch.float64)

    def outer(atoms, row):
        price = lambda vectors, pair: (vectors * table[atoms[pair]]).sum(1)  # noqa: E731
        return ff.expect(price, inner.expand(len(row), 3), MuProp()).surrogate

    out = ff.expect(outer, scores, ff.Dense())
    wanted = (scores.softmax(1).T * inner.softmax(1) * table).sum()
    given = [scores, inner]
    found = torch.autograd.grad(out.loss, given)
    right = torch.autograd.grad(wanted, given)
    torch.testing.assert_close(found[1], right[1])  # linear inside: exact whatever is drawn
    assert math.isfinite(float(found[0].sum()))
