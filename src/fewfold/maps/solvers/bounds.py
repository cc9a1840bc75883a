"""Sparsemax and softmax of rows under upper bounds.

The set of entries strictly between 0 and their bound (free) and the set of entries at their bound
(full) are found on detached values. Given these sets both maps have closed forms, which are written
in differentiable operations.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfold._torch import eager, exporting
from fewfold.maps.grouped.chain import running, solver_dtype

__all__ = ["bounded_softmax", "bounded_sparsemax"]

_TOP = 256  # number of largest scores of a long row that are tried before the whole row
_SPREAD = 1e6  # range of the scores of a row above which its gaps are clamped
_GAP = 2e3  # maximum gap after clamping
_ROUNDS = 8  # iterations of fixing entries above their bound, before falling back to sorting

# (values, bounds, total) -> free, full
_Sets = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# (rows, free, mass) -> probabilities of the free entries, which sum to mass
_Rebuild = Callable[[Tensor, Tensor, Tensor], Tensor]


def bounded_sparsemax(rows: Tensor, bounds: Tensor, slack: float) -> Tensor:
    """Return `clip(rows - tau, 0, bounds)` with sum 1; inputs must not contain NaN.

    Bounds that sum to 1 within `slack` are returned as the solution.
    """
    if eager(rows, bounds) and rows.shape[-1] >= 8 * _TOP:
        probs = _from_top_scores(rows, bounds, slack)
        if probs is not None:
            return probs
    return _bounded(rows, bounds, slack, _sparsemax_sets, _sparsemax_rebuilt)


def bounded_softmax(rows: Tensor, bounds: Tensor, slack: float) -> Tensor:
    """Return `min(exp(rows - tau), bounds)` with sum 1; inputs must not contain NaN.

    Bounds that sum to 1 within `slack` are returned as the solution.
    """
    return _bounded(rows, bounds, slack, _softmax_sets, _softmax_rebuilt)


def _from_top_scores(rows: Tensor, bounds: Tensor, slack: float) -> Tensor | None:
    """Solve for the largest scores alone; None if another score may exceed tau."""
    top, index = rows.detach().topk(_TOP + 1)
    index = index[..., :_TOP]
    top_bounds = bounds.gather(-1, index)
    if not bool((top_bounds.detach().sum(-1) > 1 + slack).all()):
        return None
    top_rows = rows.gather(-1, index)
    probs = _bounded(top_rows, top_bounds, slack, _sparsemax_sets, _sparsemax_rebuilt)
    # Entries in the support have score - p >= tau, so that no other score exceeds tau if p is at
    # most the gap to the next score; the gap is exact, unlike tau.
    gap = (top[..., :_TOP] - top[..., _TOP:]).to(probs.dtype)
    if not bool(((probs.detach() == 0) | (probs.detach() <= gap)).all()):
        return None
    return torch.zeros_like(rows, dtype=probs.dtype).scatter(-1, index, probs)


def _bounded(
    rows: Tensor,
    bounds: Tensor,
    slack: float,
    sets: _Sets,
    rebuilt: _Rebuild,
) -> Tensor:
    """The map along the last dimension in differentiable operations, in float64 if available."""
    dtype = solver_dtype(rows)
    rows, bounds = rows.to(dtype), bounds.to(dtype)
    fixed, limit = rows.detach(), bounds.detach()
    # Entries of +inf are at their bounds, unless these sum to 1 or more: then they share the mass.
    infinite = fixed == math.inf
    taken = torch.where(infinite, limit, 0.0).sum(-1, keepdim=True)
    flooded = taken >= 1
    left = torch.where(flooded, 1.0, 1 - taken)
    only = torch.where(infinite, 0.0, -math.inf).to(fixed.dtype)
    rest = torch.where(infinite, -math.inf, fixed)
    free, full = sets(_compact(torch.where(flooded, only, rest)), limit, left)
    unmasked = fixed > -math.inf
    tight = torch.where(unmasked, limit, 0.0).sum(-1, keepdim=True) <= 1 + slack
    free = free & ~tight
    full = (full | (infinite & ~flooded) | tight) & unmasked
    capped = torch.where(full, bounds, 0.0)
    rows = torch.where(infinite, 0.0, rows)
    inside = rebuilt(rows, free, 1 - capped.sum(-1, keepdim=True))
    probs = torch.where(free, inside, capped)
    # Clamp rounding errors to the bounds by a detached correction, which keeps the gradient.
    value = probs.detach()
    return probs + (torch.minimum(value.clamp(min=0), limit) - value)


def _compact(values: Tensor) -> Tensor:
    """Shift rows with large scores to 0 and clamp huge gaps, so that bounds are not rounded away.

    Across a gap larger than the logarithm of the smallest float the upper entry reaches its bound
    before the lower one gets any mass, so that the size of the gap does not matter.
    """
    unmasked = values > -math.inf
    top = values.amax(-1, keepdim=True)
    far = (top.abs() > _SPREAD) & (top > -math.inf)
    shift = torch.where(far, top, 0.0)
    values = values - shift
    lowest = torch.where(unmasked, values, math.inf).amin(-1, keepdim=True)
    wide = top - shift - lowest > _SPREAD
    if eager(values) and not bool(wide.any()):
        return values
    ordered, order = values.sort(-1, descending=True)
    gap = torch.nn.functional.pad(ordered, (1, 0))[..., :-1] - ordered
    gap = torch.where((gap >= 0) & (torch.arange(gap.shape[-1], device=gap.device) > 0), gap, 0.0)
    short = -gap.clamp(max=_GAP).cumsum(-1)
    return torch.where(wide & unmasked, short.gather(-1, order.sort(-1)[1]), values)


def _sparsemax_sets(values: Tensor, bounds: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Free and full sets of sparsemax: lower tau along the sorted breakpoints up to the mass."""
    unmasked = values > -math.inf
    # The tau below which an entry is at its bound.
    leaves = torch.where(unmasked, values - bounds, -math.inf)
    never = torch.minimum(
        torch.where(unmasked, values, math.inf).amin(-1, keepdim=True),
        torch.where(leaves > -math.inf, leaves, math.inf).amin(-1, keepdim=True),
    )
    # Entries without a breakpoint get one below the solution.
    never = torch.where(unmasked.any(-1, keepdim=True), never - 2, 0.0)
    points = torch.cat([torch.where(unmasked, values, never), torch.maximum(leaves, never)], -1)
    points, order = points.sort(-1, descending=True)
    slope = torch.cat([unmasked.to(values.dtype), -unmasked.to(values.dtype)], -1).gather(-1, order)
    gap = torch.nn.functional.pad(points, (1, 0))[..., :-1] - points
    count = torch.nn.functional.pad(slope.cumsum(-1), (1, 0))[..., :-1]
    mass = torch.where(count > 0, count * gap, 0.0).cumsum(-1)
    place = (mass < total).sum(-1, keepdim=True)
    size = points.shape[-1]
    low = points.gather(-1, place.clamp(max=size - 1))
    high = points.gather(-1, (place - 1).clamp(min=0))
    hit = mass.gather(-1, place.clamp(max=size - 1)) == total
    free = unmasked & (values >= high) & ((leaves < low) | (~hit & (leaves == low)))
    full = unmasked & ((leaves >= high) | (hit & (leaves == low)))
    out = place >= size  # the bounds sum to less than the total: all entries are full
    return free & ~out, full | (unmasked & out)


def _sparsemax_rebuilt(rows: Tensor, free: Tensor, mass: Tensor) -> Tensor:
    """Return `rows - tau` with sum `mass` over the free entries."""
    rows = _minus_max(rows, free)
    spare = mass - rows.sum(-1, keepdim=True)
    return rows + spare / free.sum(-1, keepdim=True).clamp(min=1)


def _softmax_sets(values: Tensor, bounds: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Free and full sets of softmax: entries become full in descending order of score - log bound.

    Computed in logarithms: when large entries are full, the rest of the mass goes to entries whose
    exponentials may underflow relative to them.
    """
    unmasked = values > -math.inf
    reach = torch.where(unmasked, values - bounds.log(), -math.inf)
    if eager(values, bounds):
        full = _full_by_iteration(values, bounds, total, reach)
        if full is not None:
            return unmasked & ~full, full
    reach, order = reach.sort(-1, descending=True)
    capped = torch.where(unmasked, bounds, 0.0).gather(-1, order).cumsum(-1)
    left = total - torch.nn.functional.pad(capped, (1, 0))[..., :-1]
    level = _log_sum_after(values.gather(-1, order)) - left.clamp(min=0).log()
    stop = (left <= 0) | (reach <= level)
    number = (stop.cumsum(-1) == 0).sum(-1, keepdim=True)
    full = unmasked & (order.sort(-1)[1] < number)
    return unmasked & ~full, full


def _full_by_iteration(
    values: Tensor, bounds: Tensor, total: Tensor, reach: Tensor
) -> Tensor | None:
    """Fix entries above their bound and redistribute, repeatedly; None without convergence."""
    full = torch.zeros_like(values, dtype=torch.bool)
    for _ in range(_ROUNDS):
        left = total - torch.where(full, bounds, 0.0).sum(-1, keepdim=True)
        rest = torch.where(full, -math.inf, values).logsumexp(-1, keepdim=True)
        over = ~full & (reach > rest - left.clamp(min=0).log())
        if not bool(over.any()):
            return full
        full = full | over
    return None


def _softmax_rebuilt(rows: Tensor, free: Tensor, mass: Tensor) -> Tensor:
    """Softmax of the free entries times `mass`."""
    some = free.any(-1, keepdim=True)
    rows = torch.where(free, _minus_max(rows, free), torch.where(some, -math.inf, 0.0))
    return mass * torch.softmax(rows, -1)


def _minus_max(rows: Tensor, free: Tensor) -> Tensor:
    """Free entries less their detached maximum; 0 elsewhere."""
    top = torch.where(free, rows.detach(), -math.inf).amax(-1, keepdim=True)
    return torch.where(free, rows, 0.0) - torch.where(free, top, 0.0)


def _log_sum_after(values: Tensor) -> Tensor:
    """Log-sum-exp of each entry and all entries after it."""
    if not exporting():
        return values.flip(-1).logcumsumexp(-1).flip(-1)

    def join(a: Tensor, b: Tensor) -> Tensor:
        top, gap = torch.maximum(a, b), (a - b).abs()
        # The gap between two -inf is NaN; it is used only where the maximum is finite.
        return top + torch.where(top > -math.inf, gap, 0.0).neg().exp().log1p()

    return running(values, join, -math.inf)
