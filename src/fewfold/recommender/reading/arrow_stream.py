"""Data in memory that can be read as a stream of Arrow batches, such as DuckDB relations."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow import frame_of, shown_rows
from fewfold.recommender.reading.table_source import (
    Batch,
    in_roles,
    library,
    no_twins,
    place_of_row,
)

__all__ = ["ArrowStream"]

_FRAMES = ("pandas", "polars", "pyarrow")  # see `Frame`


@dataclass(frozen=True)
class ArrowStream:
    """An object with `__arrow_c_stream__`, which gives a new stream of all rows at every call."""

    source: Any
    columns: tuple[str, ...]
    format: str
    name: str
    notes: tuple[str, ...] = ()
    headless: bool = False
    typed: bool = True

    @staticmethod
    def reads(source: Any) -> bool:
        """Return whether an object gives such streams, and is not read in a better way."""
        module = type(source).__module__.split(".")[0]
        return hasattr(source, "__arrow_c_stream__") and module not in _FRAMES

    @classmethod
    def of(cls, source: Any, name: str = "", notes: tuple[str, ...] = ()) -> "ArrowStream":
        """Read the column names; `name` is for messages."""
        module = type(source).__module__.split(".")[0]
        kind = f"{module.lstrip('_')} {type(source).__name__}"
        with _explained(name or f"the {kind}"):
            columns = tuple(getattr(source, "columns", None) or _reader(source).schema.names)
        no_twins(columns, name or f"the {kind}")
        return cls(source, columns, kind, name or f"the {kind}", notes)

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        rows: list[tuple[str, ...]] = []
        with _explained(self.name):
            for part in _reader(self.source):
                rows += shown_rows(part.slice(0, count - len(rows)))
                if len(rows) >= count:
                    break
        return rows

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        wanted, start = list(dict.fromkeys(roles.values())), 0
        parts = self._parts(wanted)
        for part in parts:
            frame = in_roles(part, roles)
            place = place_of_row(self.name, frame, start)
            start += frame.height
            yield Batch(frame, place)

    def _parts(self, columns: list[str]) -> Iterator[Any]:
        """Yield batches of these columns as polars frames."""
        source = self.source
        with _explained(self.name):
            if type(source).__name__ == "DuckDBPyRelation":  # reads only these columns then
                duckdb = library("duckdb")
                source = source.select(*map(duckdb.ColumnExpression, columns))
            for part in _reader(source):
                chosen = part.select(columns)
                chosen.validate(full=True)
                yield frame_of(chosen)


def _reader(source: Any) -> Any:
    return library("pyarrow").RecordBatchReader.from_stream(source)


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn any error of another library into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"{name}: cannot be read ({said})") from error
