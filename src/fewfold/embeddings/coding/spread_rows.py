"""Rows that are far from each other, to start from."""

import torch
from torch import Tensor

__all__ = ["spread_rows"]


def spread_rows(
    rows: Tensor,
    count: int,
    generator: torch.Generator | None = None,
    *,
    given: Tensor | None = None,
) -> Tensor:
    """Numbers of `count` distinct rows, drawn far apart: the seeds of k-means++.

    The first is drawn uniformly, each next one with a probability proportional to its squared
    distance from the nearest drawn before. Rows that repeat come last, in their order.

    Args:
        rows: (n, d).
        count: how many, at most n.
        generator: for the draws.
        given: numbers of rows that are taken already; the result does not repeat them.

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
    for draw in torch.rand(count, generator=generator, dtype=torch.float64).tolist():
        if not taken and not chosen:
            at = int(draw * len(rows))
        elif (total := float(far.sum())) > 0:
            at = int(torch.searchsorted(far.cumsum(0), draw * total, right=True))
            at = min(at, int(far.nonzero()[-1]))  # sums round
        else:  # only copies are left
            before = {*taken, *chosen}
            at = next(row for row in range(len(rows)) if row not in before)
        chosen.append(at)
        _nearer(far, rows, at)
    return torch.tensor(chosen, dtype=torch.int64, device=rows.device)


def _nearer(far: Tensor, rows: Tensor, row: int) -> None:
    """Squared distances to the nearest chosen row, now that this one is chosen too."""
    apart = (rows - rows[row]).square_().sum(1)
    torch.minimum(far, apart.double(), out=far)
    far[row] = 0.0  # also where a difference rounds to something
