"""Recommendations: ids of users, items and histories in, ranked item ids out.

Ids are converted to numbers here and back; the models below know numbers only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.explanations import Reasons, explain
from fewfold.recommender.ids import Id, Ids
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.ranking.search import Search
from fewfold.recommender.recommender_state import RecommenderState

__all__ = [
    "Queries",
    "RankOptions",
    "Recommendations",
    "attribute_queries",
    "history_queries",
    "one_or_many",
    "recommend",
    "similar_items",
    "user_queries",
]


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
    """

    k: int = 10
    exclude_seen: bool = True
    filter_items: Any = None
    items: Any = None
    search: Search | None = None
    explain: bool = False


@dataclass(frozen=True, eq=False)
class Queries:
    """Histories to rank items for.

    Attributes:
        histories: item numbers of each query.
        names: what each query is called in the answer.
        unknown: ids of each history that the model does not know; None for users of the log.
        single: whether one query was given rather than a list.
        dislikes: item numbers of each query that are never recommended, if there are any.
        codes: (queries, columns) attributes of users without a history; see `UserProfiles`.
    """

    histories: Jagged
    names: list[Any]
    unknown: list[list[Any]] | None = None
    single: bool = False
    dislikes: Jagged | None = None
    codes: Tensor | None = None

    def excluded(self, *, seen: bool) -> Jagged | None:
        """Return the items of each query that are not ranked: dislikes, and the history if seen."""
        if self.dislikes is None:
            return self.histories if seen else None
        return self.histories.append(self.dislikes).sets() if seen else self.dislikes


@dataclass(frozen=True, eq=False)
class Recommendations:
    """Recommended items, best first: a list for one query, a list of lists for a batch.

    Iteration yields (item, score) pairs of one list, or the `Recommendations` of each query.

    Attributes:
        items: item ids as in the log; fewer than k if there are no more candidates.
        scores: scores, comparable only within one query.
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
        flat = iter(ids.take(found.ids[found.ids >= 0]))
        items = [[next(flat) for _ in range(count)] for count in counts]
        scores = [row[:n] for row, n in zip(found.scores.tolist(), counts, strict=True)]
        more = None
        if attributes is not None:
            rows = zip(found.ids.tolist(), counts, strict=True)
            more = [[attributes[number] for number in row[:n]] for row, n in rows]
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
    allowed = _candidates(options.items, options.filter_items, state.items)
    search = options.search
    if search is not None and search.fitted is not state.fitted:
        raise ValueError("this index is of another model; make one with index()")
    rank = state.fitted.rank if search is None else search.rank
    exclude = queries.excluded(seen=options.exclude_seen)
    count = min(whole_number(options.k, "k"), len(state.items))
    ranking = rank(queries.histories, count, exclude=exclude, allowed=allowed)
    if queries.codes is not None and state.profiles is not None and state.profiles.used:
        new = (queries.codes >= 0).any(1).nonzero().squeeze(1)
        found = state.profiles.rank(queries.codes[new], count, allowed=allowed)
        ranking.ids[new], ranking.scores[new] = found
    answer = Recommendations.read(
        ranking, state.items, queries.names, state.attributes, queries.unknown
    )
    if options.explain:
        because = explain(state.fitted, queries.histories, ranking.ids, state.items)
        answer = replace(answer, because=because)
    return answer.first() if queries.single else answer


def similar_items(items: Any, state: RecommenderState, options: RankOptions) -> Recommendations:
    """Rank the items most similar to one or several items."""
    ids, single = one_or_many(items)
    numbers = _known_ids(ids, state.items, "item", "see `items` for those there are")
    allowed = _candidates(None, options.filter_items, state.items)
    count = min(whole_number(options.k, "k"), len(state.items))
    ranking = state.fitted.similar(numbers, count, allowed=allowed)
    answer = Recommendations.read(ranking, state.items, state.items.take(numbers), state.attributes)
    return answer.first() if single else answer


def _is_id(value: Any) -> bool:
    """Return whether a value is a single id rather than a collection."""
    return isinstance(value, (str, bytes, int, float, np.generic)) or (
        isinstance(value, (np.ndarray, Tensor)) and value.ndim == 0
    )


def one_or_many(given: Any) -> tuple[list[Any], bool]:
    """Return the ids as a list, and whether a single one was given."""
    if _is_id(given):
        return [given], True
    return list(given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given), False


def _known_ids(given: list[Any], ids: Ids, what: str, instead: str) -> Tensor:
    """Return the numbers of the ids; raise for unknown ones, with the advice `instead`."""
    numbers = ids.find(given)
    _check_found(given, numbers, what, instead)
    return numbers


def _check_found(given: list[Any], numbers: Tensor, what: str, instead: str) -> None:
    missing = [one for one, number in zip(given, numbers.tolist(), strict=True) if number < 0]
    if missing:
        shown = ", ".join(repr(one) for one in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"no {what} {shown}{more} in this model; {instead}")


def user_queries(users: Any, state: RecommenderState) -> Queries:
    """Return the stored histories of one or several users, or their attributes."""
    ids, single = one_or_many(users)
    if state.users is None or state.history is None:
        raise ValueError(
            "this model was saved without users; pass the items of a user: "
            "recommend_from_history([...])"
        )
    instead = "for a new user call recommend_from_history([...]) (--history)"
    known, profiles = state.users.find(ids), state.profiles
    other = torch.full_like(known, -1)
    if profiles is not None and profiles.ids is not None:
        other = profiles.ids.find(ids)
    _check_found(ids, torch.maximum(known, other), "user", instead)
    rows = known.clamp(min=0)
    histories = state.history.rows(rows, ordered=state.fitted.recipe.ordered)
    histories = histories.select((known >= 0)[histories.row])
    dislikes = state.history.disliked
    if dislikes is not None:
        dislikes = dislikes.rows(rows)
        dislikes = dislikes.select((known >= 0)[dislikes.row])
    codes = None
    if profiles is not None and profiles.codes is not None and bool((known < 0).any()):
        codes = profiles.codes[other.clamp(min=0)].masked_fill((known >= 0).unsqueeze(1), -1)
    if codes is None:
        return Queries(histories, state.users.take(known), single=single, dislikes=dislikes)
    names = [
        state.users[mine] if mine >= 0 else profiles.ids[yours]  # type: ignore[union-attr,index]
        for mine, yours in zip(known.tolist(), other.tolist(), strict=True)
    ]
    return Queries(histories, names, single=single, dislikes=dislikes, codes=codes)


def attribute_queries(attributes: Any, state: RecommenderState) -> Queries:
    """Return queries of users with these attributes: a mapping from columns to values, or some."""
    if state.profiles is None:
        raise ValueError(
            "this model knows no attributes of users; fit it with users_table=... (--users-table)"
        )
    single = isinstance(attributes, Mapping)
    given = [attributes] if single else list(attributes)
    known = [column.name for column in state.profiles.settings.columns]
    for one in given:
        unknown = [name for name in one if name not in known]
        if unknown:
            raise ValueError(
                f"this model knows no attribute {unknown[0]!r} of users; there are "
                f"{', '.join(known)}"
            )
    nothing = Jagged(torch.zeros(0, dtype=torch.int64), torch.zeros(len(given) + 1).long())
    codes = state.profiles.encode(given)
    return Queries(nothing, [None] * len(given), single=single, codes=codes)


def history_queries(given: Any, items: Ids, *, ordered: bool = False) -> Queries:
    """Return histories as item numbers.

    A history is a list of item ids; several are a list of lists, a mapping from names to lists, or
    a scipy sparse matrix whose columns are in the order of the items. With `ordered` a history
    stays as it was written, with its repetitions; otherwise its items are different and sorted.
    """
    if hasattr(given, "tocsr"):
        if ordered:
            raise ValueError(
                "the order of a history matters to this model, and a sparse matrix has none; pass "
                "lists of items, oldest first"
            )
        return _matrix_queries(given, items)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"a history is a list of items, as [{items[0]!r}], got {type(given).__name__}"
        )
    names = list(given) if isinstance(given, Mapping) else None
    given = given.values() if isinstance(given, Mapping) else given
    listed = list(given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given)
    single = names is None and (not listed or _is_id(listed[0]))
    lists = [listed] if single else [list(one) for one in listed]
    numbers = items.find([one for row in lists for one in row])
    unknown, values, lengths, at = [], [], [], 0
    for row in lists:
        mine = numbers[at : at + len(row)]
        at += len(row)
        unknown.append([one for one, number in zip(row, mine.tolist(), strict=True) if number < 0])
        mine = mine[mine >= 0]
        values.append(mine if ordered else mine.unique())  # sorted, distinct
        lengths.append(len(values[-1]))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    histories = Jagged(torch.cat([numbers[:0], *values]), offsets)
    return Queries(histories, [None] * len(lists) if names is None else names, unknown, single)


def _matrix_queries(matrix: Any, items: Ids) -> Queries:
    if matrix.ndim != 2 or matrix.shape[1] != len(items):
        raise ValueError(
            f"the matrix must have a column for each of {len(items)} items, in the order of "
            f"`items`; got shape {tuple(matrix.shape)}"
        )
    nonzero = (matrix != 0).astype(np.int8)
    rows = Interactions.from_csr(nonzero)
    return Queries(rows.jagged, [None] * rows.users, [[] for _ in range(rows.users)])


def _candidates(items: Any, filter_items: Any, ids: Ids) -> Tensor | None:
    """Return (items,) true for candidate items; None if all are."""
    if items is None and filter_items is None:
        return None
    allowed = torch.ones(len(ids), dtype=torch.bool)
    if items is not None:
        allowed[:] = False
        allowed[_known_ids(one_or_many(items)[0], ids, "item", "leave it out of items=")] = True
    if filter_items is not None:
        numbers = ids.find(one_or_many(filter_items)[0])
        allowed[numbers[numbers >= 0]] = False  # unknown ids need no filter
    return allowed
