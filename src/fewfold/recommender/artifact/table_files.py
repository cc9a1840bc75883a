"""Large tables of an artifact: each in several safetensors files, with an index.

`tables.json` has the dtype and shape of each table, and the rows in each of its files. Such a file
has one tensor, of the name of the table, whose data begins at a multiple of `ALIGNMENT` bytes, so
that all files of a table can be mapped as one tensor. Files of other alignment are read.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from fewfold._mapping import FilePart, load_parts
from fewfold._tensors import DTYPES, Header, Spec, check_names, extremes, read_header
from fewfold.recommender.artifact.file_reading import read_file
from fewfold.recommender.artifact.schema import Source, check

__all__ = ["INDEX", "SplitTable", "is_table_file", "open_tables", "table_file"]

INDEX = "tables.json"
_NAME = re.compile(r"table-[0-9]{5}\.safetensors")
_BLOCK = 1 << 22  # bytes read at once to verify them

Extremes = tuple[float, float]


def table_file(number: int) -> str:
    """Return the name of a file, by its number among those of all tables."""
    return f"table-{number:05}.safetensors"


def is_table_file(name: str) -> bool:
    """Whether a file has rows of a table, by its name."""
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class _StoredRows:
    file: str
    first: int
    rows: int


@dataclass(frozen=True)
class _StoredTable:
    dtype: str
    shape: tuple[int, ...]
    files: tuple[_StoredRows, ...]


@dataclass(frozen=True)
class _StoredIndex:
    tables: Mapping[str, _StoredTable]


@dataclass(eq=False)
class _Rows:
    """A file with consecutive rows of a table.

    Attributes:
        header: of the file.
        checksum: SHA-256 that the manifest has.
        extremes: smallest and largest value, after `verify`.
    """

    header: Header
    checksum: str
    extremes: Extremes = (0.0, 0.0)

    @property
    def source(self) -> Source:
        return Source(self.header.file)

    @property
    def part(self) -> FilePart:
        ((begin, end),) = self.header.places.values()
        return FilePart(self.header.file, begin, end)

    def verify(self) -> None:
        """Raise unless the checksum matches; find the extremes of the values meanwhile."""
        found, self.extremes = read_file(self._digest, self.header.file)
        if found != self.checksum:
            raise self.source.damaged("", "has changed since it was written")

    def _digest(self, file: Path) -> tuple[str, Extremes]:
        ((dtype, _),) = self.header.tensors.values()
        digest, found = hashlib.sha256(), []
        with file.open("rb") as stream:
            digest.update(stream.read(self.part.begin))
            for block in _blocks(stream):
                digest.update(block)
                whole = len(block) - len(block) % dtype.itemsize
                if whole:
                    values = torch.frombuffer(block, dtype=torch.uint8, count=whole).view(dtype)
                    found.append(extremes(values))
        kind = torch.float64 if dtype.is_floating_point else torch.int64
        return digest.hexdigest(), extremes(torch.tensor(found, dtype=kind))


def _blocks(stream: BinaryIO) -> Iterator[bytearray]:
    while True:
        block = bytearray(_BLOCK)
        size = stream.readinto(block)  # type: ignore[attr-defined]
        if not size:
            return
        del block[size:]
        yield block


@dataclass(frozen=True, eq=False)
class SplitTable:
    """A table in several files whose headers agree with the index."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    files: Sequence[_Rows] = field(repr=False)

    def check(self, spec: Spec) -> Extremes:
        """Return the smallest and largest value, after `verify`; raise for values out of range."""
        for each in self.files:
            fault = spec.value_fault(*each.extremes)
            if fault is not None:
                raise each.source.damaged(self.name, fault)
        return min(each.extremes[0] for each in self.files), max(e.extremes[1] for e in self.files)

    def read(self) -> Tensor:
        """Return the table, mapped from its files where they allow that."""
        for each in self.files:
            file = each.header.file
            if read_file(read_header, file) != each.header:
                raise each.source.damaged("", "has changed while it was read")
        parts = [each.part for each in self.files]
        folder = self.files[0].header.file.parent
        return read_file(lambda _: load_parts(parts, self.dtype, self.shape), folder / INDEX)


def open_tables(root: Path, index: Any, sums: Mapping[str, str]) -> dict[str, SplitTable]:
    """Read the headers of all files of tables, and compare them with the index.

    Args:
        root: the folder.
        index: the parsed `tables.json`.
        sums: SHA-256 of the files of tables, by the manifest.
    """
    source = Source(root / INDEX)
    stored = check(_StoredIndex, index, source, exact=True)
    if not stored.tables:
        raise source.damaged("tables", "must be at least one")
    left, found = dict(sums), {}
    for name, table in stored.tables.items():
        found[name] = _open_table(root, name, table, left)
    if left:
        raise source.damaged("tables", f"must have {min(left)}, which the manifest lists")
    return found


def _open_table(root: Path, name: str, table: _StoredTable, left: dict[str, str]) -> SplitTable:
    """Return one table; its files are removed from `left`."""
    source, field = Source(root / INDEX), f"tables.{name}"
    if table.dtype not in DTYPES:
        raise source.damaged(f"{field}.dtype", f"must be one of {', '.join(DTYPES)}")
    if not table.shape or min(table.shape) < 0:
        raise source.damaged(f"{field}.shape", f"cannot be {list(table.shape)}")
    dtype, end, files = DTYPES[table.dtype], 0, []
    for number, each in enumerate(table.files):
        place = f"{field}.files[{number}]"
        if each.file not in left:
            what = "must be a file of the manifest, table-NNNNN.safetensors, each once"
            raise source.damaged(f"{place}.file", f"{what}; got {each.file[:60]!r}")
        if each.first != end or each.rows < 1:
            raise source.damaged(
                place, f"must have rows from {end} on, got {each.rows} from {each.first}"
            )
        end += each.rows
        header = read_file(read_header, root / each.file)
        _check_header(header, name, Spec((each.rows, *table.shape[1:]), dtype))
        files.append(_Rows(header, left.pop(each.file)))
    if end != table.shape[0]:
        raise source.damaged(f"{field}.files", f"have {end} rows, and must have {table.shape[0]}")
    if not files:
        raise source.damaged(f"{field}.files", "must be at least one")
    return SplitTable(name, dtype, table.shape, files)


def _check_header(header: Header, name: str, spec: Spec) -> None:
    """Raise unless a file has this tensor, and no other."""

    def fail(name: str, what: str) -> Any:
        raise Source(header.file).damaged(name, what)

    check_names(header.tensors, [(name, spec)], fail)
    fault = spec.fault(*header.tensors[name])
    if fault is not None:
        fail(name, fault)
