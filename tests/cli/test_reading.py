"""The options of reading, as a person writes them; and what is said of a log."""

import io
import json
import sys
from pathlib import Path

import pytest

from fewfold.recommender.reading import raw_files as files
from tests.cli.invoke import fewfold

ROWS = "".join(f"u{n % 5},i{n % 3},{'view' if n % 4 else 'buy'}\n" for n in range(40))


def summary(*arguments: object) -> str:
    """What `fit` says of the log on standard error."""
    done = fewfold("fit", *arguments, "--model", "popularity", "--test", 0, "--overwrite")
    assert done.code == 0, done.err
    return done.err


def test_no_header_and_header() -> None:
    Path("log.csv").write_text("ann,tea\nbob,milk\nann,nuts\n")
    assert "looks like data" in summary("log.csv")
    assert "3 rows read" in summary("log.csv", "--no-header")
    assert "2 rows read" in summary("log.csv", "--header")
    Path("fewfold.toml").write_text("[fit]\nheader = false\n")
    assert "note" not in summary("log.csv")


def test_where() -> None:
    Path("log.csv").write_text("user,item,event\n" + ROWS)
    assert "every row counts alike, whatever event says (view, buy)" in summary("log.csv")
    told = summary("log.csv", "--where", "event=buy", "--where", "user!=u1")
    assert "40 rows read, 32 left out by where event=buy and user!=u1" in told
    Path("fewfold.toml").write_text('[fit]\nwhere = ["event=buy"]\n')
    assert "30 left out" in summary("log.csv")
    done = fewfold("fit", "log.csv", "--overwrite", "--where", "event")
    assert (done.code, "where must be COLUMN=VALUE" in done.message) == (2, True)
    done = fewfold("data", "show", "log.csv", "--where", "kind=buy")
    assert (done.code, "there is no column 'kind'" in done.message) == (3, True)


def test_time_format() -> None:
    Path("log.csv").write_text("user,item,date\na,x,01/02/2020\nb,y,03/02/2020\n")
    done = fewfold("fit", "log.csv")
    assert done.code == 3
    assert "'01/02/2020' is 1 February 2020 or 2 January 2020" in done.message
    assert "2 rows read" in summary("log.csv", "--time-format", "%d/%m/%Y")
    done = fewfold("fit", "log.csv", "--overwrite", "--time-format", "%Q")
    assert (done.code, "time_format must be a format of strptime" in done.message) == (2, True)


def test_histories_say_what_was_assumed() -> None:
    Path("log.csv").write_text("user,item\n" + "".join(f"u{n % 5},i{n % 3}\n" for n in range(9)))
    summary("log.csv")
    Path("histories.csv").write_text("ann,i0\nbob,i1\ncy,i0\n")
    done = fewfold("recommend", "model", "--histories", "histories.csv", "-k", 1)
    assert done.code == 0
    assert "histories.csv: the first row (ann | i0) looks like data" in done.err
    assert "ann" in done.out


def test_strip_ids() -> None:
    Path("log.csv").write_text("user,item\na ,x\na,x\n")
    assert "1 row had blanks around an id" in summary("log.csv")
    assert "2 users, 1 item, 2 pairs" in summary("log.csv", "--no-strip-ids")


def test_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    files._copy_to_file.cache_clear()
    lines = "".join(json.dumps({"user": n % 3, "item": n}) + "\n" for n in range(9))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert "standard input (JSON lines, 207 bytes)" in summary("-")
    files._copy_to_file.cache_clear()


def test_an_items_table_with_impossible_dates(capfd: pytest.CaptureFixture[str]) -> None:
    import polars as pl

    Path("log.csv").write_text("user,item\na,x\nb,y\n")
    since = pl.Series([2**31 - 1] * 2, dtype=pl.Int32).cast(pl.Date)
    pl.DataFrame({"item": ["x", "y"], "since": since}).write_parquet("items.parquet")
    done = fewfold("fit", "log.csv", "--items-table", "items.parquet", "--model", "popularity")
    assert done.code == 3
    assert "items.parquet, row 0 (from 0): the column 'since' has a date" in done.message
    assert capfd.readouterr().err == ""
