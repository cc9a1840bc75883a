"""Draws from an inverted multi-index: a cell by its score, then an item of the cell.

For B queries, n draws each, k cells of c codebooks: B k (c + 6) operations and B k 8 bytes for the
cumulative weights of the cells, written once and searched in the L2 cache in log2(k) steps per
draw; a draw reads about 40 bytes at random and writes 12. The weights are summed in float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["draw_cells"]

BLOCK = 256  # cells, or draws, that are processed at once


@triton.jit
def _cell_scores(score_ptr, code_ptr, cell, cells, BOOKS: tl.constexpr):
    """Return the scores of cells of one query."""
    total = tl.zeros(cell.shape, tl.float32)
    for book in range(BOOKS):
        word = tl.load(code_ptr + book * cells + cell, mask=cell < cells, other=0)
        total += tl.load(score_ptr + word, mask=cell < cells, other=0.0)
    return total


@triton.jit
def _first_above(edge_ptr, low, high, x):
    """Return the first place in [low, high) whose edge is above x, or else high."""
    while tl.max((high - low).to(tl.int64), 0) > 0:
        open_ = low < high
        mid = (low + high) // 2
        above = tl.load(edge_ptr + mid, mask=open_, other=0.0) > x
        high = tl.where(open_ & above, mid, high)
        low = tl.where(open_ & (above == 0), mid + 1, low)
    return low


@triton.jit
def _draw(
    score_ptr, code_ptr, mass_ptr, start_ptr, item_ptr, edge_ptr, share_ptr, chance_ptr, sum_ptr,
    id_ptr, log_q_ptr, log_z_ptr, width, cells, n, rows, BOOKS: tl.constexpr,
    WEIGHTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    score_ptr += row * width
    sum_ptr += row * cells
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, cells, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        logit = _cell_scores(score_ptr, code_ptr, cell, cells, BOOKS)
        logit += tl.load(mass_ptr + cell, mask=cell < cells, other=-float("inf"))
        top = tl.maximum(top, tl.where(logit == logit, logit, -float("inf")))
    high = tl.max(top, 0).to(tl.float64)
    finite = tl.abs(high) < float("inf")
    high = tl.where(finite, high, 0.0)
    before = tl.zeros((), tl.float64)
    for start in range(0, cells, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        logit = _cell_scores(score_ptr, code_ptr, cell, cells, BOOKS).to(tl.float64)
        logit += tl.load(mass_ptr + cell, mask=cell < cells, other=-float("inf"))
        # Scores of NaN or +inf give a normaliser that is not finite, which the caller checks.
        weight = tl.exp(tl.where(finite, logit - high, float("nan")))
        weight = tl.where(cell < cells, weight, 0.0)
        tl.store(sum_ptr + cell, before + tl.cumsum(weight, 0), mask=cell < cells)
        before += tl.sum(weight, 0)
    log_z = tl.log(before) + high
    tl.store(log_z_ptr + row, log_z)
    tl.debug_barrier()
    # The last sum and `before` are added up in different orders.
    total = tl.load(sum_ptr + cells - 1)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < n
        chance = tl.load(chance_ptr + row * n + i, mask=inside, other=0.0)
        low = tl.zeros((BLOCK,), tl.int32)
        last = tl.zeros((BLOCK,), tl.int32) + (cells - 1)
        cell = _first_above(sum_ptr, low, last, chance * total)
        first = tl.load(start_ptr + cell, mask=inside, other=0)
        end = tl.load(start_ptr + cell + 1, mask=inside, other=1)
        again = tl.load(chance_ptr + (rows + row) * n + i, mask=inside, other=0.0)
        log_q = _cell_scores(score_ptr, code_ptr, cell, cells, BOOKS).to(tl.float64) - log_z
        if WEIGHTED:
            from_ = tl.load(edge_ptr + first, mask=inside, other=0.0)
            to = tl.load(edge_ptr + end, mask=inside, other=1.0)
            place = _first_above(edge_ptr, first + 1, end, from_ + again * (to - from_)) - 1
            log_q += tl.load(share_ptr + place, mask=inside, other=0.0)
        else:
            place = tl.minimum(first + (again * (end - first)).to(tl.int64), end - 1)
        item = tl.load(item_ptr + place, mask=inside, other=0).to(tl.int64)
        tl.store(id_ptr + row * n + i, item, mask=inside)
        tl.store(log_q_ptr + row * n + i, log_q.to(tl.float32), mask=inside)


def draw_cells(
    scores: Tensor,
    code: Tensor,
    log_mass: Tensor,
    start: Tensor,
    item: Tensor,
    edge: Tensor | None,
    by_place: Tensor | None,
    chance: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (B, n), log q (B, n) and the log normaliser (B,) for uniform numbers (2, B, n).

    The other arguments are the scores of codewords (B, words), float32, and the fields of `Cells`.
    """
    rows, n = chance.shape[1:]
    ids = torch.empty((rows, n), dtype=torch.int64, device=scores.device)
    log_q = torch.empty((rows, n), dtype=torch.float32, device=scores.device)
    log_z = torch.empty(rows, dtype=torch.float64, device=scores.device)
    books, cells = code.shape
    sums = torch.empty(rows, cells, dtype=torch.float64, device=scores.device)
    weighted = edge is not None and by_place is not None
    if rows:
        _draw[(rows,)](
            scores, code, log_mass, start, item, edge if weighted else log_z,
            by_place if weighted else log_z, chance.contiguous(), sums, ids, log_q, log_z,
            scores.shape[1], cells, n, rows, BOOKS=books, WEIGHTED=weighted, BLOCK=BLOCK,
        )  # fmt: skip
    return ids, log_q, log_z
