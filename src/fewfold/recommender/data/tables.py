"""What a log is read from: tables that hand over a batch of rows at a time."""

import contextlib
import csv
import importlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fewfold.recommender.errors import DataError

__all__ = ["Bad", "Batch", "Place", "Table", "explained", "library"]


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


class Table(Protocol):
    """Something with named columns; several of them make a log."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns."""

    @property
    def headless(self) -> bool:
        """Whether the columns have no names, only positions from 1."""

    def head(self) -> list[tuple[str, ...]]:
        """The first three rows, as text."""

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there."""


def library(name: str) -> Any:
    """Import what only some need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(
            f"reading a log needs {package}: pip install 'fewfold[recommender]'"
        ) from error


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Say what went wrong while reading `name` in the words of a person."""
    foreign = (
        OverflowError,
        csv.Error,
        zlib.error,
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
