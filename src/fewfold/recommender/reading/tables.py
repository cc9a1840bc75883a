"""What a log is read from: tables that hand over a batch of rows at a time."""

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

# The days and microseconds since 1970 of the years 1 to 9999, which Python's dates span.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)


@dataclass(frozen=True)
class Place:
    """Where a row is, in words, and how it reads."""

    where: str
    text: str


@dataclass(frozen=True)
class Bad:
    """A row that cannot be used, and why."""

    reason: str
    place: Place


@dataclass(frozen=True)
class Batch:
    """Some rows of a table.

    Attributes:
        frame: a polars DataFrame with a column for each role.
        place: where row i of the frame came from; costly, for messages.
        bad: the rows that did not even make it into the frame.
        done: how much of the table is read by now, from 0 to 1.
    """

    frame: Any
    place: Callable[[int], Place]
    bad: tuple[Bad, ...] = ()
    done: float = 1.0


@dataclass(frozen=True)
class Opening:
    """How to open a file whose format leaves something open.

    Attributes:
        header: whether the first row of a text file names its columns; None finds out.
        unclear: what to take for the answer where it cannot be found out.
    """

    header: bool | None = None
    unclear: bool = True


class Table(Protocol):
    """Something with named columns; several of them make a log."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    @property
    def format(self) -> str:
        """What a person calls its format."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""

    @property
    def headless(self) -> bool:
        """Whether the columns have no names, only positions from 1."""

    @property
    def typed(self) -> bool:
        """Whether values have types; otherwise all is text, and what looks like a number is one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed about its header, in sentences."""

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Up to `count` of the first rows, as text."""

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there."""


def library(name: str) -> Any:
    """Import what only some need."""
    with optional_import(name.split(".")[0], "recommender", "reading a log"):
        return importlib.import_module(name)


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn whatever goes wrong while reading `name` into a `DataError` that says what to do."""
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
        # A panic of polars derives from BaseException, next to KeyboardInterrupt.
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(_damaged(name, error)) from error


def _damaged(name: str, error: BaseException) -> str:
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return f"{name}: cannot be read, it may be damaged ({said}); download or write it again"


def in_roles(frame: Any, roles: Mapping[str, str]) -> Any:
    """A polars DataFrame with the column of each role, under the name of the role."""
    # Not by pl.col, to which a name such as "*" is a pattern.
    return library("polars").DataFrame(
        [frame.get_column(column).alias(role) for role, column in roles.items()]
    )


def place_of_row(name: str, frame: Any, start: int) -> Callable[[int], Place]:
    """Where row i of `frame` is, if the frame begins at row `start` of the table."""

    def place(row: int) -> Place:
        one = frame[row : row + 1]
        # Python has no dates outside of its calendar, and polars panics instead of saying so.
        shown = [within_calendar(column).to_list()[0] for column in one.get_columns()]
        return Place(f"{name}, row {start + row} (from 0)", repr(tuple(shown)))

    return place


def within_calendar(column: Any) -> Any:
    """A polars Series without dates before the year 1 or after 9999: those become null.

    polars panics when such a date becomes text or a Python object, and prints a trace of its own.
    """
    pl = library("polars")
    if column.dtype == pl.Date:
        low, high = _DAYS
    elif column.dtype == pl.Datetime:
        scale = {"ms": 1000, "us": 1, "ns": 0}[column.dtype.time_unit]
        if scale == 0:  # 64 bits of nanoseconds end in 2262
            return column
        low, high = (bound // scale for bound in _MICROSECONDS)
    else:
        return column
    odd = ~column.to_physical().is_between(low, high)
    return column.set(odd.fill_null(False), None) if odd.any() else column


def no_twins(names: Sequence[str], name: str) -> None:
    """Raise a `DataError` if two columns have one name."""
    twice = sorted({one for one in names if list(names).count(one) > 1})
    if twice:
        raise DataError(f"{name}: there are two columns {twice[0]!r}; rename one of them")
