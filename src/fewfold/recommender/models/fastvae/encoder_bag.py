"""Sums of the table rows of each user's items, with sparse gradients; dropout of items."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fewfold._check import jagged
from fewfold._native import dispatch
from fewfold.recommender.interactions import Jagged
from fewfold.sampling.proposal import fresh_seed

__all__ = ["bags", "drop_items"]


def bags(table: Tensor, ids: Jagged, by: Tensor, *, sparse: bool = True) -> Tensor:
    """Return the sum of the table rows of each list of ids, times a factor per list: (rows, d)."""
    if (
        sparse and dispatch.ready(table, by) and table.is_contiguous() and table.dtype == by.dtype
        and ids.values.is_cpu
    ):  # fmt: skip
        values, offsets = jagged(*ids, rows=len(by))
        total: Tensor = _Bags.apply(table, values, offsets, by.contiguous())
        return total
    total = F.embedding_bag(
        ids.values, table, ids.offsets, mode="sum", include_last_offset=True, sparse=sparse
    )
    return total * by.unsqueeze(1)


class _Bags(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, offsets: Tensor, by: Tensor) -> Tensor:
        size, d = table.shape
        out = table.new_empty(len(by), d)
        dispatch.kernel("bags", table.dtype)(
            table, size, d, ids, offsets, len(by), by, out, dispatch.threads()
        )
        ctx.save_for_backward(ids, offsets, by)
        ctx.shape = table.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ids, offsets, by = ctx.saved_tensors
        grad = grad.contiguous()
        values = dispatch.table(len(ids), ctx.shape[1], dtype=grad.dtype)
        dispatch.kernel("unbags", grad.dtype)(
            grad, ctx.shape[1], offsets, len(by), by, values, dispatch.threads()
        )
        ids = ids.unsqueeze(0)
        sparse = torch.sparse_coo_tensor(ids, values, ctx.shape, check_invariants=False)
        return sparse, None, None, None


def drop_items(ids: Jagged, share: float, generator: torch.Generator | None) -> Jagged:
    """Drop each entry of the lists with probability `share`."""
    values, offsets = ids.values, ids.offsets
    if share == 0:
        return ids
    if not (dispatch.ready() and values.is_cpu):
        mask = torch.rand(len(values), generator=generator) >= share
        before = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.cumsum(0)])
        return Jagged(values[mask], before[offsets])
    values, offsets = jagged(values, offsets)
    out, out_offsets = torch.empty(len(values) + 1, dtype=torch.int64), torch.empty_like(offsets)
    count = dispatch.kernel("thin")(
        values, offsets, len(offsets) - 1, 1 - share, fresh_seed(generator), out, out_offsets
    )
    return Jagged(out[:count], out_offsets)
