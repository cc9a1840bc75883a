"""Ridge regressions of each item on few others, in compiled code or with scipy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._progress import phase
from fewfold.recommender.interactions import Interactions, Jagged
from fewfold.recommender.models.sparse_item_rows import SparseRows

__all__ = ["HUBS", "rounds", "sparse_ridge"]

HUBS = 4096  # most popular items, whose rows are read once instead of for each item
_PARTS = 64  # of the items, between which progress is reported
_SUFFIX = {torch.uint8: "u8", torch.int16: "i16"}
_MANY_ITEMS = 100_000


def sparse_ridge(train: Interactions, l2: float, predictors: int) -> SparseRows:
    """Regress the column of each item on those of at most `predictors` others, with penalty l2.

    With G the shared users of two items and n the users of one, predictors of item i are chosen in
    rounds: first those with the largest ``G_ij^2 / (n_j + l2)``, which is what j alone would
    explain; then, with the regression on these solved, those with the largest
    ``r_j^2 / (n_j + l2)``, where r is what the regression leaves of ``G_i``. Items that no user
    shares with i, but that its predictors stand for, are found in this way, too. With more than
    100,000 items there is one round.

    Returns:
        (items, items); entry (j, i) is the weight of predictor j for item i.
    """
    width = max(1, min(predictors, train.items - 1))
    solve = _native if dispatch.enabled() else _plain
    return _by_predictor(list(solve(train, l2, width)), train.items)


def rounds(items: int) -> int:
    """Rounds in which the predictors of an item are chosen.

    The second one reads the rows of all predictors again, which are long in a large catalogue.
    """
    return 2 if items <= _MANY_ITEMS else 1


Part = tuple[Tensor, Tensor, Tensor, Tensor]  # items, number of their predictors, ids and weights


def _by_predictor(parts: list[Part], items: int) -> SparseRows:
    """Transpose from predictors of each item to items that each predicts; empties the list.

    Part by part, so that it takes no more than the result and what is left of the parts.
    """
    counts = torch.zeros(items, dtype=torch.int64)
    for _, _, ids, _ in parts:
        counts += torch.bincount(ids, minlength=items)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    found = SparseRows(
        offsets,
        torch.empty(int(offsets[-1]), dtype=torch.int32),
        torch.empty(int(offsets[-1])),
    )
    vacant = offsets[:-1].clone()
    parts.reverse()
    while parts:
        targets, sizes, ids, weights = parts.pop()
        ids, order = ids.sort(stable=True)
        chosen, many = ids.unique_consecutive(return_counts=True)
        start = (vacant[chosen] - many.cumsum(0) + many).repeat_interleave(many)
        place = torch.arange(len(ids)) + start
        found.ids[place] = targets.int().repeat_interleave(sizes)[order]
        found.weights[place] = weights[order]
        vacant[chosen] += many
    return found


def _native(train: Interactions, l2: float, width: int) -> Iterator[Part]:
    """Yield the parts of the items, the most popular first, computed by the kernels."""
    counts = train.counts()
    order = counts.argsort(descending=True, stable=True)
    number = torch.empty_like(order)
    number[order] = torch.arange(len(order))
    log = (train.offsets, number[train.ids], *_by_item(train, order))
    start, steps = _shared_users(log)
    kernel = dispatch.kernel(f"SparseRidge_{_SUFFIX[steps.dtype]}")
    solver = kernel(
        start, steps, counts[order].float(), *log[2:], train.users, l2, width, rounds(train.items)
    )
    parts = _parts(train.items)
    with phase("fitting regressions", total=len(parts)) as progress:
        for first, last in progress.each(parts):
            ids = torch.empty(last - first, width, dtype=torch.int32)
            weights, sizes = torch.empty(ids.shape), torch.empty(last - first, dtype=torch.int64)
            solver.solve(first, last, ids, weights, sizes, dispatch.threads())
            used = torch.arange(width) < sizes.unsqueeze(1)
            yield order[first:last], sizes, order[ids[used]].int(), weights[used]


def _parts(items: int) -> list[tuple[int, int]]:
    """Ranges of items of about the same size."""
    size = max(1, -(-items // _PARTS))
    return [(first, min(first + size, items)) for first in range(0, items, size)]


def _shared_users(log: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Rows of shared users as the kernels read them: offsets, and (gap, count) of each pair.

    Gaps and counts have 8 or 16 bits, whichever takes less memory; larger ones are several pairs.

    Args:
        log: offsets of the users, items of each; offsets of the items, users of each.
    """
    items = len(log[2]) - 1
    size = {bits: torch.zeros(items + 1, dtype=torch.int64) for bits in _SUFFIX}
    parts = _parts(items)
    with phase("counting shared users", total=2 * len(parts)) as progress:
        count = dispatch.kernel("count_shared_users")
        for part in parts:
            count(*log, *part, *size.values(), dispatch.threads())
            progress.advance(progress.done + 1)
        bits = min(_SUFFIX, key=lambda bits: int(size[bits].sum()) * bits.itemsize)
        start = size[bits].cumsum(0)
        steps = torch.empty(int(start[-1]), 2, dtype=bits)
        write = dispatch.kernel(f"shared_users_{_SUFFIX[bits]}")
        for part in parts:
            write(*log, *part, start, steps, dispatch.threads())
            progress.advance(progress.done + 1)
    return start, steps


def _by_item(train: Interactions, order: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets of the items in this order, and the users of each."""
    from scipy.sparse import csr_array

    ones = np.ones(train.pairs, dtype=np.int8)
    shape = (train.users, train.items)
    matrix = csr_array((ones, train.ids.numpy(), train.offsets.numpy()), shape=shape).tocsc()
    offsets = torch.from_numpy(matrix.indptr).long()
    users, starts = Jagged(torch.from_numpy(matrix.indices).int(), offsets).rows(order)
    return starts, users


def _plain(train: Interactions, l2: float, width: int) -> Iterator[Part]:
    """Yield the parts of the items one by one, computed with numpy and scipy."""
    matrix = train.to_csr().astype(np.float64)
    gram = (matrix.T @ matrix).tocsr()
    diagonal = gram.diagonal() + l2
    gram.setdiag(0)
    gram.eliminate_zeros()
    with phase("fitting regressions", total=train.items) as progress:
        for item in progress.each(range(train.items)):
            ids, weights = _regression(gram, diagonal, item, width)
            order = ids.argsort()
            yield (
                torch.tensor([item]),
                torch.tensor([len(ids)]),
                torch.from_numpy(ids[order].astype(np.int32)),
                torch.from_numpy(weights[order].astype(np.float32)),
            )


def _regression(gram: Any, diagonal: Any, item: int, width: int) -> tuple[Any, Any]:
    """Predictors of one item and their weights."""
    target = gram[[item]].toarray().ravel()
    chosen, weights = np.zeros(0, dtype=np.int64), np.zeros(0)
    goal, most = 0, rounds(len(diagonal))
    while True:
        goal = min(width, goal + -(-width // most))
        left = target - gram[chosen].T @ weights
        left[chosen] = left[item] = 0
        order = np.argsort(-(left**2) / diagonal, kind="stable")
        new = order[: goal - len(chosen)]
        new = new[left[new] != 0]
        if len(new) == 0:
            return chosen, weights
        chosen = np.concatenate([chosen, new])
        system = gram[chosen][:, chosen].toarray() + np.diag(diagonal[chosen])
        weights = np.linalg.solve(system, target[chosen])
        if len(chosen) >= width or most == 1:
            return chosen, weights
