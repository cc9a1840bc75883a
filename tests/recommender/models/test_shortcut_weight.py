"""Trials: what is hidden is nobody's to learn from, and the better weight is found."""

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.recommender import EASE, Blend, Jagged, Training
from fewfold.recommender.models.fastvae.shortcut import L2_PER_USER, Directions, Shortcut
from fewfold.recommender.models.fastvae.shortcut_weight import _L2, Trial, tuned_weight
from fewfold.recommender.models.model import FitOptions
from tests.recommender.conftest import grouped


def test_a_trial_takes_a_few_pairs_of_a_few_users() -> None:
    log = ff.read_log(grouped(200)).interactions
    trial = Trial.of(log, seed=1)
    assert trial is not None
    hidden = len(trial.hidden.values)
    assert trial.rest.pairs + hidden == log.pairs
    assert 0.03 * log.pairs < hidden < 0.07 * log.pairs  # a fifth of a quarter of the users
    assert len(trial.visible.lengths) == len(trial.hidden.lengths) == 50
    again = Trial.of(log, seed=1)
    assert again is not None
    assert torch.equal(again.hidden.values, trial.hidden.values)
    assert Trial.of(log.select(torch.arange(40))) is None  # too few to tell anything


def test_the_shortcut_is_taken_where_it_helps_alone() -> None:
    log = ff.read_log(grouped(300)).interactions
    trial = Trial.of(log)
    assert trial is not None
    model = ff.recommender.FastVAE(log.items, hidden=8, latent=3, layers=0).eval()  # knows nothing
    directions = Directions.find(trial.rest, 8)
    found = tuned_weight(model, directions, trial)
    assert found.strength > 0
    assert found.of(directions, log.users) is not None
    useless = Directions(torch.zeros_like(directions.vectors), directions.values, directions.scale)
    nothing = tuned_weight(model, useless, trial)
    assert nothing.strength == 0
    assert nothing.of(useless, log.users) is None


def test_the_weight_is_refined_around_the_best_of_the_grid(monkeypatch) -> None:
    log = ff.read_log(grouped(300)).interactions
    trial = Trial.of(log, seed=2)
    assert trial is not None
    model = ff.recommender.FastVAE(log.items, hidden=8, latent=3, layers=0).eval()
    directions = Directions.find(trial.rest, 8)
    tried: list[float] = []
    plain = Directions.shortcut

    def spy(self: Directions, l2: float, strength: float) -> Shortcut:
        tried.append(l2 / trial.rest.users / L2_PER_USER)
        return plain(self, l2, strength)

    # The quality of a weight peaks between the values of the grid.
    def quality(scores: Tensor, hidden: Jagged) -> float:
        return -abs(tried[-1] - 1.9) if tried else -9.0

    monkeypatch.setattr(Directions, "shortcut", spy)
    monkeypatch.setattr("fewfold.recommender.models.fastvae.shortcut_weight._ndcg", quality)
    found = tuned_weight(model, directions, trial)
    assert found.l2 == pytest.approx(2 * L2_PER_USER)
    assert tried == pytest.approx([*_L2, 1.0, 0.5, 2.0])


def test_a_known_weight_leaves_every_pair_to_training() -> None:
    log = ff.read_log(grouped(200)).interactions
    options = FitOptions(Training(epochs=1), progress=False)
    model = ff.VAE(hidden=8, latent=3, shortcut=8)
    first = model.learn(log, options)
    assert first.log.pairs < log.pairs
    found = first.reusable()
    again = model.reusing(found)
    assert again == model
    second = again.learn(log, options)
    assert second.log.pairs == log.pairs
    assert second.reusable() == found
    blend = Blend(EASE(), model).reusing({f"second.{name}": at for name, at in found.items()})
    assert blend.second.learn(log, options).reusable() == found
