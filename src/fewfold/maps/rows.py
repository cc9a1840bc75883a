"""Convert scores with any dim, mask and dtype to rows, and results back.

Maps work on rows along the last dimension, in float32 or wider, with -inf at masked entries. Maps
that are invariant to a common offset receive rows shifted so that the largest entry is 0. Rows
without a finite maximum (fully masked, +inf, NaN) are replaced by constant rows in `centre` and
get their defined result in `finalize`, so that they cannot produce NaN gradients.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores, normal_dim
from fewfold._torch import eager

__all__ = [
    "Narrow",
    "centre",
    "flat_rows",
    "from_rows",
    "is_steep",
    "narrow",
    "finalize",
    "shifted",
    "to_rows",
    "widened",
]

_LANE = 32  # entries per lane in `narrow`
_LONG = 1024  # rows shorter than this are not worth narrowing


def widened(values: Tensor) -> Tensor:
    """Convert half precision to float32; return other dtypes unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def to_rows(scores: Tensor, dim: int, mask: Tensor | None, *, widen: bool = True) -> Tensor:
    """Return the scores with `dim` last, in float32 or wider, -inf at masked entries.

    Args:
        widen: False keeps half precision, for kernels that convert it themselves.
    """
    check_scores(scores)
    axis = normal_dim(dim, scores.dim())
    rows = widened(scores) if widen else scores
    if mask is not None:
        check_mask(mask, scores)
        rows = rows.masked_fill(~mask, -math.inf)
    return rows if axis == scores.dim() - 1 else rows.movedim(axis, -1)


def from_rows(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Move the last dimension back to `dim` and convert to `dtype`; the inverse of `to_rows`."""
    axis = normal_dim(dim, rows.dim())
    moved = rows if axis == rows.dim() - 1 else rows.movedim(-1, axis)
    return moved if moved.dtype == dtype else moved.to(dtype)


def centre(rows: Tensor, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Shift rows so that their largest entry is 0; return them and that entry.

    The shift is detached. Gradients stay exact because the maps are invariant to it.
    """
    if top is None:
        top = rows.detach().amax(-1, keepdim=True)
    if eager(rows) and bool(top.isfinite().all()):
        return rows - top, top
    ordinary = top.isfinite()
    # +inf: uniform over the infinite entries. Fully masked or NaN: `finalize` sets the result.
    constant = torch.where(top == math.inf, torch.where(rows == math.inf, 0.0, -math.inf), 0.0)
    shifted = torch.where(ordinary, rows, 0.0) - torch.where(ordinary, top, 0.0)
    return torch.where(ordinary, shifted, constant.to(rows.dtype)), top


def finalize(probs: Tensor, top: Tensor) -> Tensor:
    """Set fully masked rows to zeros and rows with NaN to NaN."""
    if eager(probs) and bool((top > -math.inf).all()):
        return probs
    return torch.where(top > -math.inf, probs, torch.where(top.isnan(), math.nan, 0.0).to(probs))


def is_steep(rows: Tensor, alpha: float | Tensor) -> bool:
    """Return whether rows must be solved in float64 because probabilities are steep in the scores.

    For alpha > 2 scores a rounding error apart can have clearly different probabilities, in entmax
    and in normmax. False on devices other than the CPU, which may lack float64 or be slow at it.
    """
    if rows.device.type != "cpu":
        return False
    if isinstance(alpha, float):
        return alpha > 2
    return not eager(rows, alpha) or bool((alpha > 2).any())


def flat_rows(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """Expand a parameter that broadcasts against rows to one entry per flattened row."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.expand(*rows.shape[:-1], 1).reshape(-1, 1)


@dataclass(frozen=True)
class Narrow:
    """Candidates: the entries of long rows that can be in the support."""

    rows: Tensor  # (r, m) scores of the candidates, padded with -inf
    index: Tensor  # (r, m) their index in the long row
    top: Tensor  # (r, 1) largest entry of the long row
    shape: torch.Size  # of the long rows

    def widen(self, probs: Tensor) -> Tensor:
        """Scatter the probabilities of the candidates into long rows of zeros."""
        zeros = probs.new_zeros(self.top.shape[0], self.shape[-1])
        return finalize(zeros.scatter_add(1, self.index, probs), self.top).view(self.shape)


def narrow(rows: Tensor, bound: Callable[[Tensor], Tensor]) -> Narrow | None:
    """Return the candidates of long rows, or None if rows are short or candidates are many.

    `bound` takes a subset of the entries of each row and returns a score below which no entry of
    the row is in the support. Any subset gives a valid bound; more entries can only raise it. It is
    evaluated on the maxima of interleaved lanes, in one pass over memory, which discards almost all
    entries. A row whose bound is NaN has no candidates.
    """
    if not eager(rows) or rows.shape[-1] < _LONG or rows.numel() == 0:
        return None
    size = rows.shape[-1]
    flat = rows.reshape(-1, size).contiguous()
    fixed = flat.detach()
    lanes = size // _LANE
    tops = fixed[:, : lanes * _LANE].view(-1, _LANE, lanes).amax(1)
    if lanes * _LANE < size:
        tops = torch.cat([tops, fixed[:, lanes * _LANE :].amax(-1, keepdim=True)], -1)
    low = bound(tops)
    margin = 4 * torch.finfo(rows.dtype).eps * (1 + low.abs())  # rounding must not drop a candidate
    low = torch.where(low.isinf(), low, low - margin)
    place = (fixed >= low).view(-1).nonzero().squeeze(-1)
    row = place // size
    count = torch.bincount(row, minlength=flat.shape[0])
    width = max(int(count.max()), 1)
    if width > size // 4:
        return None
    slot = (
        row * width + torch.arange(len(place), device=rows.device) - (count.cumsum(0) - count)[row]
    )
    index = place.new_zeros(flat.shape[0] * width)
    index[slot] = place - row * size
    empty = torch.ones_like(index, dtype=torch.bool)
    empty[slot] = False
    index = index.view(-1, width)
    candidates = flat.gather(1, index).masked_fill(empty.view(-1, width), -math.inf)
    return Narrow(candidates, index, tops.amax(-1, keepdim=True), rows.shape)


def shifted(floor: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Extend a bound for rows with maximum 0 to any rows, for an offset-invariant map."""

    def bound(tops: Tensor) -> Tensor:
        values, top = centre(tops)
        # Fully masked rows have no candidates; in rows with +inf only those entries are.
        return torch.where(top.isinf(), math.inf, floor(values) + top)

    return bound
