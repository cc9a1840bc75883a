"""Candidates of the support for rows of scores that arrive in chunks of columns.

Used by `linear_entmax_loss`, whose scores are a matrix product in chunks small enough for the L2
cache. With B rows, d features, n classes and weights of b bytes, found in c chunks:

    flops   2 B n d for the product; a comparison per score
    bytes   n d b + c B d b for the product; B n 8 for writing and reading the scores, in L2

so that a large batch is bound by the product, and the scores are never in memory as a whole.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewfold._triton.entmax_rows import kind_of
from fewfold._triton.streams import compact, take_block

__all__ = ["CandidateStreams", "candidate_streams"]

BLOCK = 1024


@triton.jit
def _push(
    scores_ptr, stride, size, first, value_ptr, column_ptr, count_ptr, top_ptr, bound_ptr,
    crowded_ptr, nan_ptr, alpha_ptr, capacity, KIND: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    scores_ptr += row * stride
    value_ptr += row * capacity
    column_ptr += row * capacity
    c = tl.load(alpha_ptr).to(T) - 1
    e = 1 / c
    count = tl.load(count_ptr + row)
    crowded = tl.load(crowded_ptr + row)
    top = tl.load(top_ptr + row).to(T)
    bound = tl.load(bound_ptr + row).to(T)
    bad = tl.load(nan_ptr + row)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(scores_ptr + i, mask=i < size, other=-float("inf")).to(T)
        bad = tl.maximum(bad, tl.max(tl.where(v != v, first + i, -1), 0))
        v = tl.where(v == v, v, -float("inf"))
        count, top, bound, crowded = take_block(
            v, first + start, value_ptr, column_ptr, count, top, c, e, bound, crowded, capacity,
            KIND, T, BLOCK,
        )  # fmt: skip
        # The bound of the first block discards most of the others.
        if (start == 0) & (first == 0) & (crowded == 0) & (count > 0) & (top < float("inf")):
            count, bound = compact(value_ptr, column_ptr, count, top, c, e, bound, KIND, T, BLOCK)
    if (crowded == 0) & (count > 0) & (top < float("inf")):
        count, bound = compact(value_ptr, column_ptr, count, top, c, e, bound, KIND, T, BLOCK)
    tl.store(count_ptr + row, count)
    tl.store(crowded_ptr + row, crowded)
    tl.store(top_ptr + row, top)
    tl.store(bound_ptr + row, bound)
    tl.store(nan_ptr + row, bad)


class CandidateStreams:
    """Candidates found so far, at most `most` per row."""

    def __init__(self, like: Tensor, alpha: float, most: int) -> None:
        rows, device = len(like), like.device
        dtype = torch.promote_types(like.dtype, torch.float32)
        # The support shrinks as alpha grows: the bound for alpha = 2 holds for larger alpha.
        alpha = min(alpha, 2.0)
        self._kind, self._wide = kind_of(alpha, dtype)
        self._alpha = torch.full((1,), alpha, dtype=torch.float64, device=device)
        self._values = torch.empty(rows, most, dtype=dtype, device=device)
        self._columns = torch.empty(rows, most, dtype=torch.int32, device=device)
        self._count = torch.zeros(rows, dtype=torch.int32, device=device)
        self._crowded = torch.zeros(rows, dtype=torch.int32, device=device)
        self._top = torch.full((rows,), -math.inf, dtype=dtype, device=device)
        self._bound = torch.full((rows,), -math.inf, dtype=dtype, device=device)
        self._nan = torch.full((rows,), -1, dtype=torch.int32, device=device)

    def push(self, scores: Tensor, start: int) -> None:
        """Add the scores (rows, m) of the columns `start` to `start + m`."""
        rows, size = scores.shape
        _push[(rows,)](
            scores, scores.stride(0), size, start, self._values, self._columns, self._count,
            self._top, self._bound, self._crowded, self._nan, self._alpha, self._values.shape[1],
            KIND=self._kind, T=self._wide, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return column and score of all candidates, and the count per row, -1 for too many.

        A row with NaN has a candidate with this score, so that its loss is NaN.
        """
        count = self._count.masked_fill(self._crowded > 0, -1)
        bad = self._nan >= 0
        self._values[:, 0] = torch.where(bad, math.nan, self._values[:, 0])
        self._columns[:, 0] = torch.where(bad, self._nan, self._columns[:, 0])
        count = torch.where(bad, count.clamp(min=1), count)
        place = torch.arange(self._values.shape[1], device=count.device)
        stored = place < count.unsqueeze(1)
        return self._columns[stored].long(), self._values[stored], count.long()


def candidate_streams(like: Tensor, alpha: float, most: int) -> CandidateStreams:
    """Return empty streams, one per row of `like`; alpha > 1."""
    return CandidateStreams(like, alpha, most)
