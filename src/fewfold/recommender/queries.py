"""Queries: ids of users, histories and attributes as item numbers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.recommender_state import RecommenderState

__all__ = [
    "Queries",
    "attribute_queries",
    "history_queries",
    "known_ids",
    "one_or_many",
    "stored_queries",
    "stored_users",
    "user_queries",
]


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


def known_ids(given: list[Any], ids: Ids, what: str, instead: str) -> Tensor:
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
    mine, others = stored_users(state)
    known = mine.find(ids)
    other = torch.full_like(known, -1) if others is None else others.find(ids)
    instead = "for a new user call recommend_from_history([...]) (--history)"
    _check_found(ids, torch.maximum(known, other), "user", instead)
    names = [
        mine[first] if first >= 0 or others is None else others[second]
        for first, second in zip(known.tolist(), other.tolist(), strict=True)
    ]
    return replace(_stored(known, other, state), names=names, single=single)


def stored_users(state: RecommenderState) -> tuple[Ids, Ids | None]:
    """Return the users of the log, and those of the users table who are not in the log.

    ValueError if the model was saved without users.
    """
    if state.users is None or state.history is None:
        raise ValueError(
            "this model was saved without users; pass the items of a user: "
            "recommend_from_history([...])"
        )
    return state.users, None if state.profiles is None else state.profiles.ids


def stored_queries(state: RecommenderState, users: range, *, in_log: bool) -> Queries:
    """Return the histories, or attributes, of users by number, without their names.

    Args:
        users: numbers of users of the log, or of the others; see `stored_users`.
        in_log: whether they are users of the log.
    """
    numbers = torch.arange(users.start, users.stop)
    nobody = torch.full_like(numbers, -1)
    return _stored(*((numbers, nobody) if in_log else (nobody, numbers)), state)


def _stored(known: Tensor, other: Tensor, state: RecommenderState) -> Queries:
    """Return queries of users by number in the log, or, where that is -1, in the users table."""
    history, profiles, there = state.history, state.profiles, known >= 0
    rows = known.clamp(min=0)
    histories = history.rows(rows, ordered=state.fitted.recipe.ordered)  # type: ignore[union-attr]
    histories = histories.select(there[histories.row])
    dislikes = history.disliked  # type: ignore[union-attr]
    if dislikes is not None:
        dislikes = dislikes.rows(rows)
        dislikes = dislikes.select(there[dislikes.row])
    codes = None
    if profiles is not None and profiles.codes is not None and not bool(there.all()):
        codes = profiles.codes[other.clamp(min=0)].masked_fill(there.unsqueeze(1), -1)
    return Queries(histories, [None] * len(known), dislikes=dislikes, codes=codes)


def attribute_queries(attributes: Any, state: RecommenderState) -> Queries:
    """Return queries from user attributes: one mapping from columns to values, or several."""
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
