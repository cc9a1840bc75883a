"""Validate the rows of a log batch by batch and collect them in compact form."""

import math
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, from_keys
from fewfold.recommender.journal import JournalColumns
from fewfold.recommender.reading.columns import Columns
from fewfold.recommender.reading.conditions import Filter
from fewfold.recommender.reading.journal_rows import converted, times_like
from fewfold.recommender.reading.numbering import Growing, Numbering
from fewfold.recommender.reading.table_source import Batch, library
from fewfold.recommender.reading.values import Times, ratings, stripped, weights, whole
from fewfold.recommender.weighting import units_per_day

__all__ = ["Rows", "Rules", "before_all", "no_time", "time_numbers"]

_NO_TIME = -(2**63)  # for integers; floats use nan


@dataclass(frozen=True)
class Rules:
    """Rules for which rows count and how invalid rows are treated.

    Attributes:
        min_rating: lowest rating that counts, or None.
        skip_bad_rows: whether invalid rows are counted instead of raising.
        strip_ids: whether whitespace around text ids is stripped.
        time_format: strptime format of the times; None recognises common formats.
    """

    min_rating: float | None = None
    skip_bad_rows: bool = False
    strip_ids: bool = True
    time_format: str | None = None


@dataclass
class Rows:
    """The rows collected so far.

    Attributes:
        columns: the column of each role.
        rules: which rows count.
        as_numbers: whether text ids become integers if all of them are.
        where: the conditions on rows.
        read: number of rows read.
        below: number of rows rated below the minimum, which are dislikes.
        weightless: number of rows with a weight of 0, which do not count.
        selected: number of valid rows that count.
        stripped: number of these with an id that was stripped.
        untimed: number of these without a time.
        bad: numbers of invalid rows, by reason.
        events: number of events of journals that were added.
        unreadable: number of lines of journals that are not events.
    """

    columns: Columns
    rules: Rules
    as_numbers: bool
    where: Filter = field(default_factory=lambda: Filter(()))
    read: int = 0
    below: int = 0
    weightless: int = 0
    selected: int = 0
    stripped: int = 0
    untimed: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    events: int = 0
    unreadable: int = 0

    def __post_init__(self) -> None:
        self._users = Numbering("user", as_numbers=self.as_numbers)
        self._items = Numbering("item", as_numbers=self.as_numbers)
        timed = self.columns.time is not None or self.rules.time_format is not None
        self._times = Times(self.rules.time_format) if timed else None
        self._moments, self._weights, self._liked = Growing(), Growing(), Growing()
        self._comparable = True  # times of a journal with those of the log

    def roles(self) -> dict[str, str]:
        """Return the columns to read, by role."""
        return {**self.columns.roles(), **self.where.roles()}

    def add(self, batch: Batch, name: str) -> None:
        """Validate and add the rows of a batch."""
        self.read += batch.frame.height + len(batch.bad)
        batch = self.where.apply(batch, name)
        frame, problems = self._convert(batch.frame, name)
        invalid = None
        for _, mask in problems:
            invalid = mask if invalid is None else invalid | mask
        if batch.bad or invalid is not None:
            self._handle_invalid(batch, problems, invalid)
        if invalid is not None:
            frame = frame.filter(~invalid)
        if self.columns.weight is not None:
            empty = frame["weight"] == 0
            self.weightless += int(empty.sum())
            frame = frame.filter(~empty)
        if frame.height == 0:  # an empty column has no reliable type
            return
        liked = frame
        if self.rules.min_rating is not None:
            high = frame["rating"] >= self.rules.min_rating
            liked = frame.filter(high)
            self.below += frame.height - liked.height
            frame = frame.with_columns(high.alias("liked"))
        self.selected += liked.height
        if "stripped" in frame.columns:
            self.stripped += int(liked["stripped"].sum())
        if self.columns.time is not None:
            self.untimed += liked["time"].null_count()
        self._collect(frame, name)

    def _collect(self, frame: Any, name: str) -> None:
        """Store valid rows: user, item and, where they are used, time, weight and liked."""
        if self.rules.min_rating is not None:
            self._liked.append(frame["liked"].to_numpy())
        self._users.add(frame["user"], name)
        self._items.add(frame["item"], name)
        if self.columns.time is not None:
            self._moments.append(time_numbers(frame["time"]))
        if self.columns.weight is not None:
            self._weights.append(frame["weight"].to_numpy())

    def add_events(self, journal: JournalColumns) -> None:
        """Add the events of journals, after all other rows; those with ids of other types are bad.

        They are liked, and have a weight of 1.
        """
        pl = library("polars")
        events, other = converted(
            journal,
            users=self._users.textual,
            items=self._items.textual,
            strip=self.rules.strip_ids,
        )
        self.unreadable += journal.skipped
        if other:
            self.bad["id of the journal is not a whole number, as those of the log"] += other
        if len(events) == 0:
            return
        self.events += len(events)
        self.selected += len(events)
        self._users.add(pl.Series(events.users), "the journal")
        self._items.add(pl.Series(events.items), "the journal")
        if self.columns.time is not None and self._times is not None:
            newest, whole = self._newest()
            newest = None if self._times.dated else newest
            times, self._comparable = times_like(events.times, newest, whole)
            self._moments.append(times)
        if self.columns.weight is not None:
            self._weights.append(np.ones(len(events)))
        if self.rules.min_rating is not None:
            self._liked.append(np.ones(len(events), dtype=bool))

    def _newest(self) -> tuple[float | None, bool]:
        """Return the newest time so far, None if there is none, and whether times are whole."""
        found, whole = [], True
        for part in self._moments.parts():
            whole = part.dtype.kind != "f"
            known = part[~no_time(part)]
            found += [known.max()] if len(known) else []
        return (max(found) if found else None), whole

    def newest(self) -> str | None:
        """Return the newest time as ISO 8601 in UTC; None if it is not known. Before `numbered`."""
        if self.columns.time is None or self._times is None:
            return None
        found, _ = self._newest()
        if found is None:
            return None
        day = 86_400e6 if self._times.dated else units_per_day(float(found))
        if day is None:
            return None
        try:
            return datetime.fromtimestamp(math.ceil(float(found) * 86_400 / day), UTC).isoformat()
        except (OverflowError, ValueError):  # beyond the calendar
            return None

    def notes(self) -> tuple[str, ...]:
        """Return notes on times and conditions."""
        notes = [] if self._times is None or (text := self._times.note()) is None else [text]
        if not self._comparable:
            notes.append(
                "the times of the log are not since 1970, so the events of the journal count as "
                "newer than all of them"
            )
        return (*notes, *self.where.notes())

    def _convert(self, given: Any, name: str) -> tuple[Any, list[tuple[str, Any]]]:
        """Convert the columns, and return masks of invalid rows by reason."""
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
        if self.columns.weight is not None:
            columns.append(weights(given["weight"], name).alias("weight"))
            problems.append(("weight is not a finite number of at least 0", columns[-1].is_null()))
        if self.columns.time is not None and self._times is not None:
            times, empty = self._times.read(given["time"], name)
            columns.append(times.alias("time"))
            problems.append(("time cannot be read", times.is_null() & ~empty))
        if changed is not None:
            columns.append(changed.alias("stripped"))
        frame = library("polars").DataFrame(columns)
        return frame, [(reason, mask) for reason, mask in problems if mask.any()]

    def _handle_invalid(self, batch: Batch, problems: list[tuple[str, Any]], invalid: Any) -> None:
        """Count the invalid rows of a batch, or raise for the first of them."""
        counted = Counter(bad.reason for bad in batch.bad)
        seen = None
        for reason, mask in problems:  # count a row once, for its first problem
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
            row = int(invalid.arg_true()[0])
            reason = next(reason for reason, mask in problems if mask[row])
            place = batch.place(row)
        more = sum(counted.values()) - 1
        others = f" (and {more:,} more near it)" if more else ""
        untimed = self._time_advice() if reason == "time cannot be read" else ""
        raise DataError(
            f"{place.where}: {reason}, got {place.text}{others}; fix it, or leave such rows out: "
            f"skip_bad_rows=True (--skip-bad-rows){untimed}"
        )

    def _time_advice(self) -> str:
        """Return further advice for a time that cannot be parsed."""
        given = self.rules.time_format
        format = (
            "say how times are written: time_format='%d/%m/%y %H:%M' (--time-format)"
            if given is None
            else f"write another time_format than {given!r} (--time-format)"
        )
        return f", or {format}, or do without times: time=False (--ignore-times)"

    def numbered(self) -> tuple[Interactions, Ids, Ids]:
        """Return all rows as numbered pairs, and the user and item ids; releases the rows."""
        self._users.close()
        self._items.close()
        users, items = len(self._users), len(self._items)
        keys, start = np.empty(self.selected + self.below, dtype=np.int64), 0
        for who, what in zip(self._users.codes(), self._items.codes(), strict=True):
            part = keys[start : start + len(who)]
            np.multiply(who, items, out=part, dtype=np.int64)
            part += what
            start += len(who)
        user_ids, item_ids = self._users.ids(), self._items.ids()
        moments = None
        if self.columns.time is not None and self.untimed < self.selected:
            moments = self._moments.taken()
            _make_oldest(moments)
        given = self._weights.taken() if self.columns.weight is not None else None
        if self.below == 0:
            return from_keys(keys, moments, (users, items), given), user_ids, item_ids
        high = self._liked.taken()
        likes, dislikes = (
            from_keys(
                keys[mask], None if moments is None else moments[mask], (users, items), weight
            )
            for mask, weight in ((high, None if given is None else given[high]), (~high, None))
        )
        return _compact(likes, dislikes, user_ids, item_ids)


def _compact(
    likes: Interactions, dislikes: Interactions, users: Ids, items: Ids
) -> tuple[Interactions, Ids, Ids]:
    """Leave out users and items without a like; a pair that is both is liked."""
    other = dislikes.keep(~dislikes.jagged.isin(likes.jagged))
    whole = likes.with_values(dislikes=other if other.pairs else None)
    core = whole.k_core(1)
    found = core.interactions
    if found.dislikes is not None and found.dislikes.pairs == 0:
        found = found.with_values(dislikes=None)
    return found, users.select(core.users.numpy()), items.select(core.items.numpy())


def time_numbers(times: Any) -> np.ndarray:
    """Return times as an array in which `no_time` finds the missing ones."""
    if times.null_count() and times.dtype.is_integer():
        times = times.fill_null(_NO_TIME)
    numbers: np.ndarray = times.to_numpy()
    return numbers


def no_time(moments: np.ndarray) -> np.ndarray:
    """Return (n,) true where a time is missing."""
    missing: np.ndarray = moments == _NO_TIME
    return missing | np.isnan(moments) if moments.dtype.kind == "f" else missing


def before_all(first: Any, dtype: np.dtype[Any]) -> Any:
    """Return a time before the first one, for pairs without; the first if there is none before."""
    lowest = np.iinfo(np.int64).min if dtype.kind == "i" else -np.inf
    return first - 1 if first > lowest else first


def _make_oldest(moments: np.ndarray) -> None:
    """Set missing times to before all others, in place."""
    missing = no_time(moments)
    if not missing.any():
        return
    first = moments[~missing].min() if not missing.all() else moments.dtype.type(0)
    moments[missing] = before_all(first, moments.dtype)
