"""Parquet files, a batch of rows at a time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.reading.arrow import ROWS, TypedFile, frame_of, shown_rows
from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.tables import Batch, explained, in_roles, library, place_of_row

__all__ = ["Parquet"]


@dataclass(frozen=True)
class Parquet(TypedFile):
    """A Parquet file."""

    format: str = "Parquet"

    @staticmethod
    def names_in(file: File) -> tuple[str, ...]:
        """The names of the columns of a file."""
        with _opened(file) as opened:
            return tuple(opened.schema_arrow.names)

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
            for rows in opened.iter_batches(batch_size=ROWS, columns=wanted):
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
