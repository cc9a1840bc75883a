"""Long rows of entmax with alpha > 2, in float64; see `curves._steep_tile` for the method."""

import triton
import triton.language as tl

from fewfold._triton.curves import positive_power

__all__ = ["solve_steep"]


@triton.jit
def _mass(source, count, top, c, e, tau, BLOCK: tl.constexpr):
    """Return the sum of the probabilities for this tau."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(tl.float64)
        total += positive_power(tl.maximum((v - top) * c - tau, 0.0), e)
    return tl.sum(total, 0)


@triton.jit
def _smallest(source, count, top, c, e, BLOCK: tl.constexpr):
    """Return the smallest x of the support."""
    low = tl.full((), -1.0, tl.float64)
    high = tl.zeros((), tl.float64)
    for _ in range(60):
        mid = (low + high) / 2
        mass = _mass(source, count, top, c, e, mid, BLOCK)
        low = tl.where(mass >= 1, mid, low)
        high = tl.where(mass >= 1, high, mid)
    above = tl.full((BLOCK,), float("inf"), tl.float64)
    below = tl.full((BLOCK,), -2.0, tl.float64)  # outside of the support
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(tl.float64)
        x = (v - top) * c
        above = tl.where(x > high, tl.minimum(above, x), above)
        below = tl.where(x > high, below, tl.maximum(below, x))
    next_one = tl.max(below, 0)
    inside = _mass(source, count, top, c, e, next_one, BLOCK) < 1
    return tl.where(inside, next_one, tl.min(above, 0))


@triton.jit
def solve_steep(source, columns, count, top, c, e, out, AT: tl.constexpr, BLOCK: tl.constexpr):
    """Write the probabilities of `count` scores to `out`, at their columns if AT is true."""
    smallest = _smallest(source, count, top, c, e, BLOCK)
    base = tl.full((), 1.0, tl.float64)
    total = tl.full((), 1.0, tl.float64)
    for _ in range(40):
        own = tl.exp(c * tl.log(base))
        weights = tl.zeros((BLOCK,), tl.float64)
        slopes = tl.zeros((BLOCK,), tl.float64)
        for start in range(0, count, BLOCK):
            i = start + tl.arange(0, BLOCK)
            v = tl.load(source + i, mask=i < count, other=-float("inf")).to(tl.float64)
            x = (v - top) * c
            inside = x >= smallest
            log = tl.log(own + tl.where(inside, x - smallest, 0.0)) * e
            weights += tl.where(inside, tl.exp(log), 0.0)
            slopes += tl.where(inside, tl.exp((c - 1) * (tl.log(base) - log)), 0.0)
        total = tl.sum(weights, 0)
        base = tl.maximum(base - tl.maximum((total - 1) / tl.sum(slopes, 0), 0.0), 1e-75)
    own = tl.exp(c * tl.log(base))
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(source + i, mask=i < count, other=-float("inf")).to(tl.float64)
        x = (v - top) * c
        inside = x >= smallest
        log = tl.log(own + tl.where(inside, x - smallest, 0.0)) * e
        probs = tl.where(inside, tl.exp(log) / total, 0.0)
        place = i
        if AT:
            place = tl.load(columns + i, mask=i < count, other=0)
        tl.store(out + place, probs.to(out.dtype.element_ty), mask=i < count)
