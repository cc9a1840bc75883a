"""The rows of a log, checked one batch after the other and kept in few bytes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, from_keys
from fewfold.recommender.reading.columns import Columns
from fewfold.recommender.reading.conditions import Filter
from fewfold.recommender.reading.numbering import Growing, Numbering
from fewfold.recommender.reading.tables import Batch, library
from fewfold.recommender.reading.values import Times, ratings, stripped, whole

__all__ = ["Rows", "Rules"]

_NO_TIME = -(2**63)  # as a whole number; among floats it is nan


@dataclass(frozen=True)
class Rules:
    """What counts, and what becomes of rows that are not in order.

    Attributes:
        min_rating: the least rating that counts, or None.
        skip_bad_rows: whether a row that cannot be used is counted instead of raising.
        strip_ids: whether blanks around ids that are text are taken away.
        time_format: how times are written, by strptime; None recognises common formats.
    """

    min_rating: float | None = None
    skip_bad_rows: bool = False
    strip_ids: bool = True
    time_format: str | None = None


@dataclass
class Rows:
    """The rows read so far.

    Attributes:
        columns: the column of each role.
        rules: what counts.
        as_numbers: whether text becomes numbers if all of it is.
        where: the conditions on rows.
        read: how many there were.
        below: how many had a lower rating.
        kept: how many are left.
        stripped: how many of the rest had blanks around an id that were taken away.
        untimed: how many of the rest have no time.
        bad: how many could not be used, by reason.
    """

    columns: Columns
    rules: Rules
    as_numbers: bool
    where: Filter = field(default_factory=lambda: Filter(()))
    read: int = 0
    below: int = 0
    kept: int = 0
    stripped: int = 0
    untimed: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._users = Numbering("user", as_numbers=self.as_numbers)
        self._items = Numbering("item", as_numbers=self.as_numbers)
        self._times = Times(self.rules.time_format)
        self._moments = Growing()

    def roles(self) -> dict[str, str]:
        """The columns to read, by what they are for."""
        return {**self.columns.roles(), **self.where.roles()}

    def add(self, batch: Batch, name: str) -> None:
        """Add the rows of a batch."""
        self.read += batch.frame.height + len(batch.bad)
        batch = self.where.apply(batch, name)
        frame, problems = self._checked(batch.frame, name)
        wrong = None
        for _, mask in problems:
            wrong = mask if wrong is None else wrong | mask
        if batch.bad or wrong is not None:
            self._refuse(batch, problems, wrong)
        if wrong is not None:
            frame = frame.filter(~wrong)
        if self.rules.min_rating is not None:
            high = frame["rating"] >= self.rules.min_rating
            self.below += int((~high).sum())
            frame = frame.filter(high)
        self.kept += frame.height
        if frame.height == 0:  # then its types say nothing
            return
        if "stripped" in frame.columns:
            self.stripped += int(frame["stripped"].sum())
        self._users.add(frame["user"], name)
        self._items.add(frame["item"], name)
        if self.columns.time is not None:
            self._add_times(frame["time"])

    def notes(self) -> tuple[str, ...]:
        """What is to be said about times and conditions."""
        times = self._times.note()
        return (*(() if times is None else (times,)), *self.where.notes())

    def _add_times(self, times: Any) -> None:
        missing = times.null_count()
        self.untimed += missing
        if missing and times.dtype.is_integer():
            times = times.fill_null(_NO_TIME)
        self._moments.append(times.to_numpy())

    def _checked(self, given: Any, name: str) -> tuple[Any, list[tuple[str, Any]]]:
        """The columns as they are needed, and the rows that have none of them, by reason."""
        columns, problems = [], []
        changed = None
        for role in ("user", "item"):
            ids, odd = whole(given[role], role, name)
            if self.rules.strip_ids and ids.dtype == library("polars").String:
                ids, blanks = stripped(ids)
                if blanks is not None:
                    ids = ids.set(ids == "", None)
                    changed = blanks if changed is None else changed | blanks
            columns.append(ids.alias(role))
            problems.append((f"no {role}", ids.is_null() & ~odd))
            problems.append((f"{role} is not a whole number of 64 bits", odd))
        if self.columns.rating is not None:
            columns.append(ratings(given["rating"], name).alias("rating"))
            problems.append(("rating is not a number", columns[-1].is_null()))
        if self.columns.time is not None:
            times, empty = self._times.read(given["time"], name)
            columns.append(times.alias("time"))
            problems.append(("time cannot be read", times.is_null() & ~empty))
        if changed is not None:
            columns.append(changed.alias("stripped"))
        frame = library("polars").DataFrame(columns)
        return frame, [(reason, mask) for reason, mask in problems if mask.any()]

    def _refuse(self, batch: Batch, problems: list[tuple[str, Any]], wrong: Any) -> None:
        """Count the bad rows of a batch, or raise for the first of them."""
        counted = Counter(bad.reason for bad in batch.bad)
        seen = None
        for reason, mask in problems:  # a row is counted once, for the first thing wrong with it
            fresh = mask if seen is None else mask & ~seen
            seen = mask if seen is None else seen | mask
            if fresh.any():
                counted[reason] += int(fresh.sum())
        self.bad += counted
        if self.rules.skip_bad_rows:
            return
        if batch.bad:
            reason, place = batch.bad[0].reason, batch.bad[0].place
        else:
            row = int(wrong.arg_true()[0])
            reason = next(reason for reason, mask in problems if mask[row])
            place = batch.place(row)
        more = sum(counted.values()) - 1
        others = f" (and {more:,} more near it)" if more else ""
        untimed = self._untimed() if reason == "time cannot be read" else ""
        raise DataError(
            f"{place.where}: {reason}, got {place.text}{others}; fix it, or leave such rows out: "
            f"skip_bad_rows=True (--skip-bad-rows){untimed}"
        )

    def _untimed(self) -> str:
        """What else to do about a time that cannot be read."""
        given = self.rules.time_format
        format = (
            "say how times are written: time_format='%d/%m/%y %H:%M' (--time-format)"
            if given is None
            else f"write another time_format than {given!r} (--time-format)"
        )
        return f", or {format}, or do without times: time=False (--ignore-times)"

    def numbered(self) -> tuple[Interactions, Ids, Ids]:
        """All of them as pairs of numbers, and the ids of users and items; once only."""
        self._users.close()
        self._items.close()
        users, items = len(self._users), len(self._items)
        keys, start = np.empty(self.kept, dtype=np.int64), 0
        for who, what in zip(self._users.codes(), self._items.codes(), strict=True):
            part = keys[start : start + len(who)]
            np.multiply(who, items, out=part, dtype=np.int64)
            part += what
            start += len(who)
        user_ids, item_ids = self._users.ids(), self._items.ids()
        moments = None
        if self.columns.time is not None and self.untimed < self.kept:
            moments = self._moments.taken()
            if self.untimed:
                _make_oldest(moments)
        return from_keys(keys, moments, (users, items)), user_ids, item_ids


def _make_oldest(moments: np.ndarray) -> None:
    """Put what has no time before everything that has one, in place."""
    missing = moments == _NO_TIME
    if moments.dtype.kind == "f":
        missing |= np.isnan(moments)
    first = moments[~missing].min() if not missing.all() else moments.dtype.type(0)
    lowest = np.iinfo(np.int64).min if moments.dtype.kind == "i" else -np.inf
    moments[missing] = first - 1 if first > lowest else first
