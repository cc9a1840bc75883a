"""Bags of vectors that have been looked up."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Mode", "bag"]

Mode = Literal["sum", "mean", "max"]


def bag(
    vectors: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    pad: Tensor | None,
    *,
    mode: Mode,
    include_last_offset: bool,
) -> Tensor:
    """Vectors (n, d) with offsets, or (bags, n, d), to (bags, d): a table whose rows are used once.

    Those in `pad` count as not there. Otherwise as `F.embedding_bag`.
    """
    shape = vectors.shape[:-1]
    place = torch.arange(shape.numel(), device=vectors.device).view(shape)
    table, last = vectors.flatten(0, -2), None
    if pad is not None:
        last = shape.numel()
        place, table = torch.where(pad, last, place), F.pad(table, (0, 0, 0, 1))
    return F.embedding_bag(
        place, table, None if offsets is None else offsets.to(torch.int64), mode=mode,
        per_sample_weights=weights, include_last_offset=include_last_offset, padding_idx=last,
    )  # fmt: skip
