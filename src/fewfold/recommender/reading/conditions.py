"""Conditions on the rows of a log: ``event_type=purchase``, ``rating>=4``."""

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.tables import Batch, library, within_calendar
from fewfold.recommender.reading.values import microseconds

__all__ = ["Condition", "Filter"]

_OPERATOR = re.compile(r"\s*(!=|>=|<=|==|=|>|<)(.*)", re.DOTALL)
_NUMBER = r"^[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?$"  # 007 is an id
_MISSING = ("", "nan", "nat")  # in small letters; null or NA may be a value
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2}([T ].*)?)?")
_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": lambda column, value: column >= value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    "<": lambda column, value: column < value,
}


@dataclass(frozen=True)
class Condition:
    """What a column must be for a row to count.

    Attributes:
        text: as it was written.
        column: the name of the column.
        operator: = or != (one of the values), or >=, <=, >, <.
        values: what to compare with; one for an order. The empty text stands for a missing value.
        missing: texts that count as missing, in small letters.

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
    missing: tuple[str, ...] = _MISSING

    @classmethod
    def parse(cls, text: str, columns: Sequence[str], name: str) -> "Condition":
        """From COLUMN=A, COLUMN=A,B, COLUMN!=A, COLUMN>=4 and the like.

        Args:
            text: the condition. A value with a comma stands in double quotes.
            columns: the columns there are.
            name: what to call the table when something is wrong.
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
        """The column that a condition is about, or None if there is no such column."""
        split = cls._split(text, columns)
        return None if split is None else split[0]

    @staticmethod
    def _split(text: str, columns: Sequence[str]) -> tuple[str, str, str] | None:
        """The column, the operator and the rest of a condition."""
        # By the columns there are, since a name may have any sign in it; the longest that fits.
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
        if _number(value) is None and not _DATE.fullmatch(value):
            raise ValueError(
                f"where={text!r} compares with a number or a date such as 2024-01-31, got {value!r}"
            )
        return (value,)

    def holds(self, column: Any, name: str) -> Any:
        """Where the condition is met, as a polars Series of booleans.

        Text counts without blanks around it, and missing values (null, NaN) as the empty text.
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
            return self._ordered(column, name).fill_null(False)
        met = self.equal(column)
        return ~met if self.operator == "!=" else met

    def equal(self, column: Any) -> Any:
        """Where the column is one of the values."""
        polars = library("polars")
        texts = column.cast(polars.String).fill_null("").str.strip_chars()
        met = texts.is_in(list(self.values))
        if "" in self.values:
            met |= texts.str.to_lowercase().is_in(list(self.missing))
        flags = [v.lower() for v in self.values if v.lower() in ("true", "false")]
        if flags:  # True is true
            met |= texts.str.to_lowercase().is_in(flags)
        numbers = [n for value in self.values if (n := _number(value)) is not None]
        if numbers:  # 4 is 4.0
            usual = texts.str.contains(_NUMBER)
            met |= texts.set(~usual, None).cast(polars.Float64).is_in(numbers).fill_null(False)
        return met

    def _ordered(self, column: Any, name: str) -> Any:
        polars, value = library("polars"), self.values[0]
        compare, number = _ORDERS[self.operator], _number(value)
        kind = column.dtype
        if kind in (polars.Date, polars.Datetime):
            moment = None if number is not None else _moment(value)
            if moment is None:
                raise ValueError(
                    f"where={self.text!r}: the column {self.column!r} of {name} has dates; compare "
                    "it with one such as 2024-01-31"
                )
            return compare(microseconds(column), int(moment.timestamp() * 1_000_000))
        if number is not None:
            texts = column if kind.is_numeric() else column.cast(polars.String).str.strip_chars()
            floats = texts.cast(polars.Float64, strict=False)
            return compare(floats.set(floats.is_nan().fill_null(False), None), number)
        if kind.is_numeric():
            raise ValueError(
                f"where={self.text!r}: the column {self.column!r} of {name} has numbers; compare "
                "it with one"
            )
        # Dates in ISO 8601 are in the order of their letters.
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
    """The conditions on a log, and what became of its rows.

    Attributes:
        conditions: all of them must be met.
        left_out: how many rows did not meet them.
        unused: values of = conditions that no row had so far, by condition.
        seen: some values of each column, most frequent first.
    """

    conditions: tuple[Condition, ...]
    left_out: int = 0
    unused: dict[str, set[str]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unused = {one.text: set(one.values) for one in self.conditions if one.operator == "="}

    def roles(self) -> dict[str, str]:
        """The columns it looks at, under names of its own."""
        return {f"where {number}": one.column for number, one in enumerate(self.conditions)}

    def apply(self, batch: Batch, name: str) -> Batch:
        """The rows that meet all conditions."""
        if not self.conditions or batch.frame.height == 0:
            return batch
        met: Any = None
        for number, condition in enumerate(self.conditions):
            column = batch.frame[f"where {number}"]
            holds = condition.holds(column, name)
            self._look(condition, column)
            met = holds if met is None else met & holds
        rows = met.arg_true()
        self.left_out += batch.frame.height - len(rows)
        place = batch.place
        return Batch(
            batch.frame.filter(met), lambda row: place(int(rows[row])), batch.bad, batch.done
        )

    def _look(self, condition: Condition, column: Any) -> None:
        """Keep account of values that were asked for and not found yet."""
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
        """What was asked for and never found."""
        columns = {one.text: one.column for one in self.conditions}
        return tuple(
            f"no row has {columns[text]}={', '.join(sorted(values))}; there are "
            f"{', '.join(self.seen.get(columns[text], []))}"
            for text, values in self.unused.items()
            if values
        )


def _number(value: str) -> float | None:
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None


def _moment(value: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(value if len(value) > 7 else f"{value}-01")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
