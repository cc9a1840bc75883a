"""Complete a folder of part files that another program wrote, such as a Spark job."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fewfold._check import whole_number
from fewfold._progress import phase
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.prepared.part_files import (
    Part,
    check_no_nulls,
    ids_of,
    read_part,
    write_part,
)
from fewfold.recommender.prepared.prepared_log import PreparedLog
from fewfold.recommender.prepared.prepared_manifest import (
    ITEMS,
    MOST_PARTS,
    PreparedManifest,
    file_facts,
    part_name,
)
from fewfold.recommender.prepared.spill import parts_of_ids
from fewfold.recommender.reading.summary import LogPlan, LogSummary, Size
from fewfold.recommender.reading.table_source import explained, library

__all__ = ["seal"]


def seal(folder: str | os.PathLike[str], *, parts: int, rows: int | None = None) -> PreparedLog:
    """Validate the files of a prepared log and write its manifest, which completes the folder.

    Args:
        folder: with `items.parquet` and the part files that docs/prepare.md describes; those of
            parts without users may be missing, and are written.
        parts: number of parts, at most 4,096.
        rows: rows of the log they come from, at least the number of pairs, which is the default.

    Returns:
        The prepared log. Wrong content raises a `DataError` that names the file.
    """
    whole_number(parts, "parts")
    if parts > MOST_PARTS:
        raise ValueError(f"parts must be at most {MOST_PARTS:,}, got {parts:,}")
    path = Path(folder)
    with explained(str(path / ITEMS)):
        table = library("pyarrow.parquet").read_table(path / ITEMS, partitioning=None)
        ids, counts = (table.column(name).combine_chunks() for name in ("item", "users"))
    for name, column in (("item", ids), ("users", counts)):
        check_no_nulls(column, name, path / ITEMS)
    items, sizes = ids_of(ids), np.zeros(len(ids), dtype=np.int64)
    _check_sorted(items, path / ITEMS)
    files: dict[str, Any] = {ITEMS: file_facts(path / ITEMS)}
    found = [_Facts(path / part_name(number)) for number in range(parts)]
    first = next((one for one in found if one.path.exists()), None)
    if first is None:
        raise DataError(f"{path}: expected files such as {part_name(0)}, got none")
    with explained(str(first.path)):
        example = read_part(first.path, len(items))
    with phase("validating the parts", total=parts) as validating:
        for number, one in enumerate(validating.each(found)):
            sizes += one.check(number, parts, len(items), example)
            files[one.path.name] = file_facts(one.path, pairs=one.pairs)
    if not np.array_equal(sizes, counts.to_numpy(zero_copy_only=False)):
        raise DataError(f"{path / ITEMS}: users must be the number of users of each item")
    if not sizes.all():
        row = int(sizes.argmin())
        raise DataError(
            f"{path / ITEMS}: every item must have a user, got none in row {row} (from 0)"
        )
    users, pairs = sum(one.users for one in found), sum(one.pairs for one in found)
    size, disliked = Size(users, len(items), pairs), sum(one.dislikes for one in found)
    plan = LogPlan((str(path),), "files of another program", 0)
    read = pairs if rows is None else whole_number(rows, "rows")
    if read < pairs:
        raise ValueError(f"rows must be at least the number of pairs, {pairs:,}, got {read:,}")
    summary = LogSummary(plan, read, size, size, duplicates=read - pairs, disliked=disliked)
    times = example.interactions.times
    PreparedManifest(
        users, len(items), pairs, parts, "text" if example.users.textual else "int64",
        "text" if items.textual else "int64", None if times is None else times.numpy().dtype.name,
        example.interactions.weights is not None, disliked, files, summary.as_dict(),
    ).write(path)  # fmt: skip
    return PreparedLog.open(path)


class _Facts:
    """Numbers of users, pairs and dislikes of a part file."""

    def __init__(self, path: Path) -> None:
        self.path, self.users, self.pairs, self.dislikes = path, 0, 0, 0

    def check(self, number: int, parts: int, items: int, example: Part) -> np.ndarray:
        """Validate a part file, which is written if it is missing; return counts of the items."""
        if not self.path.exists():
            log = example.interactions.select([])
            none = Texts.of([]) if example.users.textual else np.empty(0, dtype=np.int64)
            write_part(self.path, Part(Ids(none), log))
        with explained(str(self.path)):
            part = read_part(self.path, items)
        _check_like(part.interactions, example.interactions, self.path)
        _check_sorted(part.users, self.path)
        column = library("polars").from_arrow(part.users.to_arrow())
        if len(column) and bool((parts_of_ids(column, parts) != number).any()):
            raise DataError(f"{self.path}: a user belongs to another part; see docs/prepare.md")
        log = part.interactions
        if not bool(log.jagged.lengths.all()):
            row = int(log.jagged.lengths.argmin())
            raise DataError(
                f"{self.path}: every user must have an item, got none in row {row} (from 0)"
            )
        self.users, self.pairs = log.users, log.pairs
        self.dislikes = 0 if log.dislikes is None else log.dislikes.pairs
        counts: np.ndarray = log.counts().numpy()
        return counts


def _check_sorted(ids: Ids, path: Path) -> None:
    column = library("polars").from_arrow(ids.to_arrow())
    if not (column.is_sorted() and column.n_unique() == len(column)):
        raise DataError(f"{path}: ids must be in order, and different")


def _check_like(log: Interactions, example: Interactions, path: Path) -> None:
    for name in ("times", "weights"):
        mine, other = getattr(log, name), getattr(example, name)
        if (mine is None) != (other is None) or (mine is not None and mine.dtype != other.dtype):
            raise DataError(f"{path}: {name} must be of one type in all parts, or in none")
