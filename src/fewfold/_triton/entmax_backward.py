"""Gradient of entmax with respect to scores and alpha.

With `s = p^(2 - alpha)` on the support and the gradient g of the probabilities, the gradient of the
scores is `s (g - <s, g> / <s, 1>)`. Bytes for rows of n entries of b bytes, k of them candidates:

    n <= SHORT   3 n b            probabilities and gradient are read, the result is written
    n > SHORT    n b + about 16 k zeros are written; the rest happens on the candidates

About 8 operations per entry or candidate, and an exponential and a logarithm where alpha is not 1.5
or 2.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewfold._triton import entmax_rows
from fewfold._triton.curves import LINEAR, QUADRATIC

__all__ = ["entmax_rows_backward", "slope_of"]


@triton.jit
def slope_of(p, alpha, KIND: tl.constexpr):
    """Return `p^(2 - alpha)` where p > 0, and 0 elsewhere."""
    on = p > 0
    if KIND == LINEAR:
        slope = tl.where(on, 1.0, 0.0).to(p.dtype)
    elif KIND == QUADRATIC:
        slope = tl.sqrt(tl.where(on, p, 0.0))
    else:
        slope = tl.where(on, tl.exp((2 - alpha) * tl.log(tl.where(on, p, 1.0))), 0.0)
    return slope


@triton.jit
def _alpha_terms(p, g):
    """Return `p log p` and its product with the gradient, 0 outside of the support."""
    on = p > 0
    log = tl.where(on, p * tl.log(tl.where(on, p, 1.0)), 0.0)
    return log, log * g


@triton.jit
def _to_alpha(direct, mean, log, moved, c):
    """Return the gradient of alpha from `<p, g>`, `<s, g> / <s, 1>` and sums of `p log p (g)`."""
    return (direct - mean) / (c * c) + (mean * log - moved) / c


@triton.jit
def _short_rows(
    p_ptr, g_ptr, out_ptr, still_ptr, alpha_ptr, alpha_step, to_alpha_ptr, rows, n,
    KIND: tl.constexpr, LEARNS: tl.constexpr, T: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)[:, None]
    column = tl.arange(0, B)[None, :]
    still = tl.load(still_ptr + row, mask=row < rows, other=1)
    inside = (row < rows) & (column < n) & (still == 0)
    alpha = tl.load(alpha_ptr + row * alpha_step, mask=row < rows, other=1.5).to(T)
    p = tl.load(p_ptr + row * n + column, mask=inside, other=0.0).to(T)
    g = tl.load(g_ptr + row * n + column, mask=inside & (p > 0), other=0.0).to(T)
    s = slope_of(p, alpha, KIND)
    size = tl.sum(s, 1, keep_dims=True)
    mean = tl.sum(s * g, 1, keep_dims=True) / tl.where(size > 0, size, 1.0)
    found = s * (g - mean)
    whole = (row < rows) & (column < n)
    tl.store(out_ptr + row * n + column, found.to(out_ptr.dtype.element_ty), mask=whole)
    if LEARNS:
        log, moved = _alpha_terms(p, g)
        to_alpha = _to_alpha(
            tl.sum(tl.where(p > 0, p * g, 0.0), 1, keep_dims=True), mean,
            tl.sum(log, 1, keep_dims=True), tl.sum(moved, 1, keep_dims=True), alpha - 1,
        )  # fmt: skip
        tl.store(to_alpha_ptr + row, to_alpha, mask=row < rows)


@triton.jit
def _long_rows(
    p_ptr, g_ptr, out_ptr, still_ptr, alpha_ptr, alpha_step, to_alpha_ptr, column_ptr, count_ptr, n,
    capacity, KIND: tl.constexpr, LEARNS: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    p_ptr += row * n
    g_ptr += row * n
    out_ptr += row * n
    column_ptr += row * capacity
    alpha = tl.load(alpha_ptr + row * alpha_step).to(T)
    count = tl.load(count_ptr + row)
    if tl.load(still_ptr + row) > 0:
        count = 0
    number = tl.where(count < 0, n, count)
    size = tl.zeros((BLOCK,), T)
    direct = tl.zeros((BLOCK,), T)
    total = tl.zeros((BLOCK,), T)
    log = tl.zeros((BLOCK,), T)
    moved = tl.zeros((BLOCK,), T)
    for start in range(0, number, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = i
        if count >= 0:
            place = tl.load(column_ptr + i, mask=i < number, other=0)
        p = tl.load(p_ptr + place, mask=i < number, other=0.0).to(T)
        g = tl.load(g_ptr + place, mask=(i < number) & (p > 0), other=0.0).to(T)
        s = slope_of(p, alpha, KIND)
        size += s
        total += s * g
        if LEARNS:
            direct += tl.where(p > 0, p * g, 0.0)
            some, more = _alpha_terms(p, g)
            log += some
            moved += more
    all_slopes = tl.sum(size, 0)
    mean = tl.sum(total, 0) / tl.where(all_slopes > 0, all_slopes, 1.0)
    if count >= 0:
        for start in range(0, n, BLOCK):
            i = start + tl.arange(0, BLOCK)
            tl.store(out_ptr + i, tl.zeros((BLOCK,), out_ptr.dtype.element_ty), mask=i < n)
        tl.debug_barrier()
    for start in range(0, number, BLOCK):
        i = start + tl.arange(0, BLOCK)
        place = i
        if count >= 0:
            place = tl.load(column_ptr + i, mask=i < number, other=0)
        p = tl.load(p_ptr + place, mask=i < number, other=0.0).to(T)
        g = tl.load(g_ptr + place, mask=(i < number) & (p > 0), other=0.0).to(T)
        found = slope_of(p, alpha, KIND) * (g - mean)
        tl.store(out_ptr + place, found.to(out_ptr.dtype.element_ty), mask=i < number)
    if LEARNS:
        found = _to_alpha(tl.sum(direct, 0), mean, tl.sum(log, 0), tl.sum(moved, 0), alpha - 1)
        tl.store(to_alpha_ptr + row, found)


def entmax_rows_backward(
    probs: Tensor,
    grad: Tensor,
    alpha: float | Tensor,
    still: Tensor,
    columns: Tensor | None,
    count: Tensor | None,
    learns: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of rows, and of the alpha of each row, (rows,) float64, if it learns."""
    n = probs.shape[-1]
    number = probs.numel() // n
    out = torch.empty_like(probs)
    kind, wide = entmax_rows.kind_of(alpha, torch.float64 if learns else probs.dtype)
    each, step = entmax_rows.per_row_alpha(alpha, probs)
    to_alpha = torch.empty(number if learns else 1, dtype=torch.float64, device=probs.device)
    if columns is None or count is None:
        block = triton.next_power_of_2(n)
        tile = max(1, 1024 // block)
        _short_rows[(triton.cdiv(number, tile),)](
            probs, grad, out, still, each, step, to_alpha, number, n, KIND=kind, LEARNS=learns,
            T=wide, R=tile, B=block, num_warps=min(max(block * tile // 512, 1), 16),
        )  # fmt: skip
    else:
        _long_rows[(number,)](
            probs, grad, out, still, each, step, to_alpha, columns, count, n,
            columns.shape[1], KIND=kind, LEARNS=learns, T=wide, BLOCK=entmax_rows.BLOCK,
            num_warps=4,
        )  # fmt: skip
    return out, to_alpha if learns else None
