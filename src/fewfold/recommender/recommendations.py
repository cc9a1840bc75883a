"""Recommendations: ids of users, items and histories in, ranked item ids out.

Ids are converted to numbers here and back; the models below know numbers only.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor

from fewfold import _html
from fewfold._check import whole_number
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.diversity import Diversity, diversified
from fewfold.recommender.explanations import Reasons, explain
from fewfold.recommender.ids import Id, Ids
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.item_conditions import Where, matching_items
from fewfold.recommender.queries import Queries, known_ids, one_or_many
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.recommender_state import RecommenderState

__all__ = [
    "RankKeywords",
    "RankOptions",
    "Recommendations",
    "candidates",
    "rank_queries",
    "recommend",
    "similar_items",
]

_SHOWN_QUERIES = 10  # in a notebook


@dataclass(frozen=True)
class RankOptions:
    """Options of a ranking.

    Attributes:
        k: number of items.
        exclude_seen: leave out the items of the history.
        filter_items: ids never to recommend.
        items: ids of the candidates; None for all items.
        search: an approximate search; None ranks exactly.
        explain: name the items of the history that contributed most to each item.
        where: conditions on attributes that the candidates meet; see `matching_items`.
        diversity: how much the items must differ: an amount from 0 to 1, or a `Diversity`.
    """

    k: int = 10
    exclude_seen: bool = True
    filter_items: Any = None
    items: Any = None
    search: Search | None = None
    explain: bool = False
    where: Where | None = None
    diversity: float | Diversity | None = None


class RankKeywords(TypedDict, total=False):
    """Options of `Recommender.recommend_all` beside k; see `Recommender.recommend`."""

    exclude_seen: bool
    filter_items: Any
    items: Any
    search: Search | None
    where: Where | None
    diversity: float | Diversity | None


@dataclass(frozen=True, eq=False)
class Recommendations:
    """Recommended items, best first: a list for one query, a list of lists for a batch.

    Iteration yields (item, score) pairs of one list, or the `Recommendations` of each query.

    Attributes:
        items: item ids as in the log; fewer than k if there are no more candidates.
        scores: scores of the model, comparable only within one query. They fall from item to item,
            except where diversity has changed the order.
        of: the query: a user, an item, or None for a history; a list for a batch.
        attributes: attributes of each item (see `Recommender.attach`), structured like `items`.
        unknown: ids of a history that the model does not know and ignored, like `of`.
        because: for each item, structured like `items`, the items of the history that contributed
            most to its score, and how much; None unless `explain` was asked for.

    Example:
        >>> from fewfold.recommender import Recommendations
        >>> one = Recommendations(["zlib1g-dev", "bison"], [2.5, 0.25])
        >>> dict(one)
        {'zlib1g-dev': 2.5, 'bison': 0.25}
        >>> print(one)
           1  zlib1g-dev  2.500
           2  bison       0.250
    """

    items: list[Any]
    scores: list[Any]
    of: Any = None
    attributes: list[Any] | None = None
    unknown: list[Any] | None = None
    because: list[Any] | None = None

    @classmethod
    def read(
        cls,
        found: Ranking,
        ids: Ids,
        of: list[Any],
        attributes: Attributes | None = None,
        unknown: list[Any] | None = None,
    ) -> "Recommendations":
        """Construct from a ranking by item number, with one list per row."""
        counts = (found.ids >= 0).sum(1).tolist()
        numbers = found.ids[found.ids >= 0].numpy()
        items = _parts(ids.take(numbers), counts)
        scores = [row[:n] for row, n in zip(found.scores.tolist(), counts, strict=True)]
        more = None if attributes is None else _parts(attributes.take(numbers), counts)
        return cls(items, scores, of, more, unknown)

    @property
    def batch(self) -> bool:
        """Whether this is the result of several queries."""
        return isinstance(self.of, list)

    def first(self) -> "Recommendations":
        """Return the recommendations of the first query of a batch."""
        one: Recommendations = next(iter(self))
        return one

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        if not self.batch:
            yield from zip(self.items, self.scores, strict=True)
            return
        for row in range(len(self)):
            attributes, unknown, because = (
                None if many is None else many[row]
                for many in (self.attributes, self.unknown, self.because)
            )
            yield Recommendations(
                self.items[row], self.scores[row], self.of[row], attributes, unknown, because
            )

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a dict per item: `of` (in a batch), rank, item, score and its attributes.

        With explanations, `because` is a list of dicts of an item and its `contribution`.
        """
        if self.batch:
            return [
                {"of": one.of, **entry} if one.of is not None else {"of": number, **entry}
                for number, one in enumerate(self)
                for entry in one.to_dicts()
            ]
        attributes = self.attributes or [{}] * len(self)
        entries = [
            {"rank": rank, "item": item, "score": score, **_without_clashes(more)}
            for rank, ((item, score), more) in enumerate(zip(self, attributes, strict=True), 1)
        ]
        for entry, reasons in zip(entries, self.because or [], strict=False):
            entry["because"] = [{"item": one, "contribution": much} for one, much in reasons]
        return entries

    def _repr_html_(self) -> str:
        """Return a table for notebooks, or one for each of the first queries."""
        if self.batch:
            shown = [
                one._table(f"for {number if one.of is None else one.of}")
                for number, one in itertools.islice(enumerate(self), _SHOWN_QUERIES)
            ]
            more = len(self) - len(shown)
            return "\n".join([*shown, _html.paragraphs(f"and {more:,} more" if more else "")])
        return self._table("")

    def _table(self, caption: str) -> str:
        """Return the table of one query."""
        if not self.items:
            return _html.paragraphs(caption, "nothing left to recommend")
        attributes = self.attributes or [{}] * len(self)
        names = list(dict.fromkeys(name for known in attributes for name in known))
        because = [[]] * len(self) if self.because is None else [
            [_because(reasons)] for reasons in self.because
        ]  # fmt: skip
        rows = [
            [rank, str(item), float(score), *(known.get(name, "") for name in names), *reasons]
            for rank, ((item, score), known, reasons) in enumerate(
                zip(self, attributes, because, strict=True), 1
            )
        ]
        heads = ["", "item", "score", *names, *([] if self.because is None else ["because"])]
        return _html.table(heads, rows, caption=caption)

    def __str__(self) -> str:
        if self.batch:
            parts = (
                f"{number if one.of is None else one.of}\n{one}" for number, one in enumerate(self)
            )
            return "\n\n".join(parts)
        if not self.items:
            return "  nothing left to recommend"
        wide = max(len(_one_line(item)) for item in self.items)
        far = max(len(f"{score:.3f}") for score in self.scores)
        lines = []
        attributes = self.attributes or [{}] * len(self)
        for rank, ((item, score), known) in enumerate(zip(self, attributes, strict=True), 1):
            more = "  ".join(_one_line(value) for value in known.values())
            lines.append(f"{rank:4}  {_one_line(item):{wide}}  {score:{far}.3f}  {more}".rstrip())
            if self.because is not None:
                lines.append(f"      {_because(self.because[rank - 1])}")
        return "\n".join(lines)


def _parts(flat: list[Any], counts: list[int]) -> list[list[Any]]:
    """Split a list into parts of these lengths."""
    ends = itertools.accumulate(counts)
    return [flat[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _without_clashes(attributes: dict[str, str]) -> dict[str, str]:
    """Rename attributes that clash with the keys of `to_dicts`."""
    own = ("of", "rank", "item", "score", "because")
    return {f"{name}_" if name in own else name: value for name, value in attributes.items()}


def _because(reasons: Reasons) -> str:
    """The sentence of an explanation."""
    if not reasons:
        return "popular; no item of the history speaks for it"
    total = sum(much for _, much in reasons)
    return "because of " + ", ".join(f"{_one_line(one)} ({m / total:.0%})" for one, m in reasons)


def _one_line(value: Id) -> str:
    """Format an id on one line."""
    text = str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def recommend(queries: Queries, state: RecommenderState, options: RankOptions) -> Recommendations:
    """Rank the items for each query."""
    ranking = rank_queries(queries, state, options, candidates(options, state))
    answer = Recommendations.read(
        ranking, state.items, queries.names, state.attributes, queries.unknown
    )
    if options.explain:
        because = explain(state.fitted, queries.histories, ranking.ids, state.items)
        answer = replace(answer, because=because)
    return answer.first() if queries.single else answer


def rank_queries(
    queries: Queries, state: RecommenderState, options: RankOptions, allowed: Tensor | None
) -> Ranking:
    """Rank the items for each query, by number; `allowed` are the `candidates` of the options."""
    if options.search is not None and options.search.fitted is not state.fitted:
        raise ValueError("this index is of another model; make one with index()")
    count = min(whole_number(options.k, "k"), len(state.items))
    rank = partial(_ranked, queries, state, options)
    diversity = Diversity.of(options.diversity)
    if diversity is None:
        return rank(None, count, None, allowed)
    return diversified(
        diversity, rank, count, rows=len(queries.names), allowed=allowed,
        attributes=state.attributes, similarity_to=state.fitted.similarity_to,
        items=len(state.items),
    )  # fmt: skip


def _ranked(
    queries: Queries,
    state: RecommenderState,
    options: RankOptions,
    rows: Tensor | None,
    count: int,
    also: Jagged | None,
    allowed: Tensor | None,
) -> Ranking:
    """Rank the items for some queries, or all, without those of `also`, by score."""
    histories, exclude = queries.histories, queries.excluded(seen=options.exclude_seen)
    codes = queries.codes
    if rows is not None:
        histories = histories.rows(rows)
        exclude = None if exclude is None else exclude.rows(rows)
        codes = None if codes is None else codes[rows]
    if also is not None:
        exclude = also if exclude is None else exclude.append(also).sets()
    rank = state.fitted.rank if options.search is None else options.search.rank
    ranking = rank(histories, count, exclude=exclude, allowed=allowed)
    if codes is not None and state.profiles is not None and state.profiles.used:
        new = (codes >= 0).any(1).nonzero().squeeze(1)
        mine = None if also is None else also.rows(new)
        found = state.profiles.rank(codes[new], count, exclude=mine, allowed=allowed)
        ranking.ids[new], ranking.scores[new] = found
    return ranking


def similar_items(items: Any, state: RecommenderState, options: RankOptions) -> Recommendations:
    """Rank the items most similar to one or several items."""
    ids, single = one_or_many(items)
    numbers = known_ids(ids, state.items, "item", "see `items` for those there are")
    allowed = candidates(options, state)
    count = min(whole_number(options.k, "k"), len(state.items))
    ranking = state.fitted.similar(numbers, count, allowed=allowed)
    answer = Recommendations.read(ranking, state.items, state.items.take(numbers), state.attributes)
    return answer.first() if single else answer


def candidates(options: RankOptions, state: RecommenderState) -> Tensor | None:
    """Return (items,) true for candidate items; None if all are."""
    if options.items is None and options.filter_items is None and options.where is None:
        return None
    if options.where is None:
        allowed = torch.ones(len(state.items), dtype=torch.bool)
    else:
        allowed = matching_items(state.attributes, options.where)
    if options.items is not None:
        given = one_or_many(options.items)[0]
        numbers = known_ids(given, state.items, "item", "leave it out of items=")
        named = torch.zeros_like(allowed)
        named[numbers] = True
        allowed &= named
    if options.filter_items is not None:
        numbers = state.items.find(one_or_many(options.filter_items)[0])
        allowed[numbers[numbers >= 0]] = False  # unknown ids need no filter
    return allowed
