"""Session-based nearest neighbours: items of past sessions that share items with a history."""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold._native import dispatch
from fewfold._tensors import AtMost, Found, Spec
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.baseline import Baseline
from fewfold.recommender.models.model import Fitted
from fewfold.recommender.models.model_options import SESSION_KNN as OPTIONS
from fewfold.recommender.models.model_options import setting
from fewfold.recommender.models.registry import register
from fewfold.recommender.models.session_index import (
    LONGEST,
    Query,
    SessionIndex,
    cut,
    last_places,
    without_rows,
)
from fewfold.recommender.ranking.exact_ranking import DotProduct, Ranking, positive, top_k

__all__ = ["SessionKNN"]

_AFTER = 2.0  # what came after the last common item counts so many times as much as before it
_ITSELF = 0.5  # and that item itself, which every neighbour has
_RARITY = 3  # power of the idf


@register
@dataclass(eq=False)
class SessionKNN(Baseline):
    """Items of the past sessions that have the most, the rarest and the latest items in common.

    An item i of the history that lies d places before its end has the weight ``w_i = exp(-d /
    decay) idf_i^3`` with ``idf_i = log(1 + sessions / sessions with i)``. The similarity of a past
    session is the sum of the weights of the items in common, where each item counts in the `sample`
    newest sessions that have it. The `neighbours` most similar sessions s give an item of theirs

        ``score_j = sum over s with j of sim(s) exp(-|distance| / spread) (2 if j came after)``,

    where the distance is that of j from the last common item: what stood near it, and after it, in
    the past comes first. That item itself has 1/2 for the factors after ``sim(s)``. Items of no
    neighbour follow by popularity.

    A session is the items of a user by time; more than 50 items are cut into several sessions, and
    the last 50 of a history count. A repeated item stands where it was last.

    Example:
        >>> import torch
        >>> from fewfold.recommender import Jagged, SessionKNN
        >>> past = Jagged(torch.tensor([0, 1, 2, 1, 0, 3]), torch.tensor([0, 3, 6]))
        >>> model = SessionKNN().fit_sequences(past, 4)
        >>> model.recommend(Jagged(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 2, 4])), 1)
        tensor([[2],
                [3]])

    Reference:
        Ludewig, Jannach (2018). Evaluation of session-based recommendation algorithms. UMUAI.
        Garg, Gupta, Malhotra, Vig, Shroff (2019). Sequence and time aware neighborhood for
        session-based recommendations: STAN. SIGIR.
    """

    name: ClassVar[str] = "session-knn"
    colour: ClassVar[str] = "#8c510a"
    ordered: ClassVar[bool] = True
    extendable: ClassVar[bool] = True
    update_note: ClassVar[str] = "new sessions are added, and the longer ones of known users"
    neighbours: int = field(default=200, metadata=setting(OPTIONS["session_neighbours"], "{} near"))
    sample: int = field(default=1000, metadata=setting(OPTIONS["session_sample"], "of {}"))
    decay: float = field(default=2.0, metadata=setting(OPTIONS["session_decay"], "decay {:g}"))
    spread: float = field(default=4.0, metadata=setting(OPTIONS["session_spread"], "spread {:g}"))
    counts: Tensor = field(init=False, repr=False)
    values: Tensor = field(init=False, repr=False)
    offsets: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole_number(self.neighbours, "neighbours")
        whole_number(self.sample, "sample")
        for name in ("decay", "spread"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")

    @classmethod
    def grid(cls, items: int) -> "Sequence[SessionKNN]":
        """Few and many neighbours, and three lengths of memory."""
        return [cls(n, decay=decay) for n in (100, 500) for decay in (1.0, 2.0, 4.0)]

    def fit(self, train: Interactions) -> Self:
        """Keep the items of every user by time; the user whose last item is newest comes last."""
        rows = train.in_order()
        assert train.times is not None  # or there would be no order
        last = train.times.new_zeros(train.users)
        last.scatter_reduce_(0, train.row, train.times, "amax", include_self=False)
        return self.fit_sequences(rows.rows(last.argsort(stable=True)), train.items)

    def fit_sequences(self, sequences: Jagged, items: int) -> Self:
        """Keep sequences, which may have repetitions.

        Args:
            sequences: items of each sequence from oldest to newest; the newest sequence last.
            items: number of items.
        """
        rows = cut(last_places(sequences))
        self.values, self.offsets, self.items = rows.values.int(), rows.offsets, items
        self.counts = torch.bincount(rows.values, minlength=items).float()
        self._index_sessions()
        return self

    def _index_sessions(self) -> None:
        sessions = Jagged(self.values.long(), self.offsets)
        self._index = SessionIndex.of(sessions, self.items, self.sample)
        self._idf = torch.log1p(len(sessions.lengths) / self.counts.double().clamp(min=1))
        distance = torch.arange(1 - LONGEST, LONGEST)
        near = torch.exp(-distance.abs() / self.spread) * torch.where(distance > 0, _AFTER, 1.0)
        self._near = torch.where(distance == 0, _ITSELF, near).float()

    def updated(self, fitted: Fitted, log: Interactions, added: Interactions) -> Fitted:
        """A copy with the sessions of users that have new pairs, which are then the newest.

        Their sessions as they were before are removed, unless a user took up an old item again.
        """
        again = copy(fitted)
        assert isinstance(again, SessionKNN)
        users = added.jagged.lengths.nonzero().squeeze(1)
        if added.times is not None:
            last = torch.zeros(added.users, dtype=added.times.dtype)
            last.scatter_reduce_(0, added.row, added.times, "amax", include_self=False)
            users = users[last[users].argsort(stable=True)]
        mine = log.select(users)
        before = mine.keep(~mine.jagged.isin(added.select(users).jagged)).in_order()
        kept = without_rows(Jagged(again.values.long(), again.offsets), cut(last_places(before)))
        after = mine.in_order()
        every = Jagged(
            torch.cat([kept.values, after.values]),
            torch.cat([kept.offsets, after.offsets[1:] + kept.offsets[-1]]),
        )
        return again.fit_sequences(every, log.items)

    def scores(self, history: Jagged, items: slice) -> Tensor:
        """(rows, items in the slice); items of no neighbour have scores below 0."""
        total = self._index.scores(self._query(history), self.neighbours)
        return torch.where(total > 0, total, self._popularity())[:, items]

    def rank(
        self,
        history: Jagged,
        k: int,
        *,
        exclude: Jagged | None = None,
        allowed: Tensor | None = None,
    ) -> Ranking:
        """Rank the best k items for each row; without kernels by `scores`, which is slower."""
        if self.items == 0 or not dispatch.ready(self.counts):
            return super().rank(history, k, exclude=exclude, allowed=allowed)
        found = self._index.rank(self._query(history), self.neighbours, k, exclude, allowed)
        short = (found.ids[:, -1] < 0).nonzero().squeeze(1)
        if len(short):
            self._fill(found, short, exclude, allowed)
        return found

    def _fill(
        self, found: Ranking, rows: Tensor, exclude: Jagged | None, allowed: Tensor | None
    ) -> None:
        """Append popular items to these rows of a ranking, in place."""
        k = found.ids.shape[1]
        ids, scores = found.ids[rows], found.scores[rows]
        gone = Jagged(ids[ids >= 0], torch.cat([ids.new_zeros(1), (ids >= 0).sum(1).cumsum(0)]))
        if exclude is not None:
            gone = gone.append(exclude.rows(rows))
        scorer = DotProduct(torch.ones(len(rows), 1), self._popularity().unsqueeze(1))
        popular = top_k(scorer, k, exclude=gone, allowed=allowed)
        both = torch.cat([ids, popular.ids], 1), torch.cat([scores, popular.scores], 1)
        order = (both[0] < 0).byte().argsort(dim=1, stable=True)[:, :k]
        found.ids[rows], found.scores[rows] = (part.gather(1, order) for part in both)

    def _query(self, history: Jagged) -> Query:
        known = last_places(history)
        back = known.offsets[1:][known.row] - 1 - torch.arange(len(known.values))
        if bool((back >= LONGEST).any()):
            known, back = known.select(back < LONGEST), back[back < LONGEST]
        weights = torch.exp(-back.double() / self.decay) * self._idf[known.values] ** _RARITY
        return Query(known, weights, self._near)

    def _popularity(self) -> Tensor:
        """(items,) scores below those of all neighbours."""
        return self.counts / (self.counts.max() + 1) - 1

    def block_sizes(self) -> dict[str, int]:
        """All items at once: `scores` sums whole rows, whichever slice is returned."""
        items = max(self.items, 1)
        return {"items_at_once": items, "users_at_once": max(1, min(256, 10**7 // items))}

    def similar(self, items: Tensor, k: int, *, allowed: Tensor | None = None) -> Ranking:
        """Rank what stood near each item; -1 where there are fewer than k such items."""
        return positive(super().similar(items, k, allowed=allowed))

    def layout(self, found: Found, items: int) -> Iterator[tuple[str, Spec]]:
        """Yield the specifications of the counts, and of the items and offsets of the sessions."""
        yield from super().layout(found, items)
        yield "values", Spec((None,), torch.int32, least=0, below=items)
        yield "offsets", Spec((AtMost(2**31),), torch.int64, least=0)

    def largest(self, ranges: Mapping[str, tuple[float, float]], items: int) -> float:
        """Upper bound of the scores: every neighbour is similar in `LONGEST` rare items."""
        similarity = LONGEST * math.pow(64, _RARITY)
        return _AFTER * self.neighbours * similarity + max(map(abs, ranges["counts"]))

    def from_state(self, tensors: dict[str, Tensor], items: int) -> Self:
        """The model with these sessions, whose index is built anew."""
        offsets, events = tensors["offsets"], len(tensors["values"])
        steps = offsets.diff()
        if int(offsets[0]) != 0 or int(offsets[-1]) != events or bool((steps < 1).any()):
            raise ValueError(f"offsets must rise from 0 to {events}, the number of values")
        if bool((steps > LONGEST).any()):
            raise ValueError(f"offsets must leave at most {LONGEST} values for a session")
        fitted = super().from_state(tensors, items)
        fitted._index_sessions()
        return fitted
