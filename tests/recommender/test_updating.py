"""A later log is added to a model without training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewfold as ff
from fewfold.recommender.errors import DataError
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.journal import Event, Journal
from fewfold.recommender.merged_histories import Additions, merged_history
from fewfold.recommender.models.ease_update import with_new_items
from fewfold.recommender.models.model import FitOptions
from fewfold.recommender.models.registry import models
from tests.recommender.conftest import grouped

SMALL = ff.recommender.Training(epochs=3)
MODELS: dict[str, Any] = {
    "popularity": lambda: ff.recommender.MostPopular(),
    "item-knn": lambda: ff.recommender.ItemKNN(neighbours=40),
    "bm25": lambda: ff.recommender.ItemKNN(40, ff.recommender.BM25()),
    "ease": lambda: ff.recommender.EASE(5.0),
    "als": lambda: ff.recommender.ALS(factors=8),
    "session-knn": lambda: ff.recommender.SessionKNN(),
    "fastvae": lambda: ff.recommender.VAE(hidden=8, latent=3, shortcut=4),
    "transformer": lambda: ff.recommender.Transformer(width=8),
    "blend": lambda: ff.recommender.Blend(
        ff.recommender.EASE(5.0), ff.recommender.ItemKNN(neighbours=40), weight=0.5
    ),
    "sparse-ease": lambda: ff.recommender.SparseEASE(),
}


def timed(log: dict[str, list[Any]], start: int) -> dict[str, list[Any]]:
    return {**log, "time": [start + number for number in range(len(log["user"]))]}


EARLY = timed(grouped(60), 1_700_000_000)
LATE = timed(
    {  # of the same taste as the other users of these
        "user": ["u0", "u4", "u8", "x", "x", "x", "u0"],
        "item": ["A!", "A!", "A!", "A!", "a1", "a2", "a3"],
    },
    1_700_100_000,
)
BOTH = {name: [*EARLY[name], *LATE[name]] for name in EARLY}


def fitted(name: str, log: Any = EARLY) -> ff.Recommender:
    return ff.Recommender(MODELS[name](), training=SMALL).fit(log, progress=False)


@pytest.mark.parametrize("name", MODELS)
def test_an_updated_model_knows_what_is_new(name: str, tmp_path: Path) -> None:
    before = fitted(name)
    before.save(tmp_path / "m")
    found = ff.Recommender.load(tmp_path / "m").update(LATE)
    report = found.update_report
    assert report is not None
    extendable = name != "sparse-ease"
    assert (report.users, report.items) == (1, int(extendable))
    assert report.left_out == ([] if extendable else ["A!"])
    assert found.users is not None
    assert found.users.tolist()[-1] == "x"
    assert ("A!" in found.items.tolist()) == extendable
    assert len(before.items) == 40
    if extendable:
        assert "A!" in found.recommend("u12", 40).items
        assert "A!" not in found.recommend("u0", 41).items  # taken up in the meantime
        assert np.isfinite(found.recommend_from_history(["A!"], 5).scores).all()
    if name not in ("popularity", "transformer"):  # one knows no tastes, one is hardly trained
        assert all(item.startswith(("a", "A!")) for item in found.recommend("x", 3).items)
    again = ff.Recommender.load(found.save(tmp_path / "n"))
    assert again.recommend(["x", "u0"], 5).items == found.recommend(["x", "u0"], 5).items
    assert f"{name if name != 'bm25' else 'item-knn'}: " in str(report)


@pytest.mark.parametrize("name", ["item-knn", "bm25", "ease", "session-knn", "blend"])
def test_what_is_known_is_scored_as_before(name: str) -> None:
    before, found = fitted(name), fitted(name).update(LATE)
    history = ["a1", "b2", "a5"]
    items = [item for item in before.items.tolist() if item not in history]
    one = before.recommend_from_history(history, 40, items=items)
    other = found.recommend_from_history(history, 40, items=items)
    if name != "session-knn":  # which has more sessions
        assert dict(one) == pytest.approx(dict(other), rel=1e-4, abs=1e-5)
    assert len(one) == len(other)


@pytest.mark.parametrize("name", ["popularity", "session-knn"])
def test_some_models_become_those_that_a_fit_gives(name: str, tmp_path: Path) -> None:
    fitted(name).save(tmp_path / "m")
    found = ff.Recommender.load(tmp_path / "m").update(LATE)
    refit = ff.Recommender(MODELS[name]()).fit(BOTH, progress=False)
    for history in (["A!"], ["a1", "b1"], []):
        one, other = (rec.recommend_from_history(history, 10) for rec in (found, refit))
        assert sorted(one.scores) == pytest.approx(sorted(other.scores))
    if name == "session-knn":
        assert len(found.state.fitted.offsets) == len(refit.state.fitted.offsets)  # type: ignore[attr-defined]
    assert found.recommend("u0", 39).scores == pytest.approx(refit.recommend("u0", 39).scores)


@pytest.mark.parametrize("name", ["item-knn", "bm25"])
def test_neighbours_of_new_items_are_those_of_a_fit(name: str) -> None:
    found, refit = fitted(name).update(LATE), fitted(name, BOTH)
    one, other = (rec.similar_items("A!", 40) for rec in (found, refit))
    assert dict(one) == pytest.approx(dict(other), rel=1e-5)
    for item in one.items:  # it is a neighbour of its neighbours, with the same similarity
        mine = dict(found.similar_items(item, 40))
        assert mine["A!"] == pytest.approx(dict(one)[item], rel=1e-5)


def test_the_nearest_of_known_and_new_items_remain() -> None:
    generator = torch.Generator().manual_seed(0)
    row, column = (torch.rand(60, 14, generator=generator) < 0.3).nonzero(as_tuple=True)
    log = Interactions.from_pairs(row, column, shape=(60, 14))
    old = Interactions.from_csr(log.to_csr()[:, :10])
    recipe = ff.recommender.ItemKNN(neighbours=3)
    found = recipe.updated(recipe.learn(old, FitOptions(progress=False)).fitted, log, log)
    whole = log.to_csr().toarray()
    similarity = whole.T @ whole / np.sqrt(np.outer(whole.sum(0), whole.sum(0)))
    before = similarity[:10, :10] - np.eye(10)
    third = np.sort(before, axis=1)[:, -3]
    similarity[:10, :10] = np.where(before >= third[:, None], before, 0)
    np.fill_diagonal(similarity, 0)
    for item in range(14):
        expected = np.sort(similarity[item])[::-1][:3]
        assert found.similarity[item].tolist() == pytest.approx(expected.tolist())  # type: ignore[attr-defined]
        mine = found.ids[item].numpy()  # type: ignore[attr-defined]
        assert similarity[item, mine] == pytest.approx(expected)


def test_a_new_item_is_regressed_as_ease_does() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = (torch.rand(50, 12, generator=generator) < 0.3).float()
    row, column = dense.nonzero(as_tuple=True)
    log = Interactions.from_pairs(row, column, shape=(50, 12))
    old = ff.recommender.EASE(2.0).fit(Interactions.from_csr(log.to_csr()[:, :10])).weights
    found = with_new_items(old, log, 2.0)
    known = dense[:, :10]
    gram = known.T @ known + 2.0 * torch.eye(10)
    columns = torch.linalg.solve(gram, known.T @ dense[:, 10:])
    torch.testing.assert_close(found[:10, 10:], columns)
    assert torch.equal(found[:10, :10], old)
    assert (found[10:, 10:] == 0).all()

    def objective(matrix: torch.Tensor) -> torch.Tensor:
        return (dense - dense @ matrix).square().sum() + 2.0 * matrix.square().sum()

    # Each row is the best one while all else stays.
    for item in (10, 11):
        alone = found.clone()
        alone[21 - item, :10] = 0
        alone.requires_grad_()
        (slope,) = torch.autograd.grad(objective(alone), alone)
        torch.testing.assert_close(slope[item, :10], torch.zeros(10), atol=1e-4, rtol=0)


def test_a_new_item_is_solved_as_als_does() -> None:
    before, found = fitted("als"), fitted("als").update(LATE)
    model, state = before.model, found.state
    assert isinstance(model, ff.recommender.ALS)
    recipe = model.resolved(40)
    assert state.history is not None
    known = before.fitted.queries(
        state.history.jagged.select(state.history.ids < 40)
    )[:, :-1].double()  # fmt: skip
    scores = found.fitted.score(
        state.history.jagged.select(state.history.ids < 40), torch.tensor([40])
    )
    users = (state.history.ids == 40).nonzero().squeeze(1)
    mine = known[state.history.row[users]]
    ridge = float(recipe.ridge(torch.tensor(float(len(mine))), len(known)))
    system = mine.T @ mine + recipe.unobserved_weight * known.T @ known
    vector = torch.linalg.solve(system + ridge * torch.eye(8), mine.sum(0))
    # Vectors of users change a little with the Gram matrix of the items.
    expected = known @ vector
    assert np.corrcoef(scores.squeeze(1), expected)[0, 1] > 0.999
    items = found.fitted.state()["items"].double()
    gram = items.T @ items
    torch.testing.assert_close(gram, torch.diag(gram.diagonal()), atol=1e-3, rtol=0)
    torch.testing.assert_close(
        gram.diagonal(), found.fitted.state()["gram"].double(), rtol=1e-4, atol=1e-5
    )


def test_only_what_is_known_and_nothing_new() -> None:
    rec = fitted("fastvae")
    same = rec.update({"user": ["u0"], "item": [rec.recommend("u0", 1).items[0]]})
    assert same.update_report is not None
    assert (same.update_report.pairs, same.update_report.items) == (1, 0)
    assert same.fitted is rec.fitted
    again = same.update({"user": ["u0"], "item": [rec.recommend("u0", 1).items[0]]})
    assert "there is nothing new" in str(again.update_report)
    assert again.state.data["pairs added later"] == 1


def test_order_continues(tmp_path: Path) -> None:
    log = {"user": ["a", "a", "a", "b"], "item": ["x", "y", "z", "x"], "time": [30, 10, 20, 5]}
    rec = ff.Recommender(ff.recommender.SessionKNN()).fit(log, progress=False)
    rec.save(tmp_path / "m")
    later = {"user": ["a", "a", "c", "c"], "item": ["w", "y", "z", "x"], "time": [7, 5, 9, 8]}
    for one in (rec, ff.Recommender.load(tmp_path / "m")):
        found = one.update(later)
        assert found.history is not None
        orders = [found.items.take(found.history.items_of(user, ordered=True)) for user in range(3)]
        assert orders == [["z", "x", "y", "w"], ["x"], ["x", "z"]]
        untimed = one.update({"user": ["a"], "item": ["w"]})
        assert untimed.history is not None
        assert untimed.items.take(untimed.history.items_of(0, ordered=True))[-1] == "w"


def test_dislikes_are_merged() -> None:
    before = Interactions.from_pairs([0, 1], [0, 1], shape=(2, 3))
    before = before.with_values(dislikes=Interactions.from_pairs([0, 1], [1, 2], shape=(2, 3)))
    later = Interactions.from_pairs([0, 1], [0, 1], shape=(2, 2))
    later = later.with_values(dislikes=Interactions.from_pairs([0], [1], shape=(2, 2)))
    # Its users are 0 and a new one, its items 1 and a new one.
    merged, added = merged_history(
        before, Additions(later, torch.tensor([0, 2]), torch.tensor([1, 3])), (3, 4)
    )
    assert list(zip(merged.row.tolist(), merged.ids.tolist(), strict=True)) == [
        (0, 0), (0, 1), (1, 1), (2, 3),
    ]  # fmt: skip
    assert list(zip(added.row.tolist(), added.ids.tolist(), strict=True)) == [(0, 1), (2, 3)]
    disliked = merged.dislikes
    assert disliked is not None
    assert list(zip(disliked.row.tolist(), disliked.ids.tolist(), strict=True)) == [(0, 3), (1, 2)]


def test_ids_take_the_types_of_the_model() -> None:
    text = ff.Recommender(ff.recommender.MostPopular()).fit(
        {"user": ["a", "b"], "item": ["x", "7"]}, progress=False
    )
    found = text.update({"user": [5, 5], "item": [7, 8]})
    assert found.items.tolist() == ["7", "x", "8"]
    assert found.users is not None
    assert found.users.tolist() == ["a", "b", "5"]
    numbers = ff.Recommender(ff.recommender.MostPopular()).fit(
        {"user": [1, 2], "item": [7, 8]}, progress=False
    )
    found = numbers.update({"user": ["1", "one", "3"], "item": ["9", "8", "eight"]})
    assert found.items.tolist() == [7, 8, 9]
    assert found.update_report is not None
    assert (found.update_report.pairs, found.update_report.unusable) == (1, 2)
    assert "2 ids that are not whole numbers" in str(found.update_report)


def test_who_has_nothing_that_counts_is_left_out() -> None:
    rec = fitted("sparse-ease")
    found = rec.update({"user": ["new", "other", "other"], "item": ["A!", "A!", "a1"]})
    assert found.update_report is not None
    assert (found.update_report.users, found.update_report.left_out) == (1, ["A!"])
    assert found.users is not None
    assert found.users.tolist()[60:] == ["other"]
    numbers = ff.Recommender(ff.recommender.MostPopular()).fit(
        {"user": [1, 2], "item": [7, 8]}, progress=False
    )
    found = numbers.update({"user": ["1", "one"], "item": ["7", "9"]})
    assert found.items.tolist() == [7, 8]
    assert found.update_report is not None
    assert "there is nothing new" in str(found.update_report)


def test_a_model_without_users_gets_items_only(tmp_path: Path) -> None:
    fitted("fastvae").save(tmp_path / "m", users=False)
    found = ff.Recommender.load(tmp_path / "m").update(LATE)
    assert found.users is None
    assert "A!" in found.items.tolist()
    assert found.update_report is not None
    assert found.update_report.users == 0
    assert found.state.data["after"] == {"users": 60, "items": 41, "pairs": 360}


def test_attributes_and_profiles_are_extended() -> None:
    people = {"user": [*(f"u{n}" for n in range(60)), "y"], "team": [*"rgb" * 20, "r"]}
    names = {"item": ["a1", "a2"], "name": ["one", "two"]}
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(
        EARLY,
        users_table=people,
        items_table=ff.recommender.ItemsTable(names, use=False),
        progress=False,
    )
    found = rec.update(LATE)
    assert found.attributes is not None
    assert found.attributes[found.items.tolist().index("A!")] == {}
    assert len(found.recommend("y", 41, filter_items=["a1"]).items) >= 39


def test_events_of_a_journal(tmp_path: Path) -> None:
    rec = fitted("ease")
    with Journal(tmp_path / "j") as journal:
        with pytest.raises(DataError, match="there are no events"):
            rec.update(journal=tmp_path / "j")
        journal.append([Event("u0", "A!"), Event("u4", "A!"), Event("new", "a1")])
    alone = rec.update(journal=tmp_path / "j")
    assert alone.update_report is not None
    assert (alone.update_report.pairs, alone.update_report.users) == (3, 1)
    both = rec.update(LATE, journal=tmp_path / "j")
    assert both.update_report is not None
    assert both.update_report.users == 2
    with pytest.raises(ValueError, match="name a log, or a journal"):
        rec.update()
    with pytest.raises(ValueError, match="core would be of a log"):
        rec.update(journal=tmp_path / "j", core=2)


def test_every_model_says_what_an_update_does() -> None:
    for name, model in models().items():
        assert model.update_note, name
