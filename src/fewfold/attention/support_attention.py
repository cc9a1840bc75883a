"""Attention over the keys in a support: forward and backward passes that touch no other key."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.maps.native_threshold import covers, support
from fewfold.maps.omega import Omega

__all__ = ["ChunkSupport", "backward_support", "blend", "entmax_alpha", "find_support"]

_PART = 8  # supports smaller than 1 / 8 of the scores are stored as indices
_LEARNT = 1.25  # below this alpha, the map itself computes the gradient of alpha more accurately


@dataclass(frozen=True, eq=False)
class ChunkSupport:
    """Support of a chunk in compressed sparse rows.

    Attributes:
        weight: (m,) weight of each pair (query, key) in the support.
        slot: (m,) row of the pair's key in the flattened keys (heads * S, d).
        first: (queries + 1,) offset of the first pair of each query.
    """

    weight: Tensor
    slot: Tensor
    first: Tensor

    def dense(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Scatter one value per pair into a dense (heads, rows, keys) tensor."""
        heads, rows, keys = shape
        query = torch.repeat_interleave(self.first.diff())
        head = query // max(rows, 1)
        place = query * keys + self.slot - head * keys
        return values.new_zeros(heads * rows * keys).index_add(0, place, values).view(shape)


def find_support(scores: Tensor, omega: Omega, learns: bool) -> ChunkSupport | None:
    """Return the support of a chunk, or None if it is not sparse or no kernel computes it."""
    alpha = entmax_alpha(omega)
    heads, rows, keys = scores.shape
    if alpha is None or not covers(scores, alpha) or heads * keys >= 2**31:
        return None
    if learns and isinstance(alpha, Tensor) and bool((alpha < _LEARNT).any()):
        return None
    index, weight, count = support(scores, alpha, False)
    if len(index) * _PART > scores.numel() or not _is_finite(scores, weight):
        return None
    first = torch.zeros(len(count) + 1, dtype=torch.int64)
    torch.cumsum(count, 0, out=first[1:])
    slot = index.int()
    if heads > 1:
        head = torch.arange(heads, dtype=torch.int32) * keys
        slot += head.repeat_interleave(rows).repeat_interleave(count)
    return ChunkSupport(weight, slot, first)


def _is_finite(scores: Tensor, weight: Tensor) -> bool:
    """Whether no score is NaN or +inf; otherwise the map itself handles the chunk."""
    return bool(weight.sum().isfinite()) and bool(scores.amax() < math.inf)


def entmax_alpha(omega: Omega) -> float | Tensor | None:
    """Return alpha of sparsemax or entmax, which have kernels; None for other maps."""
    order = omega.kernel_order
    return None if order is None or order.norm else order.alpha


def blend(table: Tensor, weight: Tensor, support: ChunkSupport) -> Tensor:
    """Weighted sum of the support's rows of `table` (heads, S, d) for each query."""
    rows = table.contiguous()
    _check_same_dtype(rows, weight)
    size = rows.shape[-1]
    out = rows.new_empty(len(support.first) - 1, size)
    dispatch.kernel("blend", rows.dtype)(
        rows,
        size,
        weight,
        support.slot,
        support.first,
        len(out),
        out,
        dispatch.threads(),
    )
    return out


def _backward_blend(
    table: Tensor,
    weight: Tensor,
    support: ChunkSupport,
    grad: Tensor,
    into: Tensor,
    dots: Tensor | None,
) -> None:
    """Add the gradient of the rows to `into`; write the gradient of each weight to `dots`."""
    rows = table.contiguous()
    _check_same_dtype(rows, weight, grad, into, *(() if dots is None else (dots,)))
    dispatch.kernel("unmix", rows.dtype)(
        rows, rows.shape[-1], weight, support.slot, 1, support.first, None,
        len(support.first) - 1, grad, dots, into, dispatch.threads(),
    )  # fmt: skip


def _check_same_dtype(*given: Tensor) -> None:
    """Raise unless all tensors have the same dtype, which the kernels do not check."""
    if any(one.dtype != given[0].dtype for one in given):
        kinds = ", ".join(str(one.dtype) for one in given)
        raise TypeError(f"the tensors of a kernel must have the same dtype, got {kinds}")


def backward_support(
    given: tuple[Tensor, Tensor, Tensor],
    omega: Omega,
    support: ChunkSupport,
    drop: Tensor | None,
    grad: Tensor,
    scale: float,
    into: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the queries of a chunk, and of alpha if it is a tensor.

    The gradients of keys and values are added to `into`, two contiguous tensors.
    """
    query, key, value = given
    dots = torch.empty_like(support.weight)
    used = support.weight if drop is None else support.weight * drop
    _backward_blend(value, used, support, grad, into[1], dots)
    if drop is not None:
        dots = dots * drop
    count = support.first.diff()
    row = torch.repeat_interleave(count, output_size=len(support.slot))
    order = entmax_alpha(omega)
    if isinstance(order, Tensor):
        order = order.expand(*query.shape[:2], 1).reshape(-1)[row]
    power = order.to(support.weight.dtype) if isinstance(order, Tensor) else order
    slope = support.weight ** (2 - power)  # type: ignore[operator]
    mean = _sums(slope * dots, row, count) / _sums(slope, row, count)
    moved = slope * (dots - mean[row]) * scale
    to_query = blend(key, moved, support).view(query.shape)
    _backward_blend(key, moved, support, query.contiguous(), into[0], None)
    if not isinstance(order, Tensor):
        return to_query, None
    to_alpha = _to_alpha(support.weight, dots, order, row, count)
    return to_query, to_alpha.view(*query.shape[:2], 1)


def _to_alpha(weight: Tensor, grad: Tensor, order: Tensor, row: Tensor, count: Tensor) -> Tensor:
    """(rows,) gradient of the alpha of each row; double, because terms cancel near alpha = 1."""
    probs, c = weight.double(), order.double() - 1
    slope = probs ** (1 - c)
    share = slope / _sums(slope, row, count)[row]
    surprise = -probs * probs.log()
    spread = surprise - share * _sums(surprise, row, count)[row]
    return _sums(grad.double() * ((probs - share) / c**2 + spread / c), row, count)


def _sums(values: Tensor, row: Tensor, count: Tensor) -> Tensor:
    return values.new_zeros(len(count)).index_add(0, row, values)
