"""Contributions of the items of a history to the scores of other items."""

import torch
from torch import Tensor

from fewfold.recommender.interactions import Jagged

__all__ = ["histories_without_one", "scores_by_rank"]


def histories_without_one(history: Tensor) -> Jagged:
    """A history of n items, and after it the n histories that lack one of them, in order."""
    n = len(history)
    keep = ~torch.eye(n, dtype=torch.bool)
    values = torch.cat([history, history.expand(n, n)[keep]])
    lengths = torch.cat([torch.tensor([n]), torch.full((n,), max(n - 1, 0))])
    return Jagged(values, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]))


def scores_by_rank(ids: Tensor, scores: Tensor, items: Tensor) -> Tensor:
    """Scores of `items` in rankings that have them all, in any order.

    Args:
        ids: (rows, k) ranked items; each row has all of `items`.
        scores: (rows, k).
        items: (k,) different items.

    Returns:
        (rows, k) scores in the order of `items`.
    """
    order = items.argsort()
    place = order[torch.searchsorted(items[order], ids)]
    return torch.empty_like(scores).scatter_(1, place, scores)
