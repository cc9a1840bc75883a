"""Hive partitions: folder names such as ``dt=2024-01-01`` as columns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.table_source import Batch, Place, Table, library

__all__ = ["Partition", "partition_values"]

_MISSING = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Partition:
    """A table with additional columns that are constant over its rows.

    Attributes:
        table: the table in the file.
        values: the constant columns, as text; None for a missing value.
    """

    table: Table
    values: Mapping[str, str | None]

    @classmethod
    def of(cls, table: Table, values: Mapping[str, str | None]) -> Table:
        """Add the columns that the table does not have itself."""
        more = {name: value for name, value in values.items() if name not in table.columns}
        return cls(table, more) if more else table

    @property
    def name(self) -> str:
        """Path of the table."""
        return self.table.name

    @property
    def format(self) -> str:
        """Name of the format, for messages."""
        return self.table.format

    @property
    def headless(self) -> bool:
        """Whether columns are named by position for lack of a header."""
        return self.table.headless

    @property
    def typed(self) -> bool:
        """Whether values have types."""
        return self.table.typed

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was assumed about the header."""
        return self.table.notes

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names of the table, then of the partitions."""
        return (*self.table.columns, *self.values)

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        more = tuple(str(value) for value in self.values.values())
        return [(*row, *more) for row in self.table.head(count)]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        polars = library("polars")
        inside = {role: name for role, name in roles.items() if name not in self.values}
        # The number of rows is known only from a column of the table.
        needed = inside or {"": self.table.columns[0]}
        for batch in self.table.batches(needed):
            rows = batch.frame.height
            columns = [
                batch.frame[role]
                if role in inside
                else polars.Series([self.values[name]], dtype=polars.String).new_from_index(0, rows)
                for role, name in roles.items()
            ]
            named = [column.alias(role) for column, role in zip(columns, roles, strict=True)]
            yield Batch(polars.DataFrame(named), self._placed(batch), batch.bad, batch.done)

    def _placed(self, batch: Batch) -> Callable[[int], Place]:
        """Return the batch's row locator, with the partition columns added to the text."""
        more = ", ".join(f"{name}={value}" for name, value in self.values.items())

        def place(row: int) -> Place:
            found = batch.place(row)
            return Place(found.where, f"{found.text} with {more}")

        return place


def partition_values(file: Path, folder: Path) -> dict[str, str | None]:
    """Return the partition columns encoded in the folders between `folder` and `file`."""
    values: dict[str, str | None] = {}
    for part in file.relative_to(folder).parts[:-1]:
        name, sign, value = part.partition("=")
        if not sign or not name:
            continue
        name = unquote(name)
        if name in values:
            raise DataError(f"{file}: two folders are called {name}=; rename one of them")
        values[name] = None if value == _MISSING else unquote(value)
    return values
