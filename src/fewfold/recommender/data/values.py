"""Columns of a log as what they mean: ids, ratings, times; null where there is nothing to read."""

from typing import Any

from fewfold.recommender.data.tables import library
from fewfold.recommender.errors import DataError

__all__ = ["Times", "ratings", "whole"]

_INSTANTS = (
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M%#z",
    "%Y%m%dT%H%M%S%#z",
)


class Times:
    """The times of a log as numbers that grow, whatever the tables write them as.

    Numbers stay what they are; dates and instants become microseconds since 1970, in UTC where they
    do not say otherwise. The first batch decides which of the two a column of text is.
    """

    def __init__(self) -> None:
        self._dated: bool | None = None  # whether they are dates, not numbers

    def read(self, column: Any, name: str) -> Any:
        """A polars Series of int64 or float64, null where there is no time to be read."""
        pl = library("polars")
        kind = column.dtype
        if kind in (pl.Categorical, pl.Enum):
            column, kind = column.cast(pl.String), pl.String
        if kind == pl.String:
            return self._text(column)
        if column.null_count() == len(column):
            return column.cast(pl.Int64, strict=False)
        if kind in (pl.Date, pl.Datetime):
            self._agree(True, name)
            return column.cast(pl.Datetime("us")).to_physical()
        if not (kind.is_integer() or kind.is_float() or kind.is_decimal()):
            raise DataError(
                f"{name}: times must be numbers, dates or text in ISO 8601, got a column of "
                f"{kind}; convert it, or do without: time=False (--ignore-times)"
            )
        self._agree(False, name)
        if kind.is_integer():
            return column.cast(pl.Int64, strict=False)
        return _finite(column.cast(pl.Float64))

    def _agree(self, dated: bool, name: str) -> None:
        if self._dated not in (None, dated):
            kinds = ("dates", "numbers") if dated else ("numbers", "dates")
            raise DataError(
                f"{name}: the times are {kinds[0]} here and {kinds[1]} before; write the files "
                "with one type, or do without: time=False (--ignore-times)"
            )
        self._dated = dated

    def _text(self, column: Any) -> Any:
        """What the first batch with a time was decides for all."""
        if self._dated:
            return _instants(column)
        numbers = _numbers(column)
        if self._dated is False or numbers.null_count() == 0:
            self._dated = False if len(column) else self._dated
            return numbers
        instants = _instants(column)
        if min(numbers.null_count(), instants.null_count()) < len(column):
            self._dated = instants.null_count() <= numbers.null_count()
        return instants if self._dated else numbers


def ratings(column: Any, name: str) -> Any:
    """Ratings as a polars Series of float64, null where there is no number."""
    pl = library("polars")
    if column.dtype in (pl.Categorical, pl.Enum):
        column = column.cast(pl.String)
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    elif not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise DataError(
            f"{name}: ratings must be numbers, got a column of {column.dtype}; name another "
            "with rating=... (--rating)"
        )
    return _finite(column.cast(pl.Float64, strict=False))


def whole(column: Any, role: str, name: str) -> tuple[Any, Any]:
    """Ids as text or int64, null where there is none; and which were numbers but not whole ones."""
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
        # Beyond 2**53 a float no longer tells neighbours apart.
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


def _instants(column: Any) -> Any:
    pl = library("polars")
    text = column.str.strip_chars().str.replace(r"^(\d{4}-\d{2}-\d{2}) (\d)", "${1}T${2}")
    found = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(text))
    for spelling in _INSTANTS:
        missing = found.is_null()
        if not missing.any():
            break
        read = text.str.to_datetime(spelling, strict=False, time_unit="us").to_physical()
        found = read.zip_with(missing, found)
    return found
