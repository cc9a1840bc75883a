"""Write tables with a row per item as several files, each by one of several processes."""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._files import sync
from fewfold._mapping import ALIGNMENT
from fewfold._progress import over
from fewfold._tensors import DTYPES
from fewfold.distributed.group import Group
from fewfold.distributed.row_shards import RowShards
from fewfold.recommender.artifact.table_files import table_file

__all__ = ["Table", "WrittenTables", "largest_file", "split_weights", "write_tables"]

Table = Tensor | RowShards

_LARGEST = 2 << 30  # bytes of a table beyond which it is several files, and of each of them
_MOST = 10_000  # files of all tables
_BLOCK = 1 << 24  # bytes written at once, and sent to a process at once
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def largest_file() -> int:
    """Return the bytes beyond which a table is split: `FEWFOLD_FILE_BYTES`, by default 2 GiB."""
    given = os.environ.get("FEWFOLD_FILE_BYTES")
    if not given:
        return _LARGEST
    try:
        return whole_number(int(given), "FEWFOLD_FILE_BYTES")
    except ValueError as error:
        raise ValueError(f"FEWFOLD_FILE_BYTES must be a number of bytes, got {given!r}") from error


def split_weights(
    weights: Mapping[str, Table], items: int, most: int
) -> tuple[dict[str, Tensor], dict[str, Table]]:
    """Return the tensors of one file, and the tables with a row per item of more than `most` bytes.

    Of smaller tables that several processes share, rank 0 gets all rows, and others nothing.
    """
    whole: dict[str, Tensor] = {}
    tables: dict[str, Table] = {}
    for name, value in weights.items():
        if value.shape and value.shape[0] == items and value.nbytes > most:
            tables[name] = value
            continue
        tensor = value if isinstance(value, Tensor) else value.collect()
        if tensor is not None:
            whole[name] = tensor
    return whole, tables


@dataclass(frozen=True, eq=False)
class _RowsFile:
    """A file with consecutive rows of a table.

    Attributes:
        name: of the file.
        table: name of the table.
        rows: of the table.
        header: of the file; its length is a multiple of `ALIGNMENT`.
        size: bytes of the file.
    """

    name: str
    table: str
    rows: range
    header: bytes
    size: int

    @classmethod
    def of(cls, number: int, name: str, table: Table, rows: range) -> "_RowsFile":
        """Plan a file by its number among all files."""
        shape = [len(rows), *table.shape[1:]]
        end = math.prod(shape) * table.dtype.itemsize
        entry = {"dtype": _NAMES[table.dtype], "shape": shape, "data_offsets": [0, end]}
        text = json.dumps({name: entry}, ensure_ascii=False).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        return cls(table_file(number), name, rows, header, len(header) + end)


@dataclass(frozen=True, eq=False)
class WrittenTables:
    """Files of tables that were written.

    Attributes:
        index: content of `tables.json`.
        sums: SHA-256 of each file, on rank 0.
        sizes: bytes of each file.
    """

    index: dict[str, Any]
    sums: dict[str, str]
    sizes: dict[str, int]


def write_tables(
    folder: Path, tables: Mapping[str, Table], most: int, group: Group
) -> WrittenTables:
    """Write the files of all tables into a folder that all processes of the group see.

    Of a sharded table file k is written by rank k % world, which gets its rows block by block; a
    tensor is written by rank 0. An error on one process is raised on all.
    """
    plan = _plan(tables, most)
    sums: dict[str, str] = {}
    sharded = {n: table for n, table in tables.items() if isinstance(table, RowShards)}
    for name, table in over("writing the tables", list(sharded.items())):
        sums |= _write_table(folder, table, plan[name])

    def write_tensors() -> None:
        for name, table in tables.items():
            if isinstance(table, Tensor):
                alone = RowShards(table, len(table), Group())
                sums.update(_write_table(folder, alone, plan[name]))

    group.lead(write_tensors)
    sizes = {file.name: file.size for files in plan.values() for file in files}
    return WrittenTables(_index(tables, plan), sums, sizes)


def _plan(tables: Mapping[str, Table], most: int) -> dict[str, list[_RowsFile]]:
    """Return the files of each table, numbered from 1; those that all processes know come first."""
    numbers, plan = itertools.count(1), {}
    for name, table in sorted(tables.items(), key=lambda each: isinstance(each[1], Tensor)):
        count, step = table.shape[0], _rows_per_file(table.nbytes // table.shape[0], most)
        if count // step > _MOST:
            raise ValueError(
                f"{name} would be {-(-count // step):,} files, more than {_MOST:,}; set "
                "FEWFOLD_FILE_BYTES to more bytes"
            )
        plan[name] = [
            _RowsFile.of(next(numbers), name, table, range(start, min(start + step, count)))
            for start in range(0, count, step)
        ]
    return plan


def _rows_per_file(row: int, most: int) -> int:
    """Return the number of rows of a file: at most so many bytes, a multiple of `ALIGNMENT`."""
    rows, aligned = max(1, most // row), ALIGNMENT // math.gcd(ALIGNMENT, row)
    return rows - rows % aligned if rows >= aligned else rows  # tiny files are not mapped


def _index(tables: Mapping[str, Table], plan: Mapping[str, Sequence[_RowsFile]]) -> dict[str, Any]:
    """Return the content of `tables.json`."""
    return {
        "tables": {
            name: {
                "dtype": _NAMES[tables[name].dtype],
                "shape": list(tables[name].shape),
                "files": [
                    {"file": each.name, "first": each.rows.start, "rows": len(each.rows)}
                    for each in files
                ],
            }
            for name, files in plan.items()
        }
    }


def _write_table(folder: Path, table: RowShards, files: Sequence[_RowsFile]) -> dict[str, str]:
    """Write the files of a table, in each round one by every process; return their checksums."""
    group = table.group
    sums: dict[str, str] = {}
    step = max(1, _BLOCK // (table.nbytes // table.count))
    for first in range(0, len(files), group.world):
        batch = files[first : first + group.world]
        output = _Output(folder, batch[group.rank] if group.rank < len(batch) else None)
        for start in range(0, max(len(each.rows) for each in batch), step):
            wanted = [each.rows[start : start + step] for each in batch]
            rows = table.fetch(wanted + [range(0)] * (group.world - len(batch)))
            output.write(rows)
        with group.together():
            output.finish()
        found = group.gather(output.digest(), [1] * group.world, "tables")
        sums |= {
            each.name: bytes(row.tolist()).hex() for each, row in zip(batch, found, strict=False)
        }
    return sums


class _Output:
    """A file of rows; an error is kept until `finish`, since other processes still send rows.

    Args:
        folder: of the file.
        file: to write; None if this process has none in this round.
    """

    def __init__(self, folder: Path, file: _RowsFile | None) -> None:
        self._path = None if file is None else folder / file.name
        self._digest = hashlib.sha256()
        self._error: OSError | None = None
        self._stream: BinaryIO | None = None
        if file is not None and self._path is not None:
            try:
                self._stream = self._path.open("wb")
            except OSError as error:
                self._error = error
            self._append(file.header)

    def write(self, rows: Tensor) -> None:
        """Append rows."""
        self._append(rows.contiguous().flatten().view(torch.uint8).numpy().data)

    def _append(self, data: "bytes | memoryview") -> None:
        if self._stream is None or self._error is not None:
            return
        try:
            self._stream.write(data)
            self._digest.update(data)
        except OSError as error:
            self._error = error

    def finish(self) -> None:
        """Sync the file to disk, or raise the error that was kept."""
        try:
            if self._stream is not None and self._path is not None:
                self._stream.close()
                sync(self._path)
        except OSError as error:
            self._error = self._error or error
        if self._error is not None:
            number, reason = self._error.errno, self._error.strerror
            raise OSError(number, reason, str(self._path)) from self._error

    def digest(self) -> Tensor:
        """Return the SHA-256 of what was written, (1, 32)."""
        return torch.tensor([list(self._digest.digest())], dtype=torch.uint8)
