"""Inner products of queries with selected rows of a table, and their gradients.

The rows are gathered and multiplied in registers; a tensor of gathered vectors is never written.
For E entries, d numbers of b bytes, and B queries:

    scores      flops 2 E d   bytes (E + B) d b + E (8 + b), rows are read in random order
    gradients   flops 3 E d   bytes (2 E + 2 B) d b + E (8 + b), a row read and a gradient written

The bandwidth of random rows bounds it: 32 bytes are the least that memory moves at once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["picked_dots", "picked_pulls"]

BLOCK = 32  # entries that a program reads at once


@triton.jit
def _bounds(offset_ptr, query, each):
    """Return the first and one past the last entry of a query; `each` of them if that is > 0."""
    first = query * each
    last = first + each
    if each == 0:
        first = tl.load(offset_ptr + query)
        last = tl.load(offset_ptr + query + 1)
    return first, last


@triton.jit
def _dots(
    query_ptr, table_ptr, id_ptr, offset_ptr, out_ptr, each, d, E: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    first, last = _bounds(offset_ptr, query, each)
    column = tl.arange(0, D)
    q = tl.load(query_ptr + query * d + column, mask=column < d, other=0.0).to(T)
    for start in range(first, last, E):
        entry = start + tl.arange(0, E)
        row = tl.load(id_ptr + entry, mask=entry < last, other=0)
        rows = tl.load(
            table_ptr + row[:, None] * d + column[None, :],
            mask=(entry < last)[:, None] & (column < d)[None, :], other=0.0,
        ).to(T)  # fmt: skip
        scores = tl.sum(rows * q[None, :], 1)
        tl.store(out_ptr + entry, scores.to(out_ptr.dtype.element_ty), mask=entry < last)


@triton.jit
def _pulls(
    query_ptr, table_ptr, id_ptr, offset_ptr, by_ptr, pull_ptr, value_ptr, each, d,
    ADD: tl.constexpr, VALUES: tl.constexpr, E: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    first, last = _bounds(offset_ptr, query, each)
    column = tl.arange(0, D)
    q = tl.load(query_ptr + query * d + column, mask=column < d, other=0.0).to(T)
    total = tl.zeros((D,), T)
    if ADD:
        total += tl.load(pull_ptr + query * d + column, mask=column < d, other=0.0).to(T)
    for start in range(first, last, E):
        entry = start + tl.arange(0, E)
        row = tl.load(id_ptr + entry, mask=entry < last, other=0)
        by = tl.load(by_ptr + entry, mask=entry < last, other=0.0).to(T)
        inside = (entry < last)[:, None] & (column < d)[None, :]
        rows = tl.load(
            table_ptr + row[:, None] * d + column[None, :], mask=inside, other=0.0
        ).to(T)  # fmt: skip
        total += tl.sum(rows * by[:, None], 0)
        if VALUES:
            values = by[:, None] * q[None, :]
            place = entry.to(tl.int64)[:, None] * d + column[None, :]
            tl.store(value_ptr + place, values.to(value_ptr.dtype.element_ty), mask=inside)
    tl.store(pull_ptr + query * d + column, total.to(pull_ptr.dtype.element_ty), mask=column < d)


def _constants(queries: Tensor) -> dict[str, object]:
    size = triton.next_power_of_2(queries.shape[1])
    wide = tl.float64 if queries.dtype == torch.float64 else tl.float32
    return {"E": max(1, min(BLOCK, 8192 // size)), "D": size, "T": wide}


def _entries(ids: Tensor, offsets: Tensor | None) -> tuple[Tensor, int]:
    """Return the offsets, or any tensor and the number of entries of each query."""
    return (ids, ids.shape[1]) if offsets is None else (offsets, 0)


def picked_dots(queries: Tensor, table: Tensor, ids: Tensor, offsets: Tensor | None) -> Tensor:
    """Return the scores of ids (B, n), or of ids (m,) with offsets (B + 1,), all contiguous."""
    out = queries.new_empty(ids.shape)
    where, each = _entries(ids, offsets)
    if ids.numel():
        _dots[(len(queries),)](
            queries, table, ids, where, out, each, queries.shape[1], **_constants(queries)
        )
    return out


def picked_pulls(
    queries: Tensor,
    table: Tensor,
    ids: Tensor,
    offsets: Tensor | None,
    by: Tensor,
    pull: Tensor | None,
    values: Tensor | None,
) -> Tensor:
    """Return the gradient of the queries, added to `pull`; write those of the rows to `values`."""
    total = torch.zeros_like(queries) if pull is None else pull
    where, each = _entries(ids, offsets)
    if ids.numel():
        _pulls[(len(queries),)](
            queries, table, ids, where, by, total, total if values is None else values, each,
            queries.shape[1], ADD=pull is not None, VALUES=values is not None,
            **_constants(queries),
        )  # fmt: skip
    return total
