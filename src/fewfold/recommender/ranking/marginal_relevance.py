"""Maximal marginal relevance: greedy re-ranking by score and by dissimilarity, with caps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold.recommender.ranking.exact_ranking import Ranking

__all__ = ["Cap", "Selection", "exhausted_values"]

SimilarityTo = Callable[[Tensor], Callable[[Tensor], Tensor]]


@dataclass(frozen=True, eq=False)
class Cap:
    """At most `limit` of the selected items of a row may have the same value.

    Attributes:
        codes: (items,) value of each item.
        values: number of values; items with this code have none, and are not capped.
        limit: number of items with the same value.
    """

    codes: Tensor
    values: int
    limit: int


@dataclass(eq=False)
class Selection:
    """Items that are selected one by one: the most relevant that is unlike those before.

    Each step selects, among the items of a pool that no cap rules out, the one with the largest

        (1 - amount) * relevance - amount * max over the selected of max(similarity, 0),

    ties by the order of the pool. Relevance is the score, scaled so that the first pool of a row
    reaches from 0 to 1.

    Attributes:
        amount: from 0, by relevance alone, to 1, by dissimilarity alone after the first item.
        similarity_to: as `Fitted.similarity_to`; None if the amount is 0.
        caps: limits of items with the same value.
        ids, scores: (rows, k) selected so far, -1 and ``-inf`` from `count` on.
        count: (rows,) number of items selected so far.
        low, span: (rows, 1) score of relevance 0, and how far above it the relevance is 1.
    """

    amount: float
    similarity_to: SimilarityTo | None
    caps: Sequence[Cap]
    ids: Tensor
    scores: Tensor
    count: Tensor
    low: Tensor
    span: Tensor

    @classmethod
    def empty(
        cls,
        first: Ranking,
        k: int,
        amount: float,
        similarity_to: SimilarityTo | None,
        caps: Sequence[Cap],
    ) -> "Selection":
        """Construct without items; the first pool determines the scale of relevance."""
        rows, there = len(first.ids), first.ids >= 0
        high = first.scores.masked_fill(~there, -torch.inf).amax(1, keepdim=True)
        low = first.scores.masked_fill(~there, torch.inf).amin(1, keepdim=True)
        ids = torch.full((rows, k), -1)
        scores = first.scores.new_full((rows, k), -torch.inf)
        count = torch.zeros(rows, dtype=torch.int64)
        return cls(amount, similarity_to, caps, ids, scores, count, low, high - low)

    def add(self, rows: Tensor, pool: Ranking) -> None:
        """Select from a pool, best first, for these rows, until they are full or it is used up."""
        state, left = _Pool(self, rows, pool), self.ids.shape[1] - self.count[rows]
        earlier = int(self.count[rows].max()) if len(rows) else 0
        for chosen in self.ids[rows, :earlier].unbind(1):
            state.note(chosen)
        places = []
        for step in range(int(left.max()) if len(rows) else 0):
            best, place = state.values().max(1, keepdim=True)
            able = (best > -torch.inf) & (left > step).unsqueeze(1)
            if not bool(able.any()):
                break
            places.append(place.where(able, -1))
            state.open.scatter_(1, place, False)
            state.note(pool.ids.gather(1, place).where(able, -1).squeeze(1))
        if places:
            self._append(rows, pool, torch.cat(places, 1))

    def _append(self, rows: Tensor, pool: Ranking, places: Tensor) -> None:
        """Append the items of a pool at these places, (rows, n); -1 at the end of a row."""
        row, step = (places >= 0).nonzero(as_tuple=True)
        place, at = places[row, step], self.count[rows[row]] + step
        self.ids[rows[row], at] = pool.ids[row, place]
        self.scores[rows[row], at] = pool.scores[row, place]
        self.count[rows] += (places >= 0).sum(1)


class _Pool:
    """Candidates of some rows, and what the selected items make of them.

    Attributes:
        open: (rows, n) true for candidates that can be selected.
    """

    def __init__(self, selection: Selection, rows: Tensor, pool: Ranking) -> None:
        self.amount, self.caps, self.open = selection.amount, selection.caps, pool.ids >= 0
        ids = pool.ids.clamp(min=0)
        span, low = selection.span[rows], selection.low[rows]
        relevance = torch.where(span > 0, (pool.scores - low) / span, 1.0)
        self.relevance = relevance * (1 - self.amount)
        self.nearest = torch.zeros_like(relevance)
        self.similarity: Callable[[Tensor], Tensor] | None = None
        if self.amount > 0 and selection.similarity_to is not None:
            self.similarity = selection.similarity_to(ids)
        self.codes = [cap.codes[ids] for cap in self.caps]
        self.used = [torch.zeros_like(codes) for codes in self.codes]

    def values(self) -> Tensor:
        """(rows, n) marginal relevance; ``-inf`` for candidates that cannot be selected."""
        found = self.relevance
        if self.similarity is not None:
            found = found - self.amount * self.nearest
        return found.where(self.open, -torch.inf)

    def note(self, items: Tensor) -> None:
        """Take account of one selected item per row, (rows,), -1 for none."""
        known = items.clamp(min=0)
        if self.similarity is not None:
            near = self.similarity(known).to(self.nearest)
            near.masked_fill_((items < 0).unsqueeze(1), 0.0)
            self.nearest = torch.maximum(self.nearest, near)
        for cap, codes, used in zip(self.caps, self.codes, self.used, strict=True):
            mine = cap.codes[known].masked_fill(items < 0, cap.values).unsqueeze(1)
            used += (codes == mine) & (codes < cap.values)
            self.open &= (used < cap.limit) | (codes == cap.values)


def exhausted_values(selected: Tensor, cap: Cap) -> Tensor:
    """(values,) true for the values of which the selected items, (n,), are as many as may be."""
    codes = cap.codes[selected[selected >= 0]]
    return torch.bincount(codes, minlength=cap.values + 1)[: cap.values] >= cap.limit
