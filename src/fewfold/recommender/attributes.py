"""Item attributes (names, groups, ...) from a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fewfold.recommender.encoded_columns import EncodedColumn
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.reading.columns import called
from fewfold.recommender.reading.source import Source, open_source
from fewfold.recommender.reading.table_source import Batch, explained, within_calendar

__all__ = ["Attributes", "read_attributes", "read_catalogue"]


@dataclass(frozen=True, eq=False)
class Attributes:
    """Text columns with one row per item, in the order of the items.

    Attributes:
        columns: from column name to one text per item; empty for a missing value.

    Example:
        >>> from fewfold.recommender.attributes import Attributes
        >>> attributes = Attributes.of({"section": ["libdevel", None]})
        >>> attributes[0], attributes[1]
        ({'section': 'libdevel'}, {})
    """

    columns: Mapping[str, Texts]
    _encoded: dict[str, EncodedColumn] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]]) -> "Attributes":
        """Construct from lists; values are converted by `str`."""
        return cls(
            {
                name: Texts.of("" if value is None else str(value) for value in values)
                for name, values in columns.items()
            }
        )

    def __getitem__(self, item: int) -> dict[str, str]:
        row = ((name, column[item]) for name, column in self.columns.items())
        return {name: value for name, value in row if value}

    def encoded(self, name: str) -> EncodedColumn:
        """Return a column as numbered values, which are computed once."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise ValueError(f"there is no item attribute {name!r}; there are {known}")
        if name not in self._encoded:
            self._encoded[name] = EncodedColumn.of(name, self.columns[name])
        return self._encoded[name]

    def take(self, items: Any) -> list[dict[str, str]]:
        """Return the attributes of these items."""
        columns = [(name, column.take(items)) for name, column in self.columns.items()]
        return [
            {name: values[row] for name, values in columns if values[row]}
            for row in range(len(items))
        ]

    def first(self, items: int) -> "Attributes":
        """Return the rows of the first items."""
        return Attributes(
            {name: Texts.of(column.tolist()[:items]) for name, column in self.columns.items()}
        )

    def extended(self, items: int) -> "Attributes":
        """Append empty rows for `items` more items."""
        return Attributes(
            {
                name: Texts.of([*column.tolist(), *[""] * items])
                for name, column in self.columns.items()
            }
        )


def read_attributes(source: Any, items: Ids, key: str | None = None) -> Attributes:
    """Read a table of item attributes and align it with the items.

    Of several rows for one item the first is used; items without a row have no attributes, and rows
    of unknown items are ignored.
    """
    columns, key, found = _read_table(source, items, key)
    return _aligned(columns, key, found, len(items))


def read_catalogue(
    source: Any, items: Ids, key: str | None = None, *, role: str = "item"
) -> tuple[Ids, Attributes]:
    """Read a table of attributes of items, or users; return these, those of the table appended.

    As `read_attributes`, but rows of unknown items add them. A row without an id, or with one that
    the ids of the log cannot be (text where they are whole numbers), is ignored.
    """
    columns, key, found = _read_table(source, items, key, role)
    texts = [value.strip() if isinstance(value, str) else value for value in columns[key]]
    more: dict[Any, int] = {}
    for row in (found < 0).nonzero().squeeze(1).tolist():
        value = items.convert(texts[row]) if texts[row] not in (None, "") else None
        if value is not None:
            found[row] = len(items) + more.setdefault(value, len(more))
    everything = items.extended(Ids.of(list(more))) if more else items
    return everything, _aligned(columns, key, found, len(everything))


def _read_table(
    source: Any, items: Ids, key: str | None, role: str = "item"
) -> tuple[dict[str, list[Any]], str, torch.Tensor]:
    """Read a table; return its columns, the one of items, and the item number of each row.

    With the role "user" it is about users.
    """
    opened = open_source(source)
    table = f"the table {opened.files[0]}"
    columns = _columns(opened)
    if not columns:
        raise DataError(f"{table} has no columns; expected one of {role}s, and others about them")
    if key is not None and key not in columns:
        raise DataError(f"there is no column {key!r} in {table}; there are {', '.join(columns)}")
    found = {name: _found(items, columns[name]) for name in ([key] if key else columns)}
    # The column that matches the most of them; ties go to a common name.
    key = max(found, key=lambda n: (len(found[n][found[n] >= 0].unique()), called(n, role)))
    if not bool((found[key] >= 0).any()):
        raise DataError(
            f"no row of {table} is about {'an item' if role == 'item' else 'a user'} of the model: "
            f"its {role}s are written as {items[0]!r}, the column {key!r} as "
            f"{columns[key][0] if columns[key] else None!r}; to name another column of {role}s "
            f"write key=... (--{role}s-key)"
        )
    return columns, key, found[key]


def _aligned(
    columns: dict[str, list[Any]], key: str, found: torch.Tensor, items: int
) -> Attributes:
    """Return the columns but the key in the order of the items, by the item of each row."""
    rows = {number: row for row, number in reversed(list(enumerate(found.tolist())))}
    order = [rows.get(number) for number in range(items)]
    return Attributes.of(
        {
            name: [None if row is None else values[row] for row in order]
            for name, values in columns.items()
            if name != key
        }
    )


def _found(items: Ids, values: list[Any]) -> torch.Tensor:
    """Return the item number of each value, -1 for no match, ignoring surrounding whitespace.

    Ids of the log may or may not have been stripped, so both spellings are tried.
    """
    found = items.find(values)
    bare = [value.strip() if isinstance(value, str) else value for value in values]
    return found if bare == values else torch.where(found >= 0, found, items.find(bare))


def _columns(source: Source) -> dict[str, list[Any]]:
    """Read every column of a table, by name."""
    columns: dict[str, list[Any]] = {name: [] for name in source.tables[0].columns}
    for table in source.tables:
        for batch in table.batches({name: name for name in table.columns}):
            if batch.bad:
                bad = batch.bad[0]
                raise DataError(
                    f"{bad.place.where}: {bad.reason}, got {bad.place.text}; fix this row of the "
                    "table"
                )
            for name in batch.frame.columns:
                with explained(f"{table.name}, column {name!r}"):
                    values = _values(batch, name)
                columns.setdefault(name, []).extend(values)
    if len({len(values) for values in columns.values()}) > 1:
        raise DataError(
            f"the files of the table {source.files[0]}, ... must have the same columns; write them "
            "again, or name one of them"
        )
    return columns


def _values(batch: Batch, name: str) -> list[Any]:
    """A column as a list; a date that Python does not have is an error that says where it is."""
    column = batch.frame[name]
    dated = within_calendar(column)
    odd = (dated.is_null() & column.is_not_null()).arg_true()
    if len(odd):
        where = batch.place(int(odd[0])).where
        raise DataError(
            f"{where}: the column {name!r} has a date before the year 1 or after 9999; fix it, or "
            "leave this column out of the table"
        )
    values: list[Any] = dated.to_list()
    return values
