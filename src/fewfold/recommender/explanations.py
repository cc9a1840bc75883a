"""Explanations of recommendations: the items of the history that contributed most."""

from typing import Any

import torch
from torch import Tensor

from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Jagged
from fewfold.recommender.models.model import Fitted

__all__ = ["Reasons", "explain"]

_MOST = 3  # items of the history that are named
_LEAST = 0.05  # of the largest contribution: smaller ones are not named

Reasons = list[tuple[Any, float]]  # items of the history and their contributions, largest first


def explain(fitted: Fitted, histories: Jagged, ranked: Tensor, ids: Ids) -> list[list[Reasons]]:
    """Return the items of each history that contributed most to each ranked item.

    Args:
        fitted: the model.
        histories: histories, as it ranks them.
        ranked: (rows, k) item numbers, -1 where there is none.
        ids: ids of the items.

    Returns:
        For each row and each of its items at most three pairs of an item of the history and what
        it adds to the score, largest first; none where the history does not matter, as for a
        user without one. An item that comes several times counts once, with the sum.
    """
    found: list[list[Reasons]] = []
    for row in range(len(ranked)):
        items, history = ranked[row], histories.rows(slice(row, row + 1)).values
        items = items[items >= 0]
        if not len(items) or not len(history):
            found.append([[] for _ in items])
            continue
        amounts = fitted.contributions(history, items).double()
        known, place = history.unique(return_inverse=True)
        totals = torch.zeros(len(items), len(known), dtype=torch.float64)
        totals.index_add_(1, place, amounts)
        found.append([_largest(mine, known, ids) for mine in totals])
    return found


def _largest(amounts: Tensor, known: Tensor, ids: Ids) -> Reasons:
    """The largest positive amounts, and the ids they belong to."""
    top, place = amounts.topk(min(_MOST, len(amounts)))
    named = (top > 0) & (top >= _LEAST * top[0])
    return list(zip(ids.take(known[place[named]]), top[named].tolist(), strict=True))
