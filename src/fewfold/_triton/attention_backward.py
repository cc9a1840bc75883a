"""Gradients of attention with entmax weights, by the blocks that have weights.

With the weights p, `s = p^(2 - alpha)` and the gradient `g = grad value^T` of the weights, the
gradient of the scores is `s (g - <s, g> / <s, 1>)`, as in `entmax_backward`. One kernel owns
queries: a pass for the mean, and one for the gradient of queries. The other owns keys. With the
symbols of `attention`:

    flops   2 f H L S (2 (d + dv) + d) for queries, 2 f H L S (2 d + 2 dv) for keys and values
    bytes   f H ceil(L / BM) S (2 d + 2 dv) b and f H ceil(S / BN) L (d + dv) b, mostly from L2
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fewfold._triton.attention import block_sizes, launch, load_across, score_tile, x_of
from fewfold._triton.attention_inputs import AttentionInputs, AttentionStats
from fewfold._triton.curves import curve
from fewfold._triton.entmax_backward import slope_of

__all__ = ["sparse_attention_backward"]


@triton.jit
def _weights(s, top, tau, total, alpha, KIND: tl.constexpr):
    """Return the weights of a tile of scores, and their slopes."""
    x = x_of(tl.where(s == s, s, -float("inf")), top, alpha - 1)
    weight, _slope = curve(tl.maximum(x - tau, 0.0), 1 / (alpha - 1), KIND)
    p = tl.where(top == top, weight / total, float("nan"))
    return p, tl.where(top < float("inf"), slope_of(p, alpha, KIND), 0.0)


@triton.jit
def _to_queries(
    q_ptr, k_ptr, v_ptr, grad_ptr, to_q_ptr, to_alpha_ptr, mean_ptr, top_ptr, tau_ptr, total_ptr,
    active_ptr, alpha_ptr, alpha_h, alpha_l, mask_ptr, mask_b, mask_h, mask_l, mask_s, inner, group,
    L, S, d, dv, scale, KIND: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
    DV: tl.constexpr, LEARNS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(L, BM)
    block = tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks).to(tl.int64)
    row = block * BM + tl.arange(0, BM)[:, None]
    i_d = tl.arange(0, D)
    i_dv = tl.arange(0, DV)
    k_ptr += (head // group) * S * d
    v_ptr += (head // group) * S * dv
    if MASK > 0:
        mask_ptr += (head // inner) * mask_b + (head % inner) * mask_h
    active_ptr += (head * blocks + block) * tl.cdiv(S, BN)
    place = head * L + row
    inside = row < L
    q = tl.load(q_ptr + place * d + i_d[None, :], mask=inside & (i_d < d)[None, :], other=0.0)
    grad = tl.load(
        grad_ptr + place * dv + i_dv[None, :], mask=inside & (i_dv < dv)[None, :], other=0.0
    )
    alpha = tl.load(alpha_ptr + head * alpha_h + row * alpha_l, mask=inside, other=1.5)
    top = tl.load(top_ptr + place, mask=inside, other=-float("inf"))
    tau = tl.load(tau_ptr + place, mask=inside, other=0.0)
    total = tl.load(total_ptr + place, mask=inside, other=1.0)

    size = tl.zeros((BM, 1), tl.float32)
    pulled = tl.zeros((BM, 1), tl.float32)
    direct = tl.zeros((BM, 1), tl.float32)
    log_sum = tl.zeros((BM, 1), tl.float32)
    moved_sum = tl.zeros((BM, 1), tl.float32)
    mean = tl.zeros((BM, 1), tl.float32)
    to_q = tl.zeros((BM, D), tl.float32)
    for turn in range(2):
        for start in range(0, S, BN):
            if tl.load(active_ptr + start // BN) > 0:
                key = start + tl.arange(0, BN)
                k = load_across(k_ptr, key, S, d, i_d)
                v = load_across(v_ptr, key, S, dv, i_dv)
                scores = score_tile(
                    q, k, mask_ptr, row, key[None, :], L, S, mask_l, mask_s, scale, CAUSAL, MASK,
                    PRECISION,
                )  # fmt: skip
                p, s = _weights(scores, top, tau, total, alpha, KIND)
                g = tl.where(p > 0, tl.dot(grad, v, input_precision=PRECISION), 0.0)
                if turn == 0:
                    size += tl.sum(s, 1, keep_dims=True)
                    pulled += tl.sum(s * g, 1, keep_dims=True)
                    if LEARNS:
                        finite = (top < float("inf")) & (p > 0)
                        log = tl.where(finite, p * tl.log(tl.where(finite, p, 1.0)), 0.0)
                        direct += tl.sum(tl.where(finite, p * g, 0.0), 1, keep_dims=True)
                        log_sum += tl.sum(log, 1, keep_dims=True)
                        moved_sum += tl.sum(log * g, 1, keep_dims=True)
                else:
                    moved = s * (g - mean) * scale
                    to_q += tl.dot(moved.to(k.dtype), tl.trans(k), input_precision=PRECISION)
        mean = pulled / tl.where(size > 0, size, 1.0)
    tl.store(mean_ptr + place, mean, mask=inside)
    tl.store(
        to_q_ptr + place * d + i_d[None, :], to_q.to(to_q_ptr.dtype.element_ty),
        mask=inside & (i_d < d)[None, :],
    )  # fmt: skip
    if LEARNS:
        c = alpha - 1
        found = (direct - mean) / (c * c) + (mean * log_sum - moved_sum) / c
        tl.store(to_alpha_ptr + place, found, mask=inside)


@triton.jit
def _to_keys(
    q_ptr, k_ptr, v_ptr, grad_ptr, to_k_ptr, to_v_ptr, mean_ptr, top_ptr, tau_ptr, total_ptr,
    active_ptr, alpha_ptr, alpha_h, alpha_l, mask_ptr, mask_b, mask_h, mask_l, mask_s, inner, group,
    L, S, d, dv, scale, KIND: tl.constexpr, CAUSAL: tl.constexpr, MASK: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(S, BN)
    block = tl.program_id(0) % blocks
    key_head = (tl.program_id(0) // blocks).to(tl.int64)
    key = block * BN + tl.arange(0, BN)
    i_d = tl.arange(0, D)
    i_dv = tl.arange(0, DV)
    key_place = key_head * S + key
    k = load_across(k_ptr + key_head * S * d, key, S, d, i_d)
    v = load_across(v_ptr + key_head * S * dv, key, S, dv, i_dv)
    to_k = tl.zeros((BN, D), tl.float32)
    to_v = tl.zeros((BN, DV), tl.float32)
    query_blocks = tl.cdiv(L, BM)
    for member in range(group):
        head = key_head * group + member
        own_mask = mask_ptr
        if MASK > 0:
            own_mask = mask_ptr + (head // inner) * mask_b + (head % inner) * mask_h
        for query_block in range(query_blocks):
            if tl.load(active_ptr + (head * query_blocks + query_block) * blocks + block) > 0:
                row = query_block * BM + tl.arange(0, BM)[:, None]
                place = head * L + row
                inside = row < L
                q = tl.load(
                    q_ptr + place * d + i_d[None, :], mask=inside & (i_d < d)[None, :], other=0.0
                )
                grad = tl.load(
                    grad_ptr + place * dv + i_dv[None, :], mask=inside & (i_dv < dv)[None, :],
                    other=0.0,
                )  # fmt: skip
                alpha = tl.load(alpha_ptr + head * alpha_h + row * alpha_l, mask=inside, other=1.5)
                top = tl.load(top_ptr + place, mask=inside, other=-float("inf"))
                tau = tl.load(tau_ptr + place, mask=inside, other=0.0)
                total = tl.load(total_ptr + place, mask=inside, other=1.0)
                mean = tl.load(mean_ptr + place, mask=inside, other=0.0)
                scores = score_tile(
                    q, k, own_mask, row, key[None, :], L, S, mask_l, mask_s, scale, CAUSAL, MASK,
                    PRECISION,
                )  # fmt: skip
                p, s = _weights(scores, top, tau, total, alpha, KIND)
                to_v += tl.dot(tl.trans(p.to(grad.dtype)), grad, input_precision=PRECISION)
                g = tl.where(p > 0, tl.dot(grad, v, input_precision=PRECISION), 0.0)
                moved = s * (g - mean) * scale
                to_k += tl.dot(tl.trans(moved.to(q.dtype)), q, input_precision=PRECISION)
    tl.store(
        to_k_ptr + key_place[:, None] * d + i_d[None, :], to_k.to(to_k_ptr.dtype.element_ty),
        mask=(key < S)[:, None] & (i_d < d)[None, :],
    )  # fmt: skip
    tl.store(
        to_v_ptr + key_place[:, None] * dv + i_dv[None, :], to_v.to(to_v_ptr.dtype.element_ty),
        mask=(key < S)[:, None] & (i_dv < dv)[None, :],
    )  # fmt: skip


def sparse_attention_backward(
    given: AttentionInputs, stats: AttentionStats, grad: Tensor, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of query, key and value, and of the alpha of each query if it learns."""
    query, key, value = given.query, given.key, given.value
    grad = grad.to(query.dtype).contiguous()
    to = [torch.empty_like(one) for one in (query, key, value)]
    mean = torch.empty_like(stats.top)
    to_alpha = torch.empty_like(stats.top) if learns else mean
    shared, constants = launch(given)
    rows, columns = block_sizes(given)
    kept = stats.top, stats.tau, stats.total, stats.active
    _to_queries[(triton.cdiv(query.shape[1], rows) * len(query),)](
        query, key, value, grad, to[0], to_alpha, mean, *kept, *shared, LEARNS=learns, **constants
    )
    _to_keys[(triton.cdiv(key.shape[1], columns) * len(key),)](
        query, key, value, grad, to[1], to[2], mean, *kept, *shared, **constants
    )
    return to[0], to[1], to[2], to_alpha if learns else None
