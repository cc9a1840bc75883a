"""Combination of the masks of fewfold and of torch.nn.MultiheadAttention into one mask.

Two polarities meet here. A boolean `mask` says which keys take part (True = keep), as everywhere in
fewfold. `attn_mask` and `key_padding_mask` are arguments of `torch.nn.MultiheadAttention` and say,
as there, which keys are left out (True = ignore).
"""

import math

import torch
from torch import Tensor

from fewfold._check import fits

__all__ = ["joint_mask"]


def joint_mask(
    shape: torch.Size,
    mask: Tensor | None,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Tensor | None:
    """Return one mask, True = take part or numbers to add, that broadcasts to `shape`.

    Args:
        shape: `(*batch, heads, L, S)`, of the scores.
        mask: boolean, True = take part, or numbers to add; `(*batch, heads, L, S)` with sizes of 1
            where it is shared.
        attn_mask: boolean, True = ignore, or numbers to add; `(L, S)`, `(N * heads, L, S)` for a
            batch of N, or like `mask`.
        key_padding_mask: boolean, True = ignore, or numbers to add; `(*batch, S)`.
    """
    found = None if mask is None else _check_mask(mask, shape)
    if attn_mask is not None:
        found = _combine(found, _to_take_part(_check_attn_mask(attn_mask, shape)))
    if key_padding_mask is not None:
        found = _combine(found, _to_take_part(_check_padding_mask(key_padding_mask, shape)))
    return found


def _check_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    _check_dtype(mask, "mask", "True = take part")
    if mask.dim() == len(shape) and fits(mask.shape, shape):
        return mask
    if mask.dim() == 2 and len(shape) == 3 and fits(mask.shape, shape):
        return mask  # unambiguous, as there is no batch
    instead = "write sizes of 1 where it is shared"
    if mask.dim() == 2:
        more = ", ".join(["None"] * (len(shape) - 2))
        instead = (
            f"for a mask (L, S) of queries and keys write mask[{more}], for a mask (batch, S) of "
            "keys write key_padding_mask=~mask"
        )
    elif mask.dim() == 3 and len(shape) == 4:
        instead = (
            "for one mask per sequence write mask.unsqueeze(1), for one per head mask.unsqueeze(0)"
        )
    raise ValueError(
        f"mask must have the dimensions (batch, heads, L, S) and broadcast to {tuple(shape)}, got "
        f"{tuple(mask.shape)}; {instead}"
    )


def _check_attn_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    _check_dtype(mask, "attn_mask", "True = ignore")
    *batch, heads, queries, keys = shape
    if mask.shape == (queries, keys) or (mask.dim() == len(shape) and fits(mask.shape, shape)):
        return mask
    if len(batch) == 1 and mask.shape == (batch[0] * heads, queries, keys):
        by_sequence: Tensor = mask.unflatten(0, (batch[0], heads))
        return by_sequence
    flat = f", {(batch[0] * heads, queries, keys)}" if len(batch) == 1 else ""
    raise ValueError(
        f"attn_mask must be {(queries, keys)}{flat} or broadcast to {tuple(shape)} with as many "
        f"dimensions, got {tuple(mask.shape)}; a mask of keys alone is key_padding_mask"
    )


def _check_padding_mask(mask: Tensor, shape: torch.Size) -> Tensor:
    _check_dtype(mask, "key_padding_mask", "True = ignore")
    wanted = (*shape[:-3], shape[-1])
    if mask.shape != wanted:
        raise ValueError(
            f"key_padding_mask must be {wanted}, a row of keys for each sequence, got "
            f"{tuple(mask.shape)}"
        )
    return mask[..., None, None, :]


def _check_dtype(mask: Tensor, name: str, meaning: str) -> None:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name} must be boolean ({meaning}) or numbers to add, got {got}")


def _to_take_part(mask: Tensor) -> Tensor:
    """Convert True = ignore to True = take part; additive masks are unchanged."""
    return ~mask if mask.dtype == torch.bool else mask


def _combine(one: Tensor | None, other: Tensor) -> Tensor:
    if one is None:
        return other
    if one.dtype == other.dtype == torch.bool:
        return one & other
    return _to_additive(one, other) + _to_additive(other, one)


def _to_additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as an additive mask."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(
        ~mask, -math.inf
    )
