"""Entropies and divergences with their gradients, against enumeration."""

import math
from dataclasses import replace
from functools import partial

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fewfold as ff
from fewfold.expectation.expect import latent_distribution
from tests.expectation.cases import (
    BARRED,
    BITS,
    CATEGORIES,
    FREE,
    LATENTS,
    SEQUENCE,
    SUBSET,
    Cost,
    drawing,
    over,
)

INF = math.inf
same = partial(torch.testing.assert_close, rtol=0, atol=1e-11)
DRAWS = ff.ScoreFunction()
ASSIGNMENT = ff.structures.Assignment()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def entropy(log_probs):
    """Of `(..., m)` log-probabilities."""
    kept = torch.where(log_probs > -INF, log_probs, 0.0)
    return -(log_probs.exp() * kept).sum(-1)


def divergence(log_probs, others):
    used = log_probs.detach().exp() > 0
    apart = torch.where(used, log_probs, 0.0) - torch.where(used, others, 0.0)
    return (log_probs.exp() * apart).sum(-1)


def free(atoms, row):
    return torch.zeros(len(row), dtype=torch.float64)


@over(LATENTS)
@pytest.mark.parametrize("estimator", [DRAWS, ff.Dense()], ids=["distribution", "dense"])
def test_entropy_and_its_gradient(latent, estimator):
    structure, more = latent.live()
    scores = latent.scores(2, 3).requires_grad_()
    out = ff.expect(free, scores, estimator, structure)
    wanted = entropy(latent.log_probs(scores, more))
    same(out.entropy, wanted)
    inputs = [scores, *more]
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3)
    found, right = (torch.autograd.grad((scale * v).sum(), inputs) for v in (out.entropy, wanted))
    same(found, right)


@over(LATENTS)
@pytest.mark.parametrize("estimator", [DRAWS, ff.Dense()], ids=["distribution", "dense"])
def test_divergence_from_uniform(latent, estimator):
    structure, more = latent.live()
    scores = latent.scores(2, 3).requires_grad_()
    count = 4 if latent is BARRED else len(latent.every)
    found = ff.expect(free, scores, estimator, structure).kl()
    wanted = math.log(count) - entropy(latent.log_probs(scores, more))
    same(found, wanted)
    inputs = [scores, *more]
    same(*(torch.autograd.grad(v.sum(), inputs) for v in (found, wanted)))


@over(LATENTS)
@pytest.mark.parametrize("estimator", [DRAWS, ff.Dense()], ids=["distribution", "dense"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)], ids=str)
def test_divergence_from_a_prior(latent, estimator, shape):
    """Its scores broadcast, and get a gradient too."""
    structure, more = latent.live()
    scores = latent.scores(2, 3).requires_grad_()
    prior = latent.scores(*shape, seed=5).requires_grad_()
    out = ff.expect(free, scores, estimator, structure)
    spread = prior.expand(2, 3, *latent.event)
    others = latent.prior_over(seed=6)
    for said in ({"prior_over": structure}, others) if latent.adds else ({},):
        its = said["prior_over"].additional if said else ()
        found = out.kl(prior, **said)
        wanted = divergence(latent.log_probs(scores, more), latent.log_probs(spread, its))
        same(found, wanted)
        inputs = [scores, prior, *{id(x): x for x in (*more, *its)}.values()]
        grads = (
            torch.autograd.grad(v.sum(), inputs, allow_unused=True, retain_graph=True)
            for v in (found, wanted)
        )
        same(*([torch.zeros(()) if g is None else g for g in grad] for grad in grads))


@over(LATENTS)
def test_no_divergence_from_itself(latent):
    scores = latent.scores(2, 3)
    for estimator in (DRAWS, ff.Dense()):
        out = ff.expect(free, scores, estimator, latent.over)
        same(out.kl(scores, **latent.prior_over()), torch.zeros(2, 3).double())
    if latent in FREE:
        assert (ff.expect(free, scores, DRAWS, latent.over).kl(scores) == 0).all()


@over(LATENTS)
def test_what_the_prior_excludes_is_infinitely_far(latent):
    scores = latent.scores(2)
    prior = torch.zeros(latent.event, dtype=torch.float64)
    prior.flatten()[0] = -INF
    for estimator in (DRAWS, ff.Dense()):
        out = ff.expect(free, scores, estimator, latent.over)
        assert (out.kl(prior, **latent.prior_over()) == INF).all()
        # unless the latent excludes it as well
        mask = prior > -INF
        out = ff.expect(free, scores, estimator, latent.over, mask=mask)
        assert out.kl(prior, **latent.prior_over()).isfinite().all()
        if latent.adds is None:  # which a prior of zeros would have, too
            same(out.kl(prior), out.kl())


@over(LATENTS)
def test_of_a_sparse_distribution(latent):
    structure, more = latent.live()
    scores = latent.scores(4, scale=1.0).requires_grad_()
    out = ff.expect(free, scores, ff.SparseMarginal(), structure)
    support = (
        ff.map_support(scores) if latent.over is None else ff.sparsemap_support(scores, structure)
    )
    wanted = support.reduce(-support.weights.log())
    same(out.entropy, wanted)
    assert (out.entropy <= out.calls.log() + 1e-12).all()
    prior = latent.scores(seed=5)
    place = latent.every == support.atoms.unsqueeze(1)
    place = (place.flatten(2).all(2) if latent.over is not None else place).double().argmax(1)
    log_prior = latent.log_probs(prior, more)[place]
    distance = support.reduce(support.weights.log() - log_prior)
    of_prior = {"prior_over": structure} if latent.adds else {}
    same(out.kl(prior, **of_prior), distance)
    inputs = [scores, *more]
    pairs = ((out.entropy, wanted), (out.kl(prior, **of_prior), distance))
    for found, right in pairs:
        grads = (torch.autograd.grad(v.sum(), inputs, retain_graph=True) for v in (found, right))
        torch.testing.assert_close(*grads, rtol=0, atol=1e-8)


@over(LATENTS)
def test_numerical_gradients(latent):
    structure, more = latent.live()
    scores = latent.scores(2).requires_grad_()
    prior = latent.scores(seed=5).requires_grad_()
    given = [value for value in more if value.isfinite().all()]

    def run(scores, prior, *more):
        own = structure.with_additional(more) if more else structure
        dist = latent_distribution(scores, DRAWS, own, None)
        said = [own] if latent.adds else []
        return dist.entropy(), dist.kl(dist.with_scores(prior, *said)), dist.kl(dist.uniform())

    torch.autograd.gradcheck(run, (scores, prior, *given))


@over([CATEGORIES, BITS, SUBSET])
def test_second_derivatives(latent):
    """Also where all scores are 0, in the middle of what is even."""
    for scores in (latent.scores(2), torch.zeros(1, *latent.event, dtype=torch.float64)):
        scores.requires_grad_()
        torch.autograd.gradgradcheck(
            lambda s: latent_distribution(s, DRAWS, latent.over, None).entropy(), scores
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entropy_of_a_bit_keeps_its_digits(dtype):
    scores = torch.tensor([0.0, 1e-3, 3.0, -15.0, 15.0, 30.0, -80.0, 85.0], dtype=dtype)
    scores = scores.unsqueeze(1).requires_grad_()
    found = latent_distribution(scores, DRAWS, BITS.over, None).entropy()
    (slope,) = torch.autograd.grad(found.sum(), scores)
    with mpmath.workdps(60):
        for i in range(len(scores)):
            s, digits = mpmath.mpf(float(scores[i].detach())), 20 * torch.finfo(dtype).eps
            p, rest = 1 / (1 + mpmath.exp(-s)), 1 / (1 + mpmath.exp(s))
            wanted = float(-p * mpmath.log(p) - rest * mpmath.log(rest))
            assert float(found[i].detach()) == pytest.approx(wanted, rel=digits)
            wanted, least = float(-s * p * rest), float(digits * min(p, rest))
            assert float(slope[i]) == pytest.approx(wanted, rel=digits, abs=least)


@over([CATEGORIES, BITS, SUBSET, SEQUENCE])
@pytest.mark.parametrize("size", [100.0, 1e4])
def test_extreme_scores(latent, size):
    scores = (size * latent.scores(20)).requires_grad_()
    prior = size * latent.scores(seed=3)
    for estimator in (DRAWS, ff.Dense()):
        out = ff.expect(free, scores, estimator, latent.over)
        log_probs = latent.log_probs(scores)
        torch.testing.assert_close(out.entropy, entropy(log_probs), rtol=0, atol=1e-10)
        wanted = divergence(log_probs, latent.log_probs(prior))
        distance = out.kl(prior, **latent.prior_over())
        torch.testing.assert_close(distance, wanted, rtol=1e-9, atol=1e-9)
        total = (out.entropy + distance + out.kl()).sum()
        (grad,) = torch.autograd.grad(total, scores)
        assert grad.isfinite().all()


def test_what_is_all_but_impossible_and_excluded():
    """A probability that is 0 in floating point adds nothing, whatever the prior says."""
    scores = torch.tensor([[0.0, 0.5, -1e4]], requires_grad=True)
    prior = torch.tensor([0.0, 0.0, -INF])
    for estimator in (DRAWS, ff.Dense()):
        found = ff.expect(lambda atoms, row: atoms + 0.0, scores, estimator).kl(prior)
        two = scores.detach()[:, :2].log_softmax(1)
        torch.testing.assert_close(found, (two.exp() * (two + math.log(2))).sum(1))
        (grad,) = torch.autograd.grad(found.sum(), scores)
        assert grad.isfinite().all()


@over(LATENTS)
def test_a_constant_has_no_gradient(latent):
    for estimator in (DRAWS, ff.Dense(), ff.SparseMarginal()):
        out = ff.expect(free, latent.scores(2), estimator, latent.over)
        assert not out.entropy.requires_grad
        assert not out.kl().requires_grad
        scores = latent.scores(2).requires_grad_()
        with torch.no_grad():
            out = ff.expect(free, scores, estimator, latent.over)
            assert not out.entropy.requires_grad
            assert not out.kl(scores, **latent.prior_over()).requires_grad
            assert not out.loss.requires_grad


def test_transitions_of_each_row():
    """Rows with additional scores of their own are like rows one by one."""
    steps = torch.randn(2, 3, 1, 2, 2, generator=seeded(), dtype=torch.float64)
    scores, cost = SEQUENCE.scores(2, 3), Cost(SEQUENCE)
    whole = ff.structures.Sequence(steps, by_position=True)
    prior = SEQUENCE.scores(seed=5)
    atom = SEQUENCE.every[[3]]
    estimators = (ff.Dense(), DRAWS, ff.SparseMarginal(), ff.SparseMarginal(k=3))
    for estimator in estimators:
        drawn = estimator is DRAWS
        with drawing(SEQUENCE, *[atom.expand(6, 1, 3, 2)] * drawn):
            out = ff.expect(cost, scores, estimator, whole)
        for i in range(2):
            for j in range(3):
                own = replace(whole, transitions=steps[i, j])
                with drawing(SEQUENCE, *[atom.unsqueeze(0)] * drawn):
                    one = ff.expect(cost, scores[i, j], estimator, own)
                for whole_row, row in (
                    (out.value, one.value),
                    (out.entropy, one.entropy),
                    (out.kl(), one.kl()),
                    (out.kl(prior, prior_over=whole), one.kl(prior, prior_over=own)),
                ):
                    torch.testing.assert_close(whole_row[i, j], row, rtol=0, atol=1e-8)


numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, 30.0, -30.0, 1e4, -1e4, -INF]) | st.floats(-5, 5)


@given(st.lists(numbers, min_size=1, max_size=7))
def test_entropy_is_within_its_bounds(values):
    """Ties, huge numbers and masked ones included."""
    scores = torch.tensor([values], dtype=torch.float64)
    for structure in (None, ff.structures.Bits()):
        kept = int((scores > -INF).sum())
        if structure is None and not kept:
            continue
        count = math.log(kept) if structure is None else kept * math.log(2)
        for estimator in (DRAWS, ff.Dense(), ff.SparseMarginal()):
            out = ff.expect(free, scores, estimator, structure)
            assert -1e-12 <= float(out.entropy) <= count + 1e-9
            assert float(out.kl()) == pytest.approx(count - float(out.entropy), abs=1e-9)


@over([latent for latent in LATENTS if latent.over is not None and latent not in FREE])
@pytest.mark.parametrize("estimator", [DRAWS, ff.Dense()], ids=["distribution", "dense"])
def test_of_what_a_mask_leaves(latent, estimator):
    """Against going through all values, those that hold a masked part left out."""
    scores = latent.scores(3, scale=1.0)
    mask = torch.ones(latent.event, dtype=torch.bool)
    mask.flatten()[1] = False
    out = ff.expect(free, scores, estimator, latent.over, mask=mask)
    log_probs = latent.log_probs(scores.masked_fill(~mask, -INF))
    same(out.entropy, entropy(log_probs))
    possible = (log_probs > -INF).sum(-1).double()
    same(out.kl(), possible.log() - entropy(log_probs))


@over([latent for latent in LATENTS if latent.adds is not None])
def test_additional_scores_learn_where_those_of_parts_are_constants(latent):
    for estimator in (DRAWS, ff.Dense()):
        grads = []
        for learning in (True, False):
            structure, more = latent.live()
            scores = latent.scores(2).requires_grad_(learning)
            out = ff.expect(free, scores, estimator, structure)
            of_prior = latent.prior_over(seed=6)
            total = (out.entropy + out.kl() + out.kl(latent.scores(seed=5), **of_prior)).sum()
            grads.append(torch.autograd.grad(total, more))
        same(*grads)
    if latent is SEQUENCE:
        structure, more = latent.live()
        found = ff.structured.gibbs_marginals(latent.scores(2), structure)
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(found[..., 0].sum(), more))


def test_a_prior_by_position_of_a_latent_with_one_table_and_the_other_way_round():
    generator = seeded()
    table = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    steps = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    scores, prior = SEQUENCE.scores(2), SEQUENCE.scores(seed=5)
    shared = ff.structures.Sequence(table)
    each = ff.structures.Sequence(steps, by_position=True)
    for latent, other in ((shared, each), (each, shared)):
        found = [
            ff.expect(free, scores, estimator, latent).kl(prior, prior_over=other)
            for estimator in (DRAWS, ff.Dense())
        ]
        same(*found)


def test_a_prior_may_have_scores_that_the_latent_has_not():
    """And the other way round: an end of a sequence that only one of them weighs."""
    ends = torch.tensor([0.7, -0.4], dtype=torch.float64)
    steps = torch.tensor([[0.3, -0.2], [0.1, 0.5]], dtype=torch.float64)
    plain, ended = ff.structures.Sequence(steps), ff.structures.Sequence(steps, start=ends)
    scores, prior = SEQUENCE.scores(2), SEQUENCE.scores(seed=5)
    moved = torch.cat(
        [ends.unsqueeze(0), torch.zeros(2, 2).double()]
    )  # the same as scores of parts
    for estimator in (DRAWS, ff.Dense()):
        found = ff.expect(free, scores, estimator, plain).kl(prior, prior_over=ended)
        same(found, ff.expect(free, scores, estimator, plain).kl(prior + moved, prior_over=plain))
        found = ff.expect(free, scores, estimator, ended).kl(prior, prior_over=plain)
        wanted = ff.expect(free, scores + moved, estimator, plain).kl(prior, prior_over=plain)
        same(found, wanted)


def test_from_uniform_where_only_the_number_of_structures_is_known():
    """The sum over all matchings is hard, but how many there are is not."""
    scores = torch.randn(2, 10, 10, generator=seeded())
    out = ff.expect(lambda a, r: a.flatten(1).sum(1), scores, ff.SparseMarginal(), ASSIGNMENT)
    torch.testing.assert_close(out.kl(), math.log(math.factorial(10)) - out.entropy)
    with pytest.raises(NotImplementedError, match="log_partition"):
        out.kl(torch.randn(10, 10))
