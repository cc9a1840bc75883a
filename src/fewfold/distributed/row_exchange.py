"""Rows of a table of which each process has a part, fetched from their owners.

Row i of a sharded table is row i // world of the part of rank i % world.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold.distributed.group import Group

__all__ = ["distinct_rows", "look_up"]


def look_up(group: Group, table: Tensor, ids: Tensor, name: str = "rows") -> Tensor:
    """Return the rows of a sharded table with these ids, (n, d); a leaf gets a sparse gradient.

    Args:
        group: of the processes that have its parts.
        table: (owned rows, d) the part of this process.
        ids: (n,) of any rows.
        name: of the traffic.
    """
    if group.world == 1:
        return F.embedding(ids, table, sparse=table.is_leaf)
    rows, place = distinct_rows(group, table, ids, name)
    return rows.index_select(0, place)


def distinct_rows(
    group: Group, table: Tensor, ids: Tensor, name: str = "rows"
) -> tuple[Tensor, Tensor]:
    """Return the different rows of a sharded table among these ids, and the place of each id.

    A row is sent once to each process that needs it. Its gradient goes the other way; the owner
    has them in the order of the ranks, as the entries of a sparse tensor.

    Returns:
        rows: (m, d).
        place: (n,) with `rows[place]` the rows of `ids`.
    """
    distinct, place = ids.unique(return_inverse=True)
    order = _by_key(distinct % group.world, group.world)
    distinct = distinct[order]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    send = torch.bincount(distinct % group.world, minlength=group.world).tolist()
    receive = group.exchange(
        torch.tensor(send), [1] * group.world, [1] * group.world, f"{name}, counts"
    ).tolist()
    asked = group.exchange(_small(distinct // group.world), send, receive, f"{name}, ids").long()
    rows: Tensor = _Fetch.apply(table, asked, group, (send, receive), name)
    return rows, back[place]


class _Fetch(torch.autograd.Function):
    """Rows that were asked for, exchanged; the gradient of the table is sparse."""

    @staticmethod
    def forward(
        ctx: Any, table: Tensor, asked: Tensor, group: Group, counts: Any, name: str
    ) -> Tensor:
        send, receive = counts
        ctx.group, ctx.counts, ctx.name, ctx.shape = group, counts, name, table.shape
        ctx.save_for_backward(asked)
        return group.exchange(table.index_select(0, asked), receive, send, name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (asked,) = ctx.saved_tensors
        if grad.layout is not torch.strided:  # from a kernel that reads rows of a table
            entries, shape = grad._values(), grad.shape
            grad = entries.new_zeros(shape).index_add_(0, grad._indices()[0], entries)
        values = ctx.group.exchange(grad, *ctx.counts, f"{ctx.name}, gradients")
        found = torch.sparse_coo_tensor(
            asked.unsqueeze(0), values, ctx.shape, check_invariants=False
        )
        return found, None, None, None, None


def _small(numbers: Tensor) -> Tensor:
    """Return numbers below 2^31 as 32 bits, which halves what is sent."""
    return numbers.to(torch.int32)


def _by_key(key: Tensor, size: int) -> Tensor:
    """Return the stable argsort of keys below `size`; 16 bits are sorted by radix."""
    small = key.numpy().astype(np.uint16 if size <= 2**16 else np.int64)
    return torch.from_numpy(np.argsort(small, kind="stable"))
