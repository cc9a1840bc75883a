"""Times in many formats, those that are not clear, and rows that have none."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading import delimited
from fewfold.recommender.reading.dates import Dates, _parse_by_python, _parsed, _parses_differently
from fewfold.recommender.reading.log import read_log
from tests.recommender.reading.known import known, written

MOMENT = datetime(2020, 1, 31, 22, 5, tzinfo=UTC)
DAY = datetime(2020, 1, 31, tzinfo=UTC)
FORMATS = [
    ("31/01/2020", DAY), ("01/31/2020", DAY), ("31-01-2020", DAY), ("31.01.2020", DAY),
    ("2020/01/31", DAY), ("31 Jan 2020", DAY), ("31 January 2020", DAY), ("Jan 31, 2020", DAY),
    ("January 31 2020", DAY), ("31-jan-2020", DAY), ("31/1/2020", DAY), ("1/31/2020", DAY),
    ("31/01/2020 22:05", MOMENT), ("01/31/2020 10:05 PM", MOMENT),
    ("1/31/2020 10:05:00 pm", MOMENT), ("01/31/2020 10:05PM", MOMENT),
    ("31/01/2020  22:05:00", MOMENT), ("2020-01-31 10:05 PM", MOMENT),
    ("2020/01/31 22:05:00.000", MOMENT), ("Jan 31, 2020 10:05 PM", MOMENT),
    ("Fri, 31 Jan 2020 23:05:00 +0100", MOMENT), ("Fri Jan 31 22:05:00 2020", MOMENT),
    ("Fri Jan 31 22:05:00 +0000 2020", MOMENT), ("31/Jan/2020:22:05:00 +0000", MOMENT),
]  # fmt: skip


def of(times: list[str], tmp_path: Path, **options: object) -> object:
    """A log with these times, of one user and as many items."""
    rows = "".join(f'u,{number},"{time}"\n' for number, time in enumerate(times))
    return read_log(written(tmp_path / "log.csv", "user,item,date\n" + rows), **options)


@pytest.mark.parametrize(("text", "moment"), FORMATS)
def test_common_formats(text: str, moment: datetime, tmp_path: Path) -> None:
    log = of([text], tmp_path)
    assert log.interactions.times.tolist() == [int(moment.timestamp()) * 10**6]
    (note,) = log.summary.notes
    assert note.startswith("the times are read as '%")
    assert "time_format=... (--time-format)" in note


def test_iso_needs_no_note(tmp_path: Path) -> None:
    assert of(["2020-01-31", "2020-01-31T10:00"], tmp_path).summary.notes == ()


def test_one_number_above_twelve_tells_day_from_month(tmp_path: Path) -> None:
    times = of(["01/02/2020", "13/02/2020", "03/01/2020"], tmp_path).interactions.times
    days = [datetime(2020, 2, 1), datetime(2020, 2, 13), datetime(2020, 1, 3)]
    assert times.tolist() == [int(d.replace(tzinfo=UTC).timestamp()) * 10**6 for d in days]
    times = of(["01/02/2020", "02/13/2020"], tmp_path).interactions.times
    assert times[0] == int(datetime(2020, 1, 2, tzinfo=UTC).timestamp()) * 10**6


def test_what_was_decided_holds_for_later_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK", 1)
    times = of(["13/02/2020", "01/02/2020"], tmp_path).interactions.times
    assert times[1] == int(datetime(2020, 2, 1, tzinfo=UTC).timestamp()) * 10**6
    with pytest.raises(DataError, match="line 3: time cannot be read"):
        of(["13/02/2020", "02/13/2020"], tmp_path)


def test_ambiguous_dates_are_shown_both_ways(tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        of(["01/01/2020 10:00", "02/01/2020 10:00"], tmp_path)
    said = str(raised.value)
    assert "'02/01/2020 10:00' is 2 January 2020 or 1 February 2020" in said
    assert "time_format='%d/%m/%Y %H:%M' (--time-format '%d/%m/%Y %H:%M') for day first" in said
    assert "or '%m/%d/%Y %H:%M' for month first" in said
    for form, month in (("%d/%m/%Y %H:%M", 1), ("%m/%d/%Y %H:%M", 2)):
        log = of(["01/01/2020 10:00", "02/01/2020 10:00"], tmp_path, time_format=form)
        moment = datetime.fromtimestamp(log.interactions.times[1].item() / 10**6, UTC)
        assert moment.month == month
        assert log.summary.notes == ()


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("02-01-2020", "%d-%m-%Y"),
        ("2/1/2020 3:05 PM", "%d/%m/%Y %I:%M %p"),
        ("2/1/2020 3:05:07.5 PM", "%d/%m/%Y %I:%M:%S.%f %p"),
    ],
)
def test_the_format_to_write_is_the_one_of_the_file(text: str, form: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as raised:
        of([text], tmp_path)
    assert f"time_format={form!r}" in str(raised.value)
    assert of([text], tmp_path, time_format=form).interactions.times is not None


def test_mixed_dates(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mixed: '13/02/2020' has the day first, '02/14/2020' th"):
        of(["13/02/2020", "02/14/2020"], tmp_path)


def test_a_year_of_two_digits_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"time cannot be read.*time_format='%d/%m/%y %H:%M'"):
        of(["31.01.20"], tmp_path)
    times = of(["31.01.20"], tmp_path, time_format="%d.%m.%y").interactions.times
    assert times.tolist() == [int(DAY.timestamp()) * 10**6]


def test_a_format_that_does_not_suit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"or write another time_format than '%d.%m.%Y' \(--time-f"):
        of(["31/01/2020"], tmp_path, time_format="%d.%m.%Y")


def test_a_format_for_numbers(tmp_path: Path) -> None:
    log = of(["20200131", "20200201"], tmp_path, time_format="%Y%m%d")
    assert log.interactions.times[0] == int(DAY.timestamp()) * 10**6
    frame = {"user": [1], "item": [1], "time": [20200131]}
    assert read_log(frame, time_format="%Y%m%d").interactions.times[0] == DAY.timestamp() * 10**6
    with pytest.raises(DataError, match="time_format is for text, and the times are numbers"):
        read_log({"user": [1], "item": [1], "time": [1.5]}, time_format="%Y%m%d")


@pytest.mark.parametrize("form", ["%d/%Q", "no place", "100%%", "%"])
def test_formats_that_are_none(form: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="time_format must"):
        of(["31/01/2020"], tmp_path, time_format=form)


@pytest.mark.parametrize(
    ("form", "slow"),
    [
        ("%d/%m/%Y", False), ("%Y-%m-%d %H:%M:%S.%f", False), ("%d %B %y %I %p", True),
        ("%Y-%m-%d %H", True), ("%A %d %b %Y %H:%M:%S %z", False), ("%Y %j", False),
    ],
)  # fmt: skip
def test_both_ways_to_read_a_format_agree(form: str, slow: bool) -> None:
    rng = np.random.default_rng(0)
    moments = [datetime.fromtimestamp(int(s), UTC) for s in rng.integers(0, 2**31, 50)]
    text = pl.Series([m.strftime(form) for m in moments] + ["x", ""])
    assert _parses_differently(form) is slow
    python = _parse_by_python(text, form)
    assert python.null_count() == 2
    assert Dates(form).read(text, "log").to_list() == python.to_list()
    if not slow:
        assert _parsed(text, form).to_list() == python.to_list()


EMPTY = ["", " ", "NULL", "NaN", "NaT", "none", "N/A", "-", "\\N", "0000-00-00 00:00:00"]


@pytest.mark.parametrize("gap", EMPTY)
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_rows_without_a_time_are_the_oldest(
    gap: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited, "_BLOCK", block)
    for given, oldest in ((["20", gap, "10", "30"], 9), (["20.5", "10.5", gap], 9.5)):
        log = of(given, tmp_path)
        expected = [oldest if time == gap else float(time) for time in given]
        assert log.interactions.times.tolist() == expected
        assert log.summary.untimed == 1
        assert "1 row had no time in date: taken for the oldest" in str(log.summary)
        assert "to drop them write where='date!=' (--where 'date!=')" in str(log.summary)
        assert known(of(given, tmp_path, where="date!="))  # as the note says
    log = of([gap, "2020-01-31"], tmp_path)
    assert log.interactions.times.tolist() == [
        int(DAY.timestamp()) * 10**6 - 1, int(DAY.timestamp()) * 10**6
    ]  # fmt: skip


def test_where_drops_rows_without_a_time(tmp_path: Path) -> None:
    log = of(["20", "", "10"], tmp_path, where="date!=")
    assert known(log) == {("u", 0): 20, ("u", 2): 10}
    assert (log.summary.left_out, log.summary.untimed) == (1, 0)


def test_a_time_beats_none_of_the_same_pair() -> None:
    log = read_log({"user": [1, 1, 1], "item": [1, 1, 2], "time": [None, 5, 7]})
    assert known(log) == {(1, 1): 5, (1, 2): 7}
    assert log.summary.untimed == 1


def test_gaps_in_memory() -> None:
    for column, oldest in (
        ([None, 5, 7], 4),
        ([float("nan"), 5.0, 7.0], 4.0),
        ([None, datetime(1970, 1, 2), datetime(1970, 1, 3)], 86_400_000_000 - 1),
        ([None, -(2**63) + 1, 7], -(2**63)),
    ):
        log = read_log({"user": [1, 1, 1], "item": [1, 2, 3], "time": column})
        assert log.interactions.times[0].item() == oldest
        assert log.summary.untimed == 1
    with pytest.raises(DataError, match="time cannot be read"):
        read_log({"user": [1], "item": [1], "time": [float("inf")]})


def test_no_time_at_all_is_a_log_without_times(tmp_path: Path) -> None:
    log = of(["", "null"], tmp_path)
    assert log.interactions.times is None
    assert "no row has a time in date, so the log has no times" in str(log.summary)
    log = read_log({"user": [1], "item": [1], "time": [None]})
    assert log.interactions.times is None


def test_dates_outside_of_the_calendar(tmp_path: Path) -> None:
    far = pl.Series([2**31 - 1, 0], dtype=pl.Int32).cast(pl.Date)
    frame = pl.DataFrame({"user": [1, 2], "item": [1, 2], "time": far})
    with pytest.raises(DataError, match=r"row 0 \(from 0\): time cannot be read, got \(1, 1, None"):
        read_log(frame)
    assert known(read_log(frame, skip_bad_rows=True)) == {(2, 2): 0}
    for unit in ("ms", "us"):
        far = pl.Series([2**63 - 1, 5]).cast(pl.Datetime(unit))
        log = read_log(frame.with_columns(time=far), skip_bad_rows=True)
        assert known(log) == {(2, 2): 5 * {"ms": 1000, "us": 1}[unit]}
    seconds = pa.array([2**62, 5], pa.int64()).view(pa.timestamp("s"))
    with pytest.raises(DataError, match="would result in out of bounds"):
        read_log(pa.table({"user": [1, 2], "item": [1, 2], "time": seconds}))


def test_an_impossible_date_is_a_bad_row_and_not_another_format(tmp_path):
    path = tmp_path / "log.csv"
    dates = ["28/01/2023", "13/02/2023", "32/13/2023"]
    path.write_text("user,item,time\n" + "".join(f"u{n},i{n},{d}\n" for n, d in enumerate(dates)))
    with pytest.raises(DataError, match="line 4: time cannot be read"):
        read_log(path)
    assert read_log(path, skip_bad_rows=True).interactions.pairs == 2
