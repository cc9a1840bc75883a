"""Estimate the number of rows of a log before it is read."""

import os
from typing import Any

from fewfold.recommender.reading.source import Source
from fewfold.recommender.reading.table_source import library

__all__ = ["estimated_rows"]

_COMPRESSION = 6  # of text
_PACKED = (".gz", ".zst", ".bz2", ".xz")


def estimated_rows(source: Source) -> int:
    """Estimate the number of rows of a log; exact for Parquet, from the first rows for text."""
    return sum(_rows(table) for table in source.tables)


def _rows(table: Any) -> int:
    if not os.path.isfile(table.name):
        return 1_000_000  # in memory already, so that it cannot be too large
    if table.format == "Parquet":
        return int(library("pyarrow.parquet").read_metadata(table.name).num_rows)
    rows = table.head(200)
    width = sum(len(field) + 1 for row in rows for field in row) / max(len(rows), 1)
    packed = _COMPRESSION if table.name.endswith(_PACKED) else 1
    return int(os.path.getsize(table.name) * packed / max(width, 2)) + 1
