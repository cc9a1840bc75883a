"""The half-life of interactions: chosen where tastes change, not where they do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewfold as ff
from fewfold.recommender import EASE, VAE, Interactions, MostPopular, SessionKNN
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.selection.half_life import Recency, choose_half_life
from fewfold.recommender.training.train_options import Deadline
from tests.cli.invoke import fewfold

DAY, NOW = 86_400, 1_600_000_000


def log(*, changes: bool, users: int = 400, items: int = 60, seed: int = 0) -> Interactions:
    """Users with a group of items; which items belong together changes 200 days ago, or never."""
    draw = np.random.default_rng(seed)
    rows = []
    shuffled = draw.permutation(items)
    for user in range(users):
        group = user % 6
        for _ in range(12):
            age = draw.uniform(0, 400)
            item = draw.choice(np.arange(group, items, 6))
            if changes and age > 100:
                item = shuffled[item]
            rows.append((user, item, NOW - int(age * DAY)))
    who, what, when = np.array(rows).T
    return Interactions.from_pairs(who, what, when)


def test_it_is_chosen_where_tastes_change() -> None:
    found = choose_half_life(log(changes=True), FitOptions(progress=False))
    assert found.half_life in (7, 30, 90)
    assert "NDCG@10 of" in str(found)
    assert choose_half_life(log(changes=True), FitOptions(progress=False)) == found


def test_it_is_none_where_they_do_not() -> None:
    found = choose_half_life(log(changes=False), FitOptions(progress=False), EASE(50.0))
    assert found.half_life is None
    assert "days NDCG@10 of ease" in found.why
    given = log(changes=False)
    assert found.applied(given) is given


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (Interactions.from_pairs([0, 1], [0, 1]), "no dates"),
        (Interactions.from_pairs([0, 1], [0, 1], [3, 4]), "no dates"),
        (Interactions.from_pairs([0, 1], [0, 1], [NOW, NOW + 60]), "too short"),
        (Interactions.from_pairs([0, 1], [0, 1], [NOW, NOW - 90 * DAY]), "too few users"),
    ],
)
def test_logs_that_cannot_tell(given: Interactions, why: str) -> None:
    found = choose_half_life(given, FitOptions(progress=False))
    assert found.half_life is None
    assert why in found.why


def test_it_is_not_tried_if_that_takes_too_long() -> None:
    passed = FitOptions(progress=False, deadline=Deadline.after(1e-9))
    assert "too long" in choose_half_life(log(changes=True), passed).why


def fit(given: Any, model: Any = None, **options: Any) -> ff.Recommender:
    rec = ff.Recommender(model or EASE(50.0))
    return rec.fit(given, progress=False, **options)


def test_a_given_half_life_weighs_the_log_and_is_saved(tmp_path: Path) -> None:
    given = log(changes=True)
    plain, fitted = fit(given), fit(given, half_life=30)
    assert plain.report is not None
    assert plain.report.recency is None  # a named model: nobody asked
    assert fitted.report is not None
    assert fitted.report.recency == Recency(30.0, "as given")
    assert "weights: ease uses them as confidence\nhalf-life: 30 days; as given" in str(
        fitted.report
    )
    assert fitted.report.as_dict()["recency"]["half_life"] == 30
    state, weights = fitted.fitted.state(), plain.fitted.state()
    assert not np.allclose(state["weights"], weights["weights"])
    fitted.save(tmp_path / "model")
    again = ff.Recommender.load(tmp_path / "model")
    assert again._state.recency == Recency(30.0, "as given")
    assert "half-life: 30 days; as given" in str(ff.recommender.inspect(tmp_path / "model"))
    assert fit(given, half_life="none").report.recency is None  # type: ignore[union-attr]


def test_auto_is_chosen_on_the_training_part_and_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = choose_half_life

    def spy(part: Interactions, *args: Any, **options: Any) -> Recency:
        seen.append(part.pairs)
        return plain(part, *args, **options)

    monkeypatch.setattr("fewfold.recommender.fit_job.choose_half_life", spy)
    given = log(changes=True)
    fitted = fit(given, half_life="auto", test=0.2, refit=True)
    assert len(seen) == 1
    assert seen[0] < 0.85 * given.pairs
    assert fitted.report is not None
    assert fitted.report.recency is not None
    assert "NDCG@10 of ease" in fitted.report.recency.why  # a named model is tried itself


def test_models_that_ignore_weights_say_so() -> None:
    given = log(changes=True, users=80)
    found = fit(given, SessionKNN(), half_life=30).report
    assert found is not None
    assert found.recency == Recency(None, "session-knn ignores weights")
    weighted = Interactions.from_pairs(
        given.row, given.ids, given.times, weights=np.ones(given.pairs)
    )
    assert "weights: session-knn ignores them" in str(fit(weighted, SessionKNN()).report)


def test_the_automatic_choice_tries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fewfold.recommender.models.auto.choose",
        lambda part, options, **_: (MostPopular(), None),
    )
    rec = ff.Recommender().fit(log(changes=True), progress=False)
    assert rec.report is not None
    assert rec.report.recency is not None
    assert rec.report.recency.half_life is not None
    untimed = Interactions.from_pairs([0, 1], [0, 1])
    assert ff.Recommender().fit(untimed, progress=False).report.recency is None  # type: ignore


def test_errors() -> None:
    given = log(changes=False, users=20)
    with pytest.raises(ValueError, match="half_life must be days, 'auto' or 'none', got 'week'"):
        fit(given, half_life="week")
    with pytest.raises(ValueError, match="half_life must be"):
        fit(given, half_life=-1)
    with pytest.raises(ValueError, match="needs times, and this log has none"):
        fit(Interactions.from_pairs([0, 1], [0, 1]), half_life=30)
    assert "days above 0, auto or none" in fewfold("fit", "x.csv", "--half-life", "0").err
    assert VAE().weighted
