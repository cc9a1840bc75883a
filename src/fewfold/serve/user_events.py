"""Events of each user in memory: what a journal adds to the histories of a model."""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fewfold.recommender.ids import Id, Ids
from fewfold.recommender.journal import Event
from fewfold.recommender.journal_events import microseconds

__all__ = ["EventNumbers", "UserEvents", "user_key"]


def user_key(user: Id) -> str:
    """Return what ids of one user have in common, which may be text or whole numbers."""
    return user if isinstance(user, str) else str(user)


@dataclass(slots=True)
class _Timeline:
    """Times in microseconds, rising, and items of one user."""

    times: list[int] = field(default_factory=list)
    items: list[Id] = field(default_factory=list)

    def add(self, time: int, item: Id) -> bool:
        """Insert an event after those of the same time; return False if it is there already."""
        at = bisect.bisect_right(self.times, time)
        before = at
        while before and self.times[before - 1] == time:
            before -= 1
            if self.items[before] == item:
                return False
        self.times.insert(at, time)
        self.items.insert(at, item)
        return True


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
        self._timelines: dict[str, _Timeline] = {}
        self._items: dict[Id, Id] = {}  # one object per item
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, events: Iterable[Event]) -> None:
        """Add events in any order."""
        for event in events:
            timeline = self._timelines.setdefault(user_key(event.user), _Timeline())
            item = self._items.setdefault(event.item, event.item)
            self._count += timeline.add(microseconds(event.time), item)

    def __contains__(self, user: Id) -> bool:
        return user_key(user) in self._timelines

    def items(self, user: Id) -> list[Id]:
        """Return the items of a user's events, oldest first, with repetitions."""
        found = self._timelines.get(user_key(user))
        return [] if found is None else list(found.items)

    def timeline(self, user: Id) -> tuple[list[int], list[Id]] | None:
        """Return times and items of a user's events, which must not be changed; None if none."""
        found = self._timelines.get(user_key(user))
        return None if found is None else (found.times, found.items)


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
        key = user_key(user)
        timeline = self._events.timeline(key)
        if timeline is None:
            return None
        times, items = timeline
        count, known = len(times), self._known.get(key)
        if known is None or known[0] != count:
            known = (count, *self._last_of_each(items[:count], times[:count]))
            self._known[key] = known
        return known[1], known[2]

    def _last_of_each(self, items: list[Id], times: list[int]) -> tuple[np.ndarray, np.ndarray]:
        numbers, when = self._ids.find(items).numpy(), np.array(times, dtype=np.int64)
        known = numbers >= 0
        numbers, when = numbers[known], when[known]
        _, last = np.unique(numbers[::-1], return_index=True)
        place = np.sort(len(numbers) - 1 - last)
        return numbers[place], when[place]
