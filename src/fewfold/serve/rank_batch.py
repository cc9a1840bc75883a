"""Ranks queries of many requests together, in batches."""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch

from fewfold.recommender.diversity import Diversity
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.queries import Queries
from fewfold.recommender.recommendations import RankOptions, Recommendations, recommend
from fewfold.serve.api_error import ApiError
from fewfold.serve.batching import Batcher
from fewfold.serve.board import Board
from fewfold.serve.live_model import LiveModel, Request, Snapshot
from fewfold.serve.request_log import RequestLog
from fewfold.serve.schemas import Answer, Because, DiversityOptions, Query, RecommendedItem

__all__ = ["Entry", "Ranker", "recommended"]

_ENTRIES = 64  # of a batch: more are hardly faster, and all of them wait for the last
_SLOW_ENTRIES = 8
_QUICK_K, _QUICK_HISTORY, _QUICK_QUERIES = 100, 500, 32

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A query of a request.

    Attributes:
        query: the query.
        field: how messages about a field of it begin, as "3." for the fourth of a list.
        slow: whether it takes much longer than others, which must not wait for it.
    """

    query: Query
    field: str = ""
    slow: bool = False

    @classmethod
    def of(cls, query: Query, field: str = "", *, together: int = 1) -> "Entry":
        """Construct from a query, one of several of a request."""
        slow = (
            together > _QUICK_QUERIES
            or query.explain
            or query.k > _QUICK_K
            or query.diversity is not None
            or query.at_most is not None
            or (query.history is not None and len(query.history) > _QUICK_HISTORY)
        )
        return cls(query, field, slow)

    def named(self, field: str | None) -> str | None:
        """Return how messages name a field of this query."""
        return self.field.rstrip(".") or None if field is None else f"{self.field}{field}"

    def group(self) -> Hashable:
        """Return what queries must have in common to be ranked together."""
        query = self.query
        plain = query.items is None and query.where is None and not self.slow
        # How many candidates are compared for diversity depends on k.
        diverse = query.diversity is not None or query.at_most is not None
        return query.exclude_seen if plain else (
            query.exclude_seen, query.explain, query.k if diverse else None,
            _encode((query.items, query.where, query.diversity, query.at_most)),
        )  # fmt: skip


class Ranker:
    """Answers queries in batches, each with one snapshot of the model.

    Queries that take much longer have a thread of their own, so that others do not wait for them.
    """

    def __init__(self, live: LiveModel, board: Board, log: RequestLog) -> None:
        self._live, self._log = live, log
        self._quick: Batcher[Entry, bytes] = Batcher(
            self._answers, _ENTRIES, "ranking", board.batch
        )
        self._slow: Batcher[Entry, bytes] = Batcher(
            self._answers, _SLOW_ENTRIES, "slow ranking", board.batch
        )
        self._prefix, self._count = secrets.token_hex(6), itertools.count()

    def new_id(self) -> str:
        """Return a new id of a recommendation."""
        return f"{self._prefix}-{next(self._count):x}"

    async def answers(self, entries: Sequence[Entry]) -> list[bytes]:
        """Return the encoded answer of each query."""
        if len(entries) == 1:
            lane = self._slow if entries[0].slow else self._quick
            return [await lane.submit(entries)[0]]
        futures: list[asyncio.Future[bytes] | None] = [None] * len(entries)
        for lane, slow in ((self._quick, False), (self._slow, True)):
            places = [place for place, entry in enumerate(entries) if entry.slow == slow]
            found = lane.submit([entries[place] for place in places]) if places else []
            for place, future in zip(places, found, strict=True):
                futures[place] = future
        return list(await asyncio.gather(*(future for future in futures if future is not None)))

    def close(self) -> None:
        """End the threads after what waits has been computed."""
        self._quick.stop()
        self._slow.stop()

    def _answers(self, entries: Sequence[Entry]) -> Sequence[bytes | Exception]:
        snapshot = self._live.current
        groups: dict[Hashable, list[int]] = {}
        for place, entry in enumerate(entries):
            groups.setdefault(entry.group(), []).append(place)
        found: list[bytes | Exception] = [b""] * len(entries)
        for places in groups.values():
            mine = [entries[place] for place in places]
            try:
                results = self._rank(snapshot, mine)
            except ApiError as error:  # about what they have in common
                results = [replace(error, field=one.named(error.field)) for one in mine]
            for place, result in zip(places, results, strict=True):
                found[place] = result
        return found

    def _rank(self, snapshot: Snapshot, entries: list[Entry]) -> Sequence[bytes | Exception]:
        first, asked = entries[0].query, [entry.query for entry in entries]
        state = snapshot.state
        queries = self._live.queries(snapshot, [Request(one.user, one.history) for one in asked])
        unknown = [list(ids) for ids in queries.unknown or [[]] * len(asked)]
        allowed = None
        if first.items is not None:
            allowed = _known(first.items, snapshot, unknown)
        queries = _without(queries, asked, snapshot, unknown)
        if allowed is not None and not allowed:
            nothing: list[Any] = [[] for _ in asked]
            found = Recommendations(nothing, nothing, queries.names, nothing)
        else:
            options = RankOptions(
                max(one.k for one in asked), first.exclude_seen, items=allowed,
                search=snapshot.search, explain=first.explain,
                where=msgspec.to_builtins(first.where), diversity=_diversity(first),
            )  # fmt: skip
            with _named(first):
                found = recommend(queries, state, options)
        empty = (queries.histories.lengths == 0).tolist()
        results: list[bytes | Exception] = []
        for row, query in enumerate(asked):
            try:
                note = self._note(snapshot, query, entries[row]) if empty[row] else None
            except ApiError as error:
                results.append(error)
                continue
            items = recommended(found, row, query.k)
            if not items:
                note = "no candidate is left; ask with fewer conditions, items or exclusions"
            user = query.user
            if user is not None and state.users is not None:
                converted = state.users.convert(user)
                user = user if converted is None else converted
            answer = Answer(self.new_id(), snapshot.version, user, items, unknown[row], note)
            self._log.answer(answer)
            results.append(_encode(answer))
        return results

    def _note(self, snapshot: Snapshot, query: Query, entry: Entry) -> str | None:
        """Say why an answer is not personal, for a query without a known history."""
        if query.history:
            return "no item of the history is known; these are the most popular items"
        if query.history is not None:
            return "the history is empty; these are the most popular items"
        if query.user is None or self._live.knows(snapshot, query.user):
            return None
        if query.fallback == "popular":
            return "the user is unknown; these are the most popular items"
        raise ApiError(
            404, "unknown_user",
            f"no user {query.user!r} in this model; send the items of a new user as `history`, or "
            'ask with fallback "popular"', f"{entry.field}user",
        )  # fmt: skip


def recommended(found: Recommendations, row: int, k: int) -> list[RecommendedItem]:
    """Return the first k items of one row of a batch."""
    items, scores = found.items[row][:k], found.scores[row][:k]
    attributes = found.attributes[row] if found.attributes is not None else [{}] * len(items)
    if found.because is None:
        return list(map(RecommendedItem, items, scores, attributes))
    return [
        RecommendedItem(item, score, more, [Because(*reason) for reason in reasons])
        for item, score, more, reasons in zip(
            items, scores, attributes, found.because[row], strict=False
        )
    ]


def _diversity(query: Query) -> Diversity | None:
    asked = query.diversity
    if asked is None and query.at_most is None:
        return None
    if isinstance(asked, DiversityOptions):
        return Diversity(asked.amount, by=asked.by, at_most=query.at_most or {})
    return Diversity(asked or 0.0, at_most=query.at_most or {})


@contextlib.contextmanager
def _named(query: Query) -> Iterator[None]:
    """Answer 400 if attributes are not what a query takes them for."""
    fields = [
        name for name in ("where", "diversity", "at_most") if getattr(query, name) is not None
    ]
    try:
        yield
    except (ValueError, TypeError) as error:
        if not fields:
            raise
        about = fields[0] if len(fields) == 1 else None
        raise ApiError(400, "invalid_value", str(error), about) from error


def _known(ids: list[Any], snapshot: Snapshot, unknown: list[list[Any]]) -> list[Any]:
    """Return the known ids of a list that all queries share; the others are added to `unknown`."""
    numbers = snapshot.state.items.find(ids).tolist()
    missing = [one for one, number in zip(ids, numbers, strict=True) if number < 0]
    for row in unknown:
        row.extend(missing)
    return [one for one, number in zip(ids, numbers, strict=True) if number >= 0]


def _without(
    queries: Queries, asked: list[Query], snapshot: Snapshot, unknown: list[list[Any]]
) -> Queries:
    """Add the items that each query excludes to those that are never recommended to it."""
    if not any(one.exclude for one in asked):
        return queries
    numbers = snapshot.state.items.find([item for one in asked for item in one.exclude]).numpy()
    values, lengths, at = [], [], 0
    for query, row in zip(asked, unknown, strict=True):
        mine = numbers[at : at + len(query.exclude)]
        at += len(mine)
        row.extend(one for one, known in zip(query.exclude, mine >= 0, strict=True) if not known)
        values.append(np.unique(mine[mine >= 0]))
        lengths.append(len(values[-1]))
    offsets = np.cumsum([0, *lengths])
    excluded = Jagged(torch.from_numpy(np.concatenate(values)), torch.from_numpy(offsets))
    if queries.dislikes is not None:
        excluded = queries.dislikes.append(excluded).sets()
    return replace(queries, dislikes=excluded)
