"""Seeding of k-means++: rows that are far from each other."""

import torch
from torch import Tensor

from fewfold._random import rand

__all__ = ["spread_rows"]


def spread_rows(
    rows: Tensor,
    count: int,
    generator: torch.Generator | None = None,
    *,
    given: Tensor | None = None,
) -> Tensor:
    """Return the indices of `count` distinct rows, sampled as the seeds of k-means++.

    The first is sampled uniformly, each next one with probability proportional to its squared
    distance from the nearest selected row. Duplicate rows come last, in their order.

    Args:
        rows: (n, d).
        count: number of rows, at most n.
        generator: for the draws.
        given: indices of rows that are already selected; the result excludes them.

    Returns:
        (count,) int64.

    Example:
        >>> rows = torch.tensor([[0.0], [0.0], [9.0], [9.0]])
        >>> spread_rows(rows, 2, torch.Generator().manual_seed(0)) // 2
        tensor([1, 0])

    Reference: Arthur and Vassilvitskii, k-means++ (2007).
    """
    taken = [] if given is None else given.tolist()
    far = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.device)
    for row in taken:
        _nearer(far, rows, row)
    chosen: list[int] = []
    for draw in rand((count,), rows.device, generator=generator, dtype=torch.float64).tolist():
        if not taken and not chosen:
            at = int(draw * len(rows))
        elif (total := float(far.sum())) > 0:
            at = int(torch.searchsorted(far.cumsum(0), draw * total, right=True))
            at = min(at, int(far.nonzero()[-1]))  # rounding of the sum
        else:  # only duplicates are left
            before = {*taken, *chosen}
            at = next(row for row in range(len(rows)) if row not in before)
        chosen.append(at)
        _nearer(far, rows, at)
    return torch.tensor(chosen, dtype=torch.int64, device=rows.device)


def _nearer(far: Tensor, rows: Tensor, row: int) -> None:
    """Update the squared distances to the nearest selected row with one more row."""
    distance = (rows - rows[row]).square_().sum(1)
    torch.minimum(far, distance.double(), out=far)
    far[row] = 0.0  # exactly zero, whatever the rounding
