"""Events of a journal count as rows of the log."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewfold as ff
from fewfold.recommender.errors import DataError
from fewfold.recommender.journal import Event, Journal
from fewfold.recommender.reading.journal_rows import times_like

SECOND = 1_700_000_000


def journal(path: Path, *events: Event) -> Path:
    with Journal(path) as opened:
        opened.append(events)
    return path


def pairs(log: Any) -> list[tuple[Any, Any]]:
    users, items = log.users.tolist(), log.items.tolist()
    return [
        (users[row], items[item])
        for row, item in zip(log.interactions.row, log.interactions.ids, strict=True)
    ]


def test_a_log_with_a_journal_equals_the_log_with_its_rows(tmp_path: Path) -> None:
    file = journal(
        tmp_path / "j", Event("ann", "tea", SECOND + 5), Event("new", "oil", SECOND + 7.5),
        Event("ann", "milk", SECOND - 100),
    )  # fmt: skip
    columns: dict[str, list[Any]] = {
        "user": ["ann", "bob", "ann"], "item": ["tea", "milk", "nuts"],
        "time": [SECOND, SECOND + 1, SECOND + 2],
    }  # fmt: skip
    more = {
        "user": [*columns["user"], "ann", "new", "ann"],
        "item": [*columns["item"], "tea", "oil", "milk"],
        "time": [*columns["time"], SECOND + 5, SECOND + 7, SECOND - 100],
    }
    found, expected = ff.read_log(columns, journal=file), ff.read_log(more)
    assert pairs(found) == pairs(expected)
    assert found.interactions.times.tolist() == expected.interactions.times.tolist()  # type: ignore[union-attr]
    assert (found.summary.rows, found.summary.journal_events) == (3, 3)
    assert "3 rows read, 3 events of the journal added, 1 duplicate merged" in str(found.summary)
    assert found.summary.newest == expected.summary.newest == "2023-11-14T22:13:27+00:00"
    without = ff.read_log(columns, journal=file, time=False)
    assert without.interactions.times is None
    assert pairs(without) == pairs(expected)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (1_700_000_000, [1_700_000_000, 1_700_000_005]),
        (1_700_000_000.5, [1_700_000_000.5, 1_700_000_005.25]),
        (1_700_000_000_000, [1_700_000_000_000, 1_700_000_005_250]),
        (1_700_000_000_000_000, [1_700_000_000_000_000, 1_700_000_005_250_000]),
        (1_700_000_000_000_000_000, [1_700_000_000_000_000_000, 1_700_000_005_250_000_000]),
        ("2023-11-14T22:13:20", [1_700_000_000_000_000, 1_700_000_005_250_000]),
        ("1970-01-05", [4 * 86_400_000_000, 1_700_000_005_250_000]),
        (17, [17, 18]),
        (0.5, [0.5, 1.5]),
        (None, [1_700_000_005_249_999, 1_700_000_005_250_000]),
    ],
)
def test_times_are_in_the_unit_of_the_log(last: Any, expected: Any, tmp_path: Path) -> None:
    file = journal(tmp_path / "j", Event("a", "y", SECOND + 5.25))
    log = ff.read_log({"user": ["a"], "item": ["x"], "time": [last]}, journal=file)
    assert log.interactions.times is not None
    assert log.interactions.times.tolist() == expected
    assert ("newer than all of them" in str(log.summary)) == (last in (17, 0.5))


def test_events_follow_a_log_of_ranks_in_order() -> None:
    times, comparable = times_like(np.array([30, 10, 20, 10]), 7, whole=True)
    assert (times.tolist(), comparable) == ([10, 8, 9, 8], False)


@pytest.mark.parametrize(
    ("users", "items", "textual", "kept"),
    [
        ([1, 2], [7, 8], False, [(1, 7), (1, 9), (2, 8), (3, 7)]),
        (
            ["1", "2"],
            ["7", "8"],
            True,
            [("1", "7"), ("1", "9"), ("2", "8"), ("3", "7"), ("x", "7")],
        ),
        (["01", "2"], ["a", "b"], True, None),
    ],
)
def test_ids_are_of_the_types_of_the_log(
    users: Any, items: Any, textual: bool, kept: Any, tmp_path: Path
) -> None:
    file = journal(tmp_path / "j", Event("1", 9), Event(3, " 7 "), Event("x", 7))
    log = ff.read_log({"user": users, "item": items}, journal=file)
    assert log.users.textual == textual
    if kept is not None:
        assert pairs(log) == kept
        assert log.summary.journal_events == (3 if textual else 2)
        assert sum(log.summary.bad_rows.values()) == (0 if textual else 1)
    csv = tmp_path / "log.csv"  # whose ids are numbers if all of them are
    rows = zip(users, items, strict=True)
    csv.write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in rows))
    assert ff.read_log(csv, journal=file).items.textual == (items == ["a", "b"])


def test_ratings_weights_and_conditions(tmp_path: Path) -> None:
    file = journal(tmp_path / "j", Event("a", "x"), Event("b", "z"))
    table = {
        "user": ["a", "a", "b"], "item": ["x", "y", "y"], "rating": [1, 5, 5], "plays": [4, 2, 3],
        "kind": ["buy", "buy", "view"],
    }  # fmt: skip
    liked = ff.read_log(table, journal=file, min_rating=3)
    assert pairs(liked) == [("a", "x"), ("a", "y"), ("b", "y"), ("b", "z")]
    assert liked.interactions.dislikes is None  # taken up since
    weighted = ff.read_log(table, journal=file, weight="plays")
    weights = weighted.interactions.weights
    assert weights is not None
    assert (weights / weights[-1]).tolist() == pytest.approx([5, 2, 3, 1])
    some = ff.read_log(table, journal=file, where="kind=buy")
    assert pairs(some) == [("a", "x"), ("a", "y"), ("b", "z")]


def test_several_journals_and_events_that_come_twice(tmp_path: Path) -> None:
    one = journal(tmp_path / "one", Event("a", 7, SECOND), Event("a", "8", SECOND))
    two = journal(tmp_path / "two", Event("a", "7", SECOND), Event("b", 7, SECOND))
    with two.open("ab") as file:
        file.write(b"half\n")
    log = ff.read_log({"user": ["a"], "item": ["9"]}, journal=[one, str(two)])
    assert log.summary.journal_events == 3
    assert log.summary.journal_unreadable == 1
    assert "1 line of the journal unreadable" in str(log.summary)
    plan = ff.recommender.plan_log({"user": ["a"], "item": ["9"]}, journal=one)
    assert f"the events of {one} are added" in str(plan)


def test_an_empty_log_and_an_empty_journal(tmp_path: Path) -> None:
    csv, empty = tmp_path / "log.csv", journal(tmp_path / "empty")
    csv.write_text("user,item\n")
    with pytest.raises(DataError, match="no rows"):
        ff.read_log(csv, journal=empty)
    file = journal(tmp_path / "j", Event("1", 7), Event(2, "8"))
    assert pairs(ff.read_log(csv, journal=file)) == [(1, 7), (2, 8)]
    with pytest.raises(DataError, match="cannot be opened"):
        ff.read_log(csv, journal=tmp_path / "missing")
    with pytest.raises(ValueError, match="drop journal"):
        ff.read_log(ff.read_log(csv, journal=file), journal=file)


def test_a_model_is_fitted_to_the_journal_and_served_with_it(tmp_path: Path) -> None:
    from fewfold.serve.live_model import LiveModel, Request

    file = journal(
        tmp_path / "j", Event("ann", "nuts", SECOND + 10), Event("ann", "tea", SECOND + 20),
        Event("bob", "oil", SECOND + 30),
    )  # fmt: skip
    log = {
        "user": ["ann", "ann", "ann", "bob", "bob"],
        "item": ["tea", "milk", "beer", "tea", "nuts"],
        "time": [SECOND, SECOND + 1, SECOND + 60, SECOND, SECOND + 5],
    }
    rec = ff.Recommender(ff.recommender.SessionKNN()).fit(log, journal=file, progress=False)
    rec.save(tmp_path / "m")
    with Journal(file) as opened:
        live = LiveModel(tmp_path / "m", journal=opened)

        def history(user: str) -> list[Any]:
            found = live.queries(live.current, [Request(user)]).histories.values
            return live.current.recommender.items.take(found)

        # The events are in the log already, where beer follows them.
        assert history("ann") == ["milk", "nuts", "tea", "beer"]
        assert history("bob") == ["tea", "nuts", "oil"]
        live.append([Event("ann", "nuts", SECOND + 90)])
        assert history("ann") == ["milk", "tea", "beer", "nuts"]
