"""Rows of probabilities below upper bounds: which entries are held at their bound, and the rest.

Which entries lie strictly between 0 and their bound (free), and which at it (full), is found on
constants; given these sets both maps are closed forms, written with differentiable operations.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fewfold._torch import eager
from fewfold.maps.grouped.chain import running, solver_dtype

__all__ = ["bounded_softmax", "bounded_sparsemax"]

_LEAD = 256  # how many of the largest scores of a long row are tried before all of them
_SPREAD = 1e6  # of a row, from which on its gaps are shortened
_GAP = 2e3  # what they are shortened to
_ROUNDS = 8  # of holding what exceeds its bound, before the bounds are sorted

# (values, bounds, total) -> free, full
_Sets = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# (rows, free, mass) -> the free probabilities, which sum to mass
_Rebuild = Callable[[Tensor, Tensor, Tensor], Tensor]


def bounded_sparsemax(rows: Tensor, bounds: Tensor, slack: float) -> Tensor:
    """`clip(rows - tau, 0, bounds)` that sums to 1; no NaN may come in.

    Bounds that sum to 1 within `slack` are the answer.
    """
    if eager(rows, bounds) and rows.shape[-1] >= 8 * _LEAD:
        probs = _leading(rows, bounds, slack)
        if probs is not None:
            return probs
    return _bounded(rows, bounds, slack, _sparsemax_sets, _sparsemax_rebuilt)


def bounded_softmax(rows: Tensor, bounds: Tensor, slack: float) -> Tensor:
    """`min(exp(rows - tau), bounds)` that sums to 1; no NaN may come in.

    Bounds that sum to 1 within `slack` are the answer.
    """
    return _bounded(rows, bounds, slack, _softmax_sets, _softmax_rebuilt)


def _leading(rows: Tensor, bounds: Tensor, slack: float) -> Tensor | None:
    """Sparsemax of the largest scores alone, if it is that of the rows: if no other exceeds tau."""
    top, index = rows.detach().topk(_LEAD + 1)
    index = index[..., :_LEAD]
    few = bounds.gather(-1, index)
    if not bool((few.detach().sum(-1) > 1 + slack).all()):
        return None
    probs = _bounded(rows.gather(-1, index), few, slack, _sparsemax_sets, _sparsemax_rebuilt)
    # Of every entry with mass, score - p >= tau; the gap to the next score is exact, tau is not.
    gap = (top[..., :_LEAD] - top[..., _LEAD:]).to(probs.dtype)
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
    """The map along the last dimension in plain differentiable ops, wide where it can be."""
    dtype = solver_dtype(rows)
    rows, bounds = rows.to(dtype), bounds.to(dtype)
    fixed, limit = rows.detach(), bounds.detach()
    # Infinite scores take all they may. If that is everything, only they remain, all equal.
    first = fixed == math.inf
    taken = torch.where(first, limit, 0.0).sum(-1, keepdim=True)
    flooded = taken >= 1
    left = torch.where(flooded, 1.0, 1 - taken)
    only = torch.where(first, 0.0, -math.inf).to(fixed.dtype)
    rest = torch.where(first, -math.inf, fixed)
    free, full = sets(_compact(torch.where(flooded, only, rest)), limit, left)
    kept = fixed > -math.inf
    tight = torch.where(kept, limit, 0.0).sum(-1, keepdim=True) <= 1 + slack
    free = free & ~tight
    full = (full | (first & ~flooded) | tight) & kept
    held = torch.where(full, bounds, 0.0)
    rows = torch.where(first, 0.0, rows)
    inside = rebuilt(rows, free, 1 - held.sum(-1, keepdim=True))
    probs = torch.where(free, inside, held)
    # Rounding may leave the box; the way back is a constant and takes nothing from the gradient.
    value = probs.detach()
    return probs + (torch.minimum(value.clamp(min=0), limit) - value)


def _compact(values: Tensor) -> Tensor:
    """Rows far from 0 moved there and enormous gaps shortened, lest bounds be lost beside them.

    Across a gap of more than the logarithm of the smallest number the upper entry takes all it may
    before the lower one gets anything, however much wider the gap.
    """
    kept = values > -math.inf
    top = values.amax(-1, keepdim=True)
    far = (top.abs() > _SPREAD) & (top > -math.inf)
    shift = torch.where(far, top, 0.0)
    values = values - shift
    lowest = torch.where(kept, values, math.inf).amin(-1, keepdim=True)
    wide = top - shift - lowest > _SPREAD
    if eager(values) and not bool(wide.any()):
        return values
    ordered, order = values.sort(-1, descending=True)
    gap = torch.nn.functional.pad(ordered, (1, 0))[..., :-1] - ordered
    gap = torch.where((gap >= 0) & (torch.arange(gap.shape[-1], device=gap.device) > 0), gap, 0.0)
    short = -gap.clamp(max=_GAP).cumsum(-1)
    return torch.where(wide & kept, short.gather(-1, order.sort(-1)[1]), values)


def _sparsemax_sets(values: Tensor, bounds: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Walk tau down the sorted breakpoints; the mass grows by non-negative terms only."""
    kept = values > -math.inf
    leaves = torch.where(kept, values - bounds, -math.inf)  # below this tau the bound is reached
    never = torch.minimum(
        torch.where(kept, values, math.inf).amin(-1, keepdim=True),
        torch.where(leaves > -math.inf, leaves, math.inf).amin(-1, keepdim=True),
    )
    # What has no breakpoint gets one so low that a free entry has taken all the mass before.
    never = torch.where(kept.any(-1, keepdim=True), never - 2, 0.0)
    points = torch.cat([torch.where(kept, values, never), torch.maximum(leaves, never)], -1)
    points, order = points.sort(-1, descending=True)
    slope = torch.cat([kept.to(values.dtype), -kept.to(values.dtype)], -1).gather(-1, order)
    gap = torch.nn.functional.pad(points, (1, 0))[..., :-1] - points
    count = torch.nn.functional.pad(slope.cumsum(-1), (1, 0))[..., :-1]
    mass = torch.where(count > 0, count * gap, 0.0).cumsum(-1)
    place = (mass < total).sum(-1, keepdim=True)
    size = points.shape[-1]
    low = points.gather(-1, place.clamp(max=size - 1))
    high = points.gather(-1, (place - 1).clamp(min=0))
    hit = mass.gather(-1, place.clamp(max=size - 1)) == total
    free = kept & (values >= high) & ((leaves < low) | (~hit & (leaves == low)))
    full = kept & ((leaves >= high) | (hit & (leaves == low)))
    out = place >= size  # the bounds sum to less than the total: all of them are reached
    return free & ~out, full | (kept & out)


def _sparsemax_rebuilt(rows: Tensor, free: Tensor, mass: Tensor) -> Tensor:
    """`rows - tau` with a sum of `mass` over the free entries."""
    rows = _lowered(rows, free)
    spare = mass - rows.sum(-1, keepdim=True)
    return rows + spare / free.sum(-1, keepdim=True).clamp(min=1)


def _softmax_sets(values: Tensor, bounds: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds are reached in the order of score less log bound, until the next one is not.

    Everything stays in logarithms: when the large entries are held at their bounds, the rest of
    the mass goes to entries whose exponentials may have underflowed next to them.
    """
    kept = values > -math.inf
    reach = torch.where(kept, values - bounds.log(), -math.inf)
    if eager(values, bounds):
        full = _held_by_rounds(values, bounds, total, reach)
        if full is not None:
            return kept & ~full, full
    reach, order = reach.sort(-1, descending=True)
    held = torch.where(kept, bounds, 0.0).gather(-1, order).cumsum(-1)
    left = total - torch.nn.functional.pad(held, (1, 0))[..., :-1]
    level = _log_sum_after(values.gather(-1, order)) - left.clamp(min=0).log()
    stop = (left <= 0) | (reach <= level)
    number = (stop.cumsum(-1) == 0).sum(-1, keepdim=True)
    full = kept & (order.sort(-1)[1] < number)
    return kept & ~full, full


def _held_by_rounds(values: Tensor, bounds: Tensor, total: Tensor, reach: Tensor) -> Tensor | None:
    """Hold all that exceed their bound, share out the rest, repeat: usually done in no time."""
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
    """The softmax of the free entries, times `mass`."""
    some = free.any(-1, keepdim=True)
    rows = torch.where(free, _lowered(rows, free), torch.where(some, -math.inf, 0.0))
    return mass * torch.softmax(rows, -1)


def _lowered(rows: Tensor, free: Tensor) -> Tensor:
    """Free entries less the largest of them, a constant; 0 elsewhere."""
    top = torch.where(free, rows.detach(), -math.inf).amax(-1, keepdim=True)
    return torch.where(free, rows, 0.0) - torch.where(free, top, 0.0)


def _log_sum_after(values: Tensor) -> Tensor:
    """The log-sum-exp of every entry and those after it."""
    if not torch.compiler.is_exporting():
        return values.flip(-1).logcumsumexp(-1).flip(-1)

    def join(a: Tensor, b: Tensor) -> Tensor:
        top, gap = torch.maximum(a, b), (a - b).abs()
        # Two -inf make a gap of NaN; the gap only matters where the maximum is finite.
        return top + torch.where(top > -math.inf, gap, 0.0).neg().exp().log1p()

    return running(values, join, -math.inf)
