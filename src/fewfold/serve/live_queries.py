"""Queries of one loaded model: stored histories, continued by the events of a journal."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from fewfold.recommender.ids import Id
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.journal_events import as_instant, microseconds
from fewfold.recommender.queries import Queries
from fewfold.recommender.recommender_state import RecommenderState
from fewfold.serve.user_events import EventNumbers, UserEvents

__all__ = ["LiveQueries"]

_NOTHING = np.zeros(0, dtype=np.int64)


class _Asked(Protocol):
    """A user, or a history."""

    @property
    def user(self) -> Id | None: ...

    @property
    def history(self) -> Sequence[Id] | None: ...


class LiveQueries:
    """Builds queries for users and histories; written with numpy, since every request waits for it.

    Args:
        state: the loaded model.
        events: events of users, which may be added to meanwhile.
    """

    def __init__(self, state: RecommenderState, events: UserEvents) -> None:
        self._state, self._events = state, events
        self._numbers = EventNumbers(events, state.items)
        self._ordered = state.fitted.recipe.ordered
        newest = state.data.get("newest")
        self._newest = None if newest is None else microseconds(as_instant(newest))

    def knows(self, user: Id) -> bool:
        """Return whether a user has a history, events or attributes."""
        return (
            user in self._events
            or self._find([user])[0] >= 0
            or bool(self._profile_numbers([user])[0] >= 0)
        )

    def history(self, user: Id) -> list[tuple[Id, str]]:
        """Return the items of a user and where each is from, oldest first if order is known."""
        stored = self._stored(self._find([user])[0])
        ids = self._state.items
        found: dict[Id, str] = dict.fromkeys(ids.take(stored), "log")
        for item in self._events.items(user):
            known = ids.convert(item)
            found.setdefault(item if known is None else known, "feedback")
        return list(found.items())

    def build(self, requests: Sequence[_Asked]) -> Queries:
        """Return the query of each request."""
        users = [one.user for one in requests if one.history is None]
        numbers = iter(self._find(users))
        listed = [one.history for one in requests if one.history is not None]
        flat = self._state.items.find([item for row in listed for item in row]).numpy()
        rows: list[np.ndarray] = []
        unknown: list[list[Any]] = []
        at = 0
        for one in requests:
            missing: list[Any] = []
            if one.history is None:
                rows.append(self._of_user(one.user, next(numbers)))
            else:
                mine = flat[at : at + len(one.history)]
                at += len(mine)
                known = mine >= 0
                if not known.all():
                    missing = [one.history[place] for place in np.flatnonzero(~known).tolist()]
                    mine = mine[known]
                rows.append(mine)
            unknown.append(missing)
        histories = self._jagged(rows)
        found = self._with_dislikes(histories, requests)
        names = [one.user for one in requests]
        return Queries(histories, names, unknown, dislikes=found, codes=self._codes(requests, rows))

    def _find(self, users: Sequence[Any]) -> list[int]:
        """Return the number of each user, -1 if it has no stored history."""
        if self._state.users is None or not users:
            return [-1] * len(users)
        found: list[int] = self._state.users.find(users).tolist()
        return found

    def _stored(self, number: int) -> np.ndarray:
        """Return the stored items of a user, oldest first if order matters."""
        history = self._state.history
        if number < 0 or history is None:
            return _NOTHING
        return history.items_of(number, ordered=self._ordered)

    def _of_user(self, user: Id | None, number: int) -> np.ndarray:
        """Return the stored items and those of the events, which are newer."""
        stored = self._stored(number)
        events = None if user is None else self._numbers.of(user)
        if events is None:
            return stored
        new, times = events
        if self._ordered and len(stored):
            if self._newest is not None:  # what a log fitted with the journal has already
                new = new[(times > self._newest) | ~np.isin(new, stored)]
            stored = stored[~np.isin(stored, new)]
        return np.concatenate([stored, new])

    def _jagged(self, rows: list[np.ndarray]) -> Jagged:
        """Return the rows, in order or as sets of items."""
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        values = np.concatenate([_NOTHING, *rows])
        if not self._ordered:
            items = len(self._state.items)
            keys = np.unique(np.repeat(np.arange(len(rows)) * items, lengths) + values)
            lengths = np.bincount(keys // items, minlength=len(rows))
            values = keys % items
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Jagged(torch.from_numpy(values), torch.from_numpy(offsets))

    def _with_dislikes(self, histories: Jagged, requests: Sequence[_Asked]) -> Jagged | None:
        """Return the items each user dislikes and has not taken up since."""
        history = self._state.history
        if history is None or history.dislikes is None:
            return None
        users = [one.user if one.history is None else None for one in requests]
        known = torch.tensor(
            [-1 if user is None else self._find([user])[0] for user in users], dtype=torch.int64
        )
        found = history.dislikes.rows(known.clamp(min=0))
        found = found.select((known >= 0)[found.row])
        return found.select(~found.isin(histories))

    def _codes(self, requests: Sequence[_Asked], rows: list[np.ndarray]) -> torch.Tensor | None:
        """Return the attributes of users without a history; None if there are none."""
        profiles = self._state.profiles
        if profiles is None or profiles.codes is None:
            return None
        users = [
            one.user if one.history is None and not len(row) else None
            for one, row in zip(requests, rows, strict=True)
        ]
        numbers = torch.tensor(self._profile_numbers(users), dtype=torch.int64)
        if not bool((numbers >= 0).any()):
            return None
        return profiles.codes[numbers.clamp(min=0)].masked_fill((numbers < 0).unsqueeze(1), -1)

    def _profile_numbers(self, users: Sequence[Id | None]) -> list[int]:
        """Return the row of each user in the users table, -1 if there is none."""
        profiles = self._state.profiles
        if profiles is None or profiles.ids is None:
            return [-1] * len(users)
        known = [user for user in users if user is not None]
        found = iter(profiles.ids.find(known).tolist())
        return [-1 if user is None else next(found) for user in users]
