"""Convert the ids of queries, single or batched, to numbers of users and items."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = ["allowed_items", "histories_of", "known", "one_or_many"]


def is_id(value: Any) -> bool:
    """Return whether a value is a single id rather than a collection."""
    return isinstance(value, (str, bytes, int, float, np.generic)) or (
        isinstance(value, (np.ndarray, Tensor)) and value.ndim == 0
    )


def one_or_many(given: Any) -> tuple[list[Any], bool]:
    """Return the ids as a list, and whether a single one was given."""
    if is_id(given):
        return [given], True
    return list(given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given), False


def known(given: list[Any], ids: Ids, what: str, instead: str) -> Tensor:
    """Return the numbers of the ids; raise for unknown ones, with the advice `instead`."""
    numbers = ids.find(given)
    missing = [one for one, number in zip(given, numbers.tolist(), strict=True) if number < 0]
    if missing:
        shown = ", ".join(repr(one) for one in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"no {what} {shown}{more} in this model; {instead}")
    return numbers


def histories_of(given: Any, items: Ids) -> tuple[Jagged, list[list[Any]], bool]:
    """Return histories as item numbers, their unknown ids, and whether a single one was given.

    A history is a list of item ids; several are a list of lists, or a scipy sparse matrix whose
    columns are in the order of the items.
    """
    if hasattr(given, "tocsr"):
        return _from_matrix(given, items)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(
            f"a history is a list of items, as [{items[0]!r}], got {type(given).__name__}"
        )
    listed = list(given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given)
    single = not listed or is_id(listed[0])
    lists = [listed] if single else [list(one) for one in listed]
    numbers = items.find([one for row in lists for one in row])
    unknown, values, lengths, at = [], [], [], 0
    for row in lists:
        mine = numbers[at : at + len(row)]
        at += len(row)
        unknown.append([one for one, number in zip(row, mine.tolist(), strict=True) if number < 0])
        values.append(mine[mine >= 0].unique())  # sorted, distinct
        lengths.append(len(values[-1]))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Jagged(torch.cat(values), offsets), unknown, single


def _from_matrix(matrix: Any, items: Ids) -> tuple[Jagged, list[list[Any]], bool]:
    if matrix.ndim != 2 or matrix.shape[1] != len(items):
        raise ValueError(
            f"the matrix must have a column for each of {len(items)} items, in the order of "
            f"`items`; got shape {tuple(matrix.shape)}"
        )
    nonzero = (matrix != 0).astype(np.int8)
    rows = Interactions.from_csr(nonzero)
    return rows.jagged, [[] for _ in range(rows.users)], False


def allowed_items(items: Any, filter_items: Any, ids: Ids) -> Tensor | None:
    """Return (items,) true for candidate items; None if all are."""
    if items is None and filter_items is None:
        return None
    allowed = torch.ones(len(ids), dtype=torch.bool)
    if items is not None:
        allowed[:] = False
        allowed[known(one_or_many(items)[0], ids, "item", "leave it out of items=")] = True
    if filter_items is not None:
        numbers = ids.find(one_or_many(filter_items)[0])
        allowed[numbers[numbers >= 0]] = False  # unknown ids need no filter
    return allowed
