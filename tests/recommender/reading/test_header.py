"""Whether the first row names the columns: found out, said, and overruled."""

from pathlib import Path

import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.header import first_row_is_data
from fewfold.recommender.reading.log import plan_log, read_log
from tests.recommender.reading.known import known, written

JUDGED = [
    ("u0,i0", ["u1,i0", "u2,i3"], True),  # i0 comes again
    ("u0,i0", ["u1,i1", "u2,i2", "u3,i3"], True),  # made alike
    ("u0,i0", ["u1,i1", "u2,i2"], None),  # two rows that are made alike may be an accident
    ("u0,i0", ["u1,x", "uu,y", "u3,z"], None),
    ("ann,tea,5", ["bob,milk,4"], True),  # a number as below
    ("ann,tea,5", ["bob,milk,x", "cy,nuts,y"], None),
    ("ann,tea,2020-01-31", ["bob,milk,2020-02-01 10:00"], True),
    ("ann,tea,31/01/2020", ["bob,milk,01/02/2020"], True),
    ("ann,tea,10:30", ["bob,milk,11:15:07"], True),
    ("ann,tea", ["bob,milk", "cy,nuts"], None),
    ("ann,tea", ["bob,milk", "ann,nuts"], True),
    ("ann,tea", ["ann,tea", "bob,milk"], None),  # files that were joined
    ("ann,tea", [], None),
    ("ann,tea", ["bob", "a,b,c"], None),
    ("who,what", ["ann,tea"], None),
    (",tea", [",milk", ",nuts"], None),
    ("user,what", ["u1,i0", "user,i0"], False),  # a usual name decides
    ("a,timestamp", ["u1,5"], False),
    ("a,event_type", ["u1,5", "u2,6"], False),
    ("a,stars", ["u1,5"], False),
    ("a1,b1", ["c,d", "e,f", "g,h"], None),
]


@pytest.mark.parametrize(("first", "rows", "expected"), JUDGED)
def test_judgement(first: str, rows: list[str], expected: bool | None) -> None:
    assert first_row_is_data(first.split(","), [row.split(",") for row in rows]) is expected


LINES = "".join(f"u{n % 4},i{n % 3}\n" for n in range(12))
PAIRS = {(f"u{n % 4}", f"i{n % 3}") for n in range(12)}


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.dat"])
def test_a_file_without_a_header_keeps_its_first_row(name: str, tmp_path: Path) -> None:
    sign = {"log.csv": ",", "log.tsv": "\t", "log.dat": "::"}[name]
    path = written(tmp_path / name, LINES.replace(",", sign))
    log = read_log(path)
    assert known(log) == PAIRS
    assert log.summary.rows == 12
    assert "user=1 (guessed), item=2 (guessed)" in str(log.summary)
    (note,) = log.summary.plan.notes
    assert note.startswith("the first row (u0 | i0) looks like data")
    assert "header=True (--header)" in note
    assert f"note: {note}" in str(plan_log(path))


def test_both_can_be_said(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", LINES)
    log = read_log(path, header=True)
    assert log.summary.rows == 11
    assert log.summary.plan.columns.user.name == "u0"
    assert log.summary.plan.notes == ()
    log = read_log(path, header=False)
    assert (log.summary.rows, log.summary.plan.notes) == (12, ())
    numbers = written(tmp_path / "numbers.csv", "1,2\n3,4\n")
    assert known(read_log(numbers)) == {(1, 2), (3, 4)}
    assert known(read_log(numbers, header=True)) == {(3, 4)}


def test_in_doubt_it_is_a_header_and_that_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "ann,tea\nbob,milk\n")
    log = read_log(path)
    assert known(log) == {("bob", "milk")}
    (note,) = log.summary.plan.notes
    assert note == (
        "the first row (ann | tea) was taken for names of the columns; if it is data, write "
        "header=False (--no-header)"
    )
    assert known(read_log(path, header=False)) == {("ann", "tea"), ("bob", "milk")}
    # Whoever names the columns has said it.
    assert read_log(path, user="tea", item="ann").summary.plan.notes == ()
    assert known(read_log(path, user="2", item="1")) == {("tea", "ann"), ("milk", "bob")}


def test_a_name_of_the_first_row_makes_it_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "a1,b1\n" + LINES + "a1,b1\n")
    assert read_log(path).summary.plan.columns.user.name == "1"
    log = read_log(path, user="a1", item="b1")
    assert log.summary.rows == 13
    assert ("u0", "i0") in known(log)
    with pytest.raises(DataError, match=r"no column 'c1' for user.* \(a1 \| b1\) looks like data"):
        read_log(path, user="c1")


def test_unclear_columns_remind_of_the_header(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "ann,tea,x\nbob,milk,y\n")
    with pytest.raises(DataError, match=r"not clear which column is the user.*\(--no-header\)"):
        read_log(path)


def test_files_in_doubt_are_like_the_first(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / "a.csv", LINES),
        written(tmp_path / "b.csv", "ann,tea\nbob,milk\n"),
    ]
    assert known(read_log(paths)) == {*PAIRS, ("ann", "tea"), ("bob", "milk")}


def test_long_names_are_cut_in_the_note(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", f"{'x' * 100},tea\nbob,milk\n")
    assert f"({'x' * 21}... | tea)" in read_log(path).summary.plan.notes[0]
