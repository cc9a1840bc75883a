"""Threshold equation of entmax, and its solution for rows that are held in registers.

A row is shifted and scaled to `x = (alpha - 1) (scores - max)`; its probabilities are
`p = [x - tau]_+^e` with `e = 1 / (alpha - 1)`, and tau in [-1, 0) makes them sum to 1. KIND selects
how the power is computed.
"""

import triton
import triton.language as tl

__all__ = ["LINEAR", "POWER", "QUADRATIC", "STEEP", "curve", "miss_of", "rounding", "solve_tile"]

POWER = tl.constexpr(0)  # 1 < alpha < 2
LINEAR = tl.constexpr(1)  # alpha = 2, sparsemax
QUADRATIC = tl.constexpr(2)  # alpha = 1.5
STEEP = tl.constexpr(3)  # alpha > 2, in float64


@triton.jit
def rounding(T: tl.constexpr):
    """Return the distance of 1 to the next number of the dtype."""
    return 2.220446049250313e-16 if T == tl.float64 else 1.1920928955078125e-07  # noqa: SIM300


@triton.jit
def positive_power(y, e):
    """Return `y^e` where y > 0, and 0 elsewhere."""
    on = y > 0
    return tl.where(on, tl.exp(e * tl.log(tl.where(on, y, 1.0))), 0.0)


@triton.jit
def curve(y, e, KIND: tl.constexpr):
    """Return `y^e` and `y^(e - 1)` of entries `y >= 0`."""
    if KIND == LINEAR:
        weight = y
        slope = tl.where(y > 0, 1.0, 0.0).to(y.dtype)
    elif KIND == QUADRATIC:
        weight = y * y
        slope = y
    elif KIND == POWER:
        slope = positive_power(y, e - 1)
        weight = slope * y
    else:
        weight = positive_power(y, e)
        slope = y
    return weight, slope


@triton.jit
def miss_of(total, e, KIND: tl.constexpr):
    """Return the numerator of a Newton step on `total^(1 / e) = 1`; its divisor is the slope.

    The root of the sum is convex in tau, so that the steps never overshoot, and longer than those
    on the sum itself.
    """
    if KIND == LINEAR:
        miss = total - 1
    elif KIND == QUADRATIC:
        miss = total - tl.sqrt(total)
    else:
        miss = total - tl.exp((e - 1) / e * tl.log(total))
    return miss


@triton.jit
def solve_tile(x, c, e, KIND: tl.constexpr, T: tl.constexpr):
    """Return the probabilities of rows x (R, B) whose maximum is 0; c and e are (R, 1)."""
    if KIND == STEEP:
        probs = _steep_tile(x, c, e)
    else:
        tau = _newton_tile(x, e, KIND, T)
        y = tl.maximum(x - tau, 0.0)
        # Closed forms on the support correct tau by its rounding error, to which sums over many
        # entries are sensitive.
        on = tl.where(y > 0, 1.0, 0.0).to(T)
        count = tl.sum(on, 1, keep_dims=True)
        if KIND == LINEAR:
            probs = tl.maximum(y - (tl.sum(y, 1, keep_dims=True) - 1) / count, 0.0) * on
        elif KIND == QUADRATIC:
            mean = tl.sum(y, 1, keep_dims=True) / count
            spread = tl.sum((y - mean) * (y - mean) * on, 1, keep_dims=True)
            root = tl.maximum(y - mean + tl.sqrt((1 - spread) / count), 0.0) * on
            probs = root * root
        else:
            weight, _ = curve(y, e, KIND)
            probs = weight / tl.sum(weight, 1, keep_dims=True)
    return probs


@triton.jit
def _newton_tile(x, e, KIND: tl.constexpr, T: tl.constexpr):
    """Return tau (R, 1) of rows x (R, B), approached from below."""
    tau = tl.full((x.shape[0], 1), -1.0, T)
    enough = 8 * rounding(T)
    steps = 0
    more = 1
    while (more > 0) & (steps < 100):
        weight, slope = curve(tl.maximum(x - tau, 0.0), e, KIND)
        total = tl.sum(weight, 1, keep_dims=True)
        miss = miss_of(total, e, KIND)
        # Near the threshold of many entries a step may be too small to change tau.
        better = tau + tl.maximum(miss / tl.sum(slope, 1, keep_dims=True), 0.0)
        more = tl.max(tl.max(((miss > enough) & (better > tau)).to(tl.int32), 1), 0)
        tau = better
        steps += 1
    return tau


@triton.jit
def _steep_tile(x, c, e):
    """Return the probabilities for alpha > 2, where a threshold cannot resolve small ones.

    The unknown is the probability of the smallest entry s of the support, `base`, and the others
    are `(base^c + x - s)^e`. Bisection of tau finds s, and Newton's method from above the base.
    """
    low = tl.full((x.shape[0], 1), -1.0, tl.float64)
    high = tl.zeros((x.shape[0], 1), tl.float64)
    for _ in range(60):
        mid = (low + high) / 2
        mass = tl.sum(positive_power(tl.maximum(x - mid, 0.0), e), 1, keep_dims=True)
        low = tl.where(mass >= 1, mid, low)
        high = tl.where(mass >= 1, high, mid)
    smallest = tl.min(tl.where(x > high, x, float("inf")), 1, keep_dims=True)
    below = tl.max(tl.where(x <= high, x, -float("inf")), 1, keep_dims=True)
    below = tl.maximum(below, -2.0)  # finite, and outside of the support
    mass = tl.sum(positive_power(tl.maximum(x - below, 0.0), e), 1, keep_dims=True)
    smallest = tl.where(mass < 1, below, smallest)
    inside = x >= smallest
    distance = tl.where(inside, x - smallest, 0.0)
    base = tl.full((x.shape[0], 1), 1.0, tl.float64)
    for _ in range(40):
        log = tl.log(tl.exp(c * tl.log(base)) + distance) * e
        total = tl.sum(tl.where(inside, tl.exp(log), 0.0), 1, keep_dims=True)
        slope = tl.where(inside, tl.exp((c - 1) * (tl.log(base) - log)), 0.0)
        step = (total - 1) / tl.sum(slope, 1, keep_dims=True)
        base = tl.maximum(base - tl.maximum(step, 0.0), 1e-75)
    log = tl.log(tl.exp(c * tl.log(base)) + distance) * e
    probs = tl.where(inside, tl.exp(log), 0.0)
    return probs / tl.sum(probs, 1, keep_dims=True)
