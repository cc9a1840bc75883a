"""Databases that logs are read from, by the scheme of their address.

To add a database, write a function from a `DatabaseAddress` to a `Table`, and add a row to
`DATABASES`.
"""

from collections.abc import Callable, Mapping

from fewfold.recommender.reading.database_address import DatabaseAddress
from fewfold.recommender.reading.duckdb_tables import open_duckdb
from fewfold.recommender.reading.sqlite import Sqlite
from fewfold.recommender.reading.table_source import Table

__all__ = ["DATABASES", "database_table"]

DATABASES: Mapping[str, Callable[[DatabaseAddress], Table]] = {
    "sqlite": Sqlite.open,
    "duckdb": open_duckdb,
}


def database_table(text: str) -> Table | None:
    """Open the table of an address such as ``sqlite:///shop.db?table=orders``, or return None."""
    for scheme, open_table in DATABASES.items():
        if (address := DatabaseAddress.parse(text, (scheme,))) is not None:
            return open_table(address)
    return None
