"""Likelihood: exact on the support and unbiased elsewhere, checked by enumeration."""

import math

import pytest
import torch

import fewfold as ff
from fewfold.expectation.latents.categorical import CategoricalLatent
from tests.expectation.cases import (
    BARRED,
    BITS,
    CATEGORIES,
    LATENTS,
    SUBSET,
    Cost,
    drawing,
    over,
    tuples,
)


def likelihood(latent, cost, log_prior):
    """log sum p(z) exp(-cost(z)) by going through all."""
    return (log_prior - cost.every(latent).detach()).logsumexp(-1)


def prior_distribution(latent, kind):
    """Scores to give, and the log-probabilities of all values."""
    if kind == "uniform":
        possible = latent.log_probs(latent.scores()) > -math.inf
        return None, torch.where(possible, -possible.sum().double().log(), -math.inf)
    scores = latent.scores(seed=7)
    return scores, latent.log_probs(scores)


def given(latent, prior):
    """What a prior with scores is over: the same as the latent."""
    return {} if prior is None else latent.prior_over()


def mild(latent):
    """Costs of which none decides alone."""
    cost = Cost(latent)
    cost.weight = (cost.weight.detach() / 4).requires_grad_()
    return cost


@over(LATENTS)
@pytest.mark.parametrize("kind", ["uniform", "prior"])
@pytest.mark.parametrize("samples", [1, 2])
def test_by_importance_it_is_unbiased(latent, kind, samples):
    cost, (prior, log_prior) = mild(latent), prior_distribution(latent, kind)
    scores = latent.scores()
    places, chance = tuples(latent.log_probs(scores).exp(), samples)
    rows = scores.expand(len(chance), *latent.event)
    with drawing(latent, latent.every[places]):
        found = ff.expectation.log_likelihood(
            cost,
            rows,
            ff.ScoreFunction(),
            latent.over,
            samples=samples,
            prior=prior,
            **given(latent, prior),
        )
    assert float(chance @ found.exp()) == pytest.approx(
        float(likelihood(latent, cost, log_prior).exp()), rel=1e-12
    )


@over(LATENTS)
@pytest.mark.parametrize("kind", ["uniform", "prior"])
@pytest.mark.parametrize("samples", [1, 2])
def test_beside_the_support_it_is_unbiased(latent, kind, samples):
    """Draws within the support are left out: counted, they would add to what is exact."""
    cost, (prior, log_prior) = mild(latent), prior_distribution(latent, kind)
    scores = latent.scores(scale=0.5)
    places, chance = tuples(log_prior.exp(), samples)
    rows = scores.expand(len(chance), *latent.event)
    for estimator in (ff.SparseMarginal(), ff.SparseMarginal(k=2)):
        with drawing(latent, latent.every[places]):
            found = ff.expectation.log_likelihood(
                cost,
                rows,
                estimator,
                latent.over,
                samples=samples,
                prior=prior,
                **given(latent, prior),
            )
        right = float(likelihood(latent, cost, log_prior).exp())
        assert float(chance @ found.exp()) == pytest.approx(right, rel=1e-12)
        # and the part that is not left to chance
        support = ff.expect(cost, scores, estimator, latent.over).support
        same = latent.every == support.atoms.unsqueeze(1)
        inside = (same.flatten(2).all(2) if latent.over is not None else same).any(0)
        assert bool(inside.any())
        exact = (log_prior - cost.every(latent).detach())[inside].logsumexp(0)
        least = ff.expectation.log_likelihood(
            cost, scores, estimator, latent.over, samples=0, prior=prior, **given(latent, prior)
        )
        torch.testing.assert_close(least, exact, rtol=0, atol=1e-12)
        within = inside[places].all(1)
        assert bool(within.any())
        torch.testing.assert_close(found[within], exact.expand(int(within.sum())))
        assert (found[~within] > exact).all()


@over(LATENTS)
def test_dense_is_exact_whatever_is_drawn(latent):
    cost = mild(latent)
    scores = latent.scores(3)
    for kind in ("uniform", "prior"):
        prior, log_prior = prior_distribution(latent, kind)
        wanted = likelihood(latent, cost, log_prior).expand(3)
        for samples in (0, 5):
            found = ff.expectation.log_likelihood(
                cost,
                scores,
                ff.Dense(),
                latent.over,
                samples=samples,
                prior=prior,
                **given(latent, prior),
            )
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@over([CATEGORIES, BITS, SUBSET])
@pytest.mark.parametrize(
    "estimator", [ff.SparseMarginal(), ff.ScoreFunction(), ff.Gumbel(0.5), ff.Dense()], ids=str
)
def test_in_pieces(latent, estimator):
    scores, found = latent.scores(2, 3), []
    for pairs in (3, 10**6):
        cost = Cost(latent, rows=6)
        found.append(
            ff.expectation.log_likelihood(
                cost,
                scores,
                estimator,
                latent.over,
                samples=7,
                pairs=pairs,
                generator=torch.Generator().manual_seed(0),
            )
        )
        assert max(len(row) for _, row in cost.asked) <= pairs
        assert all(len(row) for _, row in cost.asked)
        if pairs > 3:
            assert len(cost.asked) <= 2
        kinds = {atoms.dtype for atoms, _ in cost.asked}
        assert kinds == {torch.int64 if latent is CATEGORIES else torch.float64}
    assert found[0].shape == (2, 3)
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", [ff.SparseMarginal(), ff.ScoreFunction()], ids=str)
def test_draws_are_not_held_all_at_once(estimator, monkeypatch):
    """A few at a time, each of them new: they agree with all at once as two seeds do."""
    monkeypatch.setattr("fewfold.expectation.likelihood._AT_ONCE", 20)
    held: list[int] = []
    sample = CategoricalLatent.sample

    def counted(dist, draws, generator):
        held.append(draws * dist.rows)
        return sample(dist, draws, generator)

    monkeypatch.setattr(CategoricalLatent, "sample", counted)
    scores, cost = CATEGORIES.scores(6), mild(CATEGORIES)
    found = ff.expectation.log_likelihood(
        cost, scores, estimator, samples=4000, generator=torch.Generator().manual_seed(0)
    )
    assert sum(held) == 6 * 4000
    assert max(held) <= 20
    _, log_prior = prior_distribution(CATEGORIES, "uniform")
    torch.testing.assert_close(
        found, likelihood(CATEGORIES, cost, log_prior).expand(6), atol=0.05, rtol=0
    )


def test_more_bits_than_a_word():
    """Which bits differ is seen beyond the 62nd."""
    bits = 130
    scores = torch.zeros(1, bits, dtype=torch.float64)
    scores[:, :-1] = 60.0  # all but the last are on for sure, so two atoms share the weight
    estimator = ff.SparseMarginal(k=2)

    def cost(atoms, row):
        return atoms[:, -1] + atoms[:, 0]

    prior = torch.full((bits,), 60.0, dtype=torch.float64)
    prior[-1] = 0.0
    generator = torch.Generator().manual_seed(0)
    found = ff.expectation.log_likelihood(
        cost,
        scores,
        estimator,
        ff.structures.Bits(),
        samples=20,
        prior=prior,
        generator=generator,
    )
    wanted = math.log(0.5 * math.exp(-1) + 0.5 * math.exp(-2))
    assert float(found) == pytest.approx(wanted, abs=1e-12)
    # with the last bit settled for one atom, the other is drawn, and counted
    scores[:, -1] = 60.0
    draws = torch.ones(1, 4, bits, dtype=torch.float64)
    draws[0, :3, -1] = 0
    with drawing(BITS, draws):
        found = ff.expectation.log_likelihood(
            cost,
            scores,
            estimator,
            ff.structures.Bits(),
            samples=4,
            prior=prior,
        )
    wanted = math.log(0.5 * math.exp(-2) + 0.75 * math.exp(-1))
    assert float(found) == pytest.approx(wanted, abs=1e-12)


def test_huge_costs_do_not_vanish():
    scores = torch.zeros(2, 3, dtype=torch.float64)
    for estimator in (ff.Dense(), ff.SparseMarginal(), ff.ScoreFunction()):
        found = ff.expectation.log_likelihood(
            lambda atoms, row: 5000.0 + 0.0 * atoms, scores, estimator, samples=4
        )
        torch.testing.assert_close(found, torch.full((2,), -5000.0).double(), rtol=0, atol=1e-9)


def test_masked_values_are_in_no_sum():
    scores = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
    mask = torch.tensor([True, False, True])
    costs = torch.tensor([1.0, -50.0, 2.0], dtype=torch.float64)
    wanted = math.log(0.5 * math.exp(-1) + 0.5 * math.exp(-2))
    for estimator in (ff.Dense(), ff.SparseMarginal()):
        found = ff.expectation.log_likelihood(
            lambda atoms, row: costs[atoms], scores, estimator, samples=9, mask=mask
        )
        assert float(found) == pytest.approx(wanted)


def test_a_generator_repeats_itself():
    scores, cost = BITS.scores(20), mild(BITS)

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        return ff.expectation.log_likelihood(
            cost, scores, ff.SparseMarginal(k=1), BITS.over, samples=3, generator=generator
        )

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    assert not run(0).requires_grad


@over([CATEGORIES, BITS, BARRED])
def test_an_empty_batch(latent):
    for estimator in (ff.Dense(), ff.SparseMarginal(), ff.ScoreFunction()):
        found = ff.expectation.log_likelihood(
            Cost(latent), latent.scores(2, 0), estimator, latent.over, samples=3
        )
        assert found.shape == (2, 0)
