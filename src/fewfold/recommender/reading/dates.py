"""Recognise the date format of a text column and convert it to instants."""

import re
import warnings
from datetime import UTC, datetime
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.table_source import library

__all__ = ["Dates", "instants"]

# In chrono syntax: %.f is an optional fraction with its point, %#z accepts Z and +02, and %B
# accepts Jan and January.
_ISO = (
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M:%S%.f%#z",
    "%Y-%m-%d",
    "%Y-%m-%dT%H:%M",
    "%Y-%m-%dT%H:%M%#z",
    "%Y%m%dT%H%M%S%#z",
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S%.f %p", " %I:%M%p", " %I:%M:%S%p")
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%Y.%m.%d", "%d %B %Y", "%d-%B-%Y", "%B %d, %Y", "%B %d %Y")
_WORDY = (
    *(day + clock for day in _DAYS for clock in _CLOCKS),
    *("%Y-%m-%d" + clock for clock in _CLOCKS[3:]),
    "%a, %d %b %Y %H:%M:%S %#z",  # mail
    "%a %b %d %H:%M:%S %Y",  # ctime
    "%a %b %d %H:%M:%S %#z %Y",  # tweets
    "%d/%b/%Y:%H:%M:%S %#z",  # web servers
)
_UNCLEAR = re.compile(r"^(\d{1,2})([/-])(\d{1,2})[/-]\d{4}\b")
_YEAR_1000 = -30_610_224_000_000_000  # in microseconds since 1970
_SAMPLE = datetime(2017, 11, 23, 22, 41, 53, 123456, tzinfo=UTC)


def instants(column: Any) -> Any:
    """Convert ISO 8601 text to microseconds since 1970; null for any other text."""
    text = column.str.strip_chars().str.replace(r"^(\d{4}-\d{2}-\d{2}) (\d)", "${1}T${2}")
    return _first_of(text, _ISO)


class Dates:
    """Convert text to instants, in a given or a recognised format.

    ISO 8601 is always recognised. For other text the first batch selects, from a list of common
    formats, those that match some value. Day and month are distinguished by numbers above 12; if
    there is none, the dates are ambiguous, which is an error that shows both readings.
    """

    def __init__(self, given: str | None = None) -> None:
        """`given`: a strptime format, or None to recognise the format."""
        self._formats: tuple[str, ...] | None = None
        self._given = given
        self._use_python = given is not None and _parses_differently(_checked(given))

    def read(self, column: Any, name: str) -> Any:
        """Convert a polars Series of text to microseconds since 1970; null where invalid."""
        if self._given is not None:
            text = column.str.strip_chars()
            return (
                _parse_by_python(text, self._given)
                if self._use_python
                else _parsed(text, self._given)
            )
        found = instants(column)
        left = found.is_null() & column.is_not_null()
        if not left.any():
            return found
        text = column.str.strip_chars().str.replace_all(r"\s+", " ")
        if self._formats is None:
            formats = self._recognised(text.filter(left), name)
            if not formats:
                return found
            self._formats = formats
        return _drop_two_digit_years(_first_of(text, self._formats)).zip_with(left, found)

    def note(self) -> str | None:
        """Describe the recognised formats other than ISO 8601, or None."""
        if self._formats is None:
            return None
        written = " and ".join(repr(one.replace("%.f", "")) for one in self._formats)
        return (
            f"the times are read as {written}; if they are written otherwise, say how with "
            "time_format=... (--time-format)"
        )

    def _recognised(self, text: Any, name: str) -> tuple[str, ...]:
        """Return the formats that match some of the text."""
        text = text.unique(maintain_order=True)
        order = _day_or_month(text, name)
        formats = []
        for spelling in (*_WORDY, *(order + clock for clock in _CLOCKS if order)):
            read = _drop_two_digit_years(_parsed(text, spelling))
            if read.null_count() < len(text):
                formats.append(spelling)
                text = text.filter(read.is_null())
        return tuple(formats)


def _day_or_month(text: Any, name: str) -> str:
    """Return the format of dates like 31/12/2020 or 12/31/2020; empty if there are none."""
    slashed = text.filter(text.str.contains(_UNCLEAR.pattern))
    if len(slashed) == 0:
        return ""
    pl = library("polars")
    first, second = (
        slashed.str.extract(_UNCLEAR.pattern, group).cast(pl.Int64) for group in (1, 3)
    )
    possible = (first <= 12) | (second <= 12)  # others are reported as invalid dates
    slashed, first, second = (one.filter(possible) for one in (slashed, first, second))
    if len(slashed) == 0:
        return ""
    days_first, months_first = slashed.filter(first > 12), slashed.filter(second > 12)
    sign = "-" if "-" in slashed[0][:3] else "/"
    forms = (f"%d{sign}%m{sign}%Y", f"%m{sign}%d{sign}%Y")
    if len(days_first) and len(months_first):
        raise DataError(
            f"{name}: the dates are mixed: {days_first[0]!r} has the day first, "
            f"{months_first[0]!r} the month; write them in one format, or do without: time=False "
            "(--ignore-times)"
        )
    if not len(days_first) and not len(months_first):
        apart = slashed.filter(first != second)
        example = (apart if len(apart) else slashed)[0]
        readings = [_format_date(example, form) for form in forms]
        rest = _time_of_day_format(example)
        raise DataError(
            f"{name}: {example!r} is {readings[0]} or {readings[1]}, and no date near it decides "
            f"which; write time_format={forms[0] + rest!r} (--time-format '{forms[0] + rest}') "
            f"for day first, or {forms[1] + rest!r} for month first"
        )
    return forms[0] if len(days_first) else forms[1]


def _format_date(example: str, form: str) -> str:
    day = library("polars").Series([example.split(" ")[0]]).str.to_date(form, strict=False)[0]
    return "no date" if day is None else f"{day.day} {day:%B %Y}"


def _time_of_day_format(example: str) -> str:
    """Return the strptime format of the time of day after a date."""
    text = library("polars").Series([example.partition(" ")[2]])
    for clock in _CLOCKS[1:]:
        if _parsed("2000-01-01 " + text, "%Y-%m-%d" + clock).null_count() == 0:
            return clock.replace("%.f", ".%f" if "." in example.partition(" ")[2] else "")
    return ""


def _first_of(text: Any, formats: tuple[str, ...]) -> Any:
    """Parse each text with the first format that matches it."""
    pl = library("polars")
    found = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(text))
    for spelling in formats:
        missing = found.is_null()
        if not missing.any():
            break
        found = _parsed(text, spelling).zip_with(missing, found)
    return found


def _drop_two_digit_years(found: Any) -> Any:
    """Set dates before the year 1000 to null: they come from two-digit years."""
    return found.set((found < _YEAR_1000).fill_null(False), None)


def _parsed(text: Any, spelling: str) -> Any:
    """Parse text in one format to microseconds since 1970, null where it does not match."""
    spelling = spelling.replace(".%f", "%.f")
    return text.str.to_datetime(spelling, strict=False, time_unit="us").to_physical()


def _checked(given: str) -> str:
    """Validate a strptime format."""
    try:
        datetime.strptime(_SAMPLE.strftime(given), given)
    except (ValueError, re.error, UnicodeError) as error:
        raise ValueError(
            f"time_format must be a format of strptime such as '%d/%m/%Y %H:%M', got {given!r}: "
            f"{error}"
        ) from None
    if "%" not in given.replace("%%", ""):
        raise ValueError(
            f"time_format must say where day, month and year are, such as '%d/%m/%Y', got {given!r}"
        )
    return given


def _parses_differently(given: str) -> bool:
    """Return whether polars, which is faster, parses this format differently from Python."""
    polars = library("polars")
    text = polars.Series([_SAMPLE.strftime(given)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return bool(_parsed(text, given)[0] != _parse_by_python(text, given)[0])
    except (polars.exceptions.PolarsError, Warning):
        return True


def _parse_by_python(text: Any, given: str) -> Any:
    """Parse with Python's strptime, each distinct text once."""
    polars = library("polars")
    distinct = text.drop_nulls().unique()
    known = {one: _parse_one(one, given) for one in distinct.to_list()}
    return polars.Series([known.get(one) for one in text.to_list()], dtype=polars.Int64)


def _parse_one(text: str, given: str) -> int | None:
    try:
        moment = datetime.strptime(text, given)
    except (ValueError, OverflowError):
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    try:
        apart = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        return None
    return (apart.days * 86_400 + apart.seconds) * 1_000_000 + apart.microseconds
