"""Add items to an EASE matrix without solving for all of it."""

import torch
from torch import Tensor

from fewfold._progress import over
from fewfold.recommender.interactions import Interactions

__all__ = ["with_new_items"]

_PREDICTORS = 100  # items from which a new item is predicted
_AT_ONCE = 64  # new items


def with_new_items(weights: Tensor, log: Interactions, l2: float) -> Tensor:
    """Return an EASE matrix with rows and columns for the items of `log` beyond its own.

    With X the users x items matrix of the log and B the matrix, the column of a new item n is the
    ridge regression of X_n on the known items J with which it has the largest cosines,
    ``(X_J^T X_J + l2 I)^-1 X_J^T X_n``. Its row is one step of coordinate descent from B: the ridge
    regression of what B leaves unexplained, ``X_n^T (X - X B) / (|X_n|^2 + l2)``. New items do not
    predict each other.

    Args:
        weights: (known items, known items), B.
        log: interactions with known and new items.
        l2: penalty of the regressions.

    Returns:
        (items, items).
    """
    old, items = len(weights), log.items
    matrix = log.to_csr()
    known = matrix[:, :old]
    both = torch.from_numpy((matrix[:, old:].T @ known).toarray())  # (new, known)
    counts = log.counts().float()
    size = min(_PREDICTORS, old)
    near = (both / counts[:old].clamp(min=1).sqrt()).topk(size, dim=1).indices
    used, place = near.unique(return_inverse=True)
    predictors = known[:, used.numpy()]
    gram = torch.from_numpy((predictors.T @ predictors).toarray())
    found = weights.new_zeros(items, items)
    found[:old, :old] = weights
    blocks = list(range(0, items - old, _AT_ONCE))
    for start in over("adding items", blocks):
        part = slice(start, start + _AT_ONCE)
        chosen, seen = near[part], both[part]
        system = gram[place[part].unsqueeze(2), place[part].unsqueeze(1)]
        system.diagonal(dim1=1, dim2=2).add_(l2)
        right = seen.gather(1, chosen).unsqueeze(2)
        column = torch.linalg.solve(system, right).squeeze(2)
        numbers = torch.arange(old + start, old + start + len(chosen))
        found[chosen, numbers.unsqueeze(1)] = column
        found[numbers, :old] = (seen - seen @ weights) / (counts[numbers] + l2).unsqueeze(1)
    return found
