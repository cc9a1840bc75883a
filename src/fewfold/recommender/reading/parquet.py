"""Parquet files, read in batches of rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.reading.arrow import ROWS, TypedFile, frame_of, shown_rows
from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.table_source import (
    Batch,
    explained,
    in_roles,
    library,
    place_of_row,
)

__all__ = ["Parquet"]


@dataclass(frozen=True)
class Parquet(TypedFile):
    """A Parquet file."""

    format: str = "Parquet"

    @staticmethod
    def names_in(file: File) -> tuple[str, ...]:
        """Return the column names of a file."""
        with _opened(file) as opened:
            return tuple(opened.schema_arrow.names)

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        with explained(self.name), _opened(self.file) as opened:
            batch = next(opened.iter_batches(batch_size=count), None)
            if batch is None:
                return []
            batch.validate(full=True)
            return shown_rows(batch.slice(0, count))

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        with explained(self.name), _opened(self.file) as opened:
            total, start = max(opened.metadata.num_rows, 1), 0
            wanted = list(dict.fromkeys(roles.values()))
            for rows in opened.iter_batches(batch_size=ROWS, columns=wanted):
                rows.validate(full=True)  # polars requires valid UTF-8
                frame = in_roles(frame_of(rows), roles)
                place = place_of_row(self.name, frame, start)
                start += frame.height
                yield Batch(frame, place, done=min(start / total, 1.0))


def _opened(file: File) -> Any:
    # Bounds memory: without pre-buffering, neither the file nor a row group is loaded as a whole.
    return library("pyarrow.parquet").ParquetFile(
        file.path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
    )
