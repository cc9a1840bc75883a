"""Arrow IPC files (Feather) and streams, read in batches of rows."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.table_source import (
    Batch,
    Opening,
    explained,
    in_roles,
    library,
    no_twins,
    place_of_row,
)

__all__ = ["ROWS", "Arrow", "TypedFile", "frame_of", "shown_rows"]

ROWS = 1 << 20  # per batch


@dataclass(frozen=True)
class TypedFile:
    """Base class of files with typed, named columns."""

    file: File
    columns: tuple[str, ...]
    headless: bool = False
    typed: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, file: File, opening: Opening) -> Self:
        """Read the column names."""
        with explained(file.name):
            names = cls.names_in(file)
        no_twins(names, file.name)
        return cls(file, names)

    @staticmethod
    @abstractmethod
    def names_in(file: File) -> tuple[str, ...]:
        """Return the column names of a file."""

    @property
    def name(self) -> str:
        """Path of the file."""
        return self.file.name


@dataclass(frozen=True)
class Arrow(TypedFile):
    """A Feather file of version 2, which is an Arrow IPC file, or an Arrow IPC stream."""

    format: str = "Arrow"

    @staticmethod
    def names_in(file: File) -> tuple[str, ...]:
        """Return the column names of a file."""
        with _opened(file) as (schema, _):
            return tuple(schema.names)

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        rows: list[tuple[str, ...]] = []
        with explained(self.name), _opened(self.file) as (_, parts):
            for _, part in parts:
                part.validate(full=True)
                rows += shown_rows(part.slice(0, count - len(rows)))
                if len(rows) >= count:
                    break
        return rows

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        wanted = list(dict.fromkeys(roles.values()))
        with explained(self.name), _opened(self.file, wanted) as (_, parts):
            first = 0
            for done, part in parts:
                chosen = part.select(wanted)
                chosen.validate(full=True)  # pyarrow does not validate on reading
                for start in range(0, chosen.num_rows, ROWS):
                    frame = in_roles(frame_of(chosen.slice(start, ROWS)), roles)
                    yield Batch(frame, place_of_row(self.name, frame, first + start), done=done)
                first += chosen.num_rows


@contextmanager
def _opened(file: File, columns: list[str] | None = None) -> Iterator[tuple[Any, Any]]:
    """Yield the schema, and pairs (fraction read, record batch)."""
    arrow, ipc = library("pyarrow"), library("pyarrow.ipc")
    options = ipc.IpcReadOptions()
    with arrow.OSFile(str(file.path)) as raw:
        if raw.read(6) == b"ARROW1":
            with ipc.open_file(raw) as reader:
                schema = reader.schema
            if columns is not None:
                options.included_fields = sorted(schema.get_field_index(name) for name in columns)
            with ipc.open_file(raw, options=options) as reader:
                total = reader.num_record_batches
                yield schema, (((n + 1) / total, reader.get_batch(n)) for n in range(total))
        else:
            raw.seek(0)
            size = max(raw.size(), 1)
            with ipc.open_stream(raw) as reader:
                yield reader.schema, ((min(raw.tell() / size, 1.0), part) for part in reader)


def frame_of(rows: Any) -> Any:
    """Convert a pyarrow record batch or table to a polars DataFrame."""
    arrow, polars = library("pyarrow"), library("polars")
    table = arrow.Table.from_batches([rows]) if isinstance(rows, arrow.RecordBatch) else rows
    if not isinstance(table, arrow.Table):  # a reader or a dataset
        return polars.from_arrow(table)
    # polars fails on some schema metadata, which is not used.
    table = table.replace_schema_metadata(None)
    for at, field in enumerate(table.schema):
        if arrow.types.is_timestamp(field.type) and field.type.unit == "s":
            # The cast of polars overflows silently; that of pyarrow raises.
            kind = arrow.timestamp("ms", field.type.tz)
            table = table.set_column(at, field.name, table.column(at).cast(kind))
    return polars.from_arrow(table)


def shown_rows(rows: Any) -> list[tuple[str, ...]]:
    """Format the rows of a pyarrow record batch as text."""
    return [tuple(_shown(column[row]) for column in rows.columns) for row in range(rows.num_rows)]


def _shown(value: Any) -> str:
    try:
        return str(value.as_py())
    except (ValueError, OverflowError, OSError):  # a date outside Python's range
        return "?"
