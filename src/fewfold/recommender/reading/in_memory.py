"""In-memory data as a table: polars, pandas and pyarrow frames, dicts and tuples of columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow import frame_of
from fewfold.recommender.reading.table_source import (
    Batch,
    explained,
    in_roles,
    library,
    no_twins,
    place_of_row,
    within_calendar,
)

__all__ = ["Frame"]

_ROWS = 1 << 20  # per batch


@dataclass(frozen=True)
class Frame:
    """A table backed by a polars frame, eager or lazy."""

    frame: Any
    columns: tuple[str, ...]
    format: str
    headless: bool = False
    typed: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Any) -> "Frame":
        """Convert a polars, pandas or pyarrow frame, a dict, or a tuple (users, items, times)."""
        if isinstance(source, tuple) and len(source) in (2, 3):
            source = dict(zip(("user", "item", "time"), source, strict=False))
        with explained("the data given"):
            try:
                kind, frame = _converted(source)
            except (ValueError, TypeError) as error:
                if isinstance(error, DataError) or str(error).startswith("a log must be"):
                    raise
                raise DataError(
                    f"the data given cannot become columns ({str(error).splitlines()[0][:200]}); "
                    "give each column one type, for example with frame.astype({'user': str})"
                ) from error
            return cls(frame, tuple(frame.collect_schema().names()), kind)

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"the {self.format}"

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        with explained(self.name):
            first = self.frame.lazy().head(count).collect()
            columns = [within_calendar(column).to_list() for column in first.get_columns()]
        return [tuple(str(value) for value in row) for row in zip(*columns, strict=True)]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        pl = library("polars")
        with explained(self.name):
            lazy = isinstance(self.frame, pl.LazyFrame)
            chosen = self.frame.select(pl.selectors.by_name(*dict.fromkeys(roles.values())))
            total = None if lazy else max(chosen.height, 1)
            parts = (
                chosen.collect_batches(chunk_size=_ROWS, engine="streaming")
                if lazy
                else chosen.iter_slices(_ROWS)
            )
            start = 0
            for part in parts:
                frame = in_roles(part, roles)
                place = place_of_row(self.name, frame, start)
                start += frame.height
                yield Batch(frame, place, done=1.0 if total is None else min(start / total, 1.0))


def _converted(source: Any) -> tuple[str, Any]:
    """Return the kind of `source`, for messages, and its polars frame."""
    pl, module = library("polars"), type(source).__module__.split(".")[0]
    if isinstance(source, Mapping):
        columns = {str(name): _series(column) for name, column in source.items()}
        return "columns in memory", pl.DataFrame(columns)
    if module == "polars" and hasattr(source, "lazy"):
        return "polars frame", source
    if module == "pandas" and hasattr(source, "columns"):
        names = [str(name) for name in source.columns]
        no_twins(names, "the pandas frame")
        return "pandas frame", pl.from_pandas(source.set_axis(names, axis=1))
    if module == "pyarrow" and hasattr(source, "schema"):
        no_twins(source.schema.names, "the pyarrow table")
        return "pyarrow table", frame_of(source)
    raise TypeError(
        "a log must be a path, a folder, a glob or a list of them, a pandas, polars or pyarrow "
        "frame, a DuckDB relation, a scipy sparse matrix, a dict of columns or a tuple (users, "
        "items), got "
        f"{type(source).__name__}"
    )


def _series(column: Any) -> Any:
    """Convert a column of a dict to a NumPy array unless polars supports its type."""
    known = isinstance(column, (list, tuple, range)) or type(column).__module__.startswith(
        ("polars", "pandas", "pyarrow")
    )
    return column if known else np.asarray(column)
