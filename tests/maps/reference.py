"""Reference implementations of the maps: slow numpy code in float64, independent of the library.

Every function takes a (rows, n) array and loops over the rows. Each is a bisection on one
number, or an enumeration, of the definition

    argmax_p <p, scores> - Omega(p)   over the polytope of the map.

``-inf`` drops an entry. ``+inf`` is the limit of a score that grows without bound: such entries
take all the mass they may, in equal parts, and the others share what is left.
"""

import functools
import itertools
from collections.abc import Callable

import numpy as np

Array = np.ndarray


def bisect(decreasing: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a decreasing function with f(low) >= 0 >= f(high)."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if decreasing(middle) >= 0:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def by_row(solve: Callable[..., Array], scores: Array, *extras: Array) -> Array:
    """Apply ``solve`` to the kept entries of every row; NaN rows are NaN, empty rows zeros."""
    out = np.zeros(scores.shape)
    for i, row in enumerate(scores):
        keep = row != -np.inf
        if np.isnan(row).any():
            out[i] = np.nan
        elif keep.any():
            out[i, keep] = solve(row[keep], *(extra[i][keep] for extra in extras))
    return out


def with_infinite(solve: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """For maps to the simplex without bounds: uniform over the +inf entries if there are any."""

    def solved(row: Array) -> Array:
        top = row == np.inf
        return top / top.sum() if top.any() else solve(row)

    return solved


# One row of finite scores each -----------------------------------------------------------------


def softmax_row(row: Array) -> Array:
    weights = np.exp(row - row.max())
    return weights / weights.sum()


def sparsemax_row(row: Array) -> Array:
    shifted = row - row.max()
    tau = bisect(lambda t: np.maximum(shifted - t, 0).sum() - 1, -1.0, 0.0)
    probs = np.maximum(shifted - tau, 0)
    return probs / probs.sum()


def entmax_row(row: Array, alpha: float) -> Array:
    """p = [(alpha-1) z - tau]_+^(1/(alpha-1)).

    The unknown is the last entry of the support instead of tau: its gap to tau when the power is
    at least one, its probability otherwise. Both have a finite slope, tau alone has not, so this
    stays exact where an entry is a hair above the threshold.
    """
    if alpha == 1:
        return softmax_row(row)
    if alpha < 1:
        return heavy_entmax_row(row, alpha)
    power = 1 / (alpha - 1)
    order = np.argsort(-row, kind="stable")
    x = (alpha - 1) * (row[order] - row[order[0]])
    # Entry i is in the support when the mass of the entries before it, cut at x_i, is below one.
    size, least, most = 1, 1, len(x)
    while least <= most:
        size = (least + most) // 2
        if ((x[:size] - x[size - 1]) ** power).sum() < 1:
            least = size + 1
        else:
            most = size - 1
    gaps = x[:most] - x[most - 1]
    if alpha <= 2:
        gap = -bisect(lambda g: ((gaps - g) ** power).sum() - 1, -1.0, 0.0)
    else:
        gap = (-bisect(lambda q: ((gaps + (-q) ** (alpha - 1)) ** power).sum() - 1, -1.0, 0.0)) ** (
            alpha - 1
        )
    probs = np.zeros(len(x))
    probs[order[:most]] = (gaps + gap) ** power
    return probs / probs.sum()


def heavy_entmax_row(row: Array, alpha: float) -> Array:
    """alpha < 1: every entry is positive, p = ((1-alpha) (max - z) + c)^(-1/(1-alpha))."""
    away = (1 - alpha) * (row.max() - row)
    power = -1 / (1 - alpha)
    high = float(len(row)) ** (1 - alpha)
    c = bisect(lambda c: ((away + c) ** power).sum() - 1, 1.0, high)
    probs = (away + c) ** power
    return probs / probs.sum()


def normmax_row(row: Array, alpha: float) -> Array:
    """p proportional to [z - tau]_+^(1/(alpha-1)) with sum [z - tau]_+^(alpha/(alpha-1)) = 1."""
    shifted = row - row.max()
    power = alpha / (alpha - 1)
    tau = bisect(lambda t: (np.maximum(shifted - t, 0) ** power).sum() - 1, -1.0, 0.0)
    probs = np.maximum(shifted - tau, 0) ** (1 / (alpha - 1))
    return probs / probs.sum()


def clipped_row(row: Array, upper: Array, total: float) -> Array:
    """p = clip(z - tau, 0, upper) with sum ``total``; +inf entries are filled first."""
    if total >= upper.sum():
        return upper.copy()
    top = row == np.inf
    if top.any():
        out = np.zeros(len(row))
        out[top] = clipped_row(np.zeros(top.sum()), upper[top], min(total, upper[top].sum()))
        if not top.all():
            out[~top] = clipped_row(row[~top], upper[~top], max(total - out[top].sum(), 0.0))
        return out
    # Breakpoints first, then the straight piece between two of them: exact at any scale.
    points = np.unique(np.concatenate([row, row - upper]))
    first, last = 0, len(points) - 1
    while first < last:
        middle = (first + last + 1) // 2
        if np.clip(row - points[middle], 0, upper).sum() >= total:
            first = middle
        else:
            last = middle - 1
    low = points[first]
    free = (row > low) & (row - upper <= low)
    over = np.clip(row - low, 0, upper).sum() - total
    step = over / free.sum() if free.any() else 0.0
    out = np.clip((row - low) - step, 0, upper)
    # The rounding of breakpoints far from zero is undone: free entries share what is left exactly.
    free = (out > 0) & (out < upper)
    if free.any():
        below = row[free] - row[free].max()
        left = total - out[~free].sum()
        out[free] = np.clip(below + (left - below.sum()) / free.sum(), 0, upper[free])
    return out


def ksubset_row(row: Array, k: float, at_most: bool) -> Array:
    ones = np.ones(len(row))
    if at_most:
        alone = np.clip(row, 0, 1)
        if alone.sum() <= k:
            return alone
    return clipped_row(row, ones, min(k, len(row)))


def topk_sparsemax_row(row: Array, k: int) -> Array:
    kept = np.argsort(-row, kind="stable")[:k]
    out = np.zeros(len(row))
    out[kept] = with_infinite(sparsemax_row)(row[kept])
    return out


def constrained_softmax_row(row: Array, upper: Array) -> Array:
    """p = min(exp(z) / Z, upper): cap what exceeds its bound, share the rest, repeat."""
    top = row == np.inf
    if top.any():
        out = np.zeros(len(row))
        out[top] = clipped_row(np.zeros(top.sum()), upper[top], min(1.0, upper[top].sum()))
        rest = 1 - out[top].sum()
        if rest > 1e-15 and not top.all():
            out[~top] = rest * constrained_softmax_row(row[~top], upper[~top] / rest)
        return out
    out = np.zeros(len(row))
    free = upper > 0
    while free.any():
        left = 1 - np.where(free, 0, upper).sum()
        share = max(left, 0.0) * softmax_row(row[free])
        over = share > upper[free]
        out[:] = np.where(free, 0, upper)
        out[free] = np.minimum(share, upper[free])
        if not over.any():
            break
        free[np.flatnonzero(free)[over]] = False
    return out


@functools.cache
def run_patterns(n: int) -> tuple[Array, Array]:
    """For every pattern of up/flat/down steps: the means over its flat runs, and their pulls."""
    means, pulls = [], []
    for signs in itertools.product((-1, 0, 1), repeat=n - 1):
        padded = (0, *signs, 0)
        mean, pull = np.zeros((n, n)), np.zeros(n)
        start = 0
        for end in range(1, n + 1):
            if end == n or signs[end - 1] != 0:
                mean[start:end, start:end] = 1 / (end - start)
                pull[start:end] = (padded[end] - padded[start]) / (end - start)
                start = end
        means.append(mean)
        pulls.append(pull)
    return np.array(means), np.array(pulls)


def prox_total_variation(row: Array, strength: float) -> Array:
    """argmin_x 1/2 |x - z|^2 + strength sum |x_{i+1} - x_i|, over every pattern of up/flat/down.

    Given the signs of the steps the answer is a mean per flat run, moved by the pull of its two
    ends. All 3^(n-1) of them are tried and the best objective wins, so n stays small.
    """
    means, pulls = run_patterns(len(row))
    tried = means @ row + strength * pulls
    fit = 0.5 * ((tried - row) ** 2).sum(-1)
    return tried[np.argmin(fit + strength * np.abs(np.diff(tried)).sum(-1))]


def fusedmax_row(row: Array, strength: float) -> Array:
    return sparsemax_row(prox_total_variation(row - row.max(), strength))


def oscarmax_row(row: Array, strength: float) -> Array:
    """Sorted, the penalty is linear: subtract its slopes and make the result non-increasing."""
    n = len(row)
    order = np.argsort(-row, kind="stable")
    sloped = row[order] - row.max() - strength * np.arange(n - 1, -1, -1)
    # The min-max formula of isotonic regression: min over starts of max over ends of the mean.
    sums = np.concatenate([[0.0], np.cumsum(sloped)])
    start, end = np.arange(n)[:, None], np.arange(n)[None, :]
    means = (sums[end + 1] - sums[start]) / np.maximum(end + 1 - start, 1)
    means = np.where(end >= start, means, -np.inf)
    highest = np.maximum.accumulate(means[:, ::-1], 1)[:, ::-1]
    fitted = np.where(end >= start, highest, np.inf).min(0)
    out = np.empty(n)
    out[order] = sparsemax_row(fitted)
    return out


def fusedmax_gap(scores: Array, probs: Array, strength: float) -> float:
    """How far one row is from meeting the optimality conditions of fusedmax, at any length.

    They are  p - z + tau - nu + D^T w = 0  with nu >= 0 only where p = 0, and |w| <= strength,
    tight where p steps. tau follows from the run of the largest probability, then the feasible
    interval of w is carried from left to right and must contain 0 at the end.
    """
    n = len(scores)
    peak = int(np.argmax(probs))
    start = end = peak
    while start > 0 and probs[start - 1] == probs[peak]:
        start -= 1
    while end < n - 1 and probs[end + 1] == probs[peak]:
        end += 1
    pulls = strength * ((start > 0) + (end < n - 1))
    residual = scores - probs
    tau = (residual[start : end + 1].sum() - pulls) / (end + 1 - start)
    low = high = worst = 0.0
    for i in range(n):
        low += residual[i] - tau
        high = np.inf if probs[i] == 0 else high + residual[i] - tau
        if i == n - 1:
            floor = ceiling = 0.0
        elif probs[i + 1] == probs[i]:
            floor, ceiling = -strength, strength
        else:
            floor = ceiling = strength if probs[i] > probs[i + 1] else -strength
        worst = max(worst, low - ceiling, floor - high)
        low, high = min(max(low, floor), ceiling), max(min(high, ceiling), floor)
    return worst


# Batches ---------------------------------------------------------------------------------------


def softmax(scores: Array) -> Array:
    return by_row(with_infinite(softmax_row), scores)


def sparsemax(scores: Array) -> Array:
    return by_row(with_infinite(sparsemax_row), scores)


def entmax(scores: Array, alpha: float) -> Array:
    return by_row(with_infinite(lambda row: entmax_row(row, alpha)), scores)


def normmax(scores: Array, alpha: float) -> Array:
    return by_row(with_infinite(lambda row: normmax_row(row, alpha)), scores)


def ksubset(scores: Array, k: float, at_most: bool = False) -> Array:
    return by_row(lambda row: ksubset_row(row, k, at_most), scores)


def topk_sparsemax(scores: Array, k: int) -> Array:
    return by_row(lambda row: topk_sparsemax_row(row, k), scores)


def constrained_sparsemax(scores: Array, upper: Array) -> Array:
    return by_row(lambda row, u: clipped_row(row, u, 1.0), scores, upper)


def constrained_softmax(scores: Array, upper: Array) -> Array:
    return by_row(constrained_softmax_row, scores, upper)


def fusedmax(scores: Array, strength: float) -> Array:
    return by_row(with_infinite(lambda row: fusedmax_row(row, strength)), scores)


def oscarmax(scores: Array, strength: float) -> Array:
    return by_row(with_infinite(lambda row: oscarmax_row(row, strength)), scores)
