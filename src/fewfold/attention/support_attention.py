"""Attention by the few keys in a support: the kernels, and gradients that touch no other key."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._native import dispatch
from fewfold.maps.native_threshold import covers, support
from fewfold.maps.omega import Omega

__all__ = ["Few", "blend", "few_of", "pull_few"]

_PART = 8  # a support of less than this part of its row is kept as indices
_LEARNT = 1.25  # below it a slope in alpha is left to the map, which has more digits


@dataclass(frozen=True, eq=False)
class Few:
    """The support of a piece: weight and row of keys of each atom, and where each query starts."""

    weight: Tensor
    slot: Tensor
    first: Tensor

    def dense(self, values: Tensor, shape: torch.Size) -> Tensor:
        """Values of the atoms at their places in (heads, rows, keys), zeros elsewhere."""
        heads, rows, keys = shape
        query = torch.repeat_interleave(self.first.diff())
        head = query // max(rows, 1)
        place = query * keys + self.slot - head * keys
        return values.new_zeros(heads * rows * keys).index_add(0, place, values).view(shape)


def few_of(scores: Tensor, omega: Omega, learns: bool) -> Few | None:
    """The support of a piece, if it is a small part of it and the kernels can find it."""
    alpha = _alpha(omega)
    heads, rows, keys = scores.shape
    if alpha is None or not covers(scores, alpha) or heads * keys >= 2**31:
        return None
    if learns and isinstance(alpha, Tensor) and bool((alpha < _LEARNT).any()):
        return None
    index, weight, count = support(scores, alpha, False)
    if len(index) * _PART > scores.numel() or not _ordinary(scores, weight):
        return None
    first = torch.zeros(len(count) + 1, dtype=torch.int64)
    torch.cumsum(count, 0, out=first[1:])
    slot = index.int()
    if heads > 1:
        head = torch.arange(heads, dtype=torch.int32) * keys
        slot += head.repeat_interleave(rows).repeat_interleave(count)
    return Few(weight, slot, first)


def _ordinary(scores: Tensor, weight: Tensor) -> bool:
    """Whether no score is NaN or +inf: then the map itself knows better what to say."""
    return bool(weight.sum().isfinite()) and bool(scores.amax() < math.inf)


def _alpha(omega: Omega) -> float | Tensor | None:
    """The order of sparsemax and entmax, whose support the kernels find."""
    order = omega.kernel_order
    return None if order is None or order.norm else order.alpha


def blend(table: Tensor, weight: Tensor, few: Few) -> Tensor:
    """Sums of rows of (heads, S, d), one for each query."""
    rows = table.contiguous()
    _check_alike(rows, weight)
    size = rows.shape[-1]
    out = rows.new_empty(len(few.first) - 1, size)
    dispatch.kernel("blend", rows.dtype)(
        rows,
        size,
        weight,
        few.slot,
        few.first,
        len(out),
        out,
        dispatch.threads(),
    )
    return out


def _unblend(
    table: Tensor, weight: Tensor, few: Few, grad: Tensor, into: Tensor, dots: Tensor | None
) -> None:
    """Add the gradient of the rows to `into`; that of each weight goes into `dots`."""
    rows = table.contiguous()
    _check_alike(rows, weight, grad, into, *(() if dots is None else (dots,)))
    dispatch.kernel("unmix", rows.dtype)(
        rows, rows.shape[-1], weight, few.slot, 1, few.first, None, len(few.first) - 1, grad,
        dots, into, dispatch.threads(),
    )  # fmt: skip


def _check_alike(*given: Tensor) -> None:
    """Raise unless these have one dtype: a kernel takes what it finds for numbers of that kind."""
    if any(one.dtype != given[0].dtype for one in given):
        kinds = ", ".join(str(one.dtype) for one in given)
        raise TypeError(f"what a kernel works on must have one dtype, got {kinds}")


def pull_few(
    given: tuple[Tensor, Tensor, Tensor],
    omega: Omega,
    few: Few,
    kept: Tensor | None,
    grad: Tensor,
    scale: float,
    into: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Gradients of a piece's queries, and of alpha if it is a tensor.

    Those of keys and values are added to `into`, which must lie in one block each.
    """
    query, key, value = given
    dots = torch.empty_like(few.weight)
    used = few.weight if kept is None else few.weight * kept
    _unblend(value, used, few, grad, into[1], dots)
    if kept is not None:
        dots = dots * kept
    count = few.first.diff()
    row = torch.repeat_interleave(count, output_size=len(few.slot))
    order = _alpha(omega)
    if isinstance(order, Tensor):
        order = order.expand(*query.shape[:2], 1).reshape(-1)[row]
    power = order.to(few.weight.dtype) if isinstance(order, Tensor) else order
    slope = few.weight ** (2 - power)  # type: ignore[operator]
    mean = _sums(slope * dots, row, count) / _sums(slope, row, count)
    moved = slope * (dots - mean[row]) * scale
    to_query = blend(key, moved, few).view(query.shape)
    _unblend(key, moved, few, query.contiguous(), into[0], None)
    if not isinstance(order, Tensor):
        return to_query, None
    to_alpha = _to_alpha(few.weight, dots, order, row, count)
    return to_query, to_alpha.view(*query.shape[:2], 1)


def _to_alpha(weight: Tensor, grad: Tensor, order: Tensor, row: Tensor, count: Tensor) -> Tensor:
    """(rows,) the gradient of each row's alpha, in double precision as near 1 digits cancel."""
    probs, c = weight.double(), order.double() - 1
    slope = probs ** (1 - c)
    share = slope / _sums(slope, row, count)[row]
    surprise = -probs * probs.log()
    spread = surprise - share * _sums(surprise, row, count)[row]
    return _sums(grad.double() * ((probs - share) / c**2 + spread / c), row, count)


def _sums(values: Tensor, row: Tensor, count: Tensor) -> Tensor:
    return values.new_zeros(len(count)).index_add(0, row, values)
