"""Models with weights: whole weights count like copies of users, and huge ones are bounded."""

from dataclasses import replace

import pytest
import torch

from fewfold.recommender import (
    ALS,
    BM25,
    EASE,
    VAE,
    Blend,
    Entmax,
    FullSoftmax,
    Interactions,
    ItemKNN,
    Jagged,
    Model,
    MostPopular,
    SampledSoftmax,
    SessionKNN,
    SparseEASE,
    Training,
)
from fewfold.recommender.models.fastvae.objectives import Objective
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.weighting import confidences, days_old, decayed, span_in_days
from fewfold.sampling import Uniform

WEIGHTED = [MostPopular(), ItemKNN(4), ItemKNN(4, BM25()), EASE(2.0), ALS(4, 0.003)]
DAY, NOW = 86_400, 1_600_000_000


def log(users: int = 60, items: int = 12, seed: int = 0) -> Interactions:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(users, items, generator=generator) < torch.linspace(0.15, 0.5, items)
    who, what = mask.nonzero().unbind(1)
    return Interactions.from_pairs(who, what, shape=(users, items))


def by_user(given: Interactions, weights: torch.Tensor) -> Interactions:
    return replace(given, weights=weights[given.row].float())


@pytest.mark.parametrize("model", [MostPopular(), ItemKNN(4), EASE(2.0)], ids=repr)
def test_a_user_with_a_whole_weight_counts_like_copies(model: Model, path: str) -> None:
    given = log()
    copies = 1 + torch.arange(given.users) % 3
    copied = given.select(torch.repeat_interleave(torch.arange(given.users), copies))
    found = model.learn(by_user(given, copies), FitOptions(progress=False)).fitted
    expected = model.learn(copied, FitOptions(progress=False)).fitted
    plain = model.learn(given, FitOptions(progress=False)).fitted
    history = given.jagged.rows(slice(0, 20))
    scores = [one.rank(history, 5).scores for one in (found, expected, plain)]
    torch.testing.assert_close(scores[0], scores[1], rtol=2e-4, atol=2e-4)
    assert not torch.allclose(scores[0], scores[2], rtol=1e-3)


def test_sparse_ease_counts_every_pair_alike(path: str) -> None:
    given, model = log(), SparseEASE(2.0, 5)
    assert not model.weighted
    states = [
        model.learn(one, FitOptions(progress=False)).fitted.state()
        for one in (given, by_user(given, 1.0 + torch.arange(given.users)))
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=0, atol=0)


@pytest.mark.parametrize("model", [*WEIGHTED, Blend(EASE(2.0), ItemKNN(4))], ids=repr)
def test_weights_of_one_change_nothing(model: Model) -> None:
    given = log()
    ones = replace(given, weights=torch.ones(given.pairs))
    options = FitOptions(progress=False)
    states = [model.learn(one, options).fitted.state() for one in (given, ones)]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-5, atol=1e-6)
    assert model.weighted


@pytest.mark.parametrize("model", WEIGHTED, ids=repr)
def test_a_count_of_a_billion_does_not_wreck_the_rankings(model: Model) -> None:
    given = log(users=300)
    raw = torch.ones(given.pairs)
    raw[7] = 1e9
    options = FitOptions(progress=False)
    history = given.jagged.rows(slice(100, 200))
    tops = [
        model.learn(one, options).fitted.rank(history, 3, exclude=history).ids
        for one in (given, replace(given, weights=confidences(raw)))
    ]
    same = (tops[0].unsqueeze(2) == tops[1].unsqueeze(1)).any(2).double().mean()
    assert float(same) > 0.9


@pytest.mark.parametrize(
    "objective",
    [FullSoftmax(), SampledSoftmax(Uniform(), samples=400), Entmax()],
    ids=["full", "sampled", "entmax"],
)
def test_losses_count_a_weight_of_two_twice(objective: Objective) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, items = torch.randn(2, 3, generator=generator), torch.randn(7, 3, generator=generator)
    if isinstance(objective, SampledSoftmax):
        objective.proposal.fit(items)
    history = Jagged(torch.tensor([0, 3, 5]), torch.tensor([0, 2, 3]))
    alone = Jagged(torch.tensor([3]), torch.tensor([0, 1, 1]))

    def loss(of: Jagged, weights: list[float] | None) -> torch.Tensor:
        given = None if weights is None else torch.tensor(weights)
        weighted: Objective = replace(objective, weights=given)  # type: ignore[type-var]
        return weighted(queries, items, of, torch.Generator().manual_seed(1))

    once = loss(history, None)
    torch.testing.assert_close(loss(history, [1.0, 1.0, 1.0]), once)
    torch.testing.assert_close(loss(history, [2.0, 2.0, 2.0]), 2 * once)
    if not isinstance(objective, Entmax):  # whose target is one distribution, not separate items
        twice = loss(history, [1.0, 2.0, 1.0])
        torch.testing.assert_close(twice, once + loss(alone, None))


def test_a_vae_learns_from_weights_and_reproduces_them() -> None:
    given = log(users=200)
    rare = torch.where(given.ids == 3, 0.05, 1.0)
    recipe = VAE(hidden=16, latent=4, shortcut=0)
    options = FitOptions(Training(epochs=20), progress=False)
    history = Jagged(torch.tensor([0]), torch.tensor([0, 1]))
    places = []
    for one in (given, replace(given, weights=rare)):
        top = recipe.learn(one, options).fitted.rank(history, 12).ids[0]
        places.append(int((top == 3).nonzero()))
    assert places[1] > places[0]
    assert places[1] == 11  # last: hardly anybody's


def test_directions_of_the_shortcut_use_roots_of_weights() -> None:
    given = log()
    weights = 1 + torch.arange(given.pairs) % 4
    found = Directions.find(replace(given, weights=weights.float()), 4, powers=(0.0, 0.0))
    matrix = torch.from_numpy(given.to_csr(weights.sqrt()).toarray()).double()
    expected = torch.linalg.eigvalsh(matrix.T @ matrix).flip(0)[:4]
    torch.testing.assert_close(found.values, expected, rtol=1e-3, atol=1e-3)


def test_models_that_ignore_weights_say_so() -> None:
    assert not SessionKNN().weighted
    assert Blend(SessionKNN(), EASE()).weighted


def test_confidences_have_mean_one_and_are_capped_at_ten_medians() -> None:
    raw = torch.tensor([1.0, 2.0, 3.0, 1e30])
    found = confidences(raw)
    assert float(found.mean()) == pytest.approx(1)
    assert float(found[3] / found[0]) == pytest.approx(25)  # ten times the median of 2.5
    torch.testing.assert_close(confidences(1000 * raw), found)
    slow = confidences(raw, "log")
    assert float(slow[2] / slow[0]) == pytest.approx(
        float(torch.log1p(torch.tensor(3 / 2.5)) / torch.log1p(torch.tensor(1 / 2.5)))
    )
    assert len(confidences(raw[:0])) == 0
    with pytest.raises(ValueError, match="weight_scale must be one of linear, log, got 'root'"):
        confidences(raw, "root")


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_decay_is_by_days_whatever_the_unit(unit: int) -> None:
    times = [(NOW - age * DAY) * unit for age in (0, 10, 20)]
    given = Interactions.from_pairs([0, 0, 0], [0, 1, 2], times, weights=[1, 1, 2])
    found = decayed(given, 10).weights
    assert found is not None
    torch.testing.assert_close(found, torch.tensor([1.5, 0.75, 0.75]))
    assert span_in_days(given) == pytest.approx(20)


def test_decay_needs_times_that_are_dates_and_never_reaches_zero() -> None:
    old = Interactions.from_pairs([0, 0], [0, 1], [NOW, NOW - 20_000 * DAY])
    weights = decayed(old, 0.1).weights
    assert weights is not None
    assert float(weights.min()) > 0
    with pytest.raises(ValueError, match="needs times, and this log has none"):
        days_old(Interactions.from_pairs([0], [0]))
    ranks = Interactions.from_pairs([0, 0], [0, 1], [1, 2])
    with pytest.raises(ValueError, match="the newest time is 2; convert the times"):
        days_old(ranks)
    assert span_in_days(ranks) is None
    with pytest.raises(ValueError, match="half_life"):
        decayed(old, 0)
