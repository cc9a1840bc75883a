"""Tables of SQLite databases, read in batches of rows by Python's own sqlite3.

SQLite has types of values, not of columns. All values of the columns that are read are therefore
looked at first, in the same transaction: a column of integers alone becomes int64, one of numbers
float64, any other text. Rows with a BLOB are bad rows.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.database_address import DatabaseAddress
from fewfold.recommender.reading.table_source import (
    Bad,
    Batch,
    in_roles,
    library,
    no_twins,
    place_of_row,
)

__all__ = ["Sqlite"]

_ROWS = 1 << 16  # per batch
_TYPES = {"integer": "Int64", "real": "Float64", "text": "String", "blob": "String"}
_MARK = "is a blob\n"  # with a number before it, a name that no column has
_TABLES = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"


@dataclass(frozen=True)
class Sqlite:
    """A table, view or query of an SQLite database."""

    address: DatabaseAddress
    source: str
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()
    format: str = "SQLite"
    headless: bool = False
    typed: bool = True

    @classmethod
    def open(cls, address: DatabaseAddress) -> "Sqlite":
        """Find the table and its column names."""
        with _connected(address) as base:
            tables = [name for (name,) in base.execute(_TABLES) if not name.startswith("sqlite_")]
            source, notes = address.source(tables)
            found = base.execute(f"SELECT * FROM {source} LIMIT 0").description
        columns = tuple(str(one[0]) for one in found)
        no_twins(columns, address.text)
        return cls(address, source, columns, notes)

    @property
    def name(self) -> str:
        """The address."""
        return self.address.text

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        with _connected(self.address) as base:
            rows = base.execute(f"SELECT * FROM {self.source} LIMIT ?", (count,)).fetchall()
        return [tuple(str(value) for value in row) for row in rows]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        polars, wanted = library("polars"), list(dict.fromkeys(roles.values()))
        with _connected(self.address) as base:
            base.execute("BEGIN")  # one state of the database for both queries
            total, kinds = _kinds(base, self.source, wanted)
            blobs = [name for name in wanted if kinds[name] == "blob"]
            chosen = [_converted(name, kinds[name]) for name in wanted]
            marks = [f"typeof({_column(name)}) = 'blob'" for name in blobs]
            rows = base.execute(f"SELECT {', '.join([*chosen, *marks])} FROM {self.source}")
            schema = {name: getattr(polars, _TYPES[kinds[name]]) for name in wanted}
            schema |= {f"{n} {_MARK}": polars.Int64 for n in range(len(blobs))}
            start = 0
            while part := rows.fetchmany(_ROWS):
                frame = polars.DataFrame(part, schema=schema, orient="row")
                start += len(part)
                done = min(start / max(total, 1), 1.0)
                yield self._batch(frame, start - len(part), blobs, roles, done)

    def _batch(
        self, frame: Any, start: int, blobs: list[str], roles: Mapping[str, str], done: float
    ) -> Batch:
        """Separate the rows with BLOBs from the others; the first row has the number `start`."""
        given = in_roles(frame, roles)
        if not blobs:
            return Batch(given, place_of_row(self.name, given, start), done=done)
        whole, odd = place_of_row(self.name, given, start), np.zeros(frame.height, dtype=np.int64)
        for n in reversed(range(len(blobs))):  # the first of the columns is named
            odd[frame.get_column(f"{n} {_MARK}").to_numpy() == 1] = n + 1
        good = np.flatnonzero(odd == 0)
        bad = tuple(
            Bad(f"{blobs[odd[row] - 1]} is a BLOB where text or a number was expected", whole(row))
            for row in np.flatnonzero(odd).tolist()
        )
        return Batch(given[good], lambda row: whole(int(good[row])), bad, done)


def _column(name: str) -> str:
    """Quote a column; SQLite would take an unknown one in double quotes for a text."""
    return "`" + name.replace("`", "``") + "`"


def _converted(name: str, kind: str) -> str:
    """Return the SQL of a column as values of one type; BLOBs become null."""
    column = _column(name)
    if kind == "integer":
        return column
    text = f"CAST({column} AS {'REAL' if kind == 'real' else 'TEXT'})"
    return f"CASE typeof({column}) WHEN 'blob' THEN NULL ELSE {text} END"


def _kinds(base: sqlite3.Connection, source: str, columns: list[str]) -> tuple[int, dict[str, str]]:
    """Return the number of rows, and the type of each column: the widest of its values."""
    kinds = ("blob", "text", "real")
    of = ", ".join(f"max(typeof({_column(name)}) = '{kind}')" for name in columns for kind in kinds)
    total, *found = base.execute(f"SELECT count(*), {of} FROM {source}").fetchone()
    named = zip(columns, zip(*[iter(found)] * len(kinds), strict=True), strict=True)
    return int(total), {
        name: next((kind for kind, there in zip(kinds, some, strict=True) if there), "integer")
        for name, some in named
    }


@contextlib.contextmanager
def _connected(address: DatabaseAddress) -> Iterator[sqlite3.Connection]:
    """Open a database for reading alone; its errors become a `DataError`."""
    address.check_file()
    file = f"file:{quote(str(address.path))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(file, uri=True)) as base:
            base.execute("PRAGMA query_only = 1")
            yield base
    except (sqlite3.Error, sqlite3.Warning) as error:
        way_out = "check the query" if address.query else "check the file"
        raise DataError(f"{address.text}: cannot be read ({error}); {way_out}") from error
