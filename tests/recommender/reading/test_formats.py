"""Every format and place a log may come from; and what is said of those that cannot be read."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading import delimited, jsonlines
from fewfold.recommender.reading import raw_files as files
from fewfold.recommender.reading import text_blocks as blocks
from fewfold.recommender.reading.formats import READERS
from fewfold.recommender.reading.log import plan_log, read_log
from tests.recommender.reading.known import known, written

ROWS = [("ann", 7, 4.0, 30), ("bob", 3, 2.0, 20), ("ann", 3, 5.0, 10), ("ann", 7, 1.0, 90)]
FRAME = pl.DataFrame(ROWS, schema=["user", "item", "rating", "time"], orient="row")
TIMES = {("ann", 3): 10, ("ann", 7): 90, ("bob", 3): 20}
OBJECTS = [dict(zip(FRAME.columns, row, strict=True)) for row in ROWS]
LINES = "".join(json.dumps(one) + "\n" for one in OBJECTS)


def stream(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, frame.to_arrow().schema) as writer:
        writer.write_table(frame.to_arrow(), max_chunksize=1)
    return sink.getvalue()


def feather(frame: pl.DataFrame, **options: Any) -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(frame.to_arrow(), sink, **options)
    return sink.getvalue()


def ipc(frame: pl.DataFrame) -> bytes:
    sink = io.BytesIO()
    frame.write_ipc(sink, compression="zstd")
    return sink.getvalue()


FILES = {
    "log.jsonl": LINES,
    "log.ndjson": "\n\n" + LINES.replace("\n", "\r\n\r\n"),
    "log.json": LINES.rstrip(),
    "marked.jsonl": b"\xef\xbb\xbf" + LINES.encode(),
    "none.txt": LINES,
    "log.jsonl.gz": gzip.compress(LINES.encode()),
    "log.jsonl.xz": lzma.compress(LINES.encode()),
    "csv.bz2": bz2.compress(FRAME.write_csv().encode()),
    "shuffled.jsonl": "".join(json.dumps(dict(sorted(o.items()))) + "\n" for o in OBJECTS),
    "nested.jsonl": "".join(json.dumps({**o, "x": {"user": [1]}}) + "\n" for o in OBJECTS),
    "twice.jsonl": LINES.replace('"bob"', '"x", "user": "bob"'),
    "log.feather": feather(FRAME),
    "plain.feather": feather(FRAME, compression="uncompressed", chunksize=1),
    "log.arrow": ipc(FRAME),
    "log.arrows": stream(FRAME),
    "no ending": feather(FRAME),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_formats_agree(
    name: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "_BLOCK", block)
    path = written(tmp_path / name, FILES[name])
    log = read_log(path)
    assert known(log) == TIMES
    assert (log.users.tolist(), log.items.tolist()) == (["ann", "bob"], [3, 7])
    assert log.summary.rows == 4
    assert log.summary.plan.bytes == path.stat().st_size
    shown = plan_log(path).first_rows
    names = plan_log(path).names
    assert [row[names.index("user")] for row in shown] == ["ann", "bob", "ann"]
    assert known(read_log(path, min_rating=4)) == {("ann", 3): 10, ("ann", 7): 30}


def test_a_format_is_one_row_of_the_registry() -> None:
    assert [reader.name for reader in READERS] == ["Parquet", "Arrow", "JSON lines", "text"]
    endings = [ending for reader in READERS for ending in reader.endings]
    assert len(endings) == len(set(endings))


BAD_LINES = [  # lines after a good one, the number of the line, what is said
    ('{"user": "b", "item": 2\n', 2, "not a JSON object"),
    ('{"user": "b", "item": 2} {"user": "c", "item": 3}\n', 2, "not a JSON object"),
    ('{"user": "b",\n"item": 2}\n', 2, "not a JSON object"),
    ("[1, 2]\n", 2, "not a JSON object"),
    ("null\n", 2, "not a JSON object"),
    ('{"user": "b"} null {"user": "c"}\n', 2, "not a JSON object"),
    ('{"user": "b", "item": 2}\x0bnull{}\n', 2, "not a JSON object"),
    ("\n\nb,2\n", 4, "not a JSON object"),
    ('{"user": NaN, "item": 2}\n', 2, "not a JSON object"),
    ('{"user": "b"}\n', 2, "no item"),
    ('{"user": null, "item": 2}\n', 2, "no user"),
    ('{"user": " ", "item": 2}\n', 2, "no user"),
    ('{"user": "b", "item": "2"}\n', 2, "item is text where a whole number of 64 bits"),
    ('{"user": "b", "item": true}\n', 2, "item is true or false where a whole"),
    ('{"user": "b", "item": 2.5}\n', 2, "item is a number where a whole number"),
    ('{"user": "b", "item": 9223372036854775808}\n', 2, "item is a number where a whole"),
    ('{"user": ["b"], "item": 2}\n', 2, "user is a list or an object where text was"),
    ('{"user": "\\ud800", "item": 2}\n', 2, "user is half of a surrogate pair where text"),
    ('{"user": "b", "item": ' + "[" * 100_000 + "}\n", 2, "not a JSON object"),
    ('{"user": "b", "item": ' + "9" * 5000 + "}\n", 2, "not a JSON object"),
]


@pytest.mark.parametrize(("lines", "line", "said"), BAD_LINES)
@pytest.mark.parametrize("block", [1, 1 << 24])
def test_bad_lines(
    lines: str, line: int, said: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonlines, "_BLOCK", block)
    monkeypatch.setattr(jsonlines, "_HEAD", 1)  # the first line decides on the types
    last = '{"user": "z", "item": 9.0}\n'
    path = written(tmp_path / "log.jsonl", '{"user": "a", "item": 1}\n' + lines + last)
    with pytest.raises(DataError) as raised:
        read_log(path)
    assert str(raised.value).startswith(f"{path}, line {line}: {said}")
    assert "skip_bad_rows=True (--skip-bad-rows)" in str(raised.value)
    log = read_log(path, skip_bad_rows=True)
    assert known(log) == {("a", 1), ("z", 9)}
    assert sum(log.summary.bad_rows.values()) == lines.strip().count("\n") + 1


def test_types_of_json_columns(tmp_path: Path) -> None:
    def users(*values: object) -> list[object]:
        lines = "".join(json.dumps({"user": v, "item": 1}) + "\n" for v in values)
        return read_log(written(tmp_path / "log.jsonl", lines)).users.tolist()

    assert users("7", "10") == ["10", "7"]  # text is text
    assert users(7, 10) == [7, 10]
    assert users(7, "x") == ["7", "x"]
    assert users(7.0, 10) == [7, 10]
    assert users("Zoë", "\U0001f600", "a\nb") == ["Zoë", "a\nb", "\U0001f600"]
    with pytest.raises(DataError, match="user is not a whole number"):
        users(7.5)


def test_json_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    objects = [
        {"user": f"ü{draw.integers(30)}", "item": int(draw.integers(9)), "time": int(n)}
        for n in draw.integers(-(2**62), 2**62, 500)
    ]
    path = written(tmp_path / "log.jsonl", "".join(json.dumps(one) + "\n" for one in objects))
    quick = read_log(path)
    monkeypatch.setattr(jsonlines.JsonLines, "_parse_fast", lambda *_: None)
    assert known(read_log(path)) == known(quick)
    latest: dict[Any, int] = {}
    for one in objects:
        pair = one["user"], one["item"]
        latest[pair] = max(one["time"], latest.get(pair, -(2**63)))
    assert known(quick) == latest


JSON_ERRORS = {
    "array.json": ('[{"user": 1, "item": 2}]', "this is a JSON array; .* jq -c"),
    "pretty.json": ('{\n "user": 1,\n "item": 2\n}\n', "line 1: .* does not end on its line"),
    "empty.jsonl": ("\n\n", "the file is empty; expected a JSON object on each line"),
    "one.jsonl": ('{"user": 1}\n', "found the columns 'user'; expected two or more"),
    "csv.jsonl": ("user,item\n1,2\n", "line 1: expected a JSON object on each line, got 'user,it"),
    "latin.jsonl": (b'{"user": "caf\xe9", "item": 2}\n', "line 1: expected text in UTF-8"),
    "short.jsonl.gz": (gzip.compress(LINES.encode() * 99)[:-9], "the file ends too soon"),
    "broken.feather": (feather(FRAME)[:-9], "may be damaged"),
    "text.feather": ("user,item\n1,2\n", "not a file of Arrow, whatever its name says"),
    "log.parquet.gz": (gzip.compress(b"PAR1abc"), "a file of Parquet, compressed with gzip"),
}


@pytest.mark.parametrize("name", JSON_ERRORS)
def test_broken_files(name: str, tmp_path: Path) -> None:
    data, message = JSON_ERRORS[name]
    path = written(tmp_path / name, data)
    with pytest.raises(DataError, match=message) as raised:
        read_log(path)
    assert str(raised.value).startswith(str(path))


def test_a_bad_row_of_arrow_has_its_number(tmp_path: Path) -> None:
    frame = FRAME.with_columns(item=pl.Series([1, 2, None, 3]))
    for name, data in (("a.arrows", stream(frame)), ("a.feather", feather(frame, chunksize=1))):
        with pytest.raises(DataError, match=r"row 2 \(from 0\): no item, got \('ann', None, 10\)"):
            read_log(written(tmp_path / name, data))


@pytest.mark.parametrize("ending", ["feather", "parquet"])
def test_a_plan_checks_what_it_shows(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"log.{ending}"
    frame = FRAME.with_columns(user=pl.lit("a long name that is not in line"))
    if ending == "feather":
        path.write_bytes(feather(frame, compression="uncompressed"))
    else:
        frame.write_parquet(path, compression="uncompressed", use_pyarrow=True)
    path.write_bytes(path.read_bytes().replace(b"long", b"\xca\xff\xfe\xff"))
    for read in (plan_log, read_log):
        with pytest.raises(DataError, match=r"may be damaged .*UTF"):
            read(path)


def hive(folder: Path, **options: str) -> Path:
    for day, part in (("2024-01-01", FRAME[:2]), ("2024-01-02", FRAME[2:])):
        path = folder / f"dt={day}" / "country=a%2Fb" / "part-0.parquet"
        path.parent.mkdir(parents=True)
        part.drop("time").write_parquet(path)
    (folder / "_SUCCESS").touch()
    (folder / "dt=2024-01-01" / ".part.crc").touch()
    return folder


def test_partitions_are_columns(tmp_path: Path) -> None:
    folder = hive(tmp_path / "log")
    day = 86_400_000_000
    first = 19_723 * day
    expected = {("ann", 7): first + day, ("ann", 3): first + day, ("bob", 3): first}
    for source in (folder, str(folder / "dt=*" / "*" / "*.parquet"), str(folder / "**/*.parquet")):
        log = read_log(source)
        assert log.summary.plan.names == ("user", "item", "rating", "dt", "country")
        assert known(log) == expected
    assert known(read_log(folder, time=False, where="dt=2024-01-01")) == {("ann", 7), ("bob", 3)}
    assert known(read_log(folder, time=False, where="dt>=2024-01-02")) == {("ann", 7), ("ann", 3)}
    assert known(read_log(folder, user="country", time=False)) == {("a/b", 7), ("a/b", 3)}
    assert plan_log(folder).first_rows[0] == ("ann", "7", "4.0", "2024-01-01", "a/b")
    # A file that is named itself is only what is in it.
    one = folder / "dt=2024-01-01" / "country=a%2Fb" / "part-0.parquet"
    assert read_log(one).summary.plan.names == ("user", "item", "rating")


def test_partitions_with_gaps_twins_and_bad_rows(tmp_path: Path) -> None:
    none = tmp_path / "log" / "dt=__HIVE_DEFAULT_PARTITION__"
    written(none / "a.csv", "user,item\nann,1\n")
    written(tmp_path / "log" / "dt=2024-01-02" / "b.csv", "user,item\nbob,2\n,3\n")
    with pytest.raises(DataError, match=r"b.csv, line 3: no user, got ',3' with dt=2024-01-02"):
        read_log(tmp_path / "log")
    log = read_log(tmp_path / "log", skip_bad_rows=True)
    assert set(known(log)) == {("ann", 1), ("bob", 2)}
    assert log.summary.untimed == 1
    # What the file says itself wins.
    path = written(tmp_path / "own" / "item=9" / "a.csv", "user,item\nann,1\n")
    assert known(read_log(tmp_path / "own")) == {("ann", 1)}
    written(tmp_path / "two" / "a=1" / "a=2" / "log.csv", "user,item\nann,1\n")
    with pytest.raises(DataError, match="two folders are called a="):
        read_log(tmp_path / "two")
    written(tmp_path / "deep" / "2024" / "a.csv", "user,item\nann,1\n")
    with pytest.raises(DataError) as raised:
        read_log(tmp_path / "deep")
    assert str(raised.value).startswith(f"{tmp_path / 'deep'}: expected .csv, ")
    assert "got 2024; for files in folders below write a glob: '" in str(raised.value)
    assert path.exists()


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("_delta_log/0.json", "a Delta Lake table"),
        (".hoodie/x", "a Hudi table"),
        ("metadata/v1.metadata.json", "an Iceberg table"),
    ],
)
def test_tables_of_a_lake_have_outdated_files(inside: str, said: str, tmp_path: Path) -> None:
    written(tmp_path / inside, "{}")
    FRAME.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=f"{said}, some of whose files may be outdated"):
        read_log(tmp_path)


@pytest.mark.parametrize("name", ["log.jsonl", "log.feather", "log.jsonl.gz", "csv.bz2"])
def test_standard_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = FILES[name] if isinstance(FILES[name], bytes) else FILES[name].encode()
    files._copy_to_file.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert plan_log("-").files == ("standard input",)
    assert known(read_log("-")) == TIMES  # all of it, though the plan has read it
    files._copy_to_file.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"user,item\nann\n")))
    with pytest.raises(DataError, match="standard input, line 2: wrong number of fields"):
        read_log("-")
    files._copy_to_file.cache_clear()


def test_no_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="it is closed"):
        read_log("-")
    keyboard = io.StringIO()
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", keyboard)
    with pytest.raises(DataError, match=r"the keyboard; pipe a log into it: cat log.csv \| fewf"):
        read_log("-")


@pytest.mark.parametrize("name", ["base.db", "some.zip", "book.xlsx", "log.pkl"])
def test_foreign_kinds_in_a_pipe(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way out names a file of theirs, not the copy of what came through the pipe."""
    data = FOREIGN[name][0] or sqlite(tmp_path / "made.db")
    files._copy_to_file.cache_clear()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(DataError, match=r"^standard input: this is .*\bFILE\b") as raised:
        read_log("-")
    assert str(files._copy_to_file("-", "standard input")) not in str(raised.value)
    files._copy_to_file.cache_clear()


def test_pipes_and_devices(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(LINES))
    writer.start()
    log = read_log(pipe)
    assert known(log) == TIMES
    assert log.summary.plan.files == (str(pipe),)
    writer.join()
    with pytest.raises(DataError, match="this is a device, not a file"):
        read_log("/dev/zero")
    with pytest.raises(DataError, match="the file is empty"):
        read_log("/dev/null")


def test_the_copy_of_a_pipe_is_deleted(tmp_path: Path) -> None:
    code = "from fewfold.recommender.reading.log import read_log; print(read_log('-').summary.rows)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=LINES, capture_output=True, text=True, check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == "4"
    assert list(tmp_path.iterdir()) == []


def zipped(**members: str) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, text in members.items():
            archive.writestr(name.replace("__", "/").replace("_csv", ".csv"), text)
    return sink.getvalue()


def sqlite(path: Path) -> bytes:
    with sqlite3.connect(path) as base:
        base.execute("create table log (user, item)")
    base.close()
    return path.read_bytes()


def tarred() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("log.csv"))
    return sink.getvalue()


def numpy() -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.zeros(3))
    return sink.getvalue()


FOREIGN = {
    "book.xlsx": (zipped(xl__workbook="x"), "an Excel workbook", "read_excel"),
    "old.xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "Excel workbook of bef", "CSV"),
    "some.zip": (zipped(ratings_csv="x", README="y"), "zip archive with ratings.csv, README",
                 r"unzip -p .*some.zip ratings.csv \| fewfold fit -"),
    "other.zip": (zipped(a="x"), "a zip archive with a", "unzip"),
    "base.db": (None, "an SQLite database", r"'sqlite:////.*base.db\?table=TABLE'"),
    "base.duckdb": (bytes(8) + b"DUCK" + bytes(500), "a DuckDB database", r"'duckdb:////.*base.duckdb\?table=TABLE'"),
    "log.pkl": (pickle.dumps(ROWS), "a pickle", "read_pickle"),
    "log2.pkl": (pickle.dumps({"user": [1]}, protocol=2), "a pickle", "if you trust it"),
    "log.h5": (b"\x89HDF\r\n\x1a\n" + bytes(500), "an HDF5 file", "read_hdf"),
    "log.npy": (numpy(), "a NumPy array", "read_log"),
    "log.tar.gz": (gzip.compress(tarred()), "a tar archive, compressed with gzip", "tar xf"),
    "log.orc": (b"ORC" + bytes(100), "an ORC file", "read_orc"),
    "log.avro": (b"Obj\x01" + bytes(100), "an Avro file", "read_avro"),
    "old.feather": (b"FEA1" + bytes(100), "a Feather file of version 1", "read_feather"),
    "page.csv": ("\n<!DOCTYPE html><html>", "a web page or XML", "download the table itself"),
    "lfs.csv": ("version https://git-lfs.github.com/spec/v1\noid x\n", "a pointer of Git LFS",
                "git lfs pull"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_kinds_are_named_with_the_way_out(name: str, tmp_path: Path) -> None:
    data, kind, way_out = FOREIGN[name]
    data = sqlite(tmp_path / "made.db") if data is None else data
    path = written(tmp_path / name, data)
    with pytest.raises(DataError, match=f"this is .*{kind}.*{way_out}") as raised:
        read_log(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("source", "way_out"),
    [
        ("https://example.org/log.csv", r"curl -L -O https://example.org/log.csv.*data fetch"),
        (Path("http://example.org/log.csv"), r"curl -L -O http://example.org/log.csv, or curl"),
        ("hdfs://node/log", "hdfs dfs -get"),
        ("ldap://host/base", "write the log to a file here first"),
        ("postgresql://me@host/base", r"polars.read_database_uri or through DuckDB"),
        ("mysql+pymysql://me@host/base?table=a", r"polars.read_database_uri or through DuckDB"),
    ],
)
def test_addresses(source: Any, way_out: str) -> None:
    with pytest.raises(DataError, match=f"this is an address, and logs are read from.*{way_out}"):
        read_log(source)


@pytest.mark.parametrize("secret", ["geheim", "ge:heim", "geh@eim", "4711"])
def test_passwords_in_addresses_are_not_shown(secret: str) -> None:
    for source in (
        f"postgresql://me:{secret}@host:5432/base",
        Path(f"https://me:{secret}@host/a.csv"),
    ):
        with pytest.raises(DataError, match=r"^(postgresql|https)://me:\*\*\*@host") as raised:
            read_log(source)
        assert secret not in str(raised.value)
    with pytest.raises(DataError, match=r"https://host:8080/a@b\.csv"):
        read_log("https://host:8080/a@b.csv")


def test_addresses_of_files(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", LINES)
    assert known(read_log(f"file://{path}")) == TIMES
    for path in ("a:b.csv", "C:/logs/log.csv"):
        with pytest.raises(DataError, match="no such file"):
            read_log(path)


def test_blanks_around_ids(tmp_path: Path) -> None:
    text = "user,item\n" + "".join(f"{'  ' * (n % 2)}u{n % 4},i{n % 3}\t\n" for n in range(12))
    path = written(tmp_path / "log.csv", text)
    log = read_log(path)
    assert (log.users.tolist(), log.items.tolist()) == (
        ["u0", "u1", "u2", "u3"],
        ["i0", "i1", "i2"],
    )
    assert log.summary.stripped == 12
    assert "12 rows had blanks around an id, which were taken away" in str(log.summary)
    assert "strip_ids=False (--no-strip-ids)" in str(log.summary)
    asis = read_log(path, strip_ids=False)
    assert asis.users.tolist() == ["  u1", "  u3", "u0", "u2"]
    assert (asis.summary.stripped, "had blanks" in str(asis.summary)) == (0, False)
    numbers = written(tmp_path / "numbers.csv", "user,item\n 7,1\n7,1\n 10 ,2\n")
    assert known(read_log(numbers)) == {(7, 1), (10, 2)}
    assert read_log(numbers).summary.stripped == 2
    assert read_log(numbers, strip_ids=False).users.tolist() == [" 10 ", " 7", "7"]
    frame = {"user": ["a", "a ", "\u00a0a"], "item": [1, 2, 3]}
    assert read_log(frame).users.tolist() == ["a"]
    with pytest.raises(DataError, match=r"line 2: no user, got ' ,1'"):
        read_log(written(path, "user,item\n ,1\n"))


def test_a_line_without_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(delimited, "_BLOCK", 1 << 18)
    path = written(tmp_path / "log.csv.gz", gzip.compress(b"user,item\n" + b"x" * (1 << 22)))
    with pytest.raises(DataError, match="line 2: this line has more than 1 MB"):
        read_log(path)
