"""Rows of fixed width exchange their weakest anchor for one that their gradient asks for."""

import torch
from torch import Tensor

from fewfold.embeddings.table.embedding import AnchorEmbedding

__all__ = ["regrow"]

_BLOCK = 8192  # rows whose scores of all anchors are held at once


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
    """Exchange entries of `table` in place.

    The loss falls along anchor k of a row with gradient g by -g . A_k (its size, if signed). The
    anchor where it falls most takes the place of the smallest entry, if that is at most `below`
    times the largest, falls less steeply itself, and the new one more steeply than `l1`.

    Args:
        table: of fixed width.
        ids: (n,) rows, repeats allowed.
        gradients: (n, d) of their vectors.
        below: what counts as small.
        l1: the penalty.
        among: bool, of the transform's shape: the places that count, as a `Narrowing` left them;
            None: all.

    Returns:
        Row (m,) and place (m,) of the entries that are others now; their value is 0.
    """
    if table.slots is None:
        raise ValueError("regrow is for tables of fixed width; write width=8")
    rows, place = ids.unique(return_inverse=True)
    total = gradients.new_zeros(len(rows), gradients.shape[1]).index_add_(0, place, gradients)
    if table.padding_idx is not None:
        real = rows != table.padding_idx
        rows, total = rows[real], total[real]
    found = [
        _exchange(table, table.slots, some, their, below, l1, among)
        for some, their in zip(rows.split(_BLOCK), total.split(_BLOCK), strict=True)
    ]
    if not found:
        return rows, rows
    row, at = zip(*found, strict=True)
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
    falls = -(gradient @ table.anchors.t())
    if table.signed:
        falls = falls.abs()
    own = slots[rows].to(torch.int64)
    mine = falls.gather(1, own)
    best, anchor = falls.scatter(1, own, -torch.inf).max(1)
    sizes = table.transform[rows].abs()
    open_to = sizes if among is None else sizes.masked_fill(~among[rows], torch.inf)
    least, place = open_to.min(1)
    weak = least <= below * sizes.amax(1)
    better = (best > l1) & (best > mine.gather(1, place.unsqueeze(1)).squeeze(1))
    swap = weak & better
    row, at = rows[swap], place[swap]
    slots[row, at] = anchor[swap].to(slots.dtype)
    table.transform[row, at] = 0
    return row, at
