"""Parquet files, a batch of rows at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.data.arrow import frame_of, shown_rows
from fewfold.recommender.data.files import File
from fewfold.recommender.data.tables import (
    Batch,
    Opening,
    explained,
    in_roles,
    library,
    no_twins,
    place_of_row,
)

__all__ = ["Parquet"]

_ROWS = 1 << 20  # of a batch


@dataclass(frozen=True)
class Parquet:
    """A Parquet file."""

    file: File
    columns: tuple[str, ...]
    headless: bool = False
    typed: bool = True
    notes: tuple[str, ...] = ()
    format: str = "Parquet"

    @classmethod
    def open(cls, file: File, opening: Opening) -> "Parquet":
        """Read the names of its columns."""
        with explained(file.name), _opened(file) as opened:
            names = tuple(opened.schema_arrow.names)
        no_twins(names, file.name)
        return cls(file, names)

    @property
    def name(self) -> str:
        """The path."""
        return self.file.name

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Up to `count` of the first rows, as text."""
        with explained(self.name), _opened(self.file) as opened:
            batch = next(opened.iter_batches(batch_size=count), None)
            if batch is None:
                return []
            batch.validate(full=True)
            return shown_rows(batch.slice(0, count))

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there."""
        with explained(self.name), _opened(self.file) as opened:
            total, start = max(opened.metadata.num_rows, 1), 0
            wanted = list(dict.fromkeys(roles.values()))
            for rows in opened.iter_batches(batch_size=_ROWS, columns=wanted):
                rows.validate(full=True)  # text may not be UTF-8, which polars relies on
                frame = in_roles(frame_of(rows), roles)
                place = place_of_row(self.name, frame, start)
                start += frame.height
                yield Batch(frame, place, done=min(start / total, 1.0))


def _opened(file: File) -> Any:
    # Neither a whole file ahead nor a whole group of rows, which may be all of them, in memory.
    return library("pyarrow.parquet").ParquetFile(
        file.path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
    )
