"""Tables of DuckDB databases."""

import importlib

from fewfold._optional import optional_import
from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow_stream import ArrowStream
from fewfold.recommender.reading.database_address import DatabaseAddress

__all__ = ["open_duckdb"]

_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main'"


def open_duckdb(address: DatabaseAddress) -> ArrowStream:
    """Open a table, view or query of a DuckDB database."""
    with optional_import("duckdb", "duckdb", f"reading {address.text}"):
        duckdb = importlib.import_module("duckdb")
    address.check_file()
    try:
        base = duckdb.connect(str(address.path), read_only=True)
        tables = sorted(name for (name,) in base.execute(_TABLES).fetchall())
        source, notes = address.source(tables)
        text = f"SELECT * FROM {source}"
        # `sql` would run all statements, and what writes files works in a database opened to read.
        if len(base.extract_statements(text)) != 1:
            raise DataError(f"{address.text}: cannot be read (it is not one query)")
        relation = base.sql(text)
    except duckdb.Error as error:
        said = str(error).strip().splitlines()[0][:200]
        raise DataError(f"{address.text}: cannot be read ({said})") from error
    return ArrowStream.of(relation, address.text, notes)
