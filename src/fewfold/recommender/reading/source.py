"""Resolve a path, folder, glob, address, stream or frame to the tables it holds."""

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow_stream import ArrowStream
from fewfold.recommender.reading.databases import database_table
from fewfold.recommender.reading.formats import address, has_known_ending, lake_table, reader_of
from fewfold.recommender.reading.in_memory import Frame
from fewfold.recommender.reading.partitions import Partition, partition_values
from fewfold.recommender.reading.raw_files import File, standard_input, stored
from fewfold.recommender.reading.remote import is_remote, remote_files
from fewfold.recommender.reading.table_source import Opening, Table

__all__ = ["Source", "open_source"]


@dataclass(frozen=True)
class Source:
    """Tables of one format that together form one log.

    Attributes:
        tables: at least one.
        format: name of the format, for messages.
        bytes: total file size; None for in-memory data.
    """

    tables: tuple[Table, ...]
    format: str
    bytes: int | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files or in-memory tables."""
        return tuple(table.name for table in self.tables)


@dataclass(frozen=True)
class _SourceFile:
    """A file of a source, its name in messages if not the path, and its Hive partitions."""

    path: Path
    label: str = ""
    partitions: Mapping[str, str | None] = field(default_factory=dict)


def open_source(source: Any, *, header: bool | None = None) -> Source:
    """Open the tables of `source` and read their column names.

    Args:
        source: a path, a folder, a glob or a list of them, or ``-`` for standard input; an address
            of a table in a database; a pandas, polars or pyarrow frame, or a stream of Arrow
            batches; a dict of columns; a tuple of arrays (users, items, times).
        header: whether the first row of a text file names its columns; None detects it.

    Returns:
        The source. An unreadable source raises a `DataError`, an unsupported type a `TypeError`.
    """
    if isinstance(source, (str, os.PathLike)):
        text = os.fsdecode(source)
        if ":/" in text and (table := database_table(text)) is not None:
            return Source((table,), table.format)
        return _from_files(_expand(source), Opening(header))
    several = isinstance(source, (list, tuple)) and len(source) > 0
    if several and all(isinstance(one, (str, os.PathLike)) for one in source):
        return _from_files([path for one in source for path in _expand(one)], Opening(header))
    held = ArrowStream.of(source) if ArrowStream.reads(source) else Frame.of(source)
    return Source((held,), held.format)


def _from_files(files: Sequence[_SourceFile], opening: Opening) -> Source:
    tables: list[Table] = []
    formats: dict[str, str] = {}
    size = 0
    for one in files:
        path = stored(one.path, one.label)
        label = one.label or ("" if path == one.path else str(one.path))  # not of a copy
        file = File.of(path, label)
        reader = reader_of(file)
        formats.setdefault(reader.name, file.name)
        if len(formats) > 1:
            (first, other), (second, another) = formats.items()
            raise DataError(
                f"the files must have one format, got {other} ({first}) and {another} ({second}); "
                "name the files to read, for example with a glob such as 'logs/*.parquet'"
            )
        table = reader.open(file, opening)
        if not tables:  # ambiguous headers of later files are read as in the first file
            opening = replace(opening, unclear=not table.headless)
        tables.append(Partition.of(table, one.partitions) if one.partitions else table)
        size += file.path.stat().st_size
    named = sorted({table.format for table in tables})
    return Source(tuple(tables), " and ".join(named), size)


def _expand(source: Any) -> list[_SourceFile]:
    """Return the files of a path, folder or glob, sorted by name."""
    text = os.fspath(source)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if text == "-":
        return [_SourceFile(standard_input(), label="standard input")]
    if (advice := address(text)) is not None and not text.lower().startswith("file:"):
        if is_remote(text):
            return _copied_files(text, advice)
        raise DataError(advice)
    if text.lower().startswith("file://"):
        text = text[len("file://") :]
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir():
            return _table_files(path)
        if path.exists():
            return [_SourceFile(path)]
        found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    except DataError:
        raise
    except ValueError as error:  # a zero byte
        raise DataError(f"{str(path)!r}: this is not a path ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}); check the path") from None
    files = [one for one in found if one.is_file()]
    if files:
        root = _glob_root(path)
        return [_SourceFile(one, partitions=partition_values(one, root)) for one in files]
    if glob.has_magic(str(path)):
        raise DataError(f"{path}: no file matches this pattern; in a shell, put it in quotes")
    raise DataError(f"{path}: there is no such file or folder; check the path")


def _glob_root(pattern: Path) -> Path:
    """Return the leading folder of a glob that has no wildcard."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)


def _table_files(folder: Path) -> list[_SourceFile]:
    """Return the table files of a folder and its NAME=VALUE subfolders."""
    lake = lake_table(folder)
    if lake is not None:
        raise DataError(
            f"{folder}: this is {lake[0]}, some of whose files may be outdated; write its rows to "
            f"files first: {lake[1]}"
        )
    files = _chosen(_walk(folder))
    if files:
        return [_SourceFile(one, partitions=partition_values(one, folder)) for one in files]
    there = [one for one in sorted(folder.iterdir()) if one.name[0] not in "._"]
    some = ", ".join(one.name for one in there[:5]) or "nothing"
    below = [one for one in there if one.is_dir()]
    hint = f"; for files in folders below write a glob: '{folder}/**/*.csv'" if below else ""
    raise DataError(
        f"{folder}: expected .csv, .tsv, .jsonl, .parquet, .feather or .inter files in this "
        f"folder, got {some}{hint}"
    )


def _chosen(files: list[Path]) -> list[Path]:
    """Return the files of a folder that belong to its log, by their names."""
    known = [one for one in files if has_known_ending(one.name)]
    return [one for one in known if ".inter" in one.suffixes] or known


def _copied_files(text: str, advice: str) -> list[_SourceFile]:
    """Return copies of the files of an address such as ``s3://bucket/logs``."""
    files, is_folder = remote_files(text, advice.rpartition("; ")[2])
    if is_folder:
        chosen = {str(one) for one in _chosen([Path(one.within) for one in files])}
        some = ", ".join(one.within for one in files[:5]) or "nothing"
        files = [one for one in files if one.within in chosen]
        if not files:
            raise DataError(
                f"{text}: expected .csv, .tsv, .jsonl, .parquet, .feather or .inter files in this "
                f"folder, got {some}"
            )
    return [
        _SourceFile(one.copied(), one.name, partition_values(Path(one.within), Path()))
        for one in files
    ]


def _walk(folder: Path) -> list[Path]:
    """Return the files of a folder and its partitions, sorted by name."""
    found = []
    for one in sorted(folder.iterdir()):
        if one.name[0] in "._":
            continue
        if one.is_dir():
            if "=" in one.name:
                found += _walk(one)
        elif one.is_file():
            found.append(one)
    return found
