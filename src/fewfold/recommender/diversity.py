"""Diversity of recommendations: re-ranking by maximal marginal relevance, and caps per value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.item_conditions import attributes_for
from fewfold.recommender.jagged import offsets_of
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.ranking.marginal_relevance import (
    Cap,
    Selection,
    SimilarityTo,
    exhausted_values,
)

__all__ = ["Diversity", "RankRows", "diversified"]

_POOL, _FACTOR = 100, 4  # candidates: at least so many, and so many for each item of the answer
# Candidates of all rows that are ranked at once, and compared at once: their vectors fit a cache.
_RANKED, _COMPARED = 1 << 18, 1 << 13

# Ranks some rows: their numbers, how many items, further items of each that are not ranked, and a
# mask of the items that are.
RankRows = Callable[[Tensor, int, Jagged | None, Tensor | None], Ranking]


@dataclass(frozen=True)
class Diversity:
    """How much the items of a list must differ from each other.

    Maximal marginal relevance selects one item after the other: the one with the largest

        (1 - amount) * relevance - amount * similarity to the most similar item selected before,

    where the relevance is the score, scaled to reach from 0 to 1 among the candidates, and
    similarity is at most 1; below 0 it counts as 0.

    Attributes:
        amount: from 0, by score alone, to 1, by dissimilarity alone after the first item.
        by: attribute by which items are compared: similarity is 1 if they have the same value,
            otherwise 0. By default the model compares them, as in `similar_items`: by the cosine of
            their vectors, or by its weights between items relative to the largest of the item that
            was selected.
        at_most: from attributes to how many items with the same value a list may have. Items
            without a value are not limited.
        pool: number of candidates, those with the highest scores; by default 100, or 4 k if that
            is more. Where `at_most` leaves fewer than k of them, those that follow are added.

    Example:
        >>> from fewfold.recommender import Diversity
        >>> Diversity(0.3, by="section", at_most={"maintainer": 2})
        Diversity(amount=0.3, by='section', at_most={'maintainer': 2}, pool=None)

    Reference:
        Carbonell, Goldstein (1998). The use of MMR, diversity-based reranking for reordering
        documents and producing summaries. SIGIR.
    """

    amount: float = 0.0
    by: str | None = None
    at_most: Mapping[str, int] = field(default_factory=dict)
    pool: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.amount, bool) or not isinstance(self.amount, Real):
            raise TypeError(
                "diversity must be a number from 0 to 1 or a Diversity, got "
                f"{type(self.amount).__name__}"
            )
        if not 0 <= self.amount <= 1:
            raise ValueError(f"diversity must be from 0 to 1, got {self.amount}")
        if not isinstance(self.at_most, Mapping):
            raise TypeError(
                "at_most must be a mapping from attributes to numbers, as {'section': 3}, got "
                f"{type(self.at_most).__name__}"
            )
        for name, limit in self.at_most.items():
            whole_number(limit, f"at_most of {name!r}")
        if self.pool is not None:
            whole_number(self.pool, "pool")

    @classmethod
    def of(cls, given: "float | Diversity | None") -> "Diversity | None":
        """Return None if nothing is to change, a `Diversity` otherwise; a number is its amount."""
        found = given if isinstance(given, cls) or given is None else cls(given)  # type: ignore
        return found if found is not None and (found.amount > 0 or found.at_most) else None

    def candidates(self, k: int) -> int:
        """Return the number of candidates for k items."""
        return max(k, self.pool or max(_POOL, _FACTOR * k))


def diversified(
    diversity: Diversity,
    rank: RankRows,
    k: int,
    *,
    rows: int,
    allowed: Tensor | None,
    attributes: Attributes | None,
    similarity_to: SimilarityTo,
    items: int,
) -> Ranking:
    """Rank k items for each row, as `diversity` asks for.

    Args:
        rank: ranks some rows by score.
        rows: number of rows.
        allowed: (items,) mask of the candidates.
        attributes: of the items.
        similarity_to: as `Fitted.similarity_to`.
        items: number of items.
    """
    if diversity.by is not None and diversity.amount > 0:
        similarity_to = _same_value(attributes, diversity.by)
    caps = [_cap(attributes, name, limit) for name, limit in diversity.at_most.items()]
    size = min(diversity.candidates(k), items)
    found = []
    for block in torch.arange(rows).split(max(1, _RANKED // size)):
        ranked = rank(block, size, None, allowed)
        for part in torch.arange(len(block)).split(max(1, _COMPARED // size)):
            pool, mine = Ranking(ranked.ids[part], ranked.scores[part]), block[part]
            selection = Selection.empty(pool, k, float(diversity.amount), similarity_to, caps)
            place = torch.arange(len(part))
            selection.add(place, pool)
            short = place[(selection.count < k) & (pool.ids[:, -1] >= 0)]
            while len(short):
                short = _extend(selection, short, mine, rank, size, allowed)
            found.append(Ranking(selection.ids, selection.scores))
    if not found:
        return rank(torch.arange(0), k, None, allowed)
    return Ranking(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _extend(
    selection: Selection,
    short: Tensor,
    block: Tensor,
    rank: RankRows,
    size: int,
    allowed: Tensor | None,
) -> Tensor:
    """Add candidates to rows whose pool the caps have used up; return those still in need.

    All that is left of a pool is ruled out by caps, so the items that follow are the best of those
    whose values are not exhausted. Rows with the same exhausted values are ranked together.
    """
    groups: dict[bytes, list[int]] = {}
    masks: dict[bytes, Tensor] = {}
    for row in short.tolist():
        spent = [exhausted_values(selection.ids[row], cap) for cap in selection.caps]
        key = torch.cat(spent).numpy().tobytes()
        groups.setdefault(key, []).append(row)
        if key not in masks:
            masks[key] = _not_exhausted(selection.caps, spent, allowed)
    again = []
    for key, members in groups.items():
        rows = torch.tensor(members)
        taken = selection.ids[rows]
        seen = Jagged(taken[taken >= 0], offsets_of((taken >= 0).sum(1)))
        pool = rank(block[rows], size, seen, masks[key])
        before = selection.count[rows]
        selection.add(rows, pool)
        now = selection.count[rows]
        # A row without progress would be asked for ever, if a model ranks what it must not.
        again.append(rows[(now < selection.ids.shape[1]) & (now > before) & (pool.ids[:, -1] >= 0)])
    return torch.cat(again)


def _not_exhausted(caps: Any, spent: list[Tensor], allowed: Tensor | None) -> Tensor:
    """(items,) true for allowed items none of whose values is exhausted."""
    found = torch.ones_like(caps[0].codes, dtype=torch.bool) if allowed is None else allowed.clone()
    for cap, gone in zip(caps, spent, strict=True):
        found &= torch.cat([~gone, gone.new_ones(1)]).index_select(0, cap.codes)
    return found


def _same_value(attributes: Attributes | None, name: str) -> SimilarityTo:
    """Similarity 1 between items with the same value, 0 between all others."""
    column = attributes_for(attributes, f"diversity by {name!r}").encoded(name)

    def similarity_to(others: Tensor) -> Callable[[Tensor], Tensor]:
        codes = column.codes[others]
        there = codes < len(column.values)
        return lambda items: ((codes == column.codes[items].unsqueeze(1)) & there).float()

    return similarity_to


def _cap(attributes: Attributes | None, name: str, limit: int) -> Cap:
    column = attributes_for(attributes, f"at most {limit} of each {name!r}").encoded(name)
    return Cap(column.codes, len(column.values), limit)
