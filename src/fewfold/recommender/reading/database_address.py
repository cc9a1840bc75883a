"""Addresses of tables in databases: ``sqlite:///shop.db?table=orders``."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fewfold.recommender.errors import DataError

__all__ = ["DatabaseAddress", "quoted"]

_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<path>[^?]*)(?:\?(?P<rest>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class DatabaseAddress:
    """A file of a database, and a table or a query in it.

    Attributes:
        text: the address as it was written.
        path: the file.
        table: name of a table or view, or None.
        query: an SQL query whose rows are the table, or None.

    Example:
        >>> from fewfold.recommender.reading.database_address import DatabaseAddress
        >>> DatabaseAddress.parse("sqlite:////data/shop.db?table=orders", ("sqlite",)).table
        'orders'
    """

    text: str
    path: Path
    table: str | None = None
    query: str | None = None

    @classmethod
    def parse(cls, text: str, schemes: tuple[str, ...]) -> "DatabaseAddress | None":
        """Parse an address; return None if it has none of these schemes."""
        found = _ADDRESS.fullmatch(text)
        if found is None or found["scheme"].lower() not in schemes:
            return None
        scheme, path, rest = found["scheme"], unquote(found["path"]), found["rest"]
        if len(found["slashes"]) not in (3, 4) or not path:
            raise DataError(
                f"{text}: expected the path of a database after three slashes, as in "
                f"{scheme}:///shop.db?table=orders, or {scheme}:////data/shop.db?table=orders for "
                "an absolute path"
            )
        file = Path("/" + path if len(found["slashes"]) == 4 else path).expanduser()
        if rest is None:
            return cls(text, file)
        kind, _, value = rest.partition("=")
        if kind not in ("table", "query") or not value.strip():
            raise DataError(
                f"{text}: expected ?table=NAME or ?query=SELECT... after the path of the database"
            )
        return cls(text, file, **{kind: unquote(value)})

    def source(self, tables: list[str]) -> tuple[str, tuple[str, ...]]:
        """Return what to select from, in SQL, and notes on what was assumed.

        Args:
            tables: names of the tables and views of the database.
        """
        if self.query is not None:
            # As a subquery it can be nothing but a query. Its last line may be a comment.
            return f"({self.query.strip().rstrip(';')}\n)", ()
        listed = ", ".join(tables[:20]) or "none"
        if self.table is not None:
            if self.table not in tables:
                raise DataError(f"{self.text}: there is no such table; there are {listed}")
            return quoted(self.table), ()
        if len(tables) != 1:
            raise DataError(
                f"{self.text}: say which table to read: {self.text}?table=NAME; there are {listed}"
            )
        return quoted(tables[0]), (f"the table {tables[0]!r} is read, the only one",)

    def check_file(self) -> None:
        """Raise unless the file exists."""
        if not self.path.is_file():
            raise DataError(f"{self.text}: there is no file {self.path}; check the path")


def quoted(name: str) -> str:
    """Quote an identifier of SQL."""
    if "\0" in name:
        raise DataError(f"{name!r}: a name in a database has no zero byte")
    return '"' + name.replace('"', '""') + '"'
