"""Trials: what is hidden is nobody's to learn from, and the better weight is found."""

import torch

import fewfold as ff
from fewfold.recommender.models.fastvae.shortcut import Directions
from fewfold.recommender.models.fastvae.shortcut_weight import Trial, tuned_weight
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
