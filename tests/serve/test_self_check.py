"""The check of a model before it takes over."""

from dataclasses import replace

import pytest
import torch

import fewfold as ff
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.serve.self_check import self_check

LOG = {"user": [1, 1, 2, 2, 3, 3], "item": [1, 2, 2, 3, 3, 1]}  # fewer items than are asked for


@pytest.mark.parametrize("model", ["popularity", "item-knn", "ease", "als", "sparse-ease"])
def test_a_fitted_model_passes(model: str) -> None:
    from fewfold.recommender.models.registry import models

    state = ff.Recommender(models()[model]()).fit(LOG, progress=False).state
    self_check(state)


class Wrong(Fitted):
    """Changes the rankings of another model."""

    def __init__(self, fitted: Fitted, change: object) -> None:
        self.items, self._fitted, self._change = fitted.items, fitted, change

    def rank(self, *arguments: object, **options: object) -> Ranking:
        found = self._fitted.rank(*arguments, **options)  # type: ignore[arg-type]
        return self._change(*found)  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda ids, scores: Ranking(ids, scores.clone().fill_(torch.nan)), "not finite"),
        (lambda ids, scores: Ranking(ids, scores.flip(1)), "not sorted|not finite"),
        (lambda ids, scores: Ranking(ids.clamp(max=0), scores), "an item twice, or one of"),
        (lambda ids, scores: Ranking(ids[:, :1], scores[:, :1]), "1 items .* instead of 3"),
    ],
)
def test_wrong_answers_are_found(change: object, text: str) -> None:
    state: RecommenderState = ff.Recommender(ff.recommender.EASE()).fit(LOG, progress=False).state
    with pytest.raises(ValueError, match=text):
        self_check(replace(state, fitted=Wrong(state.fitted, change)))
