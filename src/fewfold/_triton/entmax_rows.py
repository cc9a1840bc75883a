"""Sparsemax and entmax of rows, alpha > 1.

Bytes for rows of n entries of b bytes, k of them candidates of the support:

    n <= SHORT   2 n b              the row is read once, held in registers, and written once
    n > SHORT    2 n b + about 24 k the row is read once while zeros are written; candidates follow

Rows with more candidates than their buffer holds (a quarter of n at alpha near 1, or adversarial
rows) are read again in every step of the solution, about 8 times, mostly from the L2 cache.
Operations: a comparison and a maximum per entry, and about 10 steps of 4 operations per candidate
(per entry where n <= SHORT), or of an exponential and a logarithm where alpha is not 1.5 or 2.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewfold._triton.curves import LINEAR, POWER, QUADRATIC, STEEP, solve_tile
from fewfold._triton.steep_streams import solve_steep
from fewfold._triton.streams import compact, solve_stream, take_block

__all__ = ["entmax_rows", "kind_of", "per_row_alpha"]

SHORT = 8192  # longest row that is held in registers
BLOCK = 1024  # entries of a longer row that are read at once
_TILE = 1024  # entries per program, for rows that are shorter


@triton.jit
def _short_rows(
    x_ptr, p_ptr, still_ptr, alpha_ptr, alpha_step, rows, n, KIND: tl.constexpr, T: tl.constexpr,
    R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, B)[None, :]
    inside = (row < rows) & (column < n)
    c = tl.load(alpha_ptr + row * alpha_step, mask=row < rows, other=1.5).to(T) - 1
    v = tl.load(x_ptr + row * n + column, mask=inside, other=-float("inf")).to(T)
    is_nan = tl.max((v != v).to(tl.int32), 1, keep_dims=True) > 0
    v = tl.where(v == v, v, -float("inf"))
    top = tl.max(v, 1, keep_dims=True)
    ordinary = (tl.abs(top) < float("inf")) & (is_nan == 0)
    # A row without a finite maximum is replaced by one that any solver can handle.
    centred = tl.where(ordinary, v - tl.where(ordinary, top, 0.0), -float("inf"))
    x = tl.where(ordinary, centred * c, tl.where(column == 0, 0.0, -float("inf")).to(T))
    probs = solve_tile(x, c, 1 / c, KIND, T)
    infinite = tl.where(v == float("inf"), 1.0, 0.0).to(T)
    share = infinite / tl.maximum(tl.sum(infinite, 1, keep_dims=True), 1.0)
    probs = tl.where(ordinary, probs, tl.where(is_nan, float("nan"), share))
    tl.store(p_ptr + row * n + column, probs.to(p_ptr.dtype.element_ty), mask=inside)
    tl.store(still_ptr + row, ((top == float("inf")) & (is_nan == 0)).to(tl.int8), mask=row < rows)


@triton.jit
def _long_rows(
    x_ptr, p_ptr, still_ptr, alpha_ptr, alpha_step, value_ptr, column_ptr, count_ptr, n, capacity,
    KIND: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * n
    p_ptr += row * n
    value_ptr += row * capacity
    column_ptr += row * capacity
    c = tl.load(alpha_ptr + row * alpha_step).to(T) - 1
    e = 1 / c
    # The support shrinks as alpha grows: the bound for alpha = 2 holds for larger alpha.
    SIEVE: tl.constexpr = LINEAR if KIND == STEEP else KIND
    sieve_c = tl.minimum(c, 1.0)
    sieve_e = 1 / sieve_c
    top = tl.full((), -float("inf"), T)
    bound = tl.full((), -float("inf"), T)
    count = 0
    crowded = 0
    any_nan = 0
    due = BLOCK
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + i, mask=i < n, other=-float("inf")).to(T)
        tl.store(p_ptr + i, tl.zeros((BLOCK,), p_ptr.dtype.element_ty), mask=i < n)
        any_nan = tl.maximum(any_nan, tl.max((v != v).to(tl.int32), 0))
        v = tl.where(v == v, v, -float("inf"))
        count, top, bound, crowded = take_block(
            v, start, value_ptr, column_ptr, count, top, sieve_c, sieve_e, bound, crowded,
            capacity, SIEVE, T, BLOCK,
        )  # fmt: skip
        if start + BLOCK == due:
            due = 2 * due
            if (count > 0) & (crowded == 0) & (top < float("inf")):
                count, bound = compact(
                    value_ptr, column_ptr, count, top, sieve_c, sieve_e, bound, SIEVE, T, BLOCK
                )
    tl.debug_barrier()
    ordinary = (tl.abs(top) < float("inf")) & (any_nan == 0)
    if ordinary:
        if crowded == 0:
            if KIND == STEEP:
                solve_steep(value_ptr, column_ptr, count, top, c, e, p_ptr, True, BLOCK)
            else:
                solve_stream(value_ptr, column_ptr, count, top, c, e, p_ptr, True, KIND, T, BLOCK)
        else:
            if KIND == STEEP:
                solve_steep(x_ptr, column_ptr, n, top, c, e, p_ptr, False, BLOCK)
            else:
                solve_stream(x_ptr, column_ptr, n, top, c, e, p_ptr, False, KIND, T, BLOCK)
    else:
        _special_row(x_ptr, p_ptr, n, any_nan, BLOCK)
    tl.store(count_ptr + row, tl.where(ordinary & (crowded == 0), count, -1))
    tl.store(still_ptr + row, ((top == float("inf")) & (any_nan == 0)).to(tl.int8))


@triton.jit
def _special_row(x_ptr, p_ptr, n, any_nan, BLOCK: tl.constexpr):
    """Write a row with NaN (all NaN), with +inf (uniform over these), or of -inf (zeros)."""
    number = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + i, mask=i < n, other=0.0)
        number += tl.where(v == float("inf"), 1.0, 0.0)
    share = 1 / tl.maximum(tl.sum(number, 0), 1.0)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x_ptr + i, mask=i < n, other=0.0)
        probs = tl.where(v == float("inf"), share, 0.0)
        probs = tl.where(any_nan > 0, float("nan"), probs)
        tl.store(p_ptr + i, probs.to(p_ptr.dtype.element_ty), mask=i < n)


def kind_of(alpha: float | Tensor, dtype: torch.dtype) -> tuple[tl.constexpr, tl.dtype]:
    """Return the kind of the curve, and the dtype in which it is solved."""
    double = dtype == torch.float64
    if isinstance(alpha, Tensor):
        return POWER, tl.float64 if double else tl.float32
    if alpha > 2:
        return STEEP, tl.float64
    kind = {2.0: LINEAR, 1.5: QUADRATIC}.get(alpha, POWER)
    return kind, tl.float64 if double or alpha < 1.1 else tl.float32


def per_row_alpha(alpha: float | Tensor, rows: Tensor) -> tuple[Tensor, int]:
    """Return alpha as float64 in memory, and the distance of the alphas of two rows."""
    if not isinstance(alpha, Tensor):
        if rows.is_cuda and torch.cuda.is_current_stream_capturing():
            return _constant.__wrapped__(alpha, rows.device), 0  # it is written in a replay only
        return _constant(alpha, rows.device), 0
    if alpha.numel() == 1:
        return alpha.detach().double().reshape(1), 0
    return alpha.detach().expand(*rows.shape[:-1], 1).double().reshape(-1).contiguous(), 1


@functools.lru_cache(maxsize=64)
def _constant(alpha: float, device: torch.device) -> Tensor:
    """Return a number in memory; kept, because a launch to write it would take microseconds."""
    return torch.full((1,), alpha, dtype=torch.float64, device=device)


def entmax_rows(
    rows: Tensor, alpha: float | Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the probabilities of contiguous rows, and what the backward pass needs.

    Returns:
        the probabilities; int8 per row, 1 for scores of +inf, whose gradient is zero; and of long
        rows the columns of candidates (rows, capacity) and their number, -1 for more than that.
    """
    n = rows.shape[-1]
    number = rows.numel() // n
    probs = torch.empty_like(rows)
    still = torch.empty(number, dtype=torch.int8, device=rows.device)
    kind, wide = kind_of(alpha, rows.dtype)
    each, step = per_row_alpha(alpha, rows)
    if n <= SHORT:
        block = triton.next_power_of_2(n)
        tile = max(1, _TILE // block)
        _short_rows[(triton.cdiv(number, tile),)](
            rows, probs, still, each, step, number, n, KIND=kind, T=wide, R=tile, B=block,
            num_warps=min(max(block * tile // 512, 1), 16),
        )  # fmt: skip
        return probs, still, None, None
    capacity = min(max(n // 8, 2 * BLOCK), 8 * BLOCK)
    score = torch.float64 if wide == tl.float64 else torch.float32
    values = torch.empty(number, capacity, dtype=score, device=rows.device)
    columns = torch.empty(number, capacity, dtype=torch.int32, device=rows.device)
    count = torch.empty(number, dtype=torch.int32, device=rows.device)
    _long_rows[(number,)](
        rows, probs, still, each, step, values, columns, count, n, capacity, KIND=kind,
        T=wide, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return probs, still, columns, count
