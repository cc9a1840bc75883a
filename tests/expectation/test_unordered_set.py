"""The unordered set estimator against all orders of all sets that may be drawn."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.expectation.estimators.unordered_set import first_draws
from fewfold.expectation.expect import latent_distribution
from tests.expectation.cases import BITS, CATEGORIES, FREE, ON_OFF, Cost, Latent, over, tuples
from tests.expectation.test_unbiased import check

UnorderedSet = ff.expectation.UnorderedSet


def in_order(probs: list[float]) -> float:
    """Probability that draws without replacement begin with these, in this order."""
    chance, left = 1.0, 1.0
    for own in probs:
        chance, left = chance * own / left, left - own
    return chance


def sets(probs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """All sets (s, size) of places, and the probability (s,) of each: the sum over its orders."""
    size = min(size, len(probs))
    places = torch.tensor(list(itertools.combinations(range(len(probs)), size)))
    chances = [
        sum(in_order(order) for order in itertools.permutations(own))
        for own in probs[places].tolist()
    ]
    return places, torch.tensor(chances, dtype=torch.float64)


def given(latent: Latent, places: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets are not drawn: row after row they are these."""
    probs = latent.log_probs(latent.scores()).exp()
    rest = (1 - probs[places].sum(1)).clamp(min=0).log()
    if places.shape[1] == len(probs):
        rest = torch.full_like(rest, -math.inf)
    valid = torch.ones(places.shape, dtype=torch.bool)
    found = latent.every[places]
    monkeypatch.setattr(latent.dist, "sample_distinct", lambda *_: (found, valid, rest))


@over(FREE)
@pytest.mark.parametrize(
    ("samples", "baseline"), [(1, False), (2, True), (3, False), (3, True), (8, True)]
)
def test_the_mean_gradient_is_exact(latent, samples, baseline, monkeypatch):
    places, chance = sets(latent.log_probs(latent.scores()).exp(), samples)
    assert float(chance.sum()) == pytest.approx(1)
    given(latent, places, monkeypatch)
    estimator = UnorderedSet(samples, baseline)
    out = check(latent, chance, partial(ff.expect, estimator=estimator), tol=1e-11)
    assert (out.calls == places.shape[1]).all()


def test_first_and_second_draws():
    """Against all orders; in the second row there are no more atoms than three."""
    probs = torch.tensor([[0.5, 0.2, 0.1, 0.05], [1e-9, 0.3, 0.0, 0.7 - 1e-9]], dtype=torch.float64)
    valid = probs > 0
    rest = torch.tensor([0.15, 0.0], dtype=torch.float64)
    first, shares = first_draws(probs.log(), valid, rest.log())
    for row in range(2):
        own = [i for i in range(4) if valid[row, i]]
        orders = list(itertools.permutations(own))
        chances = [in_order(probs[row, list(order)].tolist()) for order in orders]
        for i in range(4):
            begin = sum(c for o, c in zip(orders, chances, strict=True) if o[0] == i)
            assert float(first[row, i]) == pytest.approx(begin / sum(chances))
            for j in own if i in own else ():
                both = sum(c for o, c in zip(orders, chances, strict=True) if o[:2] == (i, j))
                right = (1 - probs[row, i]) * both / begin if i != j else probs[row, i]
                assert float(shares[row, i, j]) == pytest.approx(float(right))
        assert (shares[row][:, ~valid[row]] == 0).all()


def test_all_atoms_are_the_exact_sum():
    scores, cost = CATEGORIES.scores(3).requires_grad_(), Cost(CATEGORIES)
    scores.data[1, 2] = -math.inf  # a row with fewer
    found = []
    for estimator in (UnorderedSet(4), ff.Dense()):
        out = ff.expect(cost, scores, estimator)
        grads = torch.autograd.grad(out.surrogate.sum(), [scores, cost.weight])
        found.append([out.value, out.calls, *grads])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@over(FREE)
def test_it_varies_less_than_as_many_independent_samples(latent, monkeypatch):
    """Over all that may be drawn; and the baseline helps."""
    probs, cost = latent.log_probs(latent.scores()).exp(), Cost(latent)

    def spread(estimator, chance):
        rows = latent.scores().expand(len(chance), -1).clone().requires_grad_()
        out = ff.expect(cost, rows, estimator, latent.over)
        (found,) = torch.autograd.grad(out.surrogate.sum(), rows)
        return float(chance @ (found - chance @ found).square().sum(1))

    places, chance = tuples(probs, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(latent.dist, "sample", lambda *_: latent.every[places])
        independent = spread(ff.ScoreFunction(3, ff.expectation.LeaveOneOut()), chance)
    places, chance = sets(probs, 3)
    given(latent, places, monkeypatch)
    plain, own = (spread(UnorderedSet(3, baseline), chance) for baseline in (False, True))
    assert own < 0.7 * independent
    assert own < 0.7 * plain


@pytest.mark.parametrize("latent", [CATEGORIES, BITS, ON_OFF], ids=lambda latent: latent.name)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_sets_follow_their_law(latent, size):
    """Each of up to 56 shares is off by more than 5 deviations once in two million seeds."""
    draws = 20_000
    scores = latent.scores()
    dist = latent_distribution(scores.expand(draws, -1), ff.Dense(), latent.over, None)
    found, valid, rest = dist.sample_distinct(size, torch.Generator().manual_seed(0))
    assert valid.all()
    every = latent.every
    same = found.unsqueeze(2) == every
    which = (same if every.dim() == 1 else same.all(3)).long().argmax(2).sort(1).values
    assert (which.diff(dim=1) > 0).all(), "distinct"
    probs = latent.log_probs(scores).exp()
    torch.testing.assert_close(rest.exp(), 1 - probs[which].sum(1), rtol=0, atol=1e-12)
    places, chance = sets(probs, size)
    share = (which.unsqueeze(1) == places).all(2).double().mean(0)
    assert ((share - chance).abs() <= 5 * (chance * (1 - chance) / draws).sqrt()).all()


def test_many_bits_of_which_few_are_free():
    """No more vectors than there are, and none that is masked; long vectors stay distinct."""
    scores = torch.full((3, 40), -math.inf, dtype=torch.float64)
    scores[:, [3, 17]] = 0.3
    scores[2] = torch.linspace(-60, 60, 40)
    dist = latent_distribution(scores, ff.Dense(), BITS.over, None)
    found, valid, rest = dist.sample_distinct(6, torch.Generator().manual_seed(0))
    assert valid.sum(1).tolist() == [4, 4, 6]
    assert (rest[:2] == -math.inf).all()
    assert (found[:2, :4].sum(2) <= 2).all()
    for row in range(3):
        assert len(found[row, valid[row]].unique(dim=0)) == int(valid[row].sum())
    out = ff.expect(lambda atoms, row: atoms.sum(1), scores[:2], UnorderedSet(6), BITS.over)
    torch.testing.assert_close(out.value, 2 * scores[0, [3, 3]].sigmoid())
    assert out.calls.tolist() == [4, 4]
