"""k-subset map: the Euclidean projection onto vectors in [0, 1] that sum to k."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import non_negative_number, normal_dim, per_row
from fewfold._torch import eager
from fewfold.maps.compiled_operators import budget_operator, traceable
from fewfold.maps.native_ksubset import budget_map, quick
from fewfold.maps.omega import Omega
from fewfold.maps.rows import Narrow, flat_rows, from_rows, narrow, to_rows, widened

__all__ = ["Subset", "ksubset"]


def ksubset(
    scores: Tensor,
    k: float | Tensor,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
    at_most: bool = False,
) -> Tensor:
    """Marginals of choosing k entries: between 0 and 1, summing to k.

    Solves `argmax_p <p, scores> - ||p||^2 / 2` subject to `0 <= p <= 1` and `sum p = k`; the
    solution is `p = clip(scores - tau, 0, 1)`. With k = 1 it is sparsemax.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        k: the sum, real, between 0 and n. A number, or a tensor that broadcasts against the
            scores with size 1 along `dim`; a tensor receives a gradient.
        dim: the dimension along which entries are chosen.
        mask: boolean, True = keep. In a row with fewer than k unmasked entries each of them is 1.
        at_most: constrain the sum to at most k: `p = clip(scores, 0, 1)` where its sum is below.

    Returns:
        Marginals of the shape and dtype of the scores. Entries of +inf are always chosen; if
        there are more of them than k, each gets an equal share of k.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.ksubset(torch.tensor([3.0, 0.5, 0.2, -4.0]), 2)
        tensor([1.0000, 0.6500, 0.3500, 0.0000])

    Reference: Amos, Koltun and Kolter, "The limited multi-label projection layer", 2019.
    """
    if mask is None and dim == -1 and not at_most and type(k) is not bool:
        probs = quick(scores, k) if isinstance(k, (int, float)) else None
        if probs is not None:
            return probs
    rows = to_rows(scores, dim, mask)
    budget = row_budget(k, scores, dim)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    probs = None if at_most else budget_map(rows, budget)
    if probs is not None:
        return from_rows(probs, dim, scores.dtype)
    if not at_most and traceable(rows, budget):
        return from_rows(_ksubset_operator(rows, budget), dim, scores.dtype)
    return from_rows(_ksubset_torch(rows, budget, at_most), dim, scores.dtype)


def row_budget(k: float | Tensor, scores: Tensor, dim: int) -> float | Tensor:
    """Return k as a float, or as a tensor that broadcasts against rows."""
    axis = normal_dim(dim, scores.dim())
    n = scores.shape[axis]
    if isinstance(k, Tensor):
        rows: float | Tensor = per_row(k, scores, axis, "k")
        valid = not eager(k) or bool(((k >= 0) & (k <= n)).all())
    elif isinstance(k, (int, float)) and not isinstance(k, bool):
        # While tracing the size may be symbolic; a comparison would specialise the graph to it.
        rows, valid = float(k), torch.compiler.is_compiling() or 0 <= k <= n
    else:
        raise TypeError(f"k must be a number or a tensor, got {type(k).__name__}")
    if not valid:
        raise ValueError(
            f"k must be between 0 and n={n}, got {k}; to select everything drop the map"
        )
    return rows


def _ksubset_torch(rows: Tensor, k: float | Tensor, at_most: bool) -> Tensor:
    """The k-subset map along the last dimension in differentiable torch operations."""
    narrowed = ksubset_candidates(rows, k)
    if narrowed is None:
        return _ksubset_rows(rows, k, at_most)
    return narrowed.widen(_ksubset_rows(narrowed.rows, flat_rows(k, rows), at_most))


def _ksubset_exactly(rows: Tensor, k: float | Tensor) -> Tensor:
    return _ksubset_torch(rows, k, at_most=False)


_ksubset_operator = budget_operator("ksubset", _ksubset_exactly)


def ksubset_candidates(rows: Tensor, k: float | Tensor) -> Narrow | None:
    """Return the entries of long rows that can be in the support."""
    if not eager(rows, k):
        return None
    budget = torch.as_tensor(flat_rows(k, rows), dtype=rows.dtype).detach()

    def bound(tops: Tensor) -> Tensor:
        usual = tops < math.inf  # not NaN either
        unmasked = (usual & (tops > -math.inf)).sum(-1, keepdim=True)
        if float(budget.max()) > tops.shape[-1]:
            return torch.full_like(tops[..., :1], -math.inf)
        wanted = torch.minimum(budget, unmasked)
        anchor, offset = _anchored(torch.where(usual, tops, 0.0), wanted)
        low = anchor + _newton(offset, wanted)
        # Fewer lanes than k give no bound on the row; rows with NaN need no candidates.
        low = torch.where(
            (unmasked < budget) | (tops == math.inf).any(-1, keepdim=True), -math.inf, low
        )
        return torch.where(tops.isnan().any(-1, keepdim=True), math.nan, low)

    return narrow(rows, bound)


def _ksubset_rows(rows: Tensor, k: float | Tensor, at_most: bool) -> Tensor:
    """The k-subset map of rows without first reducing them to candidates."""
    fixed = rows.detach()
    budget = torch.as_tensor(k, dtype=rows.dtype, device=rows.device).clamp(min=0)
    infinite = (fixed == math.inf).sum(-1, keepdim=True)
    broken = fixed.isnan().any(-1, keepdim=True)
    flooded = infinite > budget  # more entries of +inf than k: they share it
    usual = ~(broken | flooded)
    fixed = torch.where(usual, fixed, 0.0)
    wanted = torch.minimum(budget, (fixed > -math.inf).sum(-1, keepdim=True))
    anchor, offset = _anchored(fixed, wanted.detach())
    solve = _newton if eager(rows, k) else _by_sorting
    tau = solve(offset, wanted.detach())
    probs = _clip(torch.where(usual, rows, 0.0), anchor, offset, tau, wanted, at_most)
    shared = torch.where(rows.detach() == math.inf, budget / infinite.clamp(min=1), 0.0)
    probs = torch.where(flooded, shared, probs)
    return torch.where(broken, math.nan, probs)


def _anchored(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score of rank ceil(wanted), and all scores relative to it, clamped to [-1, 1].

    Relative to this anchor the threshold lies in [-1, 0]: at -1 the top ceil(wanted) entries are
    all 1, at 0 their sum is below `wanted`. Only scores within 1 of the anchor can be fractional.
    """
    rank = (wanted.ceil().long() - 1).clamp(min=0)
    if values.numel() and eager(values, wanted):
        ordered = values.topk(int(rank.max()) + 1, -1).values
    else:
        ordered = values.sort(-1, descending=True).values
    anchor = ordered.gather(-1, rank.expand(*values.shape[:-1], 1))
    anchor = torch.where(anchor == -math.inf, 0.0, anchor)  # fully masked
    offset = torch.where(values == math.inf, 1.0, values - anchor).clamp(-1, 1)
    return anchor, offset


def _clip(
    scores: Tensor, anchor: Tensor, offset: Tensor, tau: Tensor, wanted: Tensor, at_most: bool
) -> Tensor:
    """`clip(scores - anchor - tau, 0, 1)`, with tau recomputed from the fractional entries."""
    if at_most:
        slack = anchor + tau <= 0
        anchor = torch.where(slack, 0.0, anchor)
        tau = torch.where(slack, 0.0, tau)
        offset = torch.where(slack, scores.detach().clamp(-1, 1), offset)
    free = (offset > tau) & (offset < tau + 1)
    full = (offset >= tau + 1).to(scores.dtype)
    inside = torch.where(free, torch.where(free, scores, 0.0) - anchor - tau, 0.0)
    excess = inside.sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - wanted
    step = excess / free.sum(-1, keepdim=True).clamp(min=1)
    if at_most:
        step = torch.where(slack, 0.0, step)
    return torch.where(free, (inside - step).clamp(0, 1), full)


def _newton(offset: Tensor, wanted: Tensor) -> Tensor:
    """Solve `sum clip(offset - tau, 0, 1) = wanted` for tau in [-1, 0]: bracketed Newton."""
    low = torch.full_like(offset[..., :1], -1.0)
    high = torch.zeros_like(low)
    enough = 8 * torch.finfo(offset.dtype).eps
    tau = low
    for step in range(200):
        part = (offset - tau).clamp_(0, 1)
        miss = part.sum(-1, keepdim=True) - wanted
        low = torch.where(miss >= 0, tau, low)
        high = torch.where(miss <= 0, tau, high)
        solved = (miss.abs() <= enough * (1 + wanted)) | (high - low <= enough)
        if bool(solved.all()):
            break
        free = ((part > 0) & (part < 1)).sum(-1, keepdim=True)
        newton = tau + miss / free
        inner = (newton > low) & (newton < high)
        follow = torch.where(inner & (step % 3 != 2), newton, (low + high) / 2)
        tau = torch.where(solved, tau, follow)
    return tau


def _by_sorting(offset: Tensor, wanted: Tensor) -> Tensor:
    """Solve the same equation by sorting, without data-dependent control flow.

    Along the sorted breakpoints the sum grows by non-negative terms, so that none cancel.
    """
    points, order = torch.cat([offset, offset - 1], -1).sort(-1, descending=True)
    begins = torch.ones_like(offset)
    active = torch.cat([begins, -begins], -1).gather(-1, order).cumsum(-1)
    gap = (points.roll(1, -1) - points).clamp(min=0)  # to the previous point; 0 for the first
    mass = (active.roll(1, -1) * gap).cumsum(-1)
    last = ((mass <= wanted).sum(-1, keepdim=True) - 1).clamp(min=0)
    missing = wanted - mass.gather(-1, last)
    tau = points.gather(-1, last) - missing / active.gather(-1, last).clamp(min=1)
    return tau.clamp(-1, 0)


@dataclass(frozen=True)
class Subset(Omega):
    """Half the squared norm, `||p||^2 / 2`, where p sums to k; its map is ksubset.

    Its margin is the lead of every chosen entry over every other one.

    Args:
        k: the sum of p; a number, or a tensor as in `ksubset`, which may be learnable.
        at_most: constrain the sum to at most k.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Subset(2).argmax(torch.tensor([3.0, 0.5, 0.2, -4.0]))
        tensor([1.0000, 0.6500, 0.3500, 0.0000])
    """

    on_simplex: ClassVar[bool] = False
    margin: ClassVar[float] = 1.0
    k: float | Tensor
    at_most: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.k, Tensor):
            non_negative_number(self.k, "k")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return (widened(probs).square().sum(dim) / 2).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return ksubset(scores, self.k, dim, mask=mask, at_most=self.at_most)

    def candidates(self, rows: Tensor, scores: Tensor, dim: int) -> tuple[Narrow, Omega] | None:
        budget = row_budget(self.k, scores, dim)
        found = ksubset_candidates(rows, budget)
        # every row has at least k candidates, so that k stays valid
        return None if found is None else (found, replace(self, k=flat_rows(budget, rows)))

    def for_size(self, size: int) -> "Subset":
        """Reduce k to `size` if there are fewer than k entries."""
        if isinstance(self.k, Tensor):
            return replace(self, k=self.k.clamp(max=size))
        return replace(self, k=size) if self.k > size else self

    def centred(self, scores: Tensor, probs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        live = scores.detach().amax(dim, keepdim=True) != -math.inf
        if self.at_most:  # the empty set is valid even in a fully masked row
            return scores, torch.ones_like(live)
        # The offset is near the threshold; the largest score may be far above it.
        top = torch.where(probs > 0, scores.detach(), math.inf).amin(dim, keepdim=True)
        return scores - torch.where(top.isinf(), 0.0, top), live

    def check_class_indices(self) -> None:
        if isinstance(self.k, Tensor):
            return
        if not (self.k >= 1 if self.at_most else self.k == 1):
            raise ValueError(
                f"Subset(k={self.k}) needs a target of the shape of the scores with rows that "
                "sum to k, got class indices; write ones at the chosen classes"
            )

    def attains(self, vertex: Tensor, scores: Tensor) -> Tensor:
        """Return whether all entries of the set lead the others by 1 (and 0, if `at_most`)."""
        on = vertex > 0.5
        least = scores.masked_fill(~on, math.inf).amin(-1)
        rest = scores.masked_fill(on, -math.inf).amax(-1)
        size = on.sum(-1)
        budget = torch.as_tensor(self.k, device=scores.device)
        budget = budget.squeeze(-1) if budget.dim() else budget  # one per row
        if not self.at_most:
            return (least - rest >= 1) & (size == budget)
        full = (least >= 1) & torch.where(size == budget, least - rest >= 1, rest <= 0)
        return full & (size <= budget)
