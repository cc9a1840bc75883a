"""Logs in tables of SQLite and DuckDB databases, in DuckDB relations and streams of Arrow."""

import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from fewfold.recommender.attributes import read_attributes
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.reading import sqlite as sqlite_file
from fewfold.recommender.reading.log import plan_log, read_log
from fewfold.recommender.reading.source import open_source
from tests.cli.invoke import fewfold
from tests.recommender.reading.known import known

ROWS = [("ann", 7, 4.0, 30), ("bob", 3, 2.0, 20), ("ann", 3, 1.0, 10), ("ann", 7, 1.0, 90)]
TIMES = {("ann", 3): 10, ("ann", 7): 90, ("bob", 3): 20}
QUERY = "SELECT buyer AS user, item, time FROM orders JOIN people ON user = id WHERE time < 90"


def sqlite_base(path: Path, rows: list[Any] = ROWS, table: str = "orders") -> str:
    """A database with a table of orders; return its address without a table."""
    with sqlite3.connect(path) as base:
        name = table.replace('"', '""')
        base.execute(f'CREATE TABLE "{name}" (user, item, rating, time)')
        base.executemany(f'INSERT INTO "{name}" VALUES (?, ?, ?, ?)', rows)
    base.close()
    return f"sqlite:///{path}"


def duckdb_base(path: Path) -> str:
    """The same of DuckDB."""
    with duckdb.connect(str(path)) as base:
        base.execute("CREATE TABLE orders (user TEXT, item BIGINT, rating DOUBLE, time BIGINT)")
        base.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", ROWS)
    return f"duckdb:///{path}"


@pytest.fixture(params=[sqlite_base, duckdb_base])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database with the rows."""
    return str(request.param(tmp_path / "a shop.db"))


def test_a_table(base: str) -> None:
    log = read_log(f"{base}?table=orders")
    assert known(log) == TIMES
    assert log.summary.plan.files == (f"{base}?table=orders",)
    assert log.interactions.dislikes is None
    assert known(read_log(f"{base}?table=orders", min_rating=3)).keys() == {("ann", 7)}
    assert known(read_log(f"{base}?table=orders", where="time<90")) == {**TIMES, ("ann", 7): 30}
    only = read_log(base)
    assert known(only) == TIMES
    assert "the table 'orders' is read, the only one" in str(only.summary)
    assert plan_log(base).first_rows[0] == ("ann", "7", "4.0", "30")


def test_batches_are_one_log(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "_ROWS", 1)
    assert known(read_log(f"{base}?table=orders")) == TIMES


def test_a_query(base: str) -> None:
    scheme, path = base.split(":///")
    with (sqlite3 if scheme == "sqlite" else duckdb).connect(path) as writing:
        writing.execute("CREATE TABLE people (id TEXT, buyer TEXT)")
        writing.execute("INSERT INTO people VALUES ('ann', 'Ann Ä. 100%'), ('bob', 'Bob')")
    writing.close()
    expected = {("Ann Ä. 100%", 7): 30, ("Ann Ä. 100%", 3): 10, ("Bob", 3): 20}
    assert known(read_log(f"{base}?query={QUERY} ; ")) == expected
    assert known(read_log(f"{base}?query={QUERY.replace(' ', '%20')} -- all")) == expected
    with pytest.raises(DataError, match=r"say which table to read: .*\?table=NAME; there are "):
        read_log(base)
    table = read_attributes(f"{base}?table=people", Ids.of(["ann", "bob"]))
    assert [one["buyer"] for one in table.take([0, 1])] == ["Ann Ä. 100%", "Bob"]


WRONG = {
    "?table=order": r"there is no such table; there are orders$",
    '?table=orders"; DROP TABLE orders; --': "there is no such table",
    "?table=": r"expected \?table=NAME or \?query=SELECT",
    "?tables=orders": r"expected \?table=NAME or \?query=SELECT",
    "?query=SELECT * FROM orders); DROP TABLE orders; --": "cannot be read",
    "?query=DROP TABLE orders": "cannot be read",
    "?query=SELECT 1 AS user, nothing AS item": "cannot be read",
    "?query=ATTACH 'other.db' AS other": "cannot be read",
    "?query=SELECT user FROM orders": "user",
    "?query=SELECT 1); COPY orders TO 'COPY'; SELECT * FROM (SELECT 1, 2": "cannot be read",
    "?query=SELECT 1); COPY orders TO 'COPY'; --": "cannot be read",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_addresses_change_nothing(wrong: str, base: str) -> None:
    file = Path(base.split(":///")[1])
    before = file.read_bytes()
    with pytest.raises(DataError, match=WRONG[wrong]):
        read_log(base + wrong.replace("'COPY'", f"'{file.parent}/copy.csv'"))
    assert file.read_bytes() == before
    assert sorted(one.name for one in file.parent.iterdir()) == [file.name]


@pytest.mark.parametrize("scheme", ["sqlite", "duckdb"])
def test_missing_and_foreign_files(scheme: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*none.db; check the path"):
        read_log(f"{scheme}:///{tmp_path}/none.db?table=a")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "log.csv").write_text("user,item\n" * 999)
    with pytest.raises(DataError, match="cannot be read"):
        read_log(f"{scheme}:///{tmp_path}/log.csv?table=a")
    for text in (f"{scheme}://shop.db?table=a", f"{scheme}:///?table=a", Path(f"{scheme}:///a.db")):
        with pytest.raises(DataError, match="three slashes"):
            read_log(text)


def test_names_are_quoted(tmp_path: Path) -> None:
    odd = 'or"ders`; --'
    address = sqlite_base(tmp_path / "shop.db", table=odd)
    assert known(read_log(f"{address}?table={odd}")) == TIMES
    with sqlite3.connect(tmp_path / "names.db") as base:
        base.execute('CREATE TABLE t ("a`b", "count(*)")')
        base.execute("INSERT INTO t VALUES ('x', 5)")
    base.close()
    log = read_log(f"sqlite:///{tmp_path}/names.db", user="a`b", item="count(*)")
    assert known(log) == {("x", 5)}
    counted = "?query=SELECT `a``b`, count(*) FROM t GROUP BY 1"
    log = read_log(f"sqlite:///{tmp_path}/names.db{counted}", user="a`b", item="count(*)")
    assert known(log) == {("x", 1)}  # not the text "count(*)"


def test_types_of_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("7", 1, 1, "2024-01-02"), (7, 2.0, 2.5, "2024-01-03"), ("x", 2, None, None)]
    mixed = sqlite_base(tmp_path / "mixed.db", rows)
    for size in (1, 99):
        monkeypatch.setattr(sqlite_file, "_ROWS", size)
        log = read_log(mixed)
        assert set(known(log)) == {("7", 1), ("7", 2), ("x", 2)}
        assert log.summary.untimed == 1
    bad = sqlite_base(tmp_path / "bad.db", [*ROWS[:2], ("cy", 1.5, 1, 1), (b"cy", 3, 1, 1),
                                            (None, 4, 1, 1), ("dan", 5, 1, 1)])  # fmt: skip
    for size in (1, 99):
        monkeypatch.setattr(sqlite_file, "_ROWS", size)
        with pytest.raises(DataError, match=r"table=orders, row [23] \(from 0\): "):
            read_log(f"{bad}?table=orders")
        log = read_log(f"{bad}?table=orders", skip_bad_rows=True)
        assert set(known(log)) == {("ann", 7), ("bob", 3), ("dan", 5)}
        assert sum(log.summary.bad_rows.values()) == 3
        assert log.summary.bad_rows["user is a BLOB where text or a number was expected"] == 1
    table = open_source(f"{bad}?table=orders").tables[0]
    (batch,) = table.batches({"user": "user", "item": "item"})
    wheres = [batch.place(row).where for row in range(batch.frame.height)]
    assert [text.rpartition("row ")[2] for text in wheres] == [
        f"{row} (from 0)" for row in (0, 1, 2, 4, 5)
    ]
    assert batch.place(3).text == "(None, 4.0)"


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    address = sqlite_base(tmp_path / "latin.db")
    with sqlite3.connect(tmp_path / "latin.db") as base:
        base.execute("INSERT INTO orders VALUES (CAST(x'636166e9' AS TEXT), 1, 1, 1)")
    base.close()
    with pytest.raises(DataError, match=r"cannot be read .*UTF-8"):
        read_log(f"{address}?table=orders")


def test_relations_of_duckdb() -> None:
    with duckdb.connect() as base:
        base.register("orders", pl.DataFrame(ROWS, schema=["user", "item", "rating", "time"],
                                             orient="row").to_arrow())  # fmt: skip
        relation = base.sql('SELECT *, user AS "a.b" FROM orders')
        log = read_log(relation)
        assert known(log) == TIMES
        assert log.summary.plan.files == ("the duckdb DuckDBPyRelation",)
        assert plan_log(relation).first_rows[0] == ("ann", "7", "4.0", "30", "ann")
        assert known(read_log(relation, user="a.b")) == TIMES
        with pytest.raises(DataError, match="no user, got"):
            read_log(base.sql("SELECT NULL::TEXT AS user, 3 AS item"))
        failing = base.sql("SELECT 'a' AS user, error('broken') AS item")
        with pytest.raises(DataError, match=r"cannot be read .*broken"):
            read_log(failing)


class Stream:
    """An object of nobody's, with the interface of Arrow."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_streams_of_arrow() -> None:
    table = pl.DataFrame(ROWS, schema=["user", "item", "rating", "time"], orient="row").to_arrow()
    parts = pa.Table.from_batches(table.to_batches(max_chunksize=1))
    assert known(read_log(Stream(parts))) == TIMES
    bad = parts.set_column(1, "item", pa.array([1, 2, None, 3]))
    with pytest.raises(DataError, match=r"the tests Stream, row 2 \(from 0\): no item"):
        read_log(Stream(bad))


def test_the_command_reads_a_table(tmp_path: Path) -> None:
    address = sqlite_base(tmp_path / "shop.db", [(f"u{n % 9}", n % 7, 1, n) for n in range(60)])
    done = fewfold("fit", f"{address}?table=orders", "--model", "popularity", "--test", "0",
                   "--out", tmp_path / "model", "-q")  # fmt: skip
    assert done.code == 0, done.err
    assert "shop.db?table=orders" in (tmp_path / "model" / "README.md").read_text()
    assert "u0" in fewfold("data", "show", f"{address}?table=orders").out
