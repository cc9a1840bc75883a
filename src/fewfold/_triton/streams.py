"""Long rows: one pass that keeps candidates of the support, and the solution on these.

Any subset of a row gives a lower bound on its threshold. A program reads its row in blocks, keeps
the entries above the bound in a buffer, and raises the bound by solving the equation on the buffer
after 1, 2, 4, ... blocks and when the buffer is full. Buffers are in global memory but so small
that they stay in the caches.
"""

import triton
import triton.language as tl

from fewfold._triton.curves import (
    LINEAR,
    QUADRATIC,
    curve,
    miss_of,
    rounding,
)

__all__ = ["compact", "margin_of", "solve_stream", "take_block"]


@triton.jit
def margin_of(top, c, T: tl.constexpr):
    """Return how far below its threshold an entry is kept, so that rounding drops none."""
    return 16 * rounding(T) * (1 / c + tl.abs(top))


@triton.jit
def _sums(source, count, top, c, e, tau, KIND: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sums of weights and slopes of `count` scores for this tau."""
    total = tl.zeros((BLOCK,), T)
    slope = tl.zeros((BLOCK,), T)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(T)
        weight, part = curve(tl.maximum((v - top) * c - tau, 0.0), e, KIND)
        total += weight
        slope += part
    return tl.sum(total, 0), tl.sum(slope, 0)


@triton.jit
def _newton(
    source, count, top, c, e, limit, KIND: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr
):
    """Return a lower bound on tau, and tau itself if `limit` steps suffice."""
    tau = tl.full((), -1.0, T)
    enough = 8 * rounding(T)
    steps = 0
    more = 1
    while (more > 0) & (steps < limit):
        total, slope = _sums(source, count, top, c, e, tau, KIND, T, BLOCK)
        miss = miss_of(total, e, KIND)
        better = tau + tl.maximum(miss / slope, 0.0)
        more = ((miss > enough) & (better > tau)).to(tl.int32)
        tau = better
        steps += 1
    return tau


@triton.jit
def compact(
    values, columns, count, top, c, e, bound, KIND: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Raise the bound by the candidates, and drop those below it; return count and bound."""
    tl.debug_barrier()  # other threads may have written them
    tau = _newton(values, count, top, c, e, 12, KIND, T, BLOCK)
    bound = tl.maximum(bound, top + tau / c - margin_of(top, c, T))
    kept = 0
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(values + i, mask=i < count, other=-float("inf")).to(T)
        column = tl.load(columns + i, mask=i < count, other=0)
        tl.debug_barrier()  # all are read before the first is overwritten
        hit = v > bound
        place = kept + tl.cumsum(hit.to(tl.int32), 0) - 1
        tl.store(values + place, v, mask=hit)
        tl.store(columns + place, column, mask=hit)
        kept += tl.sum(hit.to(tl.int32), 0)
    tl.debug_barrier()
    return kept, bound


@triton.jit
def take_block(
    v, first, values, columns, count, top, c, e, bound, crowded, capacity,
    KIND: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Append the entries of a block (without NaN) that may be in the support.

    Returns:
        count, maximum, bound, and 1 in `crowded` if there are too many candidates to store.
    """
    high = tl.max(v, 0)
    top = tl.maximum(top, high)
    if (high > bound) & (crowded == 0):
        finite = tl.where(top < float("inf"), top, 0.0)
        least = finite - 1 / c - margin_of(finite, c, T)
        bound = tl.where(top < float("inf"), tl.maximum(bound, least), top)
        hit = (v > bound) | (v == float("inf"))
        new = tl.sum(hit.to(tl.int32), 0)
        if (count + new > capacity) & (top < float("inf")):
            count, bound = compact(values, columns, count, top, c, e, bound, KIND, T, BLOCK)
            hit = v > bound
            new = tl.sum(hit.to(tl.int32), 0)
        if count + new > capacity:
            crowded = 1
        else:
            i = tl.arange(0, BLOCK)
            place = count + tl.cumsum(hit.to(tl.int32), 0) - 1
            tl.store(values + place, v, mask=hit)
            tl.store(columns + place, first + i, mask=hit)
            count += new
    return count, top, bound, crowded


@triton.jit
def solve_stream(
    source, columns, count, top, c, e, out, AT: tl.constexpr, KIND: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the probabilities of `count` scores to `out`, at their columns if AT is true."""
    tau = _newton(source, count, top, c, e, 100, KIND, T, BLOCK)
    total, slope = _sums(source, count, top, c, e, tau, KIND, T, BLOCK)
    rest = tl.zeros((), T)
    factor = tl.full((), 1.0, T)
    if KIND == LINEAR:
        rest = (total - 1) / slope
    elif KIND == QUADRATIC:
        rest = _quadratic_rest(source, count, top, c, tau, T, BLOCK)
    else:
        factor = 1 / total
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(T)
        y = tl.maximum((v - top) * c - tau, 0.0)
        weight, _ = curve(tl.where(y > 0, tl.maximum(y - rest, 0.0), 0.0), e, KIND)
        place = i
        if AT:
            place = tl.load(columns + i, mask=i < count, other=0)
        tl.store(out + place, (weight * factor).to(out.dtype.element_ty), mask=i < count)


@triton.jit
def _quadratic_rest(source, count, top, c, tau, T: tl.constexpr, BLOCK: tl.constexpr):
    """Return the correction of tau, for alpha = 1.5, by the closed form on the support."""
    number = tl.zeros((BLOCK,), T)
    first = tl.zeros((BLOCK,), T)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(T)
        y = tl.maximum((v - top) * c - tau, 0.0)
        number += tl.where(y > 0, 1.0, 0.0).to(T)
        first += y
    size = tl.sum(number, 0)
    mean = tl.sum(first, 0) / size
    second = tl.zeros((BLOCK,), T)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(T)
        y = tl.maximum((v - top) * c - tau, 0.0)
        second += tl.where(y > 0, (y - mean) * (y - mean), 0.0)
    return mean - tl.sqrt((1 - tl.sum(second, 0)) / size)
