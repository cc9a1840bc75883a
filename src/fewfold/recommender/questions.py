"""Questions as people write them, one or many, in numbers of users and items."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, Jagged

__all__ = ["allowed_items", "histories_of", "known", "one_or_many"]


def is_id(value: Any) -> bool:
    """Whether this is one id, not a collection of them."""
    return isinstance(value, (str, bytes, int, float, np.generic)) or (
        isinstance(value, (np.ndarray, Tensor)) and value.ndim == 0
    )


def one_or_many(asked: Any) -> tuple[list[Any], bool]:
    """The ids as a list, and whether there was a single one."""
    if is_id(asked):
        return [asked], True
    return list(asked.tolist() if isinstance(asked, (np.ndarray, Tensor)) else asked), False


def known(asked: list[Any], ids: Ids, what: str, instead: str) -> Tensor:
    """Their numbers; raise for what is not there, and say what to do instead."""
    numbers = ids.find(asked)
    missing = [one for one, number in zip(asked, numbers.tolist(), strict=True) if number < 0]
    if missing:
        few = ", ".join(repr(one) for one in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"no {what} {few}{more} in this model; {instead}")
    return numbers


def histories_of(asked: Any, items: Ids) -> tuple[Jagged, list[list[Any]], bool]:
    """Histories by number, the ids of each that are not known, and whether there was one alone.

    A history is a list of items; many are a list of lists, or a scipy sparse matrix whose columns
    are numbered as the items are.
    """
    if hasattr(asked, "tocsr"):
        return _rows_of(asked, items)
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise TypeError(
            f"a history is a list of items, as [{items[0]!r}], got {type(asked).__name__}"
        )
    listed = list(asked.tolist() if isinstance(asked, (np.ndarray, Tensor)) else asked)
    single = not listed or is_id(listed[0])
    lists = [listed] if single else [list(one) for one in listed]
    numbers = items.find([one for row in lists for one in row])
    unknown, values, lengths, at = [], [], [], 0
    for row in lists:
        mine = numbers[at : at + len(row)]
        at += len(row)
        unknown.append([one for one, number in zip(row, mine.tolist(), strict=True) if number < 0])
        values.append(mine[mine >= 0].unique())  # sorted, each once
        lengths.append(len(values[-1]))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Jagged(torch.cat(values), offsets), unknown, single


def _rows_of(matrix: Any, items: Ids) -> tuple[Jagged, list[list[Any]], bool]:
    if matrix.ndim != 2 or matrix.shape[1] != len(items):
        raise ValueError(
            f"the matrix must have a column for each of {len(items)} items, in the order of "
            f"`items`; got shape {tuple(matrix.shape)}"
        )
    touched = (matrix != 0).astype(np.int8)
    rows = Interactions.from_csr(touched)
    return rows.jagged, [[] for _ in range(rows.users)], False


def allowed_items(items: Any, filter_items: Any, ids: Ids) -> Tensor | None:
    """(items,) true for what may be answered; None when everything may."""
    if items is None and filter_items is None:
        return None
    allowed = torch.ones(len(ids), dtype=torch.bool)
    if items is not None:
        allowed[:] = False
        allowed[known(one_or_many(items)[0], ids, "item", "leave it out of items=")] = True
    if filter_items is not None:
        numbers = ids.find(one_or_many(filter_items)[0])
        allowed[numbers[numbers >= 0]] = False  # what is not there needs no filter
    return allowed
