"""From what a person hands over (a path, a folder, a frame, a matrix) to tables."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewfold.recommender.data.delimited import Delimited
from fewfold.recommender.data.tables import Batch, Place, Table, explained, library
from fewfold.recommender.errors import DataError

__all__ = ["Frame", "Parquet", "Source", "open_source"]

_ROWS = 1 << 20  # of a batch
_ENDINGS = {
    ".csv": "text", ".tsv": "text", ".tab": "text", ".txt": "text", ".dat": "text",
    ".data": "text", ".inter": "text", ".parquet": "parquet", ".parq": "parquet",
    ".pq": "parquet",
}  # fmt: skip
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_BEGINNINGS = {
    b"PAR1": "parquet", b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip",
    b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"ARROW1": "arrow", b"\x89HDF": "hdf5",
    b"\x93NUMPY": "numpy", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Tables of one format that make one log together.

    Attributes:
        tables: at least one.
        format: what a person calls it.
        bytes: the size of all files; None for what is in memory.
    """

    tables: tuple[Table, ...]
    format: str
    bytes: int | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """What was read, by name."""
        return tuple(table.name for table in self.tables)


@dataclass(frozen=True)
class Parquet:
    """A Parquet file."""

    path: Path
    columns: tuple[str, ...]
    headless: bool = False
    format: str = "Parquet"

    @classmethod
    def open(cls, path: Path) -> "Parquet":
        """Read the names of its columns."""
        with explained(str(path)), _parquet(path) as file:
            names = tuple(file.schema_arrow.names)
        _no_twins(names, str(path))
        return cls(path, names)

    @property
    def name(self) -> str:
        """The path."""
        return str(self.path)

    def head(self) -> list[tuple[str, ...]]:
        """The first three rows, as text."""
        with explained(self.name), _parquet(self.path) as file:
            batch = next(file.iter_batches(batch_size=3), None)
            rows = [] if batch is None else batch.slice(0, 3).to_pylist()
        return [tuple(str(row[name]) for name in self.columns) for row in rows]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there."""
        pl, arrow = library("polars"), library("pyarrow")
        with explained(self.name), _parquet(self.path) as file:
            total, start = max(file.metadata.num_rows, 1), 0
            wanted = list(dict.fromkeys(roles.values()))
            for rows in file.iter_batches(batch_size=_ROWS, columns=wanted):
                # Remarks on the schema are not ours, and polars stumbles over odd ones.
                table = arrow.Table.from_batches([rows]).replace_schema_metadata(None)
                frame = _in_roles(pl.from_arrow(table), roles)
                start += frame.height
                first = start - frame.height
                yield Batch(frame, _placed(self.name, frame, first), done=min(start / total, 1.0))


@dataclass(frozen=True)
class Frame:
    """A polars frame, eager or lazy, or what can become one."""

    frame: Any
    columns: tuple[str, ...]
    name: str
    headless: bool = False

    def head(self) -> list[tuple[str, ...]]:
        """The first three rows, as text."""
        with explained(self.name):
            rows = self.frame.lazy().head(3).collect().rows()
        return [tuple(str(value) for value in row) for row in rows]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there."""
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
                frame = _in_roles(part, roles)
                yield Batch(
                    frame,
                    _placed(self.name, frame, start),
                    done=1.0 if total is None else min((start + frame.height) / total, 1.0),
                )
                start += frame.height


def open_source(source: Any, *, positions: bool = False) -> Source:
    """The tables of `source`, opened as far as to know their columns.

    Args:
        source: a path, a folder, a glob or a list of them; a pandas, polars or pyarrow frame; a
            dict of columns; a pair or triple of arrays (users, items, times).
        positions: the columns of a text file are numbers even if its first row is not.

    Returns:
        The source. What cannot be one raises a `DataError` or, for a foreign type, a `TypeError`.
    """
    if isinstance(source, (str, os.PathLike)):
        return _from_files(_expand(source), positions)
    several = isinstance(source, (list, tuple)) and len(source) > 0
    if several and all(isinstance(one, (str, os.PathLike)) for one in source):
        return _from_files([path for one in source for path in _expand(one)], positions)
    return _from_memory(source)


def _from_memory(source: Any) -> Source:
    pl, module = library("polars"), type(source).__module__.split(".")[0]
    if isinstance(source, tuple) and len(source) in (2, 3):
        source = dict(zip(("user", "item", "time"), source, strict=False))
    with explained("the data given"):
        try:
            if isinstance(source, Mapping):
                kind = "columns in memory"
                frame = pl.DataFrame(
                    {str(name): _series(column) for name, column in source.items()}
                )
            elif module == "polars" and hasattr(source, "lazy"):
                kind, frame = "polars frame", source
            elif module == "pandas" and hasattr(source, "columns"):
                kind, names = "pandas frame", [str(name) for name in source.columns]
                _no_twins(names, f"the {kind}")
                frame = pl.from_pandas(source.set_axis(names, axis=1))
            elif module == "pyarrow" and hasattr(source, "schema"):
                _no_twins(source.schema.names, "the pyarrow table")
                kind, frame = "pyarrow table", pl.from_arrow(source)
            else:
                raise TypeError(
                    "a log must be a path, a folder, a glob or a list of them, a pandas, polars or "
                    "pyarrow frame, a scipy sparse matrix, a dict of columns or a tuple "
                    f"(users, items), got {type(source).__name__}"
                )
        except (ValueError, TypeError) as error:
            if isinstance(error, DataError) or str(error).startswith("a log must be"):
                raise
            raise DataError(
                f"the data given cannot become columns ({str(error).splitlines()[0][:200]}); give "
                "each column one type, for example with frame.astype({'user': str})"
            ) from error
        every = tuple(frame.collect_schema().names())
    return Source((Frame(frame, every, f"the {kind}"),), kind)


def _series(column: Any) -> Any:
    """A column of a dict: what polars does not know becomes an array."""
    known = isinstance(column, (list, tuple, range)) or type(column).__module__.startswith(
        ("polars", "pandas", "pyarrow")
    )
    return column if known else np.asarray(column)


def _from_files(paths: Sequence[Path], positions: bool) -> Source:
    kinds = {path: _kind(path) for path in paths}
    tables: list[Parquet | Delimited] = []
    for path, kind in kinds.items():
        if kind == "parquet":
            tables.append(Parquet.open(path))
        else:
            compression = "" if kind == "text" else kind
            tables.append(Delimited.open(path, compression, headless=positions))
    formats = sorted({"Parquet" if kind == "parquet" else "text" for kind in kinds.values()})
    if len(formats) > 1:
        some = next(path for path, kind in kinds.items() if kind == "parquet")
        other = next(path for path, kind in kinds.items() if kind != "parquet")
        raise DataError(
            f"the files must have one format, got {some} (Parquet) and {other} (text); name the "
            "files to read, for example with a glob such as 'logs/*.parquet'"
        )
    named = sorted({table.format for table in tables})
    return Source(tuple(tables), " and ".join(named), sum(path.stat().st_size for path in paths))


def _expand(source: Any) -> list[Path]:
    """The files meant by a path, a folder or a glob, in the order of their names."""
    path = Path(os.path.expanduser(os.fspath(source)))
    if path.is_dir():
        inside = [one for one in sorted(path.iterdir()) if one.name[0] not in "._"]
        files = [one for one in inside if one.is_file() and _ending(one)]
        atomic = [one for one in files if ".inter" in one.suffixes]
        if not files:
            some = ", ".join(one.name for one in inside[:5]) or "nothing"
            raise DataError(
                f"{path}: expected .csv, .tsv, .parquet or .inter files in this folder, got {some}"
            )
        return atomic or files
    if path.exists():
        return [path]
    found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    files = [one for one in found if one.is_file()]
    if files:
        return files
    if glob.has_magic(str(path)):
        raise DataError(f"{path}: no file matches this pattern; in a shell, put it in quotes")
    raise DataError(f"{path}: there is no such file or folder; check the path")


def _ending(path: Path) -> str | None:
    """What the name says the file is, without the ending of a compression."""
    stem = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _ENDINGS.get(stem.suffix.lower())


def _kind(path: Path) -> str:
    """What the file is: parquet, text, gzip or zstd. The first bytes say so, not the name."""
    with explained(str(path)), path.open("rb") as file:
        start = file.read(8)
    if not start:
        raise DataError(f"{path}: the file is empty; expected a header and rows")
    for beginning, kind in _BEGINNINGS.items():
        if start.startswith(beginning):
            if kind not in ("parquet", "gzip", "zstd"):
                raise DataError(
                    f"{path}: this is a file of kind {kind}; expected CSV or TSV in UTF-8, "
                    "gzip, zstd or Parquet, so convert it first"
                )
            return kind
    if _ending(path) == "parquet":
        raise DataError(f"{path}: this is not a Parquet file, whatever its name says")
    if path.suffix.lower() in _COMPRESSED:
        raise DataError(f"{path}: this is not compressed, whatever its name says; rename it")
    return "text"


def _parquet(path: Path) -> Any:
    # Neither a whole file ahead nor a whole group of rows, which may be all of them, in memory.
    return library("pyarrow.parquet").ParquetFile(
        path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
    )


def _in_roles(table: Any, roles: Mapping[str, str]) -> Any:
    # Not by pl.col, to which a name such as "*" is a pattern.
    return library("polars").DataFrame(
        [table.get_column(column).alias(role) for role, column in roles.items()]
    )


def _placed(name: str, frame: Any, start: int) -> Any:
    return lambda row: Place(f"{name}, row {start + row} (from 0)", repr(frame.row(row)))


def _no_twins(names: Sequence[str], name: str) -> None:
    twice = sorted({one for one in names if list(names).count(one) > 1})
    if twice:
        raise DataError(f"{name}: there are two columns {twice[0]!r}; rename one of them")
