"""Rows: any dim, mask and dtype brought to one form, and the answer brought back.

A map works on rows along the last dimension, in float32 or wider, with dropped entries at -inf.
Maps that ignore a common offset see each row shifted so that its largest entry is exactly 0;
rows without an ordinary answer (all dropped, +inf, NaN) are replaced by harmless constants on the
way in and settled on the way out, so that they can neither raise nor leak into a gradient.
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
    "settle",
    "shifted",
    "to_rows",
    "widened",
]

_LANE = 32  # entries per lane of the bound in `narrow`
_LONG = 1024  # rows shorter than this are not worth narrowing


def widened(values: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def to_rows(scores: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Scores with `dim` last, float32 or wider, -inf where the mask drops."""
    check_scores(scores)
    axis = normal_dim(dim, scores.dim())
    rows = widened(scores)
    if mask is not None:
        check_mask(mask, scores)
        rows = rows.masked_fill(~mask, -math.inf)
    return rows if axis == scores.dim() - 1 else rows.movedim(axis, -1)


def from_rows(rows: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `to_rows` for an answer of the same shape."""
    axis = normal_dim(dim, rows.dim())
    moved = rows if axis == rows.dim() - 1 else rows.movedim(-1, axis)
    return moved if moved.dtype == dtype else moved.to(dtype)


def centre(rows: Tensor, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rows shifted so that their largest entry is 0, and that entry.

    The shift is a constant for the gradient, which is exact because the maps ignore it.
    """
    if top is None:
        top = rows.detach().amax(-1, keepdim=True)
    if eager(rows) and bool(top.isfinite().all()):
        return rows - top, top
    ordinary = top.isfinite()
    # +inf: uniform over the infinite entries. Nothing kept or NaN: any constant row will do.
    constant = torch.where(top == math.inf, torch.where(rows == math.inf, 0.0, -math.inf), 0.0)
    shifted = torch.where(ordinary, rows, 0.0) - torch.where(ordinary, top, 0.0)
    return torch.where(ordinary, shifted, constant.to(rows.dtype)), top


def settle(probs: Tensor, top: Tensor) -> Tensor:
    """Zeros where nothing was kept, NaN where a score was NaN."""
    if eager(probs) and bool((top > -math.inf).all()):
        return probs
    return torch.where(top > -math.inf, probs, torch.where(top.isnan(), math.nan, 0.0).to(probs))


def is_steep(rows: Tensor, alpha: float | Tensor) -> bool:
    """Whether scores a rounding error apart may have clearly different probabilities.

    They do for alpha > 2, in entmax and in normmax. Devices other than the CPU may lack float64
    or be slow at it.
    """
    if rows.device.type != "cpu":
        return False
    if isinstance(alpha, float):
        return alpha > 2
    return not eager(rows, alpha) or bool((alpha > 2).any())


def flat_rows(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """A parameter that broadcasts against rows, as one entry per flattened row."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.expand(*rows.shape[:-1], 1).reshape(-1, 1)


@dataclass(frozen=True)
class Narrow:
    """The few entries of long rows that can be in the support."""

    rows: Tensor  # (r, m) candidates, -inf where a row has fewer
    index: Tensor  # (r, m) their place in the long row
    top: Tensor  # (r, 1) largest entry of the long row
    shape: torch.Size  # of the long rows

    def widen(self, probs: Tensor) -> Tensor:
        """The long rows that are `probs` at the candidates and zero elsewhere."""
        zeros = probs.new_zeros(self.top.shape[0], self.shape[-1])
        return settle(zeros.scatter_add(1, self.index, probs), self.top).view(self.shape)


def narrow(rows: Tensor, bound: Callable[[Tensor], Tensor]) -> Narrow | None:
    """Candidates of long rows, or None when the rows are short or most entries are candidates.

    `bound` gives, for some entries of each row, a score below which nothing is in the support.
    Entries left out can only raise it, so it is asked about the maxima of interleaved lanes: one
    pass over memory, and almost everything is discarded. Where it is NaN there are no candidates.
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
    margin = 4 * torch.finfo(rows.dtype).eps * (1 + low.abs())  # rounding must not drop any
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
    few = flat.gather(1, index).masked_fill(empty.view(-1, width), -math.inf)
    return Narrow(few, index, tops.amax(-1, keepdim=True), rows.shape)


def shifted(floor: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The bound of a map that ignores a common offset, from one for rows with maximum 0."""

    def bound(tops: Tensor) -> Tensor:
        values, top = centre(tops)
        # Nothing kept: no candidates. Infinite entries: they alone are.
        return torch.where(top.isinf(), math.inf, floor(values) + top)

    return bound
