"""The recommender as its user meets it: questions, answers, new items, evaluation."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import fewfold as ff
from fewfold.recommender.errors import DataError
from fewfold.recommender.evaluation.model_evaluation import Evaluation
from fewfold.recommender.reading.fitted_rules import read_by_fitted_rules
from tests.recommender.conftest import grouped


def taste(items: list[str]) -> set[str]:
    return {item[0] for item in items}


def test_a_history_is_answered_with_its_own_taste(fitted: ff.Recommender) -> None:
    found = fitted.recommend_from_history(["a1", "a2", "a3"], k=7)
    assert taste(found.items) == {"a"}
    assert set(found.items) == {f"a{i}" for i in range(10)} - {"a1", "a2", "a3"}
    assert found.scores == sorted(found.scores, reverse=True)


def test_one_and_many_are_one_method(fitted: ff.Recommender) -> None:
    many = fitted.recommend(["u0", "u1", "u2"], k=3)
    assert len(many) == 3
    for user, one in zip(["u0", "u1", "u2"], many, strict=True):
        alone = fitted.recommend(user, k=3)
        assert alone.items == one.items
        assert alone.of == one.of == user
    histories = [["a1", "b2"], [], ["c3"]]
    batch = fitted.recommend_from_history(histories, k=4)
    for history, row in zip(histories, batch.items, strict=True):
        assert fitted.recommend_from_history(history, k=4).items == row


def test_what_was_touched_is_left_out_unless_asked_for(fitted: ff.Recommender) -> None:
    log = grouped()
    mine = {i for u, i in zip(log["user"], log["item"], strict=True) if u == "u5"}
    assert not mine & set(fitted.recommend("u5", k=40).items)
    assert len(fitted.recommend("u5", k=40).items) == 34
    everything = fitted.recommend("u5", k=40, exclude_seen=False).items
    assert mine < set(everything)
    assert len(everything) == 40


def test_items_and_filter_items(fitted: ff.Recommender) -> None:
    some = ["b1", "b2", "b3", "c1"]
    found = fitted.recommend_from_history(["b5"], k=10, items=some, filter_items=["b2", "nothing"])
    assert set(found.items) == {"b1", "b3", "c1"}
    assert found.items[-1] == "c1"
    with pytest.raises(ValueError, match="no item 'zz' in this model"):
        fitted.recommend_from_history(["b5"], items=["zz"])


def test_unknown_ids_are_named(fitted: ff.Recommender) -> None:
    with pytest.raises(ValueError, match=r"no user 'nobody' in this model.*recommend_from_history"):
        fitted.recommend(["u1", "nobody"])
    found = fitted.recommend_from_history(["a1", "zz"], k=2)
    assert found.unknown == ["zz"]
    assert taste(found.items) == {"a"}
    with pytest.raises(TypeError, match="a history is a list of items"):
        fitted.recommend_from_history("a1")


def test_rank_items_orders_what_it_is_given(fitted: ff.Recommender) -> None:
    found = fitted.rank_items("u0", ["c1", "a1", "b1"])
    assert sorted(found.items) == ["a1", "b1", "c1"]
    assert found.items[0] == "a1"  # the taste of u0
    assert [row[0] for row in fitted.rank_items(["u0", "u1"], ["a1", "b1"]).items] == ["a1", "b1"]


def test_similar_items_share_a_taste(fitted: ff.Recommender) -> None:
    found = fitted.similar_items("c4", k=5)
    assert taste(found.items) == {"c"}
    assert "c4" not in found.items
    assert len(fitted.similar_items(["a1", "d1"], k=2)) == 2
    assert "c1" not in fitted.similar_items("c4", k=9, filter_items=["c1"]).items


def test_an_item_without_neighbours_is_like_none() -> None:
    """A similarity of exactly 0 is none, however many are asked for."""
    log = {"user": ["u", "u", "v", "v", "w"], "item": ["a", "b", "a", "b", "alone"]}
    rec = ff.Recommender(ff.recommender.ItemKNN(3)).fit(log, progress=False)
    assert rec.similar_items(["a", "alone"], k=3).items == [["b"], []]
    assert rec.similar_items("a", k=3).scores == [pytest.approx(1.0)]


@pytest.mark.parametrize(
    "recipe", [ff.recommender.EASE(10.0), ff.recommender.ItemKNN(5)], ids=["EASE", "ItemKNN"]
)
def test_an_item_counts_once_in_a_history_in_any_order(recipe: ff.recommender.Baseline) -> None:
    rec = ff.Recommender(recipe).fit(grouped(), progress=False)
    once = rec.recommend_from_history(["a1", "b3"], k=9)
    again = rec.recommend_from_history(["b3", "a1", "b3", "b3", "nothing"], k=9)
    assert (again.items, again.scores) == (once.items, once.scores)


def test_a_sparse_matrix_comes_in_and_asks(tmp_path: Path) -> None:
    matrix = scipy.sparse.random(60, 30, density=0.2, random_state=0, format="csr")
    matrix.data[:] = 3.0
    rec = ff.Recommender(ff.recommender.ItemKNN(5)).fit(matrix)
    assert rec.items.tolist() == list(range(30))
    batch = rec.recommend_from_history(matrix[:4], k=5)
    assert batch.items == rec.recommend([0, 1, 2, 3], k=5).items
    assert all(isinstance(item, int) for item in batch.items[0])


@pytest.mark.parametrize(
    "recipe",
    [ff.recommender.EASE(10.0), ff.recommender.ItemKNN(5), ff.recommender.MostPopular()],
    ids=lambda r: type(r).__name__,
)
def test_simple_models_answer_and_come_back(
    recipe: ff.recommender.Baseline, tmp_path: Path
) -> None:
    rec = ff.Recommender(recipe).fit(grouped())
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    users = [f"u{i}" for i in range(20)]
    assert again.recommend(users, k=8).items == rec.recommend(users, k=8).items
    assert repr(again.model) == repr(recipe)
    assert not hasattr(recipe, "counts")  # what was given is a recipe and stays one


def test_new_items_are_folded_in(fitted: ff.Recommender) -> None:
    new = {"user": ["u0", "u4", "u8", "x", "x"], "item": ["A!", "A!", "A!", "A!", "a1"]}
    more = fitted.add_items(new)
    assert len(more.items) == 41
    assert "A!" in more.recommend("u12", k=8).items  # of the same taste
    assert "A!" not in more.recommend("u13", k=8).items
    assert "A!" not in more.recommend("u0", k=41).items  # touched in the meantime
    assert taste(more.recommend_from_history(["A!"], k=5).items) == {"a"}
    assert taste(more.recommend("x", k=3).items) == {"a"}
    assert len(fitted.items) == 40  # as it was
    with pytest.raises(ValueError, match="nothing to add"):
        fitted.add_items({"user": ["u0"], "item": ["a1"]})
    with pytest.raises(ValueError, match="fit it again"):
        ff.Recommender(ff.recommender.SparseEASE()).fit(grouped()).add_items(new)


def test_names_show_up_in_answers(fitted: ff.Recommender, tmp_path: Path) -> None:
    table = tmp_path / "names.csv"
    table.write_text('id,name,group\na1,"Tea, green",drinks\na2,Milk,drinks\nzz,Nothing,none\n')
    import copy

    rec = copy.copy(fitted).attach(table)
    found = rec.recommend_from_history(["a3"], k=10, items=["a1", "a2", "a4"])
    shown = dict(zip(found.items, found.attributes, strict=True))
    assert shown["a1"] == {"name": "Tea, green", "group": "drinks"}
    assert shown["a4"] == {}
    assert "Tea, green" in str(found)
    assert {"rank", "item", "score"} <= set(found.to_dicts()[0])
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    assert again.recommend_from_history(["a3"], k=10, items=["a1"]).attributes == [shown["a1"]]
    with pytest.raises(ff.recommender.DataError, match="no row of the table"):
        fitted.attach({"id": ["q"], "name": ["r"]})
    assert fitted.attributes is None


def test_evaluation_masks_what_was_known(fitted: ff.Recommender) -> None:
    log = grouped()
    mine = {i for u, i in zip(log["user"], log["item"], strict=True) if u == "u0"}
    other = sorted({f"a{i}" for i in range(10)} - mine)
    held_out = {
        "user": ["u0"] * len(other) + ["u0", "new"],
        "item": [*other, min(mine), "a1"],
    }
    found = fitted.evaluate(held_out, metrics=(ff.recommender.Recall(4), ff.recommender.Recall(40)))
    assert "1 of which are in the training log" in found.split
    assert found.pairs == len(other) + 1
    warm = found.slices["users with a history (warm)"]
    assert warm[ff.recommender.Recall(4)].mean == 1.0  # exactly the four that are left of the taste
    assert found.slices["users without one (cold)"].users == 1


def test_items_never_seen_are_counted_and_missed(fitted: ff.Recommender) -> None:
    found = fitted.evaluate({"user": ["u0", "u1"], "item": ["never", "c1"]})
    assert found.cold_pairs == 1
    assert found.pairs == 2
    assert found.overall.users == 2
    assert found.slices["items seen in training (warm) alone"].users == 1


def test_held_out_by_time_where_there_is_time() -> None:
    # Everybody comes six times; the last times of 40 users are after 199.
    log = {**grouped(40), "time": [i % 6 * 40 + i // 6 for i in range(240)]}
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(log, test=0.25)
    assert "the last 25% of all interactions, those after time 179" in str(rec.evaluation)
    timeless = ff.Recommender(ff.recommender.EASE(5.0)).fit(grouped(40), test=0.25)
    assert "of each user's items, at random (seed 0)" in str(timeless.evaluation)
    assert rec.report is not None
    assert rec.report.cost.memory > 0
    refitted = ff.Recommender(ff.recommender.EASE(5.0)).fit(log, test=0.25, refit=True)
    assert refitted.evaluation.as_dict() == rec.evaluation.as_dict()
    assert not torch.equal(refitted.fitted.state()["weights"], rec.fitted.state()["weights"])


def test_an_approximate_search_says_how_good_it_is(fitted: ff.Recommender) -> None:
    search = fitted.index(recall=1.0, k=5)
    assert search.recall == 1.0
    users = [f"u{i}" for i in range(30)]
    exact = fitted.recommend(users, k=5)
    assert fitted.recommend(users, k=5, search=search).items == exact.items
    some = fitted.recommend("u0", k=5, search=search, items=["b1", "b2"], filter_items=["b2"])
    assert some.items == ["b1"]


def test_the_same_seed_gives_the_same_model() -> None:
    def weights(seed: int) -> dict[str, torch.Tensor]:
        recipe = ff.VAE(hidden=8, latent=3, layers=1, shortcut=4)
        rec = ff.Recommender(
            recipe, training=ff.recommender.Training(epochs=3, batch=32), seed=seed
        )
        return rec.fit(grouped(80), progress=False).fitted.state()

    first, second, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(
    "log",
    [
        {"user": ["a"], "item": ["x"]},
        {"user": ["a", "a", "a"], "item": ["x", "y", "z"]},
        {"user": ["a", "b", "c"], "item": ["x", "x", "x"]},
    ],
    ids=["one pair", "one user", "one item"],
)
def test_the_smallest_logs_work(log: dict[str, list[str]], tmp_path: Path) -> None:
    for recipe in (
        ff.VAE(),
        ff.recommender.EASE(),
        ff.recommender.ItemKNN(),
        ff.recommender.MostPopular(),
    ):
        rec = ff.Recommender(recipe, training=ff.recommender.Training(epochs=2)).fit(
            log, progress=False
        )
        again = ff.Recommender.load(rec.save(tmp_path / type(recipe).__name__))
        assert again.recommend("a", k=5, exclude_seen=False).items == (
            rec.recommend("a", k=5, exclude_seen=False).items
        )
        assert np.isfinite(again.recommend_from_history([], k=1).scores).all()


def test_before_fit_it_says_so() -> None:
    with pytest.raises(ValueError, match="is not fitted; call fit"):
        ff.Recommender().recommend("a")
    with pytest.raises(ValueError, match=r"leaves nothing to test.*--test 0"):
        ff.Recommender(ff.recommender.EASE()).fit(
            {"user": ["a", "b"], "item": ["x", "y"]}, test=0.2
        )


def test_a_filter_understands_every_kind_of_number() -> None:
    log = {"user": [1, 1, 2, 2, 3, 3], "item": [7, 8, 7, 9, 8, 9]}
    rec = ff.Recommender(ff.recommender.EASE(1.0)).fit(log)
    for seven in (7, 7.0, "7", np.int32(7), np.array(7), torch.tensor(7), np.array([7.0])):
        assert 7 not in rec.recommend(3, k=5, filter_items=seven, exclude_seen=False).items
    assert rec.recommend(torch.tensor(3), k=1).of == 3
    assert rec.recommend("3", k=1).of == 3  # as it was written
    assert sorted(rec.recommend(3, k=10**9, exclude_seen=False).items) == [7, 8, 9]


def test_attributes_never_replace_the_answer(fitted: ff.Recommender) -> None:
    import copy

    table = {"item": ["a1", "a2"], "name": ["x", "y"], "score": ["9", "8"], "rank": ["p", "q"]}
    rec = copy.copy(fitted).attach(table)
    found = rec.recommend_from_history(["a3"], k=2, items=["a1", "a2"])
    first = found.to_dicts()[0]
    assert first["item"] in ("a1", "a2")
    assert first["rank"] == 1
    assert isinstance(first["score"], float)
    assert first["score_"] in ("9", "8")
    assert "x" in str(found)


def test_the_key_of_a_table_is_the_column_that_names_most_items() -> None:
    ids = list(range(1900, 2100))
    rec = ff.Recommender(ff.recommender.MostPopular()).fit({"user": [0] * len(ids), "item": ids})
    rows = [*ids, *range(5000, 5200)]  # half of the rows are of other items, every year is one
    table = {"year": [1990 + i % 20 for i in range(len(rows))], "movie_id": rows}
    shown = rec.attach(table).recommend_from_history([], k=1, items=[1950])
    assert shown.attributes == [{"year": str(1990 + 50 % 20)}]


def test_an_item_of_strangers_harms_nobody(fitted: ff.Recommender) -> None:
    more = fitted.add_items({"user": ["p", "q"], "item": ["X", "Y"]})
    assert len(more.recommend(["u0", "p"], k=45).items[0]) == 36
    assert np.isfinite(more.recommend_from_history(["X"], k=5).scores).all()
    with pytest.raises(ValueError, match="index is of another model"):
        more.recommend("u0", search=fitted.index(recall=0.5))
    assert fitted.add_items({"user": ["u0"], "item": [3]}).items.tolist()[-1] == "3"


def test_the_report_says_what_was_learned_from() -> None:
    log = grouped(400)
    training = ff.recommender.Training(epochs=1, batch=64)
    recipe = ff.VAE(hidden=8, latent=3, layers=0, shortcut=4)
    some = ff.Recommender(recipe, training=training).fit(log, progress=False)
    assert 2200 < some._state.learned_from["pairs"] < 2400  # a few were kept to weigh the shortcut
    assert not some._state.learned_from["everything"]
    rec = ff.Recommender(recipe, training=training).fit(log, test=0.2, refit=True, progress=False)
    assert rec._state.learned_from["pairs"] == 2400
    assert rec._state.learned_from["everything"]


def test_a_fit_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rec = ff.Recommender(ff.recommender.EASE(1.0)).fit(grouped(40))
    before = rec.recommend("u0", k=3).items

    def gone(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fewfold.recommender.fit_job.assess", gone)
    with pytest.raises(KeyboardInterrupt):
        rec.fit({"user": ["a", "a", "b", "b"] * 3, "item": [*"xyzwxyxywzxw"]}, test=0.4)
    assert rec.recommend("u0", k=3).items == before


def test_coarse_times_are_said_to_be() -> None:
    log = {**grouped(40), "time": [2023] * 20 + [2024] * 220}
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(log, test=0.2)
    assert "times are too coarse for a split by time" in str(rec.evaluation)
    days = {**grouped(40), "time": [f"2024-01-{1 + i % 6 * 4 + i // 60:02}" for i in range(240)]}
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(days, test=0.25)
    assert "those after 2024-01-18 00:00:00" in str(rec.evaluation)


def test_the_threshold_of_ratings_is_remembered() -> None:
    rated = {**grouped(60), "rating": [5, 1] * 180}
    rec = ff.Recommender(ff.VAE(8, 3, 0, 4), training=ff.recommender.Training(epochs=1))
    rec.fit(rated, min_rating=4, progress=False)
    low = {"user": ["u0", "u1"], "item": ["new", "newer"], "rating": [5, 1]}
    assert rec.add_items(low).items.tolist()[-1] == "new"
    assert rec.evaluate({"user": ["u0"], "item": ["b1"]}).pairs == 1  # which has none


def test_conditions_on_rows_are_remembered(tmp_path: Path) -> None:
    events = {**grouped(60), "event": ["buy", "view"] * 180}
    rec = ff.Recommender(ff.recommender.EASE(5.0)).fit(events, where="event=buy", progress=False)
    rec.save(tmp_path / "model")
    rec = ff.Recommender.load(tmp_path / "model")
    more = {"user": ["u0", "u1"], "item": ["new", "newer"], "event": ["buy", "view"]}
    assert rec.evaluate(more).pairs == 1
    assert rec.evaluate(more, where="event=buy,view").pairs == 2
    bought = {"user": ["u0"], "item": ["new"]}  # which has no events
    with pytest.raises(DataError, match=r"no column for where='event=buy'.*where=\[\]"):
        rec.evaluate(bought)
    assert rec.evaluate(bought, where=[]).pairs == 1
    assert rec.evaluate(bought, where="").pairs == 1


def test_the_card_and_inspect_say_which_rows_counted_and_whom_was_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Evaluation, "sample", "a sample of 9 of 60 users")
    events = {**grouped(60), "event": ["buy", "view"] * 180}
    rec = ff.Recommender(ff.recommender.EASE(5.0))
    rec.fit(events, test=0.3, where=["event!=view", "user!=u|1"], progress=False)
    folder = rec.save(tmp_path / "model")
    card, found = (folder / "README.md").read_text(), ff.recommender.inspect(folder)
    assert "| rows where | event!=view and user!=u\\|1 |" in card
    assert "| rows left out by where | 180 |" in card
    assert "Ranked for a sample of 9 of 60 users, drawn at random." in card
    assert "180 of 360 rows left out by where event!=view and user!=u|1" in str(found)
    assert "(a sample of 9 of 60 users)" in str(found)
    monkeypatch.setattr(Evaluation, "sample", "")
    plain = ff.Recommender(ff.recommender.EASE(5.0)).fit(grouped(60), test=0.3, progress=False)
    folder = plain.save(tmp_path / "plain")
    for text in ((folder / "README.md").read_text(), str(ff.recommender.inspect(folder))):
        assert "sample" not in text
        assert "where" not in text


def test_notes_do_not_get_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("secret person,tea\nbob,milk\ncy,nuts\n")
    rec = ff.Recommender(ff.recommender.MostPopular()).fit(tmp_path / "log.csv", progress=False)
    rec.save(tmp_path / "model", users=False)
    for file in (tmp_path / "model").iterdir():
        text = file.read_bytes()
        assert b"taken for names" not in text


def test_later_logs_are_read_as_the_first_one(tmp_path):
    """Blanks around ids and the format of times are remembered, also in a folder."""
    rows = [f" u{n % 6} ,i{n * 7 % 11},{1 + n % 12:02}/{1 + n % 12:02}/2020" for n in range(60)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["user,item,time", *rows]) + "\n")
    options = {"strip_ids": False, "time_format": "%m/%d/%Y"}
    rec = ff.Recommender(ff.recommender.MostPopular()).fit(path, test=0, progress=False, **options)
    rec = ff.Recommender.load(rec.save(tmp_path / "model"))
    later = tmp_path / "later.csv"
    later.write_text("user,item,time\n u1 ,i0,02/03/2021\n u2 ,i1,02/03/2021\n")
    known = read_by_fitted_rules(later, rec._state.data, {})
    assert known.users.tolist() == [" u1 ", " u2 "]
    assert read_by_fitted_rules(later, rec._state.data, {"strip_ids": True}).users.tolist() == [
        "u1",
        "u2",
    ]
