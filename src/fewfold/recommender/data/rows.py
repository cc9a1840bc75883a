"""The rows of a log, checked one batch after the other and kept in few bytes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fewfold.recommender.data.columns import Columns
from fewfold.recommender.data.numbering import Growing, Numbering
from fewfold.recommender.data.tables import Batch, library
from fewfold.recommender.data.values import Times, ratings, whole
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, from_keys

__all__ = ["Rows"]


@dataclass
class Rows:
    """The rows read so far.

    Attributes:
        columns: the column of each role.
        min_rating: the least rating that counts, or None.
        skip_bad_rows: whether a row that cannot be used is counted instead of raising.
        as_numbers: whether text becomes numbers if all of it is.
        read: how many there were.
        below: how many had a lower rating.
        kept: how many are left.
        bad: how many could not be used, by reason.
    """

    columns: Columns
    min_rating: float | None
    skip_bad_rows: bool
    as_numbers: bool
    read: int = 0
    below: int = 0
    kept: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._users = Numbering("user", as_numbers=self.as_numbers)
        self._items = Numbering("item", as_numbers=self.as_numbers)
        self._times = Times()
        self._moments = Growing()

    def add(self, batch: Batch, name: str) -> None:
        """Some more of them."""
        frame, problems = self._checked(batch.frame, name)
        self.read += batch.frame.height + len(batch.bad)
        wrong = None
        for _, mask in problems:
            wrong = mask if wrong is None else wrong | mask
        if batch.bad or wrong is not None:
            self._refuse(batch, problems, wrong)
        if wrong is not None:
            frame = frame.filter(~wrong)
        if self.min_rating is not None:
            high = frame["rating"] >= self.min_rating
            self.below += int((~high).sum())
            frame = frame.filter(high)
        self.kept += frame.height
        if frame.height == 0:  # then its types say nothing
            return
        self._users.add(frame["user"], name)
        self._items.add(frame["item"], name)
        if self.columns.time is not None:
            self._moments.append(frame["time"].to_numpy())

    def _checked(self, given: Any, name: str) -> tuple[Any, list[tuple[str, Any]]]:
        """The columns as they are needed, and the rows that have none of them, by reason."""
        columns, problems = [], []
        for role in ("user", "item"):
            ids, odd = whole(given[role], role, name)
            columns.append(ids.alias(role))
            problems.append((f"no {role}", ids.is_null() & ~odd))
            problems.append((f"{role} is not a whole number of 64 bits", odd))
        if self.columns.rating is not None:
            columns.append(ratings(given["rating"], name).alias("rating"))
            problems.append(("rating is not a number", columns[-1].is_null()))
        if self.columns.time is not None:
            columns.append(self._times.read(given["time"], name).alias("time"))
            problems.append(("time cannot be read", columns[-1].is_null()))
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
        if self.skip_bad_rows:
            return
        if batch.bad:
            reason, place = batch.bad[0].reason, batch.bad[0].place
        else:
            row = int(wrong.arg_true()[0])
            reason = next(reason for reason, mask in problems if mask[row])
            place = batch.place(row)
        more = sum(counted.values()) - 1
        others = f" (and {more:,} more near it)" if more else ""
        untimed = ", or do without times: time=False (--ignore-times)" if "time" in reason else ""
        raise DataError(
            f"{place.where}: {reason}, got {place.text}{others}; fix it, or leave such rows out: "
            f"skip_bad_rows=True (--skip-bad-rows){untimed}"
        )

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
        moments = None if self.columns.time is None else self._moments.taken()
        return from_keys(keys, moments, (users, items)), user_ids, item_ids
