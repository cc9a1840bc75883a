"""Events of journals as rows of a log: ids of its types, times in its unit."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewfold.recommender.ids import Ids
from fewfold.recommender.journal import JournalColumns, read_journal
from fewfold.recommender.journal_events import Id
from fewfold.recommender.weighting import units_per_day

__all__ = ["converted", "journal_paths", "read_journals", "times_like"]

_DAY = 86_400_000_000  # microseconds
_NUMBERS, _TEXTS = Ids.of([0]), Ids.of(["0"])


def journal_paths(given: Any) -> list[Path]:
    """Return the paths of one journal, several or none."""
    if given is None:
        return []
    return [Path(one) for one in ([given] if isinstance(given, (str, os.PathLike)) else given)]


def converted(
    events: JournalColumns, *, users: bool | None, items: bool | None, strip: bool = True
) -> tuple[JournalColumns, int]:
    """Return the events with ids of the types of a log, and how many have others.

    Args:
        events: the events.
        users, items: whether these ids of the log are text; None takes numbers if all of them are.
        strip: strip whitespace around ids.
    """
    who, what = _stripped(events.users, strip), _stripped(events.items, strip)
    who, what = _converted(who, users), _converted(what, items)
    fits = [a is not None and b is not None for a, b in zip(who, what, strict=True)]
    found = JournalColumns(
        [one for one, fit in zip(who, fits, strict=True) if fit],
        [one for one, fit in zip(what, fits, strict=True) if fit],
        events.times[np.array(fits, dtype=bool)],
        events.skipped,
    )
    return found, len(events) - len(found)


def _stripped(ids: list[Id], strip: bool) -> list[Id]:
    return [one.strip() if strip and isinstance(one, str) else one for one in ids]


def _converted(ids: list[Id], textual: bool | None) -> list[Any]:
    """Return each id as text or as a whole number, None where that is impossible."""
    if textual is None:
        found = _converted(ids, False)
        return found if None not in found else _converted(ids, True)
    convert = (_TEXTS if textual else _NUMBERS).convert
    return [convert(one) for one in ids]


def read_journals(paths: Sequence[Path]) -> JournalColumns:
    """Read journals, others of which may be written meanwhile; an event counts once."""
    known: dict[tuple[str, str, int], tuple[Id, Id]] = {}
    unreadable = 0
    for path in paths:
        found = read_journal(path)
        unreadable += found.skipped
        for user, item, time in zip(found.users, found.items, found.times.tolist(), strict=True):
            known.setdefault((str(user), str(item), time), (user, item))
    times = np.array([time for _, _, time in known], dtype=np.int64)
    pairs = known.values()
    return JournalColumns(
        [one for one, _ in pairs], [other for _, other in pairs], times, unreadable
    )


def times_like(times: np.ndarray, newest: float | None, whole: bool) -> tuple[np.ndarray, bool]:
    """Convert times to the unit of a log, and return whether that is known.

    Args:
        times: (events,) int64, microseconds since 1970.
        newest: newest time of the log, in seconds, milli-, micro- or nanoseconds since 1970. If it
            is none of these, the events follow it in their order. None stands for microseconds.
        whole: whether times of the log are whole numbers.
    """
    if newest is None:
        return times, True
    day = units_per_day(newest)
    if day is None:
        ranks = np.unique(times, return_inverse=True)[1] + 1
        return (int(newest) if whole else newest) + ranks, False
    if not whole:
        return times * (day / _DAY), True
    return (times * int(day // _DAY) if day > _DAY else times // int(_DAY // day)), True
