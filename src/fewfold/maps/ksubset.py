"""k-subset map: the Euclidean projection onto vectors in [0, 1] that sum to k."""

import math

import torch
from torch import Tensor

from fewfold._check import normal_dim, per_row
from fewfold.maps import fast
from fewfold.maps.rows import Narrow, eager, flat_rows, from_rows, narrow, to_rows

__all__ = ["ksubset"]


def ksubset(
    scores: Tensor,
    k: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    at_most: bool = False,
) -> Tensor:
    """Marginals of choosing k entries: between 0 and 1, summing to k.

    Solves `argmax_p <p, scores> - ||p||^2 / 2` subject to `0 <= p <= 1` and `sum p = k`, whose
    answer is `p = clip(scores - tau, 0, 1)`. With k = 1 it is sparsemax.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        k: how many to choose, real, between 0 and n. A number, or a tensor that broadcasts
            against the scores with size 1 along `dim`; a tensor receives its gradient.
        dim: the dimension to choose along.
        mask: boolean, True = keep. A row that keeps fewer than k entries gives each of them 1.
        at_most: let the sum be anything up to k; then `p = clip(scores, 0, 1)` if that fits.

    Returns:
        Marginals of the shape and dtype of the scores. An entry at +inf is always chosen; if
        there are more of them than k, they share k evenly.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.ksubset(torch.tensor([3.0, 0.5, 0.2, -4.0]), 2)
        tensor([1.0000, 0.6500, 0.3500, 0.0000])

    Reference: Amos, Koltun and Kolter, "The limited multi-label projection layer", 2019.
    """
    rows = to_rows(scores, dim, mask)
    budget = row_budget(k, scores, dim)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    probs = None if at_most else fast.budget_map(rows, budget)
    if probs is not None:
        return from_rows(probs, dim, scores.dtype)
    return from_rows(_ksubset_torch(rows, budget, at_most), dim, scores.dtype)


def row_budget(k: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """k as a float, or as a tensor that broadcasts against rows."""
    axis = normal_dim(dim, scores.dim())
    n = scores.shape[axis]
    if isinstance(k, Tensor):
        rows: float | Tensor = per_row(k, scores, axis, "k")
        valid = not eager(k) or bool(((k >= 0) & (k <= n)).all())
    elif isinstance(k, (int, float)) and not isinstance(k, bool):
        # The size may be symbolic while tracing, when comparing it would pin it down.
        rows, valid = float(k), torch.compiler.is_compiling() or 0 <= k <= n
    else:
        raise TypeError(f"k must be a number or a tensor, got {type(k).__name__}")
    if not valid:
        raise ValueError(
            f"k must be between 0 and n={n}, got {k}; to select everything drop the map"
        )
    return rows


def _ksubset_torch(rows: Tensor, k: float | Tensor, at_most: bool) -> Tensor:
    """The k-subset map along the last dimension in plain differentiable ops."""
    few = ksubset_candidates(rows, k)
    if few is None:
        return _ksubset_rows(rows, k, at_most)
    return few.widen(_ksubset_rows(few.rows, flat_rows(k, rows), at_most))


def ksubset_candidates(rows: Tensor, k: float | Tensor) -> Narrow | None:
    """The entries of long rows that can be in the support."""
    if not eager(rows, k):
        return None
    budget = torch.as_tensor(flat_rows(k, rows), dtype=torch.float64).detach()

    def bound(tops: Tensor) -> Tensor:
        kept = (tops > -math.inf).sum(-1, keepdim=True)
        tau = _threshold_by_newton(tops.double().nan_to_num(nan=0.0), torch.minimum(budget, kept))
        # Too few lanes to fill k say nothing about the row; NaN rows need no candidates.
        low = torch.where(
            (kept < budget) | (tops == math.inf).any(-1, keepdim=True), -math.inf, tau
        )
        return torch.where(tops.isnan().any(-1, keepdim=True), math.nan, low).to(tops.dtype)

    return narrow(rows, bound)


def _ksubset_rows(rows: Tensor, k: float | Tensor, at_most: bool) -> Tensor:
    """The k-subset map of every entry given."""
    quick = eager(rows, k)
    scores = rows.double() if quick else rows
    fixed = scores.detach()
    budget = torch.as_tensor(k, dtype=scores.dtype, device=rows.device).clamp(min=0)
    infinite = (fixed == math.inf).sum(-1, keepdim=True)
    broken = fixed.isnan().any(-1, keepdim=True)
    flooded = infinite > budget  # more entries at +inf than k: they share it
    usual = ~(broken | flooded)
    fixed = torch.where(usual, fixed, 0.0)
    scores = torch.where(usual, scores, 0.0)
    kept = (fixed > -math.inf).sum(-1, keepdim=True).to(scores.dtype)
    wanted = torch.minimum(budget, kept)
    if quick:
        anchor = _threshold_by_newton(fixed, wanted.detach())
        drop = torch.zeros_like(anchor)
    else:
        anchor, drop = _threshold_by_sorting(fixed, wanted.detach())
    probs = _clip(scores, anchor, drop, wanted, at_most)
    shared = torch.where(rows.detach() == math.inf, budget / infinite.clamp(min=1), 0.0)
    probs = torch.where(flooded, shared, probs)
    return torch.where(broken, math.nan, probs).to(rows.dtype)


def _clip(scores: Tensor, anchor: Tensor, drop: Tensor, wanted: Tensor, at_most: bool) -> Tensor:
    """`clip(scores - tau, 0, 1)` with tau rebuilt from the entries strictly inside.

    The threshold comes as `anchor - drop`, because next to large scores a small drop is lost.
    """
    if at_most:
        slack = anchor - drop <= 0
        anchor = torch.where(slack, 0.0, anchor)
        drop = torch.where(slack, 0.0, drop)
    offset = scores.detach() - anchor + drop
    free = (offset > 0) & (offset < 1)
    full = (offset >= 1).to(scores.dtype)
    inside = torch.where(free, torch.where(free, scores, 0.0) - anchor + drop, 0.0)
    excess = inside.sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - wanted
    step = excess / free.sum(-1, keepdim=True).clamp(min=1)
    if at_most:
        step = torch.where(slack, 0.0, step)
    return torch.where(free, (inside - step).clamp(0, 1), full)


def _threshold_by_newton(values: Tensor, wanted: Tensor) -> Tensor:
    """tau of `sum clip(values - tau, 0, 1) = wanted`: Newton inside a bracket, on constants."""
    finite = values.isfinite()
    any_finite = finite.any(-1, keepdim=True)
    low = torch.where(finite, values, math.inf).amin(-1, keepdim=True) - 1
    high = torch.where(finite, values, -math.inf).amax(-1, keepdim=True)
    low = torch.where(any_finite, low, 0.0)
    high = torch.where(any_finite, high, 0.0)
    enough = 8 * torch.finfo(values.dtype).eps
    tau = (low + high) / 2
    for step in range(200):
        part = (values - tau).clamp_(0, 1)
        miss = part.sum(-1, keepdim=True) - wanted
        free = ((part > 0) & (part < 1)).sum(-1, keepdim=True)
        low = torch.where(miss >= 0, tau, low)
        high = torch.where(miss <= 0, tau, high)
        solved = (miss.abs() <= enough * (1 + wanted)) | (high - low <= enough * (1 + high.abs()))
        if bool(solved.all()):
            break
        middle = (low + high) / 2
        newton = tau + miss / free
        inner = (newton > low) & (newton < high)
        tau = torch.where(inner & (step % 3 != 2), newton, middle)
    return tau


def _threshold_by_sorting(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The same threshold as a breakpoint and a drop below it, for any transform.

    Walking down the sorted breakpoints, the sum grows by non-negative terms only.
    """
    finite = values.isfinite()
    always = (values == math.inf).sum(-1, keepdim=True)
    low = torch.where(finite, values, math.inf).amin(-1, keepdim=True)
    low = torch.where(low == math.inf, 0.0, low)
    # Infinite entries never change along the walk: they wait, without weight, below its end.
    placed = torch.where(finite, values, low - 2)
    weight = finite.to(values.dtype)
    points, order = torch.cat([placed, placed - 1], -1).sort(-1, descending=True)
    active = torch.cat([weight, -weight], -1).gather(-1, order).cumsum(-1)
    gap = (points.roll(1, -1) - points).clamp(min=0)  # to the point before; 0 for the first
    mass = (active.roll(1, -1) * gap).cumsum(-1)
    rest = wanted - always
    last = ((mass <= rest).sum(-1, keepdim=True) - 1).clamp(min=0)
    missing = rest - mass.gather(-1, last)
    slope = active.gather(-1, last).clamp(min=1)
    return points.gather(-1, last), missing / slope
