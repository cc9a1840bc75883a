"""Exchange the weakest anchor of a row for the one with the steepest descent of the loss."""

import torch
from torch import Tensor

from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["regrow"]

_BLOCK = 8192  # rows processed at once, (rows, K) numbers each


@torch.no_grad()
def regrow(
    table: AnchorEmbedding,
    ids: Tensor,
    gradients: Tensor,
    *,
    below: float,
    l1: float = 0.0,
    among: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Exchange entries of a table of fixed width, in place.

    The descent of the loss along anchor k for a row with gradient g is -g . A_k (its absolute value
    if signed). The anchor with the steepest descent replaces the smallest entry of the row if that
    entry is at most `below` times the largest one, its own descent is smaller, and the descent of
    the new anchor exceeds `l1`.

    Args:
        table: of fixed width.
        ids: (n,) rows, repeats allowed.
        gradients: (n, d) gradients of their vectors.
        below: threshold for the smallest entry, relative to the largest.
        l1: the penalty.
        among: bool mask of the transform's shape, the places a `Narrowing` left; None for all.

    Returns:
        Row (m,) and column (m,) of the exchanged entries, which are set to 0.
    """
    if table.slots is None:
        raise ValueError("regrow is for tables of fixed width; write width=8")
    rows, place = ids.unique(return_inverse=True)
    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, place, gradients)
    if table.padding_idx is not None:
        real = rows != table.padding_idx
        rows, total = rows[real], total[real]
    exchanged = [
        _exchange(table, table.slots, some_rows, gradient, below, l1, among)
        for some_rows, gradient in zip(rows.split(_BLOCK), total.split(_BLOCK), strict=True)
    ]
    if not exchanged:
        return rows, rows
    row, at = zip(*exchanged, strict=True)
    return torch.cat(row), torch.cat(at)


def _exchange(
    table: AnchorEmbedding,
    slots: Tensor,
    rows: Tensor,
    gradient: Tensor,
    below: float,
    l1: float,
    among: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`regrow` for one block of distinct rows."""
    descent = -(gradient @ table.anchors.t())
    if table.signed:
        descent = descent.abs()
    own = slots[rows].to(torch.int64)
    own_descent = descent.gather(1, own)
    best, anchor = descent.scatter(1, own, -torch.inf).max(1)
    sizes = table.transform[rows].abs()
    candidates = sizes if among is None else sizes.masked_fill(~among[rows], torch.inf)
    least, place = candidates.min(1)
    weak = least <= below * sizes.amax(1)
    better = (best > l1) & (best > own_descent.gather(1, place.unsqueeze(1)).squeeze(1))
    swap = weak & better
    row, at = rows[swap], place[swap]
    slots[row, at] = anchor[swap].to(slots.dtype)
    table.transform[row, at] = 0
    return row, at
