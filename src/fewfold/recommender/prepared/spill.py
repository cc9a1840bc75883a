"""Rows of a log on disk while it is prepared: one file of chunks per part of the users.

A chunk is a header of int64 (rows, bytes of text, a code per column) and the columns, one after the
other. Numbers are stored as they are in memory; text as its lengths, then its UTF-8.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewfold._files import sync, writing
from fewfold.recommender.ids import Texts
from fewfold.recommender.reading.numbering import texts
from fewfold.recommender.reading.table_source import library

__all__ = ["Columns", "SpillReader", "SpillWriter", "parts_of_ids"]

Columns = dict[str, Any]  # a NumPy array per column, or `Texts`
_KINDS = ("int32", "int64", "uint32", "float64", "bool")
_TEXT = len(_KINDS)
_MULTIPLIER = 2_654_435_761  # 2^32 over the golden ratio, a prime
_FOLDED = 0x7FFF_FFFF


def parts_of_ids(ids: Any, parts: int) -> np.ndarray:
    """Return the part of each id, (n,) uint16, of a polars Series of text or whole numbers.

    A number n is in part ``(((n ^ (n >> 32)) & 0x7fffffff) * 2654435761 >> 30) % parts``, a text in
    part ``crc32(UTF-8) % parts``.

    Example:
        >>> import polars as pl
        >>> from fewfold.recommender.prepared.spill import parts_of_ids
        >>> parts_of_ids(pl.Series([0, 1, 2, 3]), 4), parts_of_ids(pl.Series(["ann", "bob"]), 4)
        (array([0, 2, 0, 3], dtype=uint16), array([3, 0], dtype=uint16))
    """
    if parts == 1:
        return np.zeros(len(ids), dtype=np.uint16)
    if ids.dtype == library("polars").String:
        once = ids.unique(maintain_order=True)
        found = np.array([zlib.crc32(text.encode()) % parts for text in once], dtype=np.uint16)
        codes: np.ndarray = ids.cast(library("polars").Enum(once)).to_physical().to_numpy()
        part: np.ndarray = found[codes]
        return part
    numbers: np.ndarray = ids.to_numpy().astype(np.int64, copy=False)
    folded: np.ndarray = numbers >> 32
    folded ^= numbers
    folded &= _FOLDED
    folded *= _MULTIPLIER
    folded >>= 30
    folded %= parts
    return folded.astype(np.uint16)


def _file(folder: Path, part: int) -> Path:
    return folder / f"rows-{part:05}.bin"


@dataclass
class SpillWriter:
    """Collects rows, and appends them to the files of their parts once there are enough.

    Attributes:
        folder: of the files, which is empty.
        parts: number of parts.
        buffer: rows after which they are written.
        counts: (parts,) rows of each part so far.
    """

    folder: Path
    parts: int
    buffer: int

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.parts, dtype=np.int64)
        self._waiting: list[tuple[np.ndarray, Mapping[str, Any]]] = []
        self._rows = 0

    def add(self, part: np.ndarray, columns: Mapping[str, Any]) -> None:
        """Add rows: the part of each, and columns of polars Series or arrays."""
        self._waiting.append((part, columns))
        self._rows += len(part)
        if self._rows >= self.buffer:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        part = np.concatenate([part for part, _ in self._waiting])
        narrow = part.astype(np.uint8) if self.parts <= 256 else part
        order = np.argsort(narrow, kind="stable")  # a radix sort
        counts = np.bincount(part, minlength=self.parts)
        ends = np.concatenate([[0], counts.cumsum()])
        names = list(self._waiting[0][1])
        sorted_columns = [_gathered([one[name] for _, one in self._waiting], order)
                          for name in names]  # fmt: skip
        self._waiting, self._rows = [], 0
        with writing(self.folder):
            for number in np.flatnonzero(counts).tolist():
                self._append(number, sorted_columns, int(ends[number]), int(ends[number + 1]))
        self.counts += counts

    def _append(self, part: int, columns: Sequence[Any], start: int, end: int) -> None:
        header, data = [end - start, 0], []
        for column in columns:
            if isinstance(column, Texts):
                edges = column.offsets[start : end + 1]
                header[1] = int(edges[-1] - edges[0])
                header.append(_TEXT)
                data += [np.diff(edges).astype(np.uint32), column.data[edges[0] : edges[-1]]]
            else:
                header.append(_KINDS.index(column.dtype.name))
                data.append(column[start:end])
        with _file(self.folder, part).open("ab") as file:
            for one in (np.array(header, dtype=np.int64), *data):
                file.write(one.data)

    def close(self) -> None:
        """Write what waits and flush all files to disk."""
        self.flush()
        with writing(self.folder):
            for part in np.flatnonzero(self.counts).tolist():
                sync(_file(self.folder, part))


def _gathered(pieces: Sequence[Any], order: np.ndarray) -> Any:
    """Concatenate a column and bring it into this order."""
    if isinstance(pieces[0], np.ndarray):
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return whole[order]
    return texts(library("polars").concat(list(pieces)).gather(order))


@dataclass(frozen=True)
class SpillReader:
    """Reads the files of a `SpillWriter`.

    Attributes:
        folder: of the files.
        names: of the columns, in their order.
    """

    folder: Path
    names: tuple[str, ...]

    def read(self, part: int) -> Columns:
        """Return the columns of a part, in the order of their addition; empty if it has no rows."""
        path = _file(self.folder, part)
        if not path.exists():
            return {}
        data = np.fromfile(path, dtype=np.uint8)
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        at = 0
        while at < len(data):
            at = self._chunk(data, at, found)
        return {name: _joined(pieces) for name, pieces in found.items()}

    def _chunk(self, data: np.ndarray, at: int, found: dict[str, list[Any]]) -> int:
        size = 8 * (2 + len(self.names))
        header = np.frombuffer(data, np.int64, 2 + len(self.names), at).tolist()
        rows, text = header[:2]
        at += size
        for name, kind in zip(self.names, header[2:], strict=True):
            dtype = np.dtype(np.uint32 if kind == _TEXT else _KINDS[kind])
            column = np.frombuffer(data, dtype, rows, at)
            at += rows * dtype.itemsize
            if kind == _TEXT:
                found[name].append((column, data[at : at + text]))
                at += text
            else:
                found[name].append(column)
        return at

    def delete(self, part: int) -> None:
        """Delete the file of a part."""
        _file(self.folder, part).unlink(missing_ok=True)


def _joined(pieces: list[Any]) -> Any:
    if isinstance(pieces[0], np.ndarray):
        return np.concatenate(pieces)
    lengths = np.concatenate([lengths for lengths, _ in pieces])
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Texts(np.concatenate([data for _, data in pieces]), offsets)
