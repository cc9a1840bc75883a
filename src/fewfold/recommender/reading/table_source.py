"""The `Table` protocol: named columns, read in batches of rows."""

import contextlib
import csv
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fewfold._optional import optional_import
from fewfold.recommender.errors import DataError

__all__ = [
    "Bad",
    "Batch",
    "Opening",
    "Place",
    "Table",
    "explained",
    "in_roles",
    "library",
    "no_twins",
    "place_of_row",
    "within_calendar",
]

# Python's date range (years 1 to 9999), in days and microseconds since 1970.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


@dataclass(frozen=True)
class Place:
    """Location of a row (file and line) and its text, for messages."""

    where: str
    text: str


@dataclass(frozen=True)
class Bad:
    """An invalid row and the reason."""

    reason: str
    place: Place


@dataclass(frozen=True)
class Batch:
    """A batch of rows of a table.

    Attributes:
        frame: a polars DataFrame with a column for each role.
        place: returns the location of row i; slow, for error messages only.
        bad: rows that could not be parsed into the frame.
        done: fraction of the table read so far.
    """

    frame: Any
    place: Callable[[int], Place]
    bad: tuple[Bad, ...] = ()
    done: float = 1.0


@dataclass(frozen=True)
class Opening:
    """Options for opening a text file.

    Attributes:
        header: whether the first row of a text file names its columns; None detects it.
        unclear: value of `header` where detection is inconclusive.
    """

    header: bool | None = None
    unclear: bool = True


class Table(Protocol):
    """A source of rows with named columns; one or more form a log."""

    @property
    def name(self) -> str:
        """Name for messages."""

    @property
    def format(self) -> str:
        """Name of the format, for messages."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names."""

    @property
    def headless(self) -> bool:
        """Whether columns are named by position (1, 2, 3, ...) for lack of a header."""

    @property
    def typed(self) -> bool:
        """Whether values have types; otherwise all are text, and integers are detected."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was assumed about the header."""

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""


def library(name: str) -> Any:
    """Import what only some need."""
    with optional_import(name.split(".")[0], "recommender", "reading a log"):
        return importlib.import_module(name)


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn parsing and I/O errors while reading `name` into a `DataError` with advice."""
    foreign = (
        OverflowError,
        RecursionError,
        csv.Error,
        zlib.error,
        lzma.LZMAError,
        library("polars").exceptions.PolarsError,
        library("pyarrow").ArrowException,
    )
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{name}: there is no such file; check the path") from None
    except PermissionError:
        raise DataError(f"{name}: this file may not be read; check its permissions") from None
    except IsADirectoryError:
        raise DataError(f"{name}: this is a folder where a file was expected") from None
    except EOFError as error:
        raise DataError(f"{name}: the file ends too soon; download or write it again") from error
    except (OSError, ValueError, *foreign) as error:
        raise DataError(_damaged(name, error)) from error
    except BaseException as error:
        # polars panics derive from BaseException, like KeyboardInterrupt.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(_damaged(name, error)) from error


def _damaged(name: str, error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"{name}: cannot be read, it may be damaged ({said}); download or write it again"


def in_roles(frame: Any, roles: Mapping[str, str]) -> Any:
    """Select the column of each role from a polars DataFrame and rename it to the role."""
    # pl.col would treat a name such as "*" as a pattern.
    return library("polars").DataFrame(
        [frame.get_column(column).alias(role) for role, column in roles.items()]
    )


def place_of_row(name: str, frame: Any, start: int) -> Callable[[int], Place]:
    """Return a function that locates row i of `frame`, which begins at row `start` of the table."""

    def place(row: int) -> Place:
        one = frame[row : row + 1]
        # polars panics when it converts a date outside Python's range.
        shown = [within_calendar(column).to_list()[0] for column in one.get_columns()]
        return Place(f"{name}, row {start + row} (from 0)", repr(tuple(shown)))

    return place


def within_calendar(column: Any) -> Any:
    """Replace dates outside the years 1 to 9999 of a polars Series by null.

    polars panics when such a date is converted to text or to a Python object.
    """
    pl = library("polars")
    if column.dtype == pl.Date:
        low, high = _DAYS
    elif column.dtype == pl.Datetime:
        scale = {"ms": 1000, "us": 1, "ns": 0}[column.dtype.time_unit]
        if scale == 0:  # 64-bit nanoseconds end in 2262, within the range
            return column
        low, high = (bound // scale for bound in _MICROSECONDS)
    else:
        return column
    odd = ~column.to_physical().is_between(low, high)
    return column.set(odd.fill_null(False), None) if odd.any() else column


def no_twins(names: Sequence[str], name: str) -> None:
    """Raise a `DataError` if a column name occurs twice."""
    twice = sorted({one for one in names if list(names).count(one) > 1})
    if twice:
        raise DataError(f"{name}: there are two columns {twice[0]!r}; rename one of them")
