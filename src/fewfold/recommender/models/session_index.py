"""Past sessions with an inverted index: scores of items by the sessions nearest to a history."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewfold._check import jagged
from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.ranking.exact_ranking import Ranking

__all__ = ["LONGEST", "Query", "SessionIndex", "cut", "last_places", "without_rows"]

LONGEST = 50  # items of a session


class Query(NamedTuple):
    """Histories with a weight for each item.

    Attributes:
        history: different items of each row, from oldest to newest.
        weights: (values,) float64.
        near: (2 LONGEST - 1,) float32: weight of an item of a session by its distance from the
            last common item, from ``LONGEST - 1`` places before it to as many after it.
    """

    history: Jagged
    weights: Tensor
    near: Tensor


@dataclass(frozen=True, eq=False)
class SessionIndex:
    """Sessions, and for each item the newest sessions that have it.

    Attributes:
        sessions: different items of each session, at most `LONGEST`; the newest session is last.
        items: number of items.
        starts: (items + 1,) where the entries of each item begin.
        session: (entries,) int32, a session that has the item.
        place: (entries,) int32, where the item stands in it.
    """

    sessions: Jagged
    items: int
    starts: Tensor
    session: Tensor
    place: Tensor

    @classmethod
    def of(cls, sessions: Jagged, items: int, sample: int) -> "SessionIndex":
        """Index the `sample` newest sessions of every item."""
        row, offsets, values = sessions.row.numpy(), sessions.offsets.numpy(), sessions.values
        order = np.lexsort((-row, values.numpy()))  # by item, newest first
        counts = np.bincount(values.numpy(), minlength=items)
        before = np.concatenate([[0], counts.cumsum()])
        order = order[np.arange(len(order)) - before[values.numpy()[order]] < sample]
        place = order - offsets[row[order]]
        starts = np.concatenate([[0], np.minimum(counts, sample).cumsum()])
        return cls(
            sessions, items, torch.from_numpy(starts),
            torch.from_numpy(row[order].astype(np.int32)),
            torch.from_numpy(place.astype(np.int32)),
        )  # fmt: skip

    def rank(
        self, query: Query, neighbours: int, k: int, exclude: Jagged | None, allowed: Tensor | None
    ) -> Ranking:
        """Return the best k items of each row by `scores`, without those with a score of 0.

        For native kernels alone: see `dispatch.ready`.
        """
        rows = len(query.history.lengths)
        ids, scores = torch.empty(rows, k, dtype=torch.int64), torch.empty(rows, k)
        gone = (None, None) if exclude is None else jagged(*exclude, rows=rows)
        self._kernel.rank(
            rows, query.history.offsets.contiguous(), query.history.values.contiguous(),
            query.weights, query.near, neighbours, *gone, allowed, k, ids, scores,
            dispatch.threads(),
        )  # fmt: skip
        return Ranking(ids, scores)

    @cached_property
    def _kernel(self) -> Any:
        return dispatch.kernel("Sessions")(
            len(self.sessions.lengths), self.items, LONGEST, self.sessions.offsets.contiguous(),
            self.sessions.values.int(), self.starts, self.session, self.place,
        )  # fmt: skip

    def scores(self, query: Query, neighbours: int) -> Tensor:
        """Return (rows, items) float32: the sum over the nearest sessions, 0 if none has the item.

        The similarity of a session is the sum of the weights of its common items with the history;
        of equally similar sessions the newest are nearest. A session adds its similarity times
        `near` to each of its items.
        """
        rows, offsets = len(query.history.lengths), self.sessions.offsets.numpy()
        row, session, similarity, place = self._nearest(query, neighbours)
        lengths = offsets[session + 1] - offsets[session]
        at = _ranges(offsets[session], lengths)
        distance = at - np.repeat(offsets[session] + place, lengths)
        added = np.repeat(similarity, lengths) * query.near.numpy()[distance + LONGEST - 1]
        cell = np.repeat(row, lengths) * self.items + self.sessions.values.numpy()[at]
        total = np.bincount(cell, added, minlength=rows * self.items)
        return torch.from_numpy(total.astype(np.float32)).view(rows, self.items)

    def _nearest(
        self, query: Query, neighbours: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return row, session, similarity and place of the last common item of the nearest."""
        rows, items = query.history.row.numpy(), query.history.values.numpy()
        starts, count = self.starts.numpy(), max(len(self.sessions.lengths), 1)
        lengths = starts[items + 1] - starts[items]
        at = _ranges(starts[items], lengths)
        key = np.repeat(rows, lengths) * count + self.session.numpy()[at]
        found, inverse = np.unique(key, return_inverse=True)
        similarity = np.bincount(inverse, np.repeat(query.weights.numpy(), lengths))
        place = np.zeros(len(found), dtype=np.int64)
        place[inverse] = self.place.numpy()[at]  # the last of equal positions is kept
        row, session = found // count, found % count
        order = np.lexsort((-session, -similarity, row))
        first = np.searchsorted(row[order], row[order])
        order = order[np.arange(len(order)) - first < neighbours]
        return row[order], session[order], similarity[order], place[order]


def last_places(rows: Jagged) -> Jagged:
    """Return the different items of each row, each where it stands last."""
    if len(rows.values) == 0:
        return rows
    key = rows.row * (int(rows.values.max()) + 1) + rows.values
    # In a reversed row the first place of an item is its last.
    _, at = np.unique(key.flip(0).numpy(), return_index=True)
    kept = np.sort(len(key) - 1 - at)
    lengths = np.bincount(rows.row.numpy()[kept], minlength=len(rows.lengths))
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
    return Jagged(rows.values[torch.from_numpy(kept)], offsets)


def cut(rows: Jagged) -> Jagged:
    """Return the rows in pieces of at most `LONGEST` items, cut from the end; empty ones vanish."""
    back = rows.offsets[1:][rows.row] - 1 - torch.arange(len(rows.values))
    piece = back // LONGEST
    first = torch.ones(len(piece), dtype=torch.bool)
    first[1:] = (piece[1:] != piece[:-1]) | (rows.row[1:] != rows.row[:-1])
    starts = first.nonzero().squeeze(1)
    return Jagged(rows.values, torch.cat([starts, torch.tensor([len(rows.values)])]))


def without_rows(rows: Jagged, gone: Jagged) -> Jagged:
    """Return the rows without those of `gone`, each of which removes one that equals it."""
    unwanted = Counter(_as_bytes(gone))
    kept = []
    for number, row in enumerate(_as_bytes(rows)):
        if unwanted.get(row, 0):
            unwanted[row] -= 1
        else:
            kept.append(number)
    return rows.rows(kept)


def _as_bytes(rows: Jagged) -> Iterator[bytes]:
    values, ends = rows.values.to(torch.int64).numpy(), rows.offsets.tolist()
    return (values[start:end].tobytes() for start, end in itertools.pairwise(ends))


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated ranges ``start, ..., start + length - 1``."""
    ends = lengths.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    found: np.ndarray = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return found
