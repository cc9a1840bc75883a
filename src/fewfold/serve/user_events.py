"""Events of each user in memory: what a journal adds to the histories of a model."""

import bisect
from collections.abc import Iterable

import numpy as np

from fewfold.recommender.ids import Id, Ids
from fewfold.recommender.journal import Event
from fewfold.recommender.journal_events import microseconds

__all__ = ["EventNumbers", "UserEvents", "user_key"]


def user_key(user: Id) -> str:
    """Return what ids of one user have in common, which may be text or whole numbers."""
    return user if isinstance(user, str) else str(user)


class UserEvents:
    """The events of every user by time; an event that is reported twice counts once.

    Example:
        >>> from fewfold.recommender.journal import Event
        >>> from fewfold.serve.user_events import UserEvents
        >>> events = UserEvents()
        >>> events.add([Event("ann", "tea", 20), Event(7, "nuts", 5), Event("ann", "milk", 10)])
        >>> events.items("ann"), events.items("7"), len(events)
        (['milk', 'tea'], ['nuts'], 3)
    """

    def __init__(self) -> None:
        # Time in microseconds and item of each event, by time; threads may read meanwhile.
        self._timelines: dict[str, list[tuple[int, Id]]] = {}
        self._items: dict[Id, Id] = {}  # one object per item
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, events: Iterable[Event]) -> None:
        """Add events in any order."""
        for event in events:
            timeline = self._timelines.setdefault(user_key(event.user), [])
            item = self._items.setdefault(event.item, event.item)
            self._count += _insert(timeline, (microseconds(event.time), item))

    def __contains__(self, user: Id) -> bool:
        return user_key(user) in self._timelines

    def items(self, user: Id) -> list[Id]:
        """Return the items of a user's events, oldest first, with repetitions."""
        return [item for _, item in self.timeline(user)]

    def timeline(self, user: Id) -> list[tuple[int, Id]]:
        """Return a copy of the times and items of a user's events, oldest first."""
        return self._timelines.get(user_key(user), []).copy()

    def count(self, user: Id) -> int:
        """Return the number of events of a user."""
        return len(self._timelines.get(user_key(user), ()))


def _insert(timeline: list[tuple[int, Id]], event: tuple[int, Id]) -> bool:
    """Insert an event after those of the same time; return False if it is there already."""
    at = bisect.bisect_right(timeline, event[0], key=lambda one: one[0])
    before = at
    while before and timeline[before - 1][0] == event[0]:
        before -= 1
        if timeline[before] == event:
            return False
    timeline.insert(at, event)
    return True


class EventNumbers:
    """The events of each user as item numbers of one model, kept from one query to the next.

    An item that comes several times stands where it came last, as in a log that is fitted; items
    the model does not know are left out.
    """

    def __init__(self, events: UserEvents, ids: Ids) -> None:
        self._events, self._ids = events, ids
        self._known: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}

    def of(self, user: Id) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the item numbers of a user's events, oldest first, and their times."""
        key, count = user_key(user), self._events.count(user)
        if count == 0:
            return None
        known = self._known.get(key)
        if known is None or known[0] != count:
            timeline = self._events.timeline(key)
            known = (len(timeline), *self._last_of_each(timeline))
            self._known[key] = known
        return known[1], known[2]

    def _last_of_each(self, timeline: list[tuple[int, Id]]) -> tuple[np.ndarray, np.ndarray]:
        numbers = self._ids.find([item for _, item in timeline]).numpy()
        when = np.array([time for time, _ in timeline], dtype=np.int64)
        known = numbers >= 0
        numbers, when = numbers[known], when[known]
        _, last = np.unique(numbers[::-1], return_index=True)
        place = np.sort(len(numbers) - 1 - last)
        return numbers[place], when[place]
