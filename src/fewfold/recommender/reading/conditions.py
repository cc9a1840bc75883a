"""Row conditions: ``event_type=purchase``, ``rating>=4``."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.table_source import Batch, library, within_calendar
from fewfold.recommender.reading.values import microseconds

__all__ = ["DATE", "MISSING", "Condition", "Filter", "parse_date", "parse_number"]

_OPERATOR = re.compile(r"\s*(!=|>=|<=|==|=|>|<)(.*)", re.DOTALL)
_NUMBER = r"^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?$"  # 007 is an id, not a number
MISSING = ("", "nan", "nat")  # in lower case; null and NA may be values
DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].*)?)?")
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": lambda column, value: column >= value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    "<": lambda column, value: column < value,
}


@dataclass(frozen=True)
class Condition:
    """A condition on one column that selects rows.

    Attributes:
        text: the condition as given by the user.
        column: the name of the column.
        operator: = or != (membership in the values), or >=, <=, >, <.
        values: values to compare with (one for >=, <=, >, <); the empty text means missing.
        missing: texts that count as missing, in lower case.

    Example:
        >>> Condition.parse("event_type=cart,purchase", ["user", "event_type"], "log.csv").values
        ('cart', 'purchase')
        >>> Condition.parse("rating>=4", ["user", "rating"], "log.csv").operator
        '>='
    """

    text: str
    column: str
    operator: str
    values: tuple[str, ...]
    missing: tuple[str, ...] = MISSING

    @classmethod
    def parse(cls, text: str, columns: Sequence[str], name: str) -> "Condition":
        """Parse COLUMN=A, COLUMN=A,B, COLUMN!=A, COLUMN>=4 and the like.

        Args:
            text: the condition. A value with a comma must be in double quotes.
            columns: available columns.
            name: name of the table, for messages.
        """
        split = cls._split(text, columns)
        if split is not None:
            column, operator, rest = split
            return cls(text, column, operator, cls._values(rest, operator, text))
        written = re.match(r"(.*?)\s*(!=|>=|<=|==|=|>|<)", text)
        if written is None:
            raise ValueError(
                f"where must be COLUMN=VALUE, COLUMN=A,B, COLUMN!=VALUE or COLUMN>=NUMBER, got "
                f"{text!r}; for example where='event_type=purchase' (--where event_type=purchase)"
            )
        listed = ", ".join(repr(column) for column in columns[:30])
        raise DataError(
            f"{name}: there is no column {written[1].strip()!r} for where={text!r}; the columns "
            f"are {listed}"
        )

    @classmethod
    def column_of(cls, text: str, columns: Sequence[str]) -> str | None:
        """Return the column of a condition, or None if there is no such column."""
        split = cls._split(text, columns)
        return None if split is None else split[0]

    @staticmethod
    def _split(text: str, columns: Sequence[str]) -> tuple[str, str, str] | None:
        """Split a condition into column, operator and values."""
        # A column name may contain any character, so match known names, the longest first.
        bare = text.strip()
        for column in sorted(columns, key=len, reverse=True):
            if bare.startswith(column) and (found := _OPERATOR.fullmatch(bare[len(column) :])):
                return column, "=" if found[1] == "==" else found[1], found[2]
        return None

    @staticmethod
    def _values(rest: str, operator: str, text: str) -> tuple[str, ...]:
        if operator in ("=", "!="):
            fields = next(csv.reader([rest.strip()], skipinitialspace=True), []) or [""]
            return tuple(value.strip() for value in fields)
        value = rest.strip()
        if parse_number(value) is None and not DATE.fullmatch(value):
            raise ValueError(
                f"where={text!r} compares with a number or a date such as 2024-01-31, got {value!r}"
            )
        return (value,)

    def holds(self, column: Any, name: str) -> Any:
        """Return a boolean polars Series that is true where the condition holds.

        Text is stripped; missing values (null, NaN) count as the empty text.
        """
        polars = library("polars")
        kind = column.dtype
        plain = (polars.String, polars.Categorical, polars.Enum, polars.Boolean, polars.Null)
        if not (kind.is_numeric() or kind.is_temporal() or kind in plain):
            raise DataError(
                f"{name}: where={self.text!r} needs numbers, dates or text, and the column "
                f"{self.column!r} is of {kind}"
            )
        column = within_calendar(column)
        if self.operator in _ORDERS:
            return self._compare(column, name).fill_null(False)
        matches = self.equal(column)
        return ~matches if self.operator == "!=" else matches

    def equal(self, column: Any) -> Any:
        """Return a boolean Series that is true where the column is one of the values."""
        polars = library("polars")
        texts = column.cast(polars.String).fill_null("").str.strip_chars()
        matches = texts.is_in(list(self.values))
        if "" in self.values:
            matches |= texts.str.to_lowercase().is_in(list(self.missing))
        flags = [v.lower() for v in self.values if v.lower() in ("true", "false")]
        if flags:  # case-insensitive booleans
            matches |= texts.str.to_lowercase().is_in(flags)
        numbers = [n for value in self.values if (n := parse_number(value)) is not None]
        if numbers:  # 4 equals 4.0
            usual = texts.str.contains(_NUMBER)
            matches |= texts.set(~usual, None).cast(polars.Float64).is_in(numbers).fill_null(False)
        return matches

    def _compare(self, column: Any, name: str) -> Any:
        polars, value = library("polars"), self.values[0]
        compare, number = _ORDERS[self.operator], parse_number(value)
        kind = column.dtype
        if kind in (polars.Date, polars.Datetime):
            date = None if number is not None else parse_date(value)
            if date is None:
                raise ValueError(
                    f"where={self.text!r}: the column {self.column!r} of {name} has dates; compare "
                    "it with one such as 2024-01-31"
                )
            return compare(microseconds(column), int(date.timestamp() * 1_000_000))
        if number is not None:
            texts = column if kind.is_numeric() else column.cast(polars.String).str.strip_chars()
            floats = texts.cast(polars.Float64, strict=False)
            return compare(floats.set(floats.is_nan().fill_null(False), None), number)
        if kind.is_numeric():
            raise ValueError(
                f"where={self.text!r}: the column {self.column!r} of {name} has numbers; compare "
                "it with one"
            )
        # ISO 8601 dates sort lexicographically.
        texts = column.cast(polars.String).str.strip_chars()
        dated = texts.str.contains(r"^\d{4}-\d{2}")
        other = texts.filter(~dated.fill_null(True) & (texts != ""))
        if len(other):
            raise DataError(
                f"{name}: where={self.text!r} compares dates written as 2024-01-31, and the column "
                f"{self.column!r} has {other[0]!r}; write its dates so, or compare with a number"
            )
        return compare(texts, value) & dated


@dataclass
class Filter:
    """The conditions on a log, with counts of the rows they drop.

    Attributes:
        conditions: all of them must hold.
        left_out: number of dropped rows.
        unused: values of = conditions that no row has had so far, by condition.
        seen: some values of each column, most frequent first.
    """

    conditions: tuple[Condition, ...]
    left_out: int = 0
    unused: dict[str, set[str]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unused = {one.text: set(one.values) for one in self.conditions if one.operator == "="}

    def roles(self) -> dict[str, str]:
        """Return the condition columns by role name ("where 0", "where 1", ...)."""
        return {f"where {number}": one.column for number, one in enumerate(self.conditions)}

    def apply(self, batch: Batch, name: str) -> Batch:
        """Keep the rows that satisfy all conditions."""
        if not self.conditions or batch.frame.height == 0:
            return batch
        matches: Any = None
        for number, condition in enumerate(self.conditions):
            column = batch.frame[f"where {number}"]
            holds = condition.holds(column, name)
            self._track_values(condition, column)
            matches = holds if matches is None else matches & holds
        rows = matches.arg_true()
        self.left_out += batch.frame.height - len(rows)
        place = batch.place
        return Batch(
            batch.frame.filter(matches), lambda row: place(int(rows[row])), batch.bad, batch.done
        )

    def _track_values(self, condition: Condition, column: Any) -> None:
        """Update `unused` and `seen` from a batch of the condition's column."""
        left = self.unused.get(condition.text)
        if not left:
            return
        for value in sorted(left):
            one = replace(condition, operator="=", values=(value,))
            if one.equal(within_calendar(column)).any():
                left.discard(value)
        if left and condition.column not in self.seen:
            texts = within_calendar(column).cast(library("polars").String).drop_nulls()
            counts = texts.str.strip_chars().value_counts(sort=True)
            self.seen[condition.column] = counts.to_series(0).head(8).to_list()

    def notes(self) -> tuple[str, ...]:
        """Return notes on values that no row has."""
        columns = {one.text: one.column for one in self.conditions}
        return tuple(
            f"no row has {columns[text]}={', '.join(sorted(values))}; there are "
            f"{', '.join(self.seen.get(columns[text], []))}"
            for text, values in self.unused.items()
            if values
        )


def parse_number(value: str) -> float | None:
    """Return the finite number that a text is, None if it is none."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def parse_date(value: str) -> datetime | None:
    """Return the date of an ISO 8601 text, or of a month such as 2024-01; UTC unless it says."""
    try:
        found = datetime.fromisoformat(value if len(value) > 7 else f"{value}-01")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
