"""A prepared log: verified when it is opened, read part by part or as a whole."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfold._files import recovered
from fewfold._progress import phase
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.jagged import offsets_of
from fewfold.recommender.prepared.part_files import Part, ids_of, read_part
from fewfold.recommender.prepared.prepared_manifest import (
    ITEMS,
    PREPARED,
    PreparedManifest,
    part_name,
)
from fewfold.recommender.reading.columns import Column, Columns
from fewfold.recommender.reading.summary import LogPlan, LogSummary, Size
from fewfold.recommender.reading.table_source import explained, library

__all__ = ["PreparedLog", "is_prepared"]


def is_prepared(source: Any) -> bool:
    """Return whether a source is the folder of a prepared log."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    try:
        return (recovered(Path(source).expanduser()) / PREPARED).is_file()
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class PreparedLog:
    """A folder that `fewfold prepare` wrote.

    Attributes:
        folder: its path.
        manifest: sizes, types and checksums.

    Example:
        >>> import tempfile
        >>> from fewfold.recommender import prepare
        >>> log = {"user": ["ann", "bob", "ann"], "item": [7, 3, 7]}
        >>> found = prepare(log, tempfile.mkdtemp() + "/prepared", parts=2, progress=False)
        >>> found.manifest.users, found.manifest.items, found.manifest.pairs
        (2, 2, 2)
        >>> [found.part(number).users.tolist() for number in range(2)]
        [['bob'], ['ann']]
    """

    folder: Path
    manifest: PreparedManifest

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, hashes: bool = False, verify: bool = True
    ) -> "PreparedLog":
        """Open a folder and verify the size and footer of every file, with `hashes` its content.

        Without `verify` only the manifest is read.
        """
        path = recovered(Path(folder).expanduser())
        if not (path / PREPARED).is_file():
            raise DataError(
                f"{folder}: this is not a prepared log, since it has no {PREPARED}; write one with "
                "fewfold prepare LOG --out FOLDER"
            )
        manifest = PreparedManifest.read(path)
        if verify:
            manifest.verify(path, hashes=hashes)
        return cls(path, manifest)

    @cached_property
    def items(self) -> Ids:
        """Item ids; position i is item number i."""
        return ids_of(self._item_table("item"))

    @cached_property
    def counts(self) -> torch.Tensor:
        """Number of users of each item, (items,)."""
        found = self._item_table("users").to_numpy(zero_copy_only=False)
        return torch.from_numpy(found.astype(np.int64))

    def _item_table(self, column: str) -> Any:
        path = self.folder / ITEMS
        with explained(str(path)):
            table = library("pyarrow.parquet").read_table(path, columns=[column], partitioning=None)
            return table.column(column).combine_chunks()

    def part(self, number: int, columns: tuple[str, ...] | None = None) -> Part:
        """Read a part, with all of its columns or with items and these; see `read_part`."""
        path = self.folder / part_name(number)
        with explained(str(path)):
            part = read_part(path, self.manifest.items, columns)
        facts, log = self.manifest.files[path.name], part.interactions
        if (log.users, log.pairs) != (facts["rows"], facts["pairs"]):
            raise DataError(
                f"{path}: expected {facts['pairs']:,} pairs of {facts['rows']:,} users, got "
                f"{log.pairs:,} of {log.users:,}; prepare it again"
            )
        return part

    def whole(self) -> tuple[Interactions, Ids, Ids]:
        """Read all parts: interactions, user and item ids, in the order of `read_log`."""
        numbers = range(self.manifest.parts)
        with phase("reading the prepared log", total=len(numbers)) as reading:
            parts = [self.part(number) for number in reading.each(numbers)]
        users, order = _sorted_ids([part.users for part in parts])
        log = _joined([part.interactions for part in parts], self.manifest)
        parts.clear()
        return log.select(order) if order is not None else log, users, self.items

    @property
    def summary(self) -> LogSummary:
        """How the log was read when it was prepared."""
        found = dict(self.manifest.log)
        plan, columns = dict(found.pop("plan")), None
        if plan["columns"] is not None:
            roles = {
                role: None if column is None else Column(column["name"], column["guessed"])
                for role, column in plan["columns"].items()
            }
            columns = Columns(**roles)  # type: ignore[arg-type]
        size = sum(facts["bytes"] for facts in self.manifest.files.values())
        found["plan"] = LogPlan(
            (str(self.folder),), f"prepared from {plan['format']}", size, columns,
            tuple(plan["names"]), (), tuple(plan["notes"]),
        )  # fmt: skip
        for name in ("before", "after"):
            found[name] = Size(**found[name])
        return LogSummary(
            **{**found, "where": tuple(found["where"]), "notes": tuple(found["notes"])}
        )

    def plan(self) -> LogPlan:
        """Describe the folder."""
        return replace(self.summary.plan, notes=())


def _sorted_ids(parts: list[Ids]) -> tuple[Ids, Any]:
    """Return the ids of all parts in order, and the positions they come from; None if in order."""
    if len(parts) == 1:
        return parts[0], None
    if not any(isinstance(part.values, Texts) for part in parts):
        values = np.concatenate([np.asarray(part.values) for part in parts])
        order = np.argsort(values, kind="stable")
        return Ids(values[order]), order
    pl = library("polars")
    arrays = [part.to_arrow() for part in parts if len(part)]
    texts = pl.concat([pl.from_arrow(array) for array in arrays])
    order = texts.arg_sort().to_numpy().astype(np.int64)
    return ids_of(texts.gather(order).to_arrow(compat_level=pl.CompatLevel.oldest())), order


def _joined(parts: list[Interactions], manifest: PreparedManifest) -> Interactions:
    """Append the users of all parts to each other."""
    lengths = torch.cat([part.jagged.lengths for part in parts])
    times = [part.times for part in parts if part.times is not None and part.pairs]
    weights = [part.weights for part in parts if part.weights is not None and part.pairs]
    dislikes = None
    if manifest.dislikes:
        others = [
            part.dislikes
            or Interactions(torch.zeros(part.users + 1, dtype=torch.int64), part.ids[:0],
                            part.items, None if part.times is None else part.times[:0])
            for part in parts
        ]  # fmt: skip
        dislikes = _joined(others, replace(manifest, dislikes=0))
    return Interactions(
        offsets_of(lengths), torch.cat([part.ids for part in parts]), manifest.items,
        torch.cat(times) if times else None, torch.cat(weights) if weights else None,
    ).with_values(dislikes=dislikes)  # fmt: skip
