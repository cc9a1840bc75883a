"""Search of settings: what is suggested, what it is judged by, and what is set aside."""

from typing import Any

import numpy as np
import pytest

import fewfold as ff
from fewfold.recommender import (
    EASE,
    NDCG,
    HoldOut,
    ItemKNN,
    Recall,
    SettingsSearch,
    Suggest,
    Suggestions,
)
from tests.test_html import parsed

LOG = ff.read_log(ff.recommender.bundled(), core=18)


def ease(suggest: Suggest) -> EASE:
    """EASE with any penalty."""
    return EASE(l2=suggest.suggest_float("l2", 1, 10_000, log=True))


def test_what_is_suggested() -> None:
    suggest = Suggestions(np.random.default_rng(0))
    draws = {
        "float": [suggest.suggest_float("float", -1, 2) for _ in range(400)],
        "log": [suggest.suggest_float("log", 0.01, 100, log=True) for _ in range(400)],
        "int": [suggest.suggest_int("int", 3, 5) for _ in range(400)],
        "logint": [suggest.suggest_int("logint", 1, 1000, log=True) for _ in range(400)],
        "kind": [suggest.suggest_categorical("kind", ["a", None]) for _ in range(400)],
    }
    assert suggest.values == {name: values[-1] for name, values in draws.items()}
    assert -1 <= min(draws["float"]) < -0.9 < 1.9 < max(draws["float"]) <= 2
    assert 0.01 <= min(draws["log"]) < 0.02 < 50 < max(draws["log"]) <= 100
    assert 0.4 < np.mean(np.array(draws["log"]) < 1) < 0.6  # uniform in the logarithm
    assert set(draws["int"]) == {3, 4, 5}
    assert all(type(one) is int for one in draws["logint"])
    assert 0.3 < np.mean(np.array(draws["logint"]) < 32) < 0.7
    assert set(draws["kind"]) == {"a", None}
    assert suggest.suggest_float("one", 2, 2, log=True) == 2
    for wrong in ((2, 1, False), (0, 1, True)):
        with pytest.raises(ValueError, match="x: low must be at most high"):
            suggest.suggest_float("x", *wrong[:2], log=wrong[2])
    with pytest.raises(ValueError, match="x: low must be at most high"):
        suggest.suggest_int("x", 2, 1)
    with pytest.raises(ValueError, match=r"x: .* at least 1 if log; got 0 and 5"):
        suggest.suggest_int("x", 0, 5, log=True)
    with pytest.raises(ValueError, match="x: choices must have at least one value"):
        suggest.suggest_categorical("x", [])


def test_a_search_finds_the_best_of_what_it_tried() -> None:
    search = SettingsSearch(LOG, ease)
    found = search.run(6, progress=False)
    assert [one.score for one in found.tried] == sorted(
        (one.score for one in found.tried), reverse=True
    )
    assert found.best is found.tried[0].model
    assert len({one.values["l2"] for one in found.tried}) == 6
    again = SettingsSearch(LOG, ease).run(3, progress=False)
    assert {one.values["l2"]: one.score for one in again.tried}.items() <= {
        one.values["l2"]: one.score for one in found.tried
    }.items()
    assert SettingsSearch(LOG, ease, seed=1).run(1, progress=False).tried[0].values["l2"] not in {
        one.values["l2"] for one in found.tried
    }
    assert f"{found.tried[0].score:.4f}" in str(found).splitlines()[3]
    assert parsed(found).rows[1][0] == "ease"
    assert len(parsed(found).rows) == 7


def test_the_test_part_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Spy(EASE):
        def learn(self, log: Any, options: Any) -> Any:
            seen.append(log)
            return EASE(self.l2).learn(log, options)

    held_out = HoldOut(0.25, "random")
    SettingsSearch(LOG, lambda suggest: Spy(), test=held_out, seed=3).run(1, progress=False)
    rec = ff.Recommender(Spy(), seed=3).fit(LOG, test=held_out, progress=False)
    searched, fitted = (set(zip(log.row.tolist(), log.ids.tolist(), strict=True)) for log in seen)
    assert searched < fitted  # what the evaluation holds out, the search has not learned from
    assert 0.7 < len(searched) / len(fitted) < 0.8
    assert rec.evaluation is not None


def test_the_score_is_that_of_an_evaluation() -> None:
    search = SettingsSearch(LOG, ease, test=0.0, metric=Recall(5), seed=2)
    (tried,) = search.run(1, progress=False).tried
    rec = ff.Recommender(EASE(tried.values["l2"]), seed=3).fit(
        LOG.interactions, test=HoldOut(0.2), progress=False
    )
    assert rec.evaluation.split == search.split
    found = rec.evaluation.overall[NDCG(10)].mean
    same = SettingsSearch(LOG, lambda suggest: EASE(tried.values["l2"]), test=0.0, seed=2)
    assert same.run(1, progress=False).tried[0].score == pytest.approx(found, abs=1e-12)


def test_any_recipe_and_any_trial() -> None:
    def recipe(suggest: Suggest) -> Any:
        if suggest.suggest_categorical("model", ["ease", "knn"]) == "ease":
            return ease(suggest)
        return ItemKNN(suggest.suggest_int("neighbours", 5, 100, log=True))

    search = SettingsSearch(LOG, recipe)
    found = search.run(6, progress=False)
    assert {type(one.model) for one in found.tried} == {EASE, ItemKNN}

    class Trial:  # with the methods that a trial of Optuna has
        def suggest_categorical(self, name: str, choices: Any) -> Any:
            return "knn"

        def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
            return 10

    fixed = SettingsSearch(LOG, lambda suggest: ItemKNN(10)).run(1, progress=False)
    assert search(Trial()) == fixed.tried[0].score


def test_limits_and_errors() -> None:
    search = SettingsSearch(LOG, ease)
    assert len(search.run(9, time_budget=0.0, progress=False).tried) == 1
    with pytest.raises(ValueError, match="trials"):
        search.run(0)
    with pytest.raises(TypeError, match="recipe must return a model such as EASE"):
        SettingsSearch(LOG, lambda suggest: 3).run(1, progress=False)
    with pytest.raises(TypeError, match="usr"):
        SettingsSearch(LOG, ease, usr="x")
