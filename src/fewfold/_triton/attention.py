"""Attention with entmax weights, 1.1 <= alpha <= 2, without storing the scores.

A program owns BM queries of a head and reads the keys in blocks of BN.

1. One pass over all keys finds the maximum of each query and the maxima of BN interleaved lanes.
   These are a subset of the row, whose threshold, found in registers, is a lower bound.
2. Newton's method raises the bound to the threshold, with one pass per step. Its first pass
   records which blocks have a score above the bound, and later passes read no others.
3. One pass over these blocks adds up the values.

For H heads, L queries, S keys, vectors of d and of dv entries of b bytes, a share f of the blocks
active and t further steps of Newton:

    flops   2 H L S (d (1 + 1 + f t) + f dv), half of it if causal
    bytes   H (L d + L dv) b + H ceil(L / BM) S (d (2 + f t) + f dv) b; the second part mostly from
            the L2 cache, which holds keys and values of several heads

All in all it is a matrix product per pass, so that flops bound it unless L is small.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewfold._triton.attention_inputs import AttentionInputs, AttentionStats
from fewfold._triton.curves import LINEAR, POWER, QUADRATIC, curve, miss_of

__all__ = ["block_sizes", "launch", "load_across", "score_tile", "sparse_attention", "x_of"]

BM, BN = 64, 64  # queries and keys of a block ...
_NARROW = 32  # ... or at most this many, where a vector has more than 256 bytes


@triton.jit
def load_across(ptr, index, rows, size, i_d):
    """Return rows of a table with `size` columns as the columns of a tile (D, BN)."""
    return tl.load(
        ptr + index.to(tl.int64)[None, :] * size + i_d[:, None],
        mask=(index < rows)[None, :] & (i_d < size)[:, None], other=0.0,
    )  # fmt: skip


@triton.jit
def score_tile(
    q, k, mask_ptr, row, key, L, S, mask_l, mask_s, scale, CAUSAL: tl.constexpr,
    MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the masked scores (BM, BN) of queries q (BM, D) and keys k (D, BN)."""
    s = tl.dot(q, k, input_precision=PRECISION) * scale
    seen = (row < L) & (key < S)
    if MASK > 0:
        place = row.to(tl.int64) * mask_l + key.to(tl.int64) * mask_s
        if MASK == 1:
            seen = seen & (tl.load(mask_ptr + place, mask=seen, other=0) > 0)
        else:
            s += tl.load(mask_ptr + place, mask=seen, other=0.0).to(tl.float32)
    if CAUSAL:
        seen = seen & (key <= row)
    return tl.where(seen, s, -float("inf"))


@triton.jit
def _scores(
    q, k_ptr, key, i_d, mask_ptr, row, L, S, d, mask_l, mask_s, scale, CAUSAL: tl.constexpr,
    MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the masked scores of queries q and of keys in memory."""
    k = load_across(k_ptr, key, S, d, i_d)
    return score_tile(
        q, k, mask_ptr, row, key[None, :], L, S, mask_l, mask_s, scale, CAUSAL, MASK, PRECISION
    )


@triton.jit
def x_of(s, top, c):
    """Return `c (s - top)`; of rows with scores of +inf 0 for these, and of rows of -inf, -inf."""
    finite = tl.abs(top) < float("inf")
    centred = tl.where(finite, s - tl.where(finite, top, 0.0), -float("inf"))
    return tl.where(finite, centred * c, tl.where(s == float("inf"), 0.0, -float("inf")))


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, out_ptr, top_ptr, tau_ptr, total_ptr, active_ptr, alpha_ptr, alpha_h,
    alpha_l, mask_ptr, mask_b, mask_h, mask_l, mask_s, inner, group, L, S, d, dv, scale,
    KIND: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(L, BM)
    block = tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks).to(tl.int64)
    row = block * BM + tl.arange(0, BM)[:, None]
    i_d = tl.arange(0, D)
    i_dv = tl.arange(0, DV)
    lane = tl.arange(0, BN)
    k_ptr += (head // group) * S * d
    v_ptr += (head // group) * S * dv
    if MASK > 0:
        mask_ptr += (head // inner) * mask_b + (head % inner) * mask_h
    active_ptr += (head * blocks + block) * tl.cdiv(S, BN)
    q = tl.load(
        q_ptr + (head * L + row) * d + i_d[None, :], mask=(row < L) & (i_d < d)[None, :], other=0.0
    )
    alpha = tl.load(alpha_ptr + head * alpha_h + row * alpha_l, mask=row < L, other=1.5)
    c = alpha - 1
    e = 1 / c
    last = S
    if CAUSAL:
        last = tl.minimum(S, (block + 1) * BM)

    lanes = tl.full((BM, BN), -float("inf"), tl.float32)
    bad = tl.zeros((BM, BN), tl.int32)
    for start in range(0, last, BN):
        key = start + lane
        s = _scores(
            q, k_ptr, key, i_d, mask_ptr, row, L, S, d, mask_l, mask_s, scale, CAUSAL, MASK,
            PRECISION,
        )  # fmt: skip
        bad = tl.maximum(bad, (s != s).to(tl.int32))
        lanes = tl.maximum(lanes, tl.where(s == s, s, -float("inf")))
    top = tl.max(lanes, 1, keep_dims=True)
    any_nan = tl.max(bad, 1, keep_dims=True) > 0
    nothing = top == -float("inf")
    tau = tl.full((BM, 1), -1.0, tl.float32)
    x = x_of(lanes, top, c)
    for _turn in range(8):
        weight, slope = curve(tl.maximum(x - tau, 0.0), e, KIND)
        total = tl.where(nothing, 1.0, tl.sum(weight, 1, keep_dims=True))
        step = miss_of(total, e, KIND) / tl.where(nothing, 1.0, tl.sum(slope, 1, keep_dims=True))
        tau += tl.maximum(step, 0.0)
    tau -= 1e-6  # so that rounding keeps it a lower bound

    steps = 0
    more = 1
    total = tl.full((BM, 1), 1.0, tl.float32)
    while (more > 0) & (steps < 40):
        sums = tl.zeros((BM, BN), tl.float32)
        slopes = tl.zeros((BM, BN), tl.float32)
        for start in range(0, last, BN):
            visit = 1
            if steps > 0:
                visit = tl.load(active_ptr + start // BN).to(tl.int32)
            if visit > 0:
                key = start + lane
                s = _scores(
                    q, k_ptr, key, i_d, mask_ptr, row, L, S, d, mask_l, mask_s, scale, CAUSAL, MASK,
                    PRECISION,
                )  # fmt: skip
                y = tl.maximum(x_of(tl.where(s == s, s, -float("inf")), top, c) - tau, 0.0)
                weight, slope = curve(y, e, KIND)
                sums += weight
                slopes += slope
                if steps == 0:  # a row with NaN has a gradient of NaN for every value
                    hit = tl.max(tl.max(((y > 0) | any_nan).to(tl.int32), 1), 0)
                    tl.store(active_ptr + start // BN, hit.to(tl.int8))
        tl.debug_barrier()  # other threads read what one has stored
        total = tl.where(nothing, 1.0, tl.sum(sums, 1, keep_dims=True))
        slope_sum = tl.where(nothing, 1.0, tl.sum(slopes, 1, keep_dims=True))
        miss = miss_of(total, e, KIND)
        better = tau + tl.maximum(miss / slope_sum, 0.0)
        more = tl.max(tl.max(((miss > 1e-6) & (better > tau)).to(tl.int32), 1), 0)
        steps += 1
        if (more > 0) & (steps < 40):  # the total must be that of the last threshold
            tau = better

    out = tl.zeros((BM, DV), tl.float32)
    for start in range(0, last, BN):
        if tl.load(active_ptr + start // BN) > 0:
            key = start + lane
            s = _scores(
                q, k_ptr, key, i_d, mask_ptr, row, L, S, d, mask_l, mask_s, scale, CAUSAL, MASK,
                PRECISION,
            )  # fmt: skip
            y = tl.maximum(x_of(tl.where(s == s, s, -float("inf")), top, c) - tau, 0.0)
            weight, slope = curve(y, e, KIND)
            v = tl.load(
                v_ptr + key.to(tl.int64)[:, None] * dv + i_dv[None, :],
                mask=(key < S)[:, None] & (i_dv < dv)[None, :], other=0.0,
            )  # fmt: skip
            out += tl.dot((weight / total).to(v.dtype), v, input_precision=PRECISION)
    out = tl.where(any_nan, float("nan"), out)
    tl.store(
        out_ptr + (head * L + row) * dv + i_dv[None, :], out.to(out_ptr.dtype.element_ty),
        mask=(row < L) & (i_dv < dv)[None, :],
    )  # fmt: skip
    place = head * L + row
    tl.store(top_ptr + place, tl.where(any_nan, float("nan"), top), mask=row < L)
    tl.store(tau_ptr + place, tau, mask=row < L)
    tl.store(total_ptr + place, total, mask=row < L)


def block_sizes(given: AttentionInputs) -> tuple[int, int]:
    """Return the numbers of queries and of keys of a block, which must fit into shared memory."""
    size = max(given.query.shape[2], given.value.shape[2]) * given.query.element_size()
    return (BM, BN) if size <= 256 else (min(BM, _NARROW), min(BN, _NARROW))


def launch(given: AttentionInputs) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments that the kernels of both passes share."""
    query, key, value, mask, alpha = given.query, given.key, given.value, given.mask, given.alpha
    if isinstance(alpha, Tensor):
        each = alpha.float().contiguous()
        steps = each.shape[1], 1 if each.shape[1] > 1 else 0
        kind = POWER
    else:
        each = torch.full((1,), alpha, dtype=torch.float32, device=query.device)
        steps = 0, 0
        kind = {2.0: LINEAR, 1.5: QUADRATIC}.get(alpha, POWER)
    strides: tuple[int, ...] = (0, 0, 0, 0)
    shown, inner, how = query, 1, 0
    if mask is not None:
        strides, inner, how = mask.stride(), mask.shape[1], 1 if mask.dtype == torch.bool else 2
        shown = mask.view(torch.uint8) if how == 1 else mask
    sizes = query.shape[1], key.shape[1], query.shape[2], value.shape[2]
    group = query.shape[0] // key.shape[0]
    rows, columns = block_sizes(given)
    constants = {
        "KIND": kind,
        "CAUSAL": given.causal,
        "MASK": how,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
        "BM": rows,
        "BN": columns,
        "D": max(16, triton.next_power_of_2(sizes[2])),
        "DV": max(16, triton.next_power_of_2(sizes[3])),
        "num_warps": 4 if max(sizes[2:]) <= 64 else 8,
        "num_stages": 1,
    }
    return (each, *steps, shown, *strides, inner, group, *sizes, given.scale), constants


def sparse_attention(given: AttentionInputs) -> tuple[Tensor, AttentionStats]:
    """Return the output (heads, L, dv), and what the backward pass needs."""
    query, key, value = given.query, given.key, given.value
    heads, queries, _ = query.shape
    out = query.new_empty(heads, queries, value.shape[2])
    top, tau, total = (
        torch.empty(heads, queries, dtype=torch.float32, device=query.device) for _ in range(3)
    )
    rows, columns = block_sizes(given)
    blocks = triton.cdiv(queries, rows)
    active = torch.zeros(
        heads, blocks, triton.cdiv(key.shape[1], columns), dtype=torch.int8, device=query.device
    )
    shared, constants = launch(given)
    _attend[(blocks * heads,)](
        query, key, value, out, top, tau, total, active, *shared, **constants
    )
    return out, AttentionStats(top, tau, total, active)
