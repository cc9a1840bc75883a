"""From what a person hands over (a path, a folder, a frame, a matrix) to tables."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.formats import has_known_ending, reader_of
from fewfold.recommender.reading.in_memory import Frame
from fewfold.recommender.reading.partitions import Partition, partition_values
from fewfold.recommender.reading.raw_files import File, standard_input, stored
from fewfold.recommender.reading.tables import Opening, Table
from fewfold.recommender.reading.unsupported import address, lake_table

__all__ = ["Source", "open_source"]


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
class _Found:
    """A file of a source, and the folder from which its partitions are counted."""

    path: Path
    folder: Path | None = None
    label: str = ""


def open_source(source: Any, *, header: bool | None = None) -> Source:
    """The tables of `source`, opened as far as to know their columns.

    Args:
        source: a path, a folder, a glob or a list of them, or ``-`` for standard input; a pandas,
            polars or pyarrow frame; a dict of columns; a tuple of arrays (users, items, times).
        header: whether the first row of a text file names its columns; None finds out.

    Returns:
        The source. What cannot be one raises a `DataError` or, for a foreign type, a `TypeError`.
    """
    if isinstance(source, (str, os.PathLike)):
        return _from_files(_expand(source), Opening(header))
    several = isinstance(source, (list, tuple)) and len(source) > 0
    if several and all(isinstance(one, (str, os.PathLike)) for one in source):
        return _from_files([path for one in source for path in _expand(one)], Opening(header))
    frame = Frame.of(source)
    return Source((frame,), frame.format)


def _from_files(files: Sequence[_Found], opening: Opening) -> Source:
    tables: list[Table] = []
    formats: dict[str, str] = {}
    size = 0
    for one in files:
        path = stored(one.path, one.label)
        label = one.label or ("" if path == one.path else str(one.path))  # not that of a copy
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
        if not tables:  # the others are like the first where their own rows do not tell
            opening = replace(opening, unclear=not table.headless)
        values = {} if one.folder is None else partition_values(one.path, one.folder)
        tables.append(Partition.of(table, values))
        size += file.path.stat().st_size
    named = sorted({table.format for table in tables})
    return Source(tuple(tables), " and ".join(named), size)


def _expand(source: Any) -> list[_Found]:
    """The files meant by a path, a folder or a glob, in the order of their names."""
    text = os.fspath(source)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if text == "-":
        return [_Found(standard_input(), label="standard input")]
    if (said := address(text)) is not None and not text.lower().startswith("file:"):
        raise DataError(said)
    if text.lower().startswith("file://"):
        text = text[len("file://") :]
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir():
            return _inside(path)
        if path.exists():
            return [_Found(path)]
        found = [Path(one) for one in sorted(glob.glob(str(path), recursive=True))]
    except DataError:
        raise
    except ValueError as error:  # a zero byte
        raise DataError(f"{str(path)!r}: this is not a path ({error})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}); check the path") from None
    files = [one for one in found if one.is_file()]
    if files:
        return [_Found(one, _fixed(path)) for one in files]
    if glob.has_magic(str(path)):
        raise DataError(f"{path}: no file matches this pattern; in a shell, put it in quotes")
    raise DataError(f"{path}: there is no such file or folder; check the path")


def _fixed(pattern: Path) -> Path:
    """The folder in which a glob begins to vary."""
    parts = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        parts.append(part)
    return Path(*parts)


def _inside(folder: Path) -> list[_Found]:
    """The tables in a folder, and in folders below that are called NAME=VALUE."""
    lake = lake_table(folder)
    if lake is not None:
        raise DataError(
            f"{folder}: this is {lake[0]}, some of whose files may be outdated; write its rows to "
            f"files first: {lake[1]}"
        )
    files = [one for one in _walk(folder) if has_known_ending(one.name)]
    atomic = [one for one in files if ".inter" in one.suffixes]
    if files:
        return [_Found(one, folder) for one in atomic or files]
    there = [one for one in sorted(folder.iterdir()) if one.name[0] not in "._"]
    some = ", ".join(one.name for one in there[:5]) or "nothing"
    below = [one for one in there if one.is_dir()]
    hint = f"; for files in folders below write a glob: '{folder}/**/*.csv'" if below else ""
    raise DataError(
        f"{folder}: expected .csv, .tsv, .jsonl, .parquet, .feather or .inter files in this "
        f"folder, got {some}{hint}"
    )


def _walk(folder: Path) -> list[Path]:
    """The files of a folder and its partitions, in the order of their names."""
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
