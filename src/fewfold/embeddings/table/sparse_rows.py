"""Non-zeros of a sparse transform, and the dtype, memory and initial values of its slots."""

from typing import NamedTuple

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold._random import rand

__all__ = ["SparseRows", "check_padding", "draw_slots", "empty_table", "small_integer"]

_BLOCK = 1 << 16  # rows drawn at once


class SparseRows(NamedTuple):
    """Non-zeros of a transform in compressed sparse row order."""

    offsets: Tensor
    """(rows + 1,) int64, where each row begins"""
    slots: Tensor
    """(nonzeros,) int64, indices of anchors, ascending within a row"""
    values: Tensor
    """(nonzeros,)"""


def check_padding(index: int | None, rows: int) -> int | None:
    """Return `padding_idx` as a non-negative row; raise ValueError if it is out of range."""
    if index is None:
        return None
    if not -rows <= index < rows:
        raise ValueError(f"padding_idx must be between {-rows} and {rows - 1}, got {index}")
    return index % rows


def small_integer(anchors: int) -> torch.dtype:
    """Return the smallest integer dtype that can index this many anchors."""
    if anchors <= 256:
        return torch.uint8
    return torch.int16 if anchors <= 32_768 else torch.int32


def empty_table(
    rows: int,
    width: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return an uninitialised table (rows, width), in large pages on a CPU for random access."""
    like = torch.empty(0, dtype=dtype, device=device)
    return (
        dispatch.table(rows, width, dtype=like.dtype)
        if like.is_cpu
        else like.new_empty(rows, width)
    )


def draw_slots(slots: Tensor, anchors: int, generator: torch.Generator | None) -> None:
    """Fill `slots` (rows, width) with random anchors, distinct within a row.

    The anchors are divided into `width` ranges; column j is drawn uniformly from range j.
    """
    width = slots.shape[1]
    device = slots.device
    first = torch.arange(width, device=device) * anchors // width
    size = torch.arange(1, width + 1, device=device) * anchors // width - first
    for block in slots.split(_BLOCK):
        drawn = (rand(block.shape, device, generator=generator) * size).long()
        block.copy_(first + drawn.clamp(max=size - 1))
