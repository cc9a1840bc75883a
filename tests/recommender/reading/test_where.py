"""Conditions on rows, in every kind of column; and columns of events that nobody asked about."""

import itertools
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.columns import event_note
from fewfold.recommender.reading.in_memory import Frame
from fewfold.recommender.reading.log import plan_log, read_log
from tests.recommender.reading.known import known, written

FRAME = pl.DataFrame(
    {
        "user": ["a", "b", "c", "d", "e"],
        "item": [1, 2, 3, 4, 5],
        "event_type": ["view", "cart", "purchase", " view ", None],
        "price": [1.0, 2.5, 4.0, None, float("nan")],
        "day": [date(2024, 1, n) for n in (1, 2, 3, 4, 5)],
        "clicked": [True, False, True, None, False],
        "a=b": ["x,y", "x", "y", "7", "007"],
        "a": ["q", "r", "s", "4", "4.0"],
    }
)
CASES = [
    (["event_type=purchase"], "c"),
    (["event_type=cart,purchase"], "bc"),
    (["event_type == view"], "ad"),  # blanks around are no part
    (["event_type!=view"], "bce"),  # what is missing is not view either
    (["event_type!=view,cart"], "ce"),
    (["event_type="], "e"),
    (["event_type!="], "abcd"),
    (["price="], "de"),  # NaN is missing too
    (["price!="], "abc"),
    (["price!=4"], "abde"),
    (["price>=2.5"], "bc"),
    (["price>2.5"], "c"),
    (["price<=2.5"], "ab"),
    (["price<2.5"], "a"),
    (["price=4"], "c"),
    (["price=4.0,1"], "ac"),
    (["price>=1", "event_type!=cart"], "ac"),
    (["day>=2024-01-03"], "cde"),
    (["day<2024-01-02"], "a"),
    (["day=2024-01-02"], "b"),
    (["clicked=true"], "ac"),
    (["clicked=False"], "be"),
    (['a=b="x,y"'], "a"),  # a column with such a name, a value with a comma
    (["a=b=x,y"], "bc"),
    (["a=b=7"], "d"),  # 007 is another id
    (["a=4"], "de"),  # 4.0 is the same number
    (["a=r"], "b"),
    (["item>=4"], "de"),
    (["user=a,e"], "ae"),
]


@pytest.mark.parametrize(("where", "expected"), CASES)
@pytest.mark.parametrize("kind", ["memory", "csv", "parquet"])
def test_conditions(where: list[str], expected: str, kind: str, tmp_path: Path) -> None:
    source: object = FRAME
    if kind == "csv":
        FRAME.write_csv(tmp_path / "log.csv")
        source = tmp_path / "log.csv"
    elif kind == "parquet":
        FRAME.write_parquet(tmp_path / "log.parquet")
        source = tmp_path / "log.parquet"
    log = read_log(source, time=False, where=where if len(where) > 1 else where[0])
    assert "".join(log.users.tolist()) == expected
    assert log.summary.where == tuple(where)
    assert log.summary.left_out == 5 - len(expected)
    said = f"{5 - len(expected)} left out by where {' and '.join(where)}"
    assert said in str(log.summary)


def test_rows_without_a_time_can_be_dropped(tmp_path: Path) -> None:
    """By the same texts that count as no time; in other columns some of these are values."""
    times = ["5", "", "NaN", "nan ", "null", "NaT", "-", "0000-00-00"]
    rows = [f"u{n},i,{time},{time}\n" for n, time in enumerate(times)]
    path = written(tmp_path / "log.csv", "user,item,time,code\n" + "".join(rows))
    assert read_log(path).summary.untimed == 7
    log = read_log(path, where="time!=")
    assert (log.users.tolist(), log.summary.untimed) == (["u0"], 0)
    assert read_log(path, where="time=").interactions.users == 7
    assert read_log(path, where="code!=").users.tolist() == ["u0", "u4", "u6", "u7"]


def test_instants_compare_with_dates() -> None:
    frame = FRAME.with_columns(day=pl.Series([datetime(2024, 1, n, 12) for n in range(1, 6)]))
    for column in (frame["day"], frame["day"].dt.replace_time_zone("UTC")):
        log = read_log(frame.with_columns(day=column), time=False, where="day>2024-01-03T12:00")
        assert log.users.tolist() == ["d", "e"]
    assert read_log(frame, where="day>=2024-01").interactions.pairs == 5


def test_rows_that_do_not_count_need_not_be_in_order(tmp_path: Path) -> None:
    text = "user,item,event,time\n,1,view,soon\na,2,buy,5\nb,,buy,6\n"
    path = written(tmp_path / "log.csv", text)
    with pytest.raises(DataError, match="line 4: no item, got 'b,,buy,6'"):
        read_log(path, where="event=buy")
    assert known(read_log(path, where="event=buy", skip_bad_rows=True)) == {("a", 2): 5}


def test_a_value_that_no_row_has_is_told() -> None:
    with pytest.raises(DataError) as raised:
        read_log(FRAME, time=False, where="event_type=purchas")
    said = str(raised.value)
    assert "none of the 5 rows meets where 'event_type=purchas'" in said
    assert "no row has event_type=purchas; there are view, " in said
    log = read_log(FRAME, time=False, where="event_type=purchase,crat")
    assert log.summary.notes == ("no row has event_type=crat; there are view, cart, purchase",)


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("event_type", ValueError, "where must be COLUMN=VALUE, .*, got 'event_type'"),
        ("type=view", DataError, "there is no column 'type' for where='type=view'; the columns"),
        ("price>=cheap", ValueError, "compares with a number or a date such as .*, got 'cheap'"),
        ("price>=2024-01-01", ValueError, "the column 'price' of the polars frame has numbers"),
        ("day>=5", ValueError, "'day' of the polars frame has dates; compare it with one such"),
        ("a>=2024-01-01", DataError, "compares dates written as .*, and the column 'a' has 'q'"),
        ("nested=1", DataError, "needs numbers, dates or text, and the column 'nested' is of List"),
    ],
)
def test_conditions_that_are_none(where: str, error: type[Exception], message: str) -> None:
    frame = FRAME.with_columns(nested=pl.Series([[1]] * 5))
    with pytest.raises(error, match=message):
        read_log(frame, time=False, where=where)


def test_a_plan_checks_conditions() -> None:
    with pytest.raises(DataError, match="there is no column 'type'"):
        plan_log(FRAME, where="type=view")
    assert plan_log(FRAME, where="event_type=view").notes == ()


def test_events_are_not_passed_over_in_silence() -> None:
    (note,) = read_log(FRAME, time=False).summary.plan.notes
    assert note == (
        "every row counts alike, whatever event_type says (view, cart, purchase, None); to choose, "
        "write where='event_type=purchase' (--where event_type=purchase)"
    )
    assert read_log(FRAME, time=False, where="event_type=view").summary.plan.notes == ()
    assert note in plan_log(FRAME).notes


@pytest.mark.parametrize(
    ("name", "values", "noticed"),
    [
        ("action", ["a", "b"], True),
        ("Event-Type", ["1", "2"], True),
        ("event", ["only"], False),
        ("event", [str(number) for number in range(40)], False),  # an id of each event
        ("type", ["clicks", "carts", "orders"], True),
        ("type", ["book", "film", "play"], False),
        ("colour", ["red", "green"], False),
    ],
)
def test_what_is_taken_for_events(name: str, values: list[str], noticed: bool) -> None:
    rows = list(itertools.islice(itertools.cycle(values), 60))
    table = Frame.of({"user": list(range(60)), name: rows})
    assert (event_note(table, {"user"}) is not None) is noticed
