"""Validate the rows of a log as `read_log` does, and scatter them to the parts of their users."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.prepared.item_codes import ItemCodes, ItemNumbers
from fewfold.recommender.prepared.spill import SpillWriter, parts_of_ids
from fewfold.recommender.reading.log_rows import Rows, no_time, time_numbers
from fewfold.recommender.reading.numbering import IdType, narrow
from fewfold.recommender.reading.opened import OpenedLog, no_rows_message, summary_of
from fewfold.recommender.reading.summary import Size

__all__ = ["Found", "Scattered", "scatter"]


@dataclass(frozen=True)
class Found:
    """What must be known of a log before its first row is written.

    Attributes:
        users_text: whether user ids are text; None while it is not known.
        items_text: whether item ids are text, likewise.
    """

    users_text: bool | None = None
    items_text: bool | None = None


class _FoundTextError(Exception):
    """Ids that looked like whole numbers are text; the rows must be scattered again."""


class _WriteError(Exception):
    """Rows could not be written; the cause is an OSError."""


@dataclass(frozen=True)
class Scattered:
    """Facts of a log whose rows have been scattered.

    Attributes:
        columns: names of the columns of the spill, in their order.
        counts: rows of each part.
        textual: whether user ids are text.
        oldest: oldest time; None if there are no times.
        timed: dtype of the times, "int64" or "float64"; None if the log has none.
        rated: whether some rows are dislikes.
        summary: counts of the rows read, as `LogSummary.as_dict` returns them, without sizes.
    """

    columns: tuple[str, ...]
    counts: tuple[int, ...]
    textual: bool
    oldest: int | float | None
    timed: str | None
    rated: bool
    summary: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Scattered":
        """Construct from what `as_dict` returned."""
        lists = {name: tuple(found[name]) for name in ("columns", "counts")}
        return cls(**{**found, **lists})


class _ScatteredRows(Rows):
    """Rows that are written to the parts of their users instead of being held."""

    def scatter_to(self, spill: SpillWriter, found: Found) -> None:
        """Set where rows go, and what is known of the ids."""
        self._spill = spill
        self._user_type = IdType("user", as_numbers=self.as_numbers, textual=found.users_text)
        self._item_type = IdType("item", as_numbers=self.as_numbers, textual=found.items_text)
        self.items = ItemCodes()
        self.float_times = False
        self._oldest: Any = None
        self._latest: Any = None

    @property
    def textual(self) -> bool:
        """Whether user ids are text."""
        return bool(self._user_type.textual)

    def found(self) -> Found:
        """What is known of the ids."""
        return Found(self._user_type.textual, self._item_type.textual)

    def _collect(self, frame: Any, name: str) -> None:
        users, items = self._ids(frame, name)
        liked = frame["liked"] if "liked" in frame.columns else None
        columns: dict[str, Any] = {
            "user": users if self.textual else narrow(users.to_numpy()),
            "item": self.items.add(items, liked),
        }
        if self.columns.time is not None:
            columns["time"] = self._moment_column(frame["time"])
        if self.columns.weight is not None:
            columns["weight"] = frame["weight"].to_numpy()
        if liked is not None:
            columns["liked"] = liked.to_numpy()
        part = parts_of_ids(users, self._spill.parts)
        try:
            self._spill.add(part, columns)
        except OSError as error:  # of the disk that is written, not of the file that is read
            raise _WriteError from error

    def _ids(self, frame: Any, name: str) -> tuple[Any, Any]:
        """Return users and items in their types; raise if numbers before them were text."""
        before = self.found()
        users = self._user_type.convert(frame["user"], name)
        items = self._item_type.convert(frame["item"], name)
        now = self.found()
        if (before.users_text is False and now.users_text) or (
            before.items_text is False and now.items_text
        ):
            raise _FoundTextError
        return users, items

    def _moment_column(self, column: Any) -> np.ndarray:
        moments = time_numbers(column)
        known = moments[~no_time(moments)]
        if len(known):
            low, high = known.min(), known.max()
            self._oldest = low if self._oldest is None else min(self._oldest, low)
            self._latest = high if self._latest is None else max(self._latest, high)
        self.float_times |= moments.dtype.kind == "f"
        return moments

    def _newest(self) -> tuple[float | None, bool]:
        return self._latest, not self.float_times

    def oldest(self) -> int | float | None:
        """Return the oldest time in the dtype of all times; None if there is none."""
        if self._oldest is None:
            return None
        return float(self._oldest) if self.float_times else int(self._oldest)


def scatter(
    opened: OpenedLog, folder: Path, *, parts: int, buffer: int
) -> tuple[Scattered, ItemNumbers]:
    """Validate all rows of a log and write each to the part of its user.

    Args:
        opened: the log.
        folder: of the spill, which is empty.
        parts: number of parts.
        buffer: rows held in memory before they are written.
    """
    rows, spill = _read(opened, folder, parts, buffer)
    plan = opened.plan()
    if rows.selected == 0:
        raise DataError(no_rows_message(rows, plan))
    items = rows.items.numbers()
    timed = None
    if rows.columns.time is not None and rows.untimed < rows.selected:
        timed = "float64" if rows.float_times else "int64"
    names = ["user", "item"]
    names += [role for role in ("time", "weight") if getattr(rows.columns, role) is not None]
    names += ["liked"] if rows.rules.min_rating is not None else []
    summary = summary_of(rows, plan, Size(0, len(items), 0), 0).as_dict()
    facts = Scattered(
        tuple(names), tuple(spill.counts.tolist()), rows.textual, rows.oldest(), timed,
        rows.below > 0, {**summary, "newest": rows.newest(), "selected": rows.selected},
    )  # fmt: skip
    return facts, items


def _read(
    opened: OpenedLog, folder: Path, parts: int, buffer: int
) -> tuple[_ScatteredRows, SpillWriter]:
    """Read the log, again if ids that looked like whole numbers turn out to be text."""
    found = Found()
    while True:
        spill = SpillWriter(folder, parts, buffer)
        rows = _ScatteredRows(opened.columns, opened.rules, not opened.typed, opened.filter())
        rows.scatter_to(spill, found)
        try:
            opened.read_into(rows)
        except _FoundTextError:
            for path in folder.iterdir():
                path.unlink()
            now = rows.found()
            found = Found(now.users_text or None, now.items_text or None)
            continue
        except _WriteError as error:
            raise error.__cause__ or error from None
        spill.close()
        return rows, spill
