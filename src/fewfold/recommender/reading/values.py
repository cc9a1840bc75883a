"""Convert columns of a log to ids, ratings and times; null where a value is invalid."""

from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.dates import Dates
from fewfold.recommender.reading.table_source import library, within_calendar

__all__ = ["NO_TIME", "Times", "microseconds", "ratings", "stripped", "weights", "whole"]

# Spellings of a missing time, in lower case.
NO_TIME = ("", "null", "none", "na", "n/a", "nan", "nat", "-", "\\n", "0000-00-00",
           "0000-00-00 00:00:00")  # fmt: skip


class Times:
    """Convert times to numbers in chronological order, whatever their type.

    Numbers are unchanged; dates and instants become microseconds since 1970, in UTC unless they
    have a time zone. The first batch decides whether a text column has numbers or dates.
    """

    def __init__(self, time_format: str | None = None) -> None:
        """`time_format`: strptime format of text; None recognises common formats."""
        self._has_format = time_format is not None
        self._dates = Dates(time_format)
        self._dated: bool | None = True if self._has_format else None  # None: not known yet

    def read(self, column: Any, name: str) -> tuple[Any, Any]:
        """Return the times, null where missing or invalid, and a mask of the missing ones.

        The times are a polars Series of int64 or float64.
        """
        pl = library("polars")
        kind = column.dtype
        if kind in (pl.Categorical, pl.Enum) or (self._has_format and kind.is_integer()):
            column, kind = column.cast(pl.String), pl.String
        empty = column.is_null()
        if kind == pl.String:
            read = self._read_text(column, name)
            if read.null_count() > empty.sum():
                empty |= column.str.strip_chars().str.to_lowercase().is_in(list(NO_TIME))
            return read, empty
        if empty.all():
            return column.is_null().cast(pl.Int64).set(empty, None), empty
        if kind in (pl.Date, pl.Datetime):
            self._set_kind(True, name)
            return microseconds(within_calendar(column)), empty
        if not (kind.is_integer() or kind.is_float() or kind.is_decimal()):
            raise DataError(
                f"{name}: times must be numbers, dates or text, got a column of {kind}; convert "
                "it, or do without: time=False (--ignore-times)"
            )
        self._set_kind(False, name)
        if kind.is_integer():
            return column.cast(pl.Int64, strict=False), empty
        floats = column.cast(pl.Float64)
        return _finite(floats), empty | floats.is_nan().fill_null(False)

    @property
    def dated(self) -> bool:
        """Whether the times are dates, which become microseconds since 1970; else numbers."""
        return self._dated is True

    def note(self) -> str | None:
        """Describe the recognised date format, if it was guessed."""
        return self._dates.note() if self._dated else None

    def _set_kind(self, dated: bool, name: str) -> None:
        if self._has_format and not dated:
            raise DataError(f"{name}: time_format is for text, and the times are numbers; drop it")
        if self._dated not in (None, dated):
            kinds = ("dates", "numbers") if dated else ("numbers", "dates")
            raise DataError(
                f"{name}: the times are {kinds[0]} here and {kinds[1]} before; write the files "
                "with one type, or do without: time=False (--ignore-times)"
            )
        self._dated = dated

    def _read_text(self, column: Any, name: str) -> Any:
        """Parse text as dates or numbers; the first batch with a time decides which."""
        if self._dated:
            return self._dates.read(column, name)
        numbers = _numbers(column)
        if self._dated is False or numbers.null_count() == 0:
            self._dated = False if len(column) else self._dated
            return numbers
        dates = self._dates.read(column, name)
        if min(numbers.null_count(), dates.null_count()) < len(column):
            self._dated = dates.null_count() <= numbers.null_count()
        return dates if self._dated else numbers


def microseconds(column: Any) -> Any:
    """Convert dates or instants (within the calendar) to microseconds since 1970."""
    pl = library("polars")
    numbers = column.to_physical().cast(pl.Int64)
    if column.dtype == pl.Date:
        return numbers * 86_400_000_000
    return {"ms": numbers * 1000, "us": numbers, "ns": numbers // 1000}[column.dtype.time_unit]


def stripped(column: Any) -> tuple[Any, Any]:
    """Strip whitespace around text ids; also return a mask of the changed ones, or None."""
    bare = column.str.strip_chars()
    changed = (bare != column).fill_null(False)
    return (bare, changed) if changed.any() else (column, None)


def ratings(column: Any, name: str) -> Any:
    """Convert ratings to a polars Series of float64, null where invalid."""
    return _numeric(column, name, "ratings", "rating")


def _numeric(column: Any, name: str, what: str, role: str) -> Any:
    """Convert numbers or text to a polars Series of float64, null where not finite."""
    pl = library("polars")
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise DataError(
            f"{name}: {what} must be numbers, got a column of {column.dtype}; name another "
            f"with {role}=... (--{role})"
        )
    return _finite(column.cast(pl.Float64, strict=False))


def weights(column: Any, name: str) -> Any:
    """Convert weights to a polars Series of float64, null where not finite and at least 0.

    Positive values become at least 1e-30 and at most 1e30, so that sums fit single precision.
    """
    found = _numeric(column, name, "weights", "weight")
    found = found.set((found < 0).fill_null(False), None)
    return found.set((found > 1e30).fill_null(False), 1e30).set(
        ((found > 0) & (found < 1e-30)).fill_null(False), 1e-30
    )


def whole(column: Any, role: str, name: str) -> tuple[Any, Any]:
    """Convert ids to text or int64, null where missing; also mask non-integer numbers."""
    pl = library("polars")
    kind = column.dtype
    none = pl.repeat(False, len(column), eager=True)
    if kind in (pl.Categorical, pl.Enum):
        column, kind = column.cast(pl.String), pl.String
    if kind == pl.String:
        return column.set(column == "", None), none
    if kind == pl.Null:
        return column.cast(pl.Int64), none
    if kind.is_integer():
        numbers = column.cast(pl.Int64, strict=False)
        return numbers, (numbers.is_null() & column.is_not_null())
    if kind.is_float():
        # Above 2**53, consecutive integers are not distinct floats.
        given = column.is_not_null() & column.is_not_nan()
        odd = given & ((column != column.floor()) | (column.abs() > 2.0**53))
        odd = odd.fill_null(False)
        return column.set(odd | ~given, None).cast(pl.Int64), odd
    raise DataError(
        f"{name}: {role} ids must be text or whole numbers, got a column of {kind}; convert it, or "
        f"name another with {role}=... (--{role})"
    )


def _finite(column: Any) -> Any:
    return column.set(~column.is_finite().fill_null(False), None)


def _numbers(column: Any) -> Any:
    pl = library("polars")
    found = column.cast(pl.Int64, strict=False)
    if found.null_count() == 0:
        return found
    column = column.str.strip_chars()
    found = column.cast(pl.Int64, strict=False)
    floats = _finite(column.cast(pl.Float64, strict=False))
    return found if found.null_count() == floats.null_count() else floats
