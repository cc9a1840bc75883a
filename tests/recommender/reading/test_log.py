"""A log means the same however it is written; what is wrong with one is said with its line."""

import gzip
import json
import subprocess
import sys
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch

from fewfold import _progress
from fewfold.recommender.errors import DataError
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.reading import delimited
from fewfold.recommender.reading.columns import choose_columns
from fewfold.recommender.reading.log import plan_log, read_log

ROWS = [("ann", 7, 4.0, 30), ("bob", 3, 2.0, 20), ("ann", 3, 5.0, 10), ("ann", 7, 1.0, 90)]
FRAME = pl.DataFrame(ROWS, schema=["user", "item", "rating", "time"], orient="row")
HEADER = "user,item,rating,time\n"
TIMES = {("ann", 3): 10, ("ann", 7): 90, ("bob", 3): 20}


def known(log):
    """The pairs by their ids; with their times where there are some."""
    users, items = log.users.take(log.interactions.row), log.items.take(log.interactions.ids)
    pairs = list(zip(users, items, strict=True))
    times = log.interactions.times
    return set(pairs) if times is None else dict(zip(pairs, times.tolist(), strict=True))


def written(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def joined(separator, header=True, end="\n"):
    rows = [FRAME.columns, *ROWS] if header else ROWS
    return "".join(separator.join(map(str, row)) + end for row in rows)


def zstd(text):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(text.encode())
    return sink.getvalue().to_pybytes()


ATOMIC = "user:token\titem:token\trating:float\ttime:float\n"
FILES = {
    "log.csv": joined(","),
    "log.tsv": joined("\t"),
    "log.txt": joined(";"),
    "pipe.csv": joined("|"),
    "ratings.dat": joined("::"),
    "windows.csv": b"\xef\xbb\xbf" + joined(",", end="\r\n").encode(),
    "no-last-end.csv": joined(",").rstrip("\n"),
    "blank-lines.csv": "\n" + joined(",", end="\n\n\n"),
    "quoted.csv": joined(",").replace("ann", '"ann"').replace("7", '"7"'),
    "quoted-windows.csv": joined(",", end="\r\n").replace("ann", '"ann"').replace("90", '"90"'),
    "log.csv.gz": gzip.compress(joined(",").encode()),
    "two-parts.csv.gz": gzip.compress(joined(",")[:30].encode())
    + gzip.compress(joined(",")[30:].encode()),
    "log.csv.zst": zstd(joined(",")),
    "log.inter": ATOMIC + joined("\t", header=False),
    "spaced.csv": joined(",").replace("rating,time", " rating , time "),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("block", [1, 7, 1 << 24])
def test_text_files_agree(name, block, tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", block)  # wherever a block is cut
    log = read_log(written(tmp_path / name, FILES[name]))
    assert known(log) == TIMES
    assert log.users.tolist() == ["ann", "bob"]
    assert log.items.tolist() == [3, 7]
    assert (log.summary.rows, log.summary.duplicates) == (4, 1)


SOURCES = {
    "polars": FRAME,
    "lazy": FRAME.lazy(),
    "pandas": FRAME.to_pandas(),
    "pyarrow": FRAME.to_arrow(),
    "dict": FRAME.to_dict(as_series=False),
    "arrays": tuple(FRAME[name].to_numpy() for name in ("user", "item", "time")),
    "categories": FRAME.with_columns(pl.col("user").cast(pl.Categorical)),
    "floats": FRAME.with_columns(pl.col("item").cast(pl.Float64)),
    "small": FRAME.with_columns(pl.col("item").cast(pl.UInt8)),
    "tensors": {
        "user": list(FRAME["user"]),
        "item": torch.tensor(FRAME["item"].to_list()),
        "time": torch.tensor(FRAME["time"].to_list()),
    },
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_in_memory_agrees(name):
    log = read_log(SOURCES[name])
    assert known(log) == TIMES
    assert log.items.tolist() == [3, 7]


def test_files_folders_globs_and_lists(tmp_path):
    halves = FRAME[:2], FRAME[2:]
    for number, half in enumerate(halves):
        half.write_parquet(tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "notes.md").write_text("not a log")
    parts = [str(tmp_path / f"part-{number}.parquet") for number in range(2)]
    for source in (tmp_path, str(tmp_path / "*.parquet"), parts, [str(tmp_path / "part-*")]):
        log = read_log(source)
        assert known(log) == TIMES
        assert log.summary.plan.files == tuple(parts)
        assert log.summary.plan.format == "Parquet"
    folder = tmp_path / "atomic"
    folder.mkdir()
    written(folder / "a.inter", FILES["log.inter"])
    written(folder / "a.item", "item:token\ttitle:token_seq\n7\tx\n")
    assert known(read_log(folder)) == TIMES


def test_ratings_count_only_when_asked_for(tmp_path):
    path = written(tmp_path / "log.csv", joined(","))
    log = read_log(path, min_rating=4)
    assert known(log) == {("ann", 3): 10, ("ann", 7): 30}  # the later row is rated 1
    assert log.users.tolist() == ["ann"]  # whoever has no row left is not there
    assert log.summary.below_rating == 2
    assert "rating=rating (guessed)" in str(log.summary)
    assert "rating not used (rating would be, with min_rating)" in str(read_log(path).summary)
    with pytest.raises(DataError, match=r"none of the 4 rows .*\(rating below 9: 4\)"):
        read_log(path, min_rating=9)
    with pytest.raises(DataError, match="which column is the rating, which min_rating needs"):
        read_log(FRAME.drop("rating"), min_rating=1)


def test_core_keeps_the_ids(tmp_path):
    for users in (["a", "a", "b", "b", "c"], [5, 5, 6, 6, 4]):
        log = read_log((users, ["x", "z", "x", "z", "y"]), core=2)
        assert known(log) == {(user, item) for user in set(users[:4]) for item in "xz"}
        assert (log.summary.before.users, log.summary.after.users, log.summary.core) == (3, 2, 2)
        assert str(log.summary).endswith("2-core: 2 users, 2 items, 4 pairs")
    with pytest.raises(DataError, match=r"nothing is left of the 3-core .* lower core \(--core\)"):
        read_log(FRAME, core=3)


def test_ids_are_as_they_were_written(tmp_path):
    def ids(text):
        return read_log(written(tmp_path / "log.csv", "user,item\n" + text)).users.tolist()

    assert ids("10,1\n9,1\n-3,1\n") == [-3, 9, 10]
    assert ids("007,1\n7,1\n") == ["007", "7"]
    assert ids("10,1\n9,1\n1e3,1\n") == ["10", "1e3", "9"]
    assert ids("-0,1\n+1,1\n") == ["+1", "-0"]
    assert ids(f"{2**63 - 1},1\n{-(2**63)},1\n") == [-(2**63), 2**63 - 1]
    assert ids(f"{2**63},1\n5,1\n") == ["5", str(2**63)]
    assert ids("a,1\nNA,1\nnull,1\n") == ["NA", "a", "null"]
    assert ids("\U0001f600,1\n\uffee,1\né,1\n") == ["é", "\uffee", "\U0001f600"]
    assert read_log((["07", "7", "10"], [1, 1, 1])).users.tolist() == ["07", "10", "7"]
    assert read_log((["7", "10"], [1, 1])).users.tolist() == ["10", "7"]  # text in memory stays


def test_numbers_that_become_text_late(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", 8)
    rows = "".join(f"{number},{number % 3}\n" for number in range(50))
    log = read_log(written(tmp_path / "log.csv", f"user,item\n{rows}x,x\n"))
    assert log.users.tolist() == sorted([*map(str, range(50)), "x"])
    assert known(log) == {(str(n), str(n % 3)) for n in range(50)} | {("x", "x")}


def test_far_apart_numbers():
    users = np.array([2**62, -(2**62), 5, 2**62, 5])
    log = read_log((users, [1, 2, 3, 4, 2**40]))
    assert log.users.tolist() == [-(2**62), 5, 2**62]
    assert known(log) == set(zip(users.tolist(), [1, 2, 3, 4, 2**40], strict=True))


SECOND = 1_577_836_800  # 2020 begins
SPELLINGS = [
    (["10", "9"], [10, 9]),
    (["10", "9.5"], [10.0, 9.5]),
    ([" 10 ", "1e3"], [10.0, 1000.0]),
    (["2020-01-01", "2020-01-02"], [SECOND, SECOND + 86400]),
    (["2020-01-01T00:00:01", "2020-01-01 00:00:02.5"], [SECOND + 1, SECOND + 2.5]),
    (["2020-01-01T00:00:01Z", "2020-01-01T02:00:00+02:00"], [SECOND + 1, SECOND]),
    (["2020-01-01T00:01", "2020-01-01"], [SECOND + 60, SECOND]),
]


@pytest.mark.parametrize(("texts", "expected"), SPELLINGS)
def test_times_grow(texts, expected, tmp_path):
    rows = "".join(f"u,{number},{text}\n" for number, text in enumerate(texts))
    times = read_log(written(tmp_path / "log.csv", "user,item,date\n" + rows)).interactions.times
    unit = 1_000_000 if expected[0] >= SECOND else 1
    assert times.tolist() == [unit * value for value in expected]


@pytest.mark.parametrize(
    "column",
    [
        [date(2020, 1, 1), date(2020, 1, 2)],
        [datetime(2020, 1, 1), datetime(2020, 1, 2)],
        pl.Series([SECOND * 10**9, (SECOND + 86400) * 10**9]).cast(pl.Datetime("ns", "UTC")),
    ],
)
def test_dates_in_memory(column):
    log = read_log({"user": [1, 1], "item": [1, 2], "when": column})
    assert log.interactions.times.tolist() == [SECOND * 10**6, (SECOND + 86400) * 10**6]


def test_no_times_when_told_so():
    assert read_log(FRAME, time=False).interactions.times is None


BAD = [  # rows after the header, the line, what is said of it, and what is left without it
    ("a,1,5,1\n,2,5,1\n", 3, "no user, got ',2,5,1'", {("a", 1): 1}),
    ('"",2,5,1\na,1,5,1\n', 2, "no user", {("a", 1): 1}),
    ("a,1,5,1\n\n\nb,,5,1\n", 5, "no item", {("a", 1): 1}),
    ("a,1,x,1\n", 2, "rating is not a number", None),
    ("a,1,nan,1\nb,2,3,4\n", 2, "rating is not a number", {("b", 2): 4}),
    ("a,1,,1\nb,2,3,4\n", 2, "rating is not a number", {("b", 2): 4}),
    ("a,1,5,1\nb,2,5,soon\n", 3, "time cannot be read, got 'b,2,5,soon'", {("a", 1): 1}),
    ("a,1,5,2020-01-01\nb,2,5,7\n", 3, "time cannot be read", {("a", 1): SECOND * 10**6}),
    ("a,1,5,1\nb,2\n", 3, "wrong number of fields, got 2 instead of 4 in 'b,2'", {("a", 1): 1}),
    ("a,1,5\nb,2,5,1,1\nc,3,5,1\n", 2, "got 3 instead of 4", {("c", 3): 1}),
    ("c,3,5,1\na,1,5\nb,2,5,1,1\n", 3, "got 3 instead of 4", {("c", 3): 1}),
    ("b,2,5,1,1\na,1,5\nc,3,5,1\n", 2, "got 5 instead of 4", {("c", 3): 1}),
    ('"a\nb",1,5,1\nc,2,5\n', 4, "wrong number of fields", {("a\nb", 1): 1}),
    ('"a\nb",1,5,1\n,2,5,1\n', 4, "no user", {("a\nb", 1): 1}),
    ('"a"b,1,5,1\nc,2,5,3\n', 2, "broken quotes", {("c", 2): 3}),
    (
        'a,1,5,1\nb,"2,5,1\nc,3,5,1\n',
        3,
        "broken quotes, got 'b,\"2,5,1'",
        {("a", 1): 1, ("c", 3): 1},
    ),
]


@pytest.mark.parametrize(("rows", "line", "said", "left"), BAD)
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_bad_rows(rows, line, said, left, block, tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", block)
    path = written(tmp_path / "log.csv", HEADER + rows)
    with pytest.raises(DataError) as raised:
        read_log(path, min_rating=0)
    assert str(raised.value).startswith(f"{path}, line {line}: ")
    assert said in str(raised.value)
    assert "skip_bad_rows=True (--skip-bad-rows)" in str(raised.value)
    if left is None:
        with pytest.raises(DataError, match="none of the 1 rows can be used"):
            read_log(path, min_rating=0, skip_bad_rows=True)
        return
    log = read_log(path, min_rating=0, skip_bad_rows=True)
    assert known(log) == left
    assert sum(log.summary.bad_rows.values()) == log.summary.rows - len(left)


def test_rows_too_long_and_too_short_do_not_make_up_for_each_other(tmp_path):
    rows = "c,3,5,1\na,1,5\nb,2,5,1,1\nd,4,,\n"
    path = written(tmp_path / "log.csv", "user,item,colour,size\n" + rows)
    with pytest.raises(DataError, match=r"line 3: .* got 3 instead of 4 .*\(and 1 more near it\)"):
        read_log(path)
    assert known(read_log(path, skip_bad_rows=True)) == {("c", 3), ("d", 4)}


def test_bad_rows_are_counted_once_by_reason():
    frame = {"user": [None, "a", "a"], "item": [None, 1, 2], "time": ["", "5", "soon"]}
    log = read_log(frame, skip_bad_rows=True)
    assert log.summary.bad_rows == {"no user": 1, "time cannot be read": 1}
    assert "2 bad rows skipped (no user: 1, time cannot be read: 1)" in str(log.summary)
    with pytest.raises(DataError, match=r"row 0 \(from 0\): no user, .* \(and 1 more near it\)"):
        read_log(frame)


def test_a_bad_row_of_parquet_has_its_number(tmp_path):
    users = np.arange(1_500_000) % 1000
    table = pa.table({"user": pa.array(users, mask=users == -1), "item": users.astype(float)})
    items = table["item"].to_numpy().copy()
    items[1_200_000] = 0.5
    pq.write_table(table.set_column(1, "item", pa.array(items)), tmp_path / "log.parquet")
    said = r"log.parquet, row 1200000 \(from 0\): item is not a whole number .* got \(0, 0.5\)"
    with pytest.raises(DataError, match=said):
        read_log(tmp_path / "log.parquet")


def test_quotes_in_a_large_block(tmp_path):
    rows = [f'"user, {n % 997}\nof ""{n % 13}""",{n},"{n}"\r\n' for n in range(60_000)]
    path = written(tmp_path / "log.csv", "user,item,time\r\n" + "".join(rows))
    expected = {(f'user, {n % 997}\nof "{n % 13}"', n): n for n in range(60_000)}
    assert known(read_log(path)) == expected
    written(path, path.read_bytes() + b"x,1\r\n")
    with pytest.raises(DataError, match="line 120002: wrong number of fields, got 2 instead of 3"):
        read_log(path)


@pytest.mark.parametrize("more", ["", 'c,"3"\n', 'c,3\n"d",4\n', '"c"\r\n'])
def test_a_quote_within_a_field_is_a_sign(more, tmp_path):
    path = written(tmp_path / "log.csv", 'user,item\na,5" disk\nb"b,"x ""y"""\n' + more)
    assert {("a", '5" disk'), ('b"b', 'x "y"')} <= known(read_log(path, skip_bad_rows=True))
    path = written(tmp_path / "log.csv", 'user,item\na,5" disk\nb"b,x"\n' + more)
    assert {("a", '5" disk'), ('b"b', 'x"')} <= known(read_log(path, skip_bad_rows=True))


def test_an_open_quote_is_given_up_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "_BLOCK", 1 << 10)
    monkeypatch.setattr(delimited, "_LONGEST", 1 << 12)
    rows = "".join(f"u{n},{n}\n" for n in range(5000))
    path = written(tmp_path / "log.csv", f'user,item\na,1\nb,"2\n{rows}')
    with pytest.raises(DataError, match="line 3: broken quotes"):
        read_log(path)
    log = read_log(path, skip_bad_rows=True)
    assert (log.interactions.pairs, log.summary.bad_rows) == (5001, {"broken quotes": 1})


def test_without_a_header(tmp_path):
    path = written(tmp_path / "u.data", "1\t2\t5\t9\n1\t3\t4\t8\n")
    log = read_log(path)
    assert known(log) == {(1, 2): 9, (1, 3): 8}
    assert "user=1 (guessed), item=2 (guessed)" in str(log.summary)
    assert known(read_log(path, user="2", item="1", time=False)) == {(2, 1), (3, 1)}
    named = written(tmp_path / "names.csv", "ann,x\nbob,y\n")
    assert known(read_log(named, user="1", item="2")) == {("ann", "x"), ("bob", "y")}


COLUMNS = [
    (["userId", "movieId", "rating", "timestamp"], ("userId", "movieId", "timestamp")),
    (["User_ID", "ITEM-ID"], ("User_ID", "ITEM-ID", None)),
    (["package", "dependency"], ("package", "dependency", None)),
    (["package", "dependency", "kind"], ("package", "dependency", None)),
    (["what", "who"], ("what", "who", None)),
    (["who", "what", "stars", "created_at"], ("who", "what", "created_at")),
    (["session_id", "user", "sku", "title"], ("user", "sku", None)),
    (["InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice",
      "CustomerID", "Country"], ("CustomerID", "StockCode", "InvoiceDate")),
    (["thing", "uid"], ("uid", "thing", None)),
    (["reviewerID", "asin", "reviewerName", "helpful", "reviewText", "overall", "summary",
      "unixReviewTime", "reviewTime"], ("reviewerID", "asin", "unixReviewTime")),
]  # fmt: skip


@pytest.mark.parametrize(("names", "expected"), COLUMNS)
def test_guesses(names, expected):
    found = choose_columns(names)
    time = None if found.time is None else found.time.name
    assert (found.user.name, found.item.name, time) == expected
    assert found.user.guessed
    assert not choose_columns(names, {"user": names[0], "item": names[1]}).user.guessed


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a", "b", "c"], {}, r"write user=..., item=... \(--user NAME --item NAME on .*'a', 'b'"),
        (["customer", "account", "item"], {}, "customer and account could each be the user; write"),
        (["user", "item", "date", "day"], {}, "date and day could each be the time"),
        (["movie_id", "title", "genres"], {}, r"column is the user; write user=... \(--user NAME"),
        (["user", "b", "c"], {}, r"column is the item; write item=... \(--item NAME"),
        (["userId", "item"], {"user": "user_id"}, "no column 'user_id' for user; did you mean 'us"),
        (["user", "item"], {"time": "zzz"}, "no column 'zzz' for time; the columns are 'user', 'i"),
        (["user", "item"], {"user": "item"}, "must be different|not clear which"),
        (["a", "b"], {"user": "a", "item": "a"}, "must be different columns, got user=a, item=a"),
    ],
)
def test_columns_that_are_not_clear(names, options, message):
    with pytest.raises(DataError, match=message):
        choose_columns(names, options)


BROKEN = {
    "empty.csv": (b"", "the file is empty"),
    "blank.csv": (b"\n \n", "the file is empty"),
    "header.csv": (b"user,item\n", "there are columns and no rows"),
    "one.csv": (b"user\n1\n", "found one column, 'user'; expected two or more, separated by"),
    "twice.csv": (b"user,item,item\n1,2,3\n", "names 'item' twice"),
    "quote.csv": (b'user,"item\n1,2\n', "line 1: the quotes of the header do not match"),
    "latin.csv": ("user,item\nann,tea\nbob,café\n".encode("latin-1"),
                  "line 3: expected text in UTF-8, got the byte 0xe9 after 'bob,caf'"),
    "nul.csv": (b"user,item\nann,x\0\n", "line 2: expected text in UTF-8, got a NUL byte"),
    "utf16.csv": ("user,item\n1,2\n".encode("utf-16"), "text in UTF-16; .* iconv -f utf-16"),
    "mac.csv": (b"user,item\r1,2\r", "lone carriage return"),
    "book.xlsx": (b"PK\x03\x04abc", "this is a damaged zip archive"),
    "short.csv.gz": (gzip.compress(b"user,item\n1,2\n" * 99)[:-9], "the file ends too soon"),
    "broken.csv.gz": (gzip.compress(b"user,item\n1,2\n")[:-8] + bytes(8), "may be damaged"),
    "short.csv.zst": (zstd("user,item\n1,2\n" * 99)[:-3], "may be damaged"),
    "plain.csv.gz": (b"user,item\n1,2\n", "not compressed, whatever its name says"),
    "text.parquet": (b"user,item\n1,2\n", "not a file of Parquet"),
    "short.parquet": (b"PAR1 and no more", "may be damaged"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(name, tmp_path):
    data, message = BROKEN[name]
    path = written(tmp_path / name, data)
    with pytest.raises(DataError, match=message) as raised:
        read_log(path)
    assert str(raised.value).startswith(str(path))


def test_wrong_sources(tmp_path):
    with pytest.raises(DataError, match="no such file or folder; check the path"):
        read_log(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match="no file matches this pattern"):
        read_log(str(tmp_path / "*.csv"))
    with pytest.raises(DataError, match=r"expected .csv, .tsv, .jsonl, .* got nothing"):
        read_log(tmp_path)
    written(tmp_path / "a.csv", joined(","))
    FRAME.write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"must have one format, got .*a.csv .* and .*b.parquet"):
        read_log(tmp_path)
    written(tmp_path / "c.csv", "who,what\n1,2\n")
    with pytest.raises(DataError, match=r"c.csv: there is no column 'user', unlike in .*a.csv"):
        read_log([tmp_path / "a.csv", tmp_path / "c.csv"])
    FRAME.with_columns(user=pl.lit(1)).write_parquet(tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"d.parquet: the user ids are numbers here and text bef"):
        read_log([tmp_path / "b.parquet", tmp_path / "d.parquet"])
    FRAME.with_columns(time=pl.lit(datetime(2020, 1, 1))).write_parquet(tmp_path / "e.parquet")
    with pytest.raises(DataError, match=r"e.parquet: the times are dates here and numbers before"):
        read_log([tmp_path / "b.parquet", tmp_path / "e.parquet"])
    with pytest.raises(TypeError, match=r"a log must be a path, .*, got int"):
        read_log(3)
    with pytest.raises(DataError, match="two columns 'item'"):
        read_log(pd.DataFrame([[1, 2, 3]], columns=["user", "item", "item"]))
    with pytest.raises(DataError, match=r"cannot become columns .* give each column one type"):
        read_log({"user": [1, "a"], "item": [1, 2]})
    with pytest.raises(DataError, match=r"cannot become columns|may be damaged"):
        read_log(([1, 2], [3]))
    with pytest.raises(DataError, match=r"user ids must be text or whole numbers, got .* Bool"):
        read_log(([True], [1]))
    with pytest.raises(DataError, match=r"times must be numbers, dates or text, got .* Bool"):
        read_log({"user": [1], "item": [1], "time": [True]})
    with pytest.raises(DataError, match="user is not a whole number of 64 bits"):
        read_log(([2**64 - 1], [1]))
    with pytest.raises(ValueError, match="min_rating must be a finite number or None, got nan"):
        read_log(FRAME, min_rating=float("nan"))
    with pytest.raises(ValueError, match="core must be at least 1, got 0"):
        read_log(FRAME, core=0)


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = written(tmp_path / "log.csv", joined(","))

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(DataError, match="may not be read; check its permissions"):
        read_log(path)


def test_matrices_and_logs():
    matrix = scipy.sparse.csr_array(np.array([[0, 1.0, 5], [0, 0, 0], [2, 0, 0]]))
    log = read_log(matrix)
    assert (log.users.tolist(), log.items.tolist()) == ([0, 1, 2], [0, 1, 2])
    assert known(log) == {(0, 1), (0, 2), (2, 0)}
    assert known(read_log(matrix.tocoo(), min_rating=2)) == {(0, 2), (2, 0)}
    assert read_log(log) is log
    assert read_log(log.interactions).interactions is log.interactions
    assert known(read_log(read_log(FRAME), core=1)) == TIMES
    with pytest.raises(DataError, match="got nan in row 0"):
        read_log(scipy.sparse.csr_array(np.array([[np.nan]])))
    with pytest.raises(DataError, match="there are no pairs"):
        read_log(Interactions.from_pairs([], [], shape=(1, 1)))
    with pytest.raises(ValueError, match="no columns to name"):
        read_log(matrix, user="user")
    with pytest.raises(ValueError, match="min_rating needs ratings"):
        read_log(log, min_rating=1)


def test_reading_says_how_far_it_is_after_every_block(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(
        _progress.Phase, "advance", lambda self, done: told.append((self.what, done))
    )
    monkeypatch.setattr(delimited, "_BLOCK", 40)
    path = written(tmp_path / "log.csv", joined(","))
    read_log(path)
    assert {what for what, _ in told} == {f"reading {path}"}
    shares = [done for _, done in told]
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_plan_reads_no_rows(tmp_path):
    path = written(tmp_path / "log.csv", joined(",") + "a,b\n")  # the last row is bad
    plan = plan_log(path, min_rating=3)
    assert plan.first_rows[0] == ("ann", "7", "4.0", "30")
    assert plan.columns.roles()["rating"] == "rating"
    assert "user | item | rating | time" in str(plan)
    assert json.loads(json.dumps(plan.as_dict()))["bytes"] == path.stat().st_size
    for source in (FRAME, FRAME.lazy(), FRAME.to_arrow(), FRAME.to_pandas()):
        assert plan_log(source).first_rows == (
            ("ann", "7", "4.0", "30"), ("bob", "3", "2.0", "20"), ("ann", "3", "5.0", "10")
        )  # fmt: skip
    FRAME.write_parquet(tmp_path / "log.parquet")
    assert plan_log(tmp_path / "log.parquet").first_rows[2] == ("ann", "3", "5.0", "10")


def test_summary_is_ready_for_json():
    summary = json.loads(json.dumps(read_log(FRAME).summary.as_dict()))
    assert summary["after"] == {"users": 2, "items": 2, "pairs": 3}
    assert summary["plan"]["columns"]["user"] == {"name": "user", "guessed": True}


def test_columns_named_like_patterns():
    log = read_log({"*": ["a"], "^.*$": ["b"], "c": [1]}, user="*", item="^.*$")
    assert known(log) == {("a", "b")}


def test_polars_is_asked_for_only_where_it_is_needed():
    code = (
        "import sys; sys.modules['polars'] = None\n"
        "from fewfold.recommender.reading.log import read_log\n"
        "try: read_log({'user': [1], 'item': [1]})\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", code],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "reading a log needs polars: pip install 'fewfold[recommender]'"
