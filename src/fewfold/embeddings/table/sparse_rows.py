"""How a transform is laid out: its non-zeros, the integers that name anchors, a first spread."""

from typing import NamedTuple

import torch
from torch import Tensor

from fewfold._native import dispatch

__all__ = ["SparseRows", "padding", "room", "small_integer", "spread"]

_BLOCK = 1 << 16  # rows that are drawn at once


class SparseRows(NamedTuple):
    """The non-zeros of a transform, row after row."""

    offsets: Tensor
    """(rows + 1,) int64: where each row begins"""
    slots: Tensor
    """(nonzeros,) int64: anchors, ascending in a row"""
    values: Tensor
    """(nonzeros,)"""


def padding(index: int | None, rows: int) -> int | None:
    if index is None:
        return None
    if not -rows <= index < rows:
        raise ValueError(f"padding_idx must be between {-rows} and {rows - 1}, got {index}")
    return index % rows


def small_integer(anchors: int) -> torch.dtype:
    """The integers that are just large enough."""
    if anchors <= 256:
        return torch.uint8
    return torch.int16 if anchors <= 32_768 else torch.int32


def room(
    rows: int,
    width: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Room for a table, whose rows will be met in no order; what is in it has no meaning yet."""
    made = torch.empty(0, dtype=dtype, device=device)
    return (
        dispatch.table(rows, width, dtype=made.dtype)
        if made.is_cpu
        else made.new_empty(rows, width)
    )


def spread(slots: Tensor, anchors: int, generator: torch.Generator | None) -> None:
    """Fill (rows, width) with anchors, different ones in a row: one of every width-th part."""
    width = slots.shape[1]
    first = torch.arange(width) * anchors // width
    size = torch.arange(1, width + 1) * anchors // width - first
    for block in slots.split(_BLOCK):
        drawn = (torch.rand(block.shape, generator=generator) * size).long().clamp(max=size - 1)
        block.copy_(first + drawn)
