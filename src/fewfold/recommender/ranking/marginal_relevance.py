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
        state = _Pool(self, rows, pool)
        earlier = int(self.count[rows].max()) if len(rows) else 0
        for chosen in self.ids[rows, :earlier].unbind(1):
            state.note(chosen.clamp(min=0), chosen >= 0)
        while True:
            able = state.open.any(1) & (self.count[rows] < self.ids.shape[1])
            if not bool(able.any()):
                return
            place = state.best()
            ids = pool.ids.gather(1, place.unsqueeze(1)).squeeze(1)
            mine, at = rows[able], self.count[rows[able]]
            self.ids[mine, at] = ids[able]
            self.scores[mine, at] = pool.scores.gather(1, place.unsqueeze(1)).squeeze(1)[able]
            self.count[mine] += 1
            state.open[able, place[able]] = False
            if bool((self.count[rows] < self.ids.shape[1]).any()):
                state.note(ids.clamp(min=0), able)


class _Pool:
    """Candidates of some rows, and what the selected items make of them.

    Attributes:
        open: (rows, n) true for candidates that can be selected.
    """

    def __init__(self, selection: Selection, rows: Tensor, pool: Ranking) -> None:
        self.selection, self.open = selection, pool.ids >= 0
        ids = pool.ids.clamp(min=0)
        span, low = selection.span[rows], selection.low[rows]
        relevance = torch.where(span > 0, (pool.scores - low) / span, 1.0)
        self.relevance = (1 - selection.amount) * relevance.masked_fill(~self.open, 0.0)
        self.nearest = torch.zeros_like(self.relevance)
        if selection.amount > 0 and selection.similarity_to is not None:
            self.similarity = selection.similarity_to(ids)
        self.codes = [cap.codes[ids] for cap in selection.caps]
        self.used = [torch.zeros_like(codes) for codes in self.codes]

    def best(self) -> Tensor:
        """(rows,) place of the best open candidate; of rows without one, any."""
        value = self.relevance - self.selection.amount * self.nearest
        return value.masked_fill(~self.open, -torch.inf).argmax(1)

    def note(self, items: Tensor, valid: Tensor) -> None:
        """Take account of one selected item per row, (rows,), where `valid`."""
        if self.selection.amount > 0 and self.selection.similarity_to is not None:
            near = self.similarity(items).to(self.nearest)
            self.nearest = torch.where(
                valid.unsqueeze(1), torch.maximum(self.nearest, near), self.nearest
            )
        for cap, codes, used in zip(self.selection.caps, self.codes, self.used, strict=True):
            mine = cap.codes[items].masked_fill(~valid, cap.values).unsqueeze(1)
            used += (codes == mine) & (mine < cap.values)
            self.open &= (used < cap.limit) | (codes == cap.values)


def exhausted_values(selected: Tensor, cap: Cap) -> Tensor:
    """(values,) true for the values of which the selected items, (n,), are as many as may be."""
    codes = cap.codes[selected[selected >= 0]]
    return torch.bincount(codes, minlength=cap.values + 1)[: cap.values] >= cap.limit
