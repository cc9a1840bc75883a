"""Part files of a prepared log: Parquet with one row per user, whose items are a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._files import new_file
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.reading.table_source import library

__all__ = [
    "Part",
    "arrow_column",
    "check_no_nulls",
    "ids_of",
    "read_part",
    "write_part",
    "write_table",
]

_OWNERS = {"times": "items", "weights": "items", "dislike_times": "dislikes"}
_PAIRS_PER_GROUP = 1 << 20  # pairs per row group, about


@dataclass(frozen=True, eq=False)
class Part:
    """The users of a part, in the order of their ids, and their interactions.

    Attributes:
        users: user ids.
        interactions: a row per user; items have the numbers of the whole log.
    """

    users: Ids
    interactions: Interactions


def write_part(path: Path, part: Part) -> None:
    """Write a part file, atomically; see docs/prepare.md for its columns."""
    log = part.interactions
    columns = {"user": arrow_column(part.users.values), "items": _lists(log.offsets, log.ids.int())}
    if log.times is not None:
        columns["times"] = _lists(log.offsets, log.times)
    if log.weights is not None:
        columns["weights"] = _lists(log.offsets, log.weights)
    if log.dislikes is not None:
        columns["dislikes"] = _lists(log.dislikes.offsets, log.dislikes.ids.int())
        if log.dislikes.times is not None:
            columns["dislike_times"] = _lists(log.dislikes.offsets, log.dislikes.times)
    mean = max(1, log.pairs // max(log.users, 1))
    write_table(path, columns, max(1, _PAIRS_PER_GROUP // mean))


def write_table(path: Path, columns: dict[str, Any], group: int = 1 << 20) -> None:
    """Write a Parquet file of these Arrow arrays, atomically."""
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    # Half the time and a sixth less space than dictionaries.
    encoding = {
        leaf: "DELTA_BINARY_PACKED"
        for leaf, kind in (_leaf(name, column) for name, column in columns.items())
        if arrow.types.is_integer(kind)
    }
    with new_file(path) as partial:
        parquet.write_table(
            arrow.table(columns), partial, compression="zstd", compression_level=1,
            row_group_size=group, use_dictionary=False, column_encoding=encoding,
            write_page_checksum=True,
        )  # fmt: skip


def _leaf(name: str, column: Any) -> tuple[str, Any]:
    """Return the name and type of a column of Parquet, or of the entries of its lists."""
    if library("pyarrow").types.is_large_list(column.type):
        return f"{name}.list.element", column.type.value_type
    return name, column.type


def arrow_column(values: np.ndarray | Texts) -> Any:
    """Return ids or numbers as an Arrow array that shares their memory."""
    if isinstance(values, Texts):
        return values.to_arrow()
    return library("pyarrow").array(values)


def _lists(offsets: Tensor, values: Tensor) -> Any:
    arrow = library("pyarrow")
    edges = arrow.array(offsets.numpy())
    return arrow.LargeListArray.from_arrays(edges, arrow.array(values.numpy()))


def read_part(path: Path, items: int, columns: Sequence[str] | None = None) -> Part:
    """Read a part file.

    Args:
        path: of the file.
        items: number of items of the log.
        columns: those to read beside the user's items; None reads all.

    Raises:
        DataError: a null, or times or weights that do not match the items.
    """
    parquet = library("pyarrow.parquet")
    names = None if columns is None else ["items", *columns]
    table = parquet.read_table(path, columns=names, partitioning=None, use_threads=False)
    found = {name: table.column(name).combine_chunks() for name in table.column_names}
    for name, column in found.items():
        check_no_nulls(column, name, path)
    _check_lengths(found, path)
    log = _interactions(found, "items", items, times="times")
    if "dislikes" in found:
        other = _interactions(found, "dislikes", items, times="dislike_times")
        log = log.with_values(dislikes=other if other.pairs else None)
    users = ids_of(found["user"]) if "user" in found else Ids(np.arange(log.users))
    return Part(users, log)


def check_no_nulls(column: Any, name: str, path: Path) -> None:
    """Raise if a row of an Arrow array, or an entry of its lists, is null."""
    types = library("pyarrow").types
    if column.null_count:
        row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
        raise DataError(f"{path}: {name} must not be null, got null in row {row} (from 0)")
    lists = types.is_list(column.type) or types.is_large_list(column.type)
    if lists and column.flatten().null_count:
        nulls = column.flatten().is_null().to_numpy(zero_copy_only=False)
        row = int(column.value_parent_indices()[int(nulls.argmax())].as_py())
        raise DataError(f"{path}: {name} must not contain null, got one in row {row} (from 0)")


def _check_lengths(found: dict[str, Any], path: Path) -> None:
    """Raise unless lists that belong to items or dislikes have as many values."""
    for name, owner in _OWNERS.items():
        if name not in found or owner not in found:
            continue
        mine, theirs = (np.diff(found[one].offsets.to_numpy()) for one in (name, owner))
        if not np.array_equal(mine, theirs):
            row = int((mine != theirs).argmax())
            raise DataError(
                f"{path}: {name} must have a value for each of {owner}, got {mine[row]} for "
                f"{theirs[row]} in row {row} (from 0)"
            )


def ids_of(column: Any) -> Ids:
    """Return an Arrow array of ids, text or whole numbers."""
    arrow = library("pyarrow")
    if not arrow.types.is_integer(column.type):
        column = column.cast(arrow.large_string())
        _, offsets, data = column.buffers()
        edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        text = np.frombuffer(data or b"", np.uint8)[int(edges[0]) : int(edges[-1])]
        return Ids(Texts(text, edges - edges[0]))
    return Ids(column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))


def _arrays(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets and the values of a column of lists without nulls."""
    edges = column.offsets.to_numpy().astype(np.int64)
    values = column.values.to_numpy(zero_copy_only=False)[edges[0] : edges[-1]]
    return edges - edges[0], values.copy()


def _interactions(found: dict[str, Any], name: str, items: int, *, times: str) -> Interactions:
    """Return the lists of a column as validated interactions, with times and weights if any."""
    offsets, ids = _arrays(found[name])
    moments = torch.from_numpy(_arrays(found[times])[1]) if times in found else None
    weights = None
    if name == "items" and "weights" in found:
        weights = torch.from_numpy(_arrays(found["weights"])[1])
    who, what = torch.from_numpy(offsets), torch.from_numpy(ids.astype(np.int64))
    return Interactions(who, what, items, moments, weights)
