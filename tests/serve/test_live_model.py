"""A served model folder: queries from histories and journal, and a folder that is replaced."""

import gc
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import fewfold as ff
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.journal import Event, Journal
from fewfold.recommender.models.popularity import MostPopular
from fewfold.recommender.queries import history_queries, user_queries
from fewfold.recommender.recommendations import RankOptions, recommend
from fewfold.serve import live_model
from fewfold.serve.live_model import LiveModel, Request

LOG: dict[str, list[Any]] = {
    "user": ["ann", "ann", "ann", "bob", "bob", "cy", "cy", "dan", "dan", "eve"],
    "item": ["tea", "milk", "nuts", "tea", "milk", "nuts", "beer", "beer", "wine", "wine"],
    "time": [3, 1, 2, 1, 2, 1, 2, 2, 1, 1],
}
EASE = ff.recommender.EASE(l2=1.0)
ORDERED = ff.recommender.SessionKNN()


def saved(folder: Path, model: Any = EASE, log: Any = LOG, **options: Any) -> Path:
    rec = ff.Recommender(model).fit(log, progress=False, **options)
    return rec.save(folder, overwrite=True)


def items_of(live: LiveModel, *requests: Request) -> list[list[Any]]:
    """The histories of the queries, as ids."""
    found = live.queries(live.current, requests).histories
    ids = live.current.recommender.items
    return [ids.take(found.rows(slice(row, row + 1)).values) for row in range(len(requests))]


@pytest.mark.parametrize("model", [EASE, ORDERED], ids=["sets", "ordered"])
def test_queries_equal_those_of_the_recommender(model: Any, tmp_path: Path) -> None:
    live = LiveModel(saved(tmp_path / "m", model))
    state = live.current.state
    users = ["dan", "ann", "eve"]
    lists = [["wine", "tea", "oil", "wine"], [], ["soap"]]
    requests = [Request(users[0]), Request("x", lists[0]), Request(users[1])]
    requests += [Request(history=lists[1]), Request(users[2]), Request(history=lists[2])]
    found = live.queries(live.current, requests)
    known = user_queries(users, state)
    given = history_queries(lists, state.items, ordered=state.fitted.recipe.ordered)
    for place, row in ((0, 0), (2, 1), (4, 2)):
        expected = known.histories.rows(slice(row, row + 1)).values
        assert torch.equal(found.histories.rows(slice(place, place + 1)).values, expected)
    for place, row in ((1, 0), (3, 1), (5, 2)):
        expected = given.histories.rows(slice(row, row + 1)).values
        assert torch.equal(found.histories.rows(slice(place, place + 1)).values, expected)
    assert found.names == ["dan", "x", "ann", None, "eve", None]
    assert found.unknown == [[], ["oil"], [], [], [], ["soap"]]
    answer = recommend(found, state, RankOptions(k=2))
    assert answer.items[0] == live.current.recommender.recommend("dan", 2).items
    assert live.queries(live.current, []).histories.offsets.tolist() == [0]


def test_events_count_at_once_whoever_wrote_them(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    with Journal(tmp_path / "j") as journal, Journal(tmp_path / "j") as other:
        journal.append([Event("eve", "beer")])  # before the start
        live = LiveModel(folder, journal=journal)
        assert items_of(live, Request("eve")) == [["beer", "wine"]]
        live.append([Event("eve", "tea"), Event("new", "milk"), Event("new", "soap")])
        other.append([Event("eve", "nuts")])
        assert items_of(live, Request("eve"), Request("new"), Request("bob")) == [
            ["beer", "nuts", "tea", "wine"],
            ["milk"],
            ["milk", "tea"],
        ]
        assert live.knows(live.current, "new")
        assert not live.knows(live.current, "nobody")
        assert items_of(live, Request("nobody")) == [[]]
        assert live.unknown_items(live.current, ["soap", "tea", "soap"]) == ["soap"]
        assert live.history(live.current, "new") == [("milk", "feedback"), ("soap", "feedback")]
        assert dict(live.history(live.current, "eve"))["wine"] == "log"
        assert live.events == 5


def test_events_are_ordered_by_time_and_counted_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(saved(tmp_path / "m", ORDERED), journal=journal)
        assert items_of(live, Request("ann")) == [["milk", "nuts", "tea"]]
        late, early = Event("ann", "beer", 1_800_000_000), Event("ann", "wine", 1_700_000_000)
        live.append([late, early, late])
        live.append([early])  # sent again
        assert items_of(live, Request("ann")) == [["milk", "nuts", "tea", "wine", "beer"]]
        assert live.events == 2
        # An item that comes again stands where it came last, as in a log that is fitted.
        live.append([Event("ann", "milk", 1_750_000_000), Event("ann", "wine", 1_900_000_000)])
        assert items_of(live, Request("ann")) == [["nuts", "tea", "milk", "beer", "wine"]]


def test_ids_are_found_as_text_or_number(tmp_path: Path) -> None:
    log = {"user": [1, 1, 2, 2], "item": [10, 20, 20, 30]}
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(saved(tmp_path / "m", log=log), journal=journal)
        live.append([Event("1", "30"), Event(3, 10), Event("1", 30), Event("one", "x")])
        assert items_of(live, Request(1), Request("1"), Request("3")) == [
            [10, 20, 30], [10, 20, 30], [10],
        ]  # fmt: skip
        assert live.knows(live.current, "one")
        assert live.history(live.current, 3) == [(10, "feedback")]


def test_dislikes_are_never_ranked_until_taken_up(tmp_path: Path) -> None:
    log = {
        "user": ["a", "a", "b", "b", "c", "c"],
        "item": ["x", "y", "x", "y", "y", "z"],
        "rating": [5, 1, 5, 5, 5, 5],
    }
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(saved(tmp_path / "m", log=log, min_rating=3), journal=journal)
        requests = [Request(history=["x"]), Request("a"), Request("b")]

        def ranked() -> list[list[Any]]:
            found = live.queries(live.current, requests)
            return recommend(found, live.current.state, RankOptions(exclude_seen=False)).items

        assert ["y" in row for row in ranked()] == [True, False, True]
        live.append([Event("a", "y")])
        assert ["y" in row for row in ranked()] == [True, True, True]


def test_users_of_the_users_table_are_known_by_their_attributes(tmp_path: Path) -> None:
    names = [f"user {number}" for number in range(12)]
    log = {"user": names, "item": ["tea", "wine"] * 6}
    people = {"user": [*names, "fay"], "team": [*["red", "blue"] * 6, "red"]}
    folder = saved(tmp_path / "m", log=log, users_table=people)
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(folder, journal=journal)
        state = live.current.state
        assert live.knows(live.current, "fay")
        found = live.queries(live.current, [Request(names[0]), Request("fay"), Request("nobody")])
        expected = user_queries([names[0], "fay"], state)
        assert found.codes is not None
        assert expected.codes is not None
        assert torch.equal(found.codes[:2], expected.codes)
        assert (found.codes[2] == -1).all()
        live.append([Event("fay", "tea")])
        assert live.queries(live.current, [Request("fay")]).codes is None


def test_a_model_without_users_has_those_of_the_journal(tmp_path: Path) -> None:
    folder = ff.Recommender(EASE).fit(LOG, progress=False).save(tmp_path / "m", users=False)
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(folder, journal=journal)
        assert not live.knows(live.current, "ann")
        live.append([Event("ann", "tea")])
        assert items_of(live, Request("ann")) == [["tea"]]
    with pytest.raises(ValueError, match="no journal"):
        LiveModel(folder).append([Event("ann", "tea")])


def test_a_replaced_folder_takes_over(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(folder, journal=journal)
        first = live.current
        live.append([Event("eve", "soap")])
        assert not live.changed()
        assert live.reload() is first
        manifest = (folder / "manifest.json").read_bytes()
        (folder / "manifest.json").write_bytes(manifest)  # another file time, the same model
        assert not live.changed()
        saved(folder, log={"user": [*LOG["user"], "eve"], "item": [*LOG["item"], "soap"]})
        assert live.changed()
        assert live.current is first
        second = live.reload()
        assert second is live.current is not first
        assert second.version != first.version
        assert len(second.version) == 16
        assert not live.changed()
        # A batch that began with the first snapshot ends with it.
        request = [Request("eve")]
        assert len(live.queries(first, request).histories.values) == 1
        assert len(live.queries(second, request).histories.values) == 2
        gone = weakref.ref(first.recommender.fitted)
        del first
        gc.collect()
        assert gone() is None


def test_a_bad_folder_keeps_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "m")
    live = LiveModel(folder)
    first = live.current
    good = shutil.copytree(folder, tmp_path / "good")
    saved(folder, MostPopular())
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert live.changed()
    with pytest.raises(ArtifactError, match="changed since it was written"):
        live.reload()
    assert live.current is first
    assert not live.changed()  # until there is yet another one
    saved(folder, MostPopular())

    def wrong(state: Any, search: Any) -> None:
        raise ValueError("its scores are not finite")

    with monkeypatch.context() as patched:
        patched.setattr(live_model, "self_check", wrong)
        assert live.changed()
        with pytest.raises(ArtifactError, match="cannot be served: its scores are not finite"):
            live.reload()
    assert live.current is first
    shutil.rmtree(folder)
    assert not live.changed()
    with pytest.raises(ArtifactError, match="there is no folder"):
        live.reload()
    good.rename(folder)
    assert live.reload().version == first.version
    assert recommend(live.queries(first, [Request("ann")]), first.state, RankOptions(k=1)).items


def test_an_approximate_search_is_of_the_snapshot(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    folder = saved(tmp_path / "m", ff.recommender.ALS(factors=2))
    for shared in (False, True):
        live = LiveModel(folder, recall=0.9, shared=shared)
        search = live.current.search
        assert search is not None
        assert search.fitted is live.current.recommender.fitted
        assert (tmp_path / ".m.serving").exists() == shared
    with pytest.raises(ArtifactError, match="has no item vectors to index"):
        LiveModel(saved(tmp_path / "n"), recall=0.9)


def test_processes_share_what_is_computed(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", ff.recommender.ALS(factors=2))
    alone, shared = LiveModel(folder), LiveModel(folder, shared=True)
    assert shared.not_shared is None
    assert [one.name.split("-")[0] for one in (tmp_path / ".m.serving").glob("*-*")] == [
        shared.current.version
    ]
    answers = [
        recommend(
            live.queries(live.current, [Request("ann")]), live.current.state, RankOptions(k=2)
        )
        for live in (alone, shared)
    ]
    assert answers[0].items == answers[1].items
    shutil.rmtree(tmp_path / ".m.serving")
    (tmp_path / ".m.serving").write_text("in the way")
    other = LiveModel(folder, shared=True)
    assert "m.serving" in str(other.not_shared)
    assert other.current.recommender.recommend("ann", 2).items == answers[0].items[0]


@pytest.mark.parametrize("shared", [False, True])
def test_a_mapped_model_outlives_its_folder(shared: bool, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", ff.recommender.ALS(factors=2))
    live = LiveModel(folder, shared=shared)
    expected = [live.current.recommender.recommend(user, 3).items for user in ("ann", "eve")]
    live = LiveModel(folder, shared=shared)  # of which no page has been touched by an answer
    for _ in range(3):
        saved(folder, MostPopular())
    shutil.rmtree(folder)
    shutil.rmtree(tmp_path / ".m.serving", ignore_errors=True)
    found = [live.current.recommender.recommend(user, 3).items for user in ("ann", "eve")]
    assert found == expected


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="maps are of Linux")
def test_weights_and_histories_are_mapped(tmp_path: Path) -> None:
    live = LiveModel(saved(tmp_path / "m"))
    live.queries(live.current, [Request("ann")])
    assert live.current.recommender.recommend("ann", 1).items
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for name in ("model.safetensors", "items.safetensors", "users.safetensors"):
        assert str(tmp_path / "m" / name) in mapped
    assert "ids" not in vars(live.current.state.history)  # nothing has been converted


def test_threads_read_while_events_come(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(saved(tmp_path / "m"), journal=journal)
        failures: list[Exception] = []
        done = threading.Event()

        def read() -> None:
            try:
                while not done.is_set():
                    live.queries(live.current, [Request("ann"), Request("new")])
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(100):  # also between events that are there
            items = ["tea", "wine", "beer"]
            live.append([Event("new", item, (turn * 37) % 100) for item in items])
        done.set()
        for thread in threads:
            thread.join()
        live.queries(live.current, [])
        assert not failures
        assert live.events == 300


def test_a_folder_is_there_at_every_moment_of_overwriting(tmp_path: Path) -> None:
    recommenders = [ff.Recommender(model).fit(LOG, progress=False) for model in (EASE, ORDERED)]
    folder = recommenders[0].save(tmp_path / "m")
    live, done, failures = LiveModel(folder), threading.Event(), []
    kinds = set()

    def read() -> None:
        while not done.is_set():
            try:
                kinds.add(type(ff.Recommender.load(folder).model))
                if live.changed():
                    snapshot = live.reload()
                    assert snapshot.recommender.recommend("ann", 1).items
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(50):
        recommenders[turn % 2].save(folder, overwrite=True)
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(kinds) == 2
    assert live.reload().version == LiveModel(folder).current.version


@pytest.mark.parametrize("shared", [False, True])
def test_tables_in_several_files_are_served_and_reloaded(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = LiveModel(saved(tmp_path / "single"))
    monkeypatch.setenv("FEWFOLD_FILE_BYTES", "50")
    folder = saved(tmp_path / "m")
    assert len(list(folder.glob("table-*"))) >= 3
    with Journal(tmp_path / "j") as journal:
        live = LiveModel(folder, journal=journal, shared=shared)
        asked = [Request("eve"), Request(history=["tea"])]
        found, single = (
            recommend(each.queries(each.current, asked), each.current.state, RankOptions(3))
            for each in (live, expected)
        )
        assert found.to_dicts() == single.to_dicts()
        live.append([Event("eve", "beer")])
        assert items_of(live, Request("eve")) == [["beer", "wine"]]
        before = live.current.version
        saved(folder, ff.recommender.EASE(l2=2.0))
        assert live.reload().version != before
        assert set(live.current.sizes) >= {"tables.json", "table-00001.safetensors"}
        assert items_of(live, Request("eve")) == [["beer", "wine"]]
