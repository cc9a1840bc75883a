"""Validated shapes, masks and scale of an attention call."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores
from fewfold._torch import autocast_dtype, autocasts

__all__ = ["check_vectors", "joint_batch", "Layout"]

_SMALL = 2**21  # largest number of scores for which the full matrix is computed


@dataclass(frozen=True, eq=False)
class Layout:
    """Shapes, mask and scale of the scores of one attention call.

    Attributes:
        batch: batch shape of the scores, including heads.
        queries: number of queries, L.
        keys: number of keys, S.
        group: number of query heads per key head.
        mask: boolean (True = take part) or additive, as passed by the caller.
        causal: whether query i attends to keys 0, ..., i only.
        scale: factor of the scores.
    """

    batch: torch.Size
    queries: int
    keys: int
    group: int
    mask: Tensor | None
    causal: bool
    scale: float

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float | None,
        grouped: bool,
    ) -> "Layout":
        """Validate the arguments of an attention call and return their layout."""
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            check_scores(tensor, name)
            if tensor.dim() < 2:
                raise ValueError(
                    f"{name} must be (..., positions, size), got shape {tuple(tensor.shape)}"
                )
        if query.shape[-1] != key.shape[-1]:
            raise ValueError(
                f"query and key must have vectors of the same size, got {query.shape[-1]} and "
                f"{key.shape[-1]}"
            )
        if key.shape[-2] != value.shape[-2]:
            raise ValueError(
                f"every key needs a value: key is {tuple(key.shape)} and value {tuple(value.shape)}"
            )
        _check_dtypes(query, key, value)
        batch, group = _batch(query, key, value, grouped)
        _check_scale(scale)
        layout = cls(
            batch,
            query.shape[-2],
            key.shape[-2],
            group,
            mask,
            causal,
            1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale),
        )
        layout._check_mask()
        return layout

    def _check_mask(self) -> None:
        if self.mask is None:
            return
        if not isinstance(self.mask, Tensor) or not (
            self.mask.dtype == torch.bool or self.mask.is_floating_point()
        ):
            got = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise TypeError(f"mask must be boolean (True = take part) or numbers to add, got {got}")
        try:
            fits = torch.broadcast_shapes(self.mask.shape, self.shape) == self.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"mask must broadcast to {tuple(self.shape)}, got {tuple(self.mask.shape)}"
            )

    @property
    def shape(self) -> torch.Size:
        """Shape of the scores, `(*batch, L, S)`."""
        return torch.Size([*self.batch, self.queries, self.keys])

    @property
    def heads(self) -> int:
        """Number of query heads in the whole batch."""
        return self.batch.numel()

    @property
    def small(self) -> bool:
        """Whether the full matrix of scores is small enough to store."""
        return self.shape.numel() <= _SMALL

    @property
    def key_batch(self) -> torch.Size:
        """Batch shape of keys and values, with one head per group."""
        if self.group == 1:
            return self.batch
        return torch.Size([*self.batch[:-1], self.batch[-1] // self.group])

    def shared(self, keys: Tensor) -> Tensor:
        """Keys or values repeated for each query head."""
        if self.group == 1:
            return keys
        every = keys.expand(*keys.shape[:-3], self.key_batch[-1], *keys.shape[-2:])
        return every.repeat_interleave(self.group, -3)

    def by_head(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Contiguous queries `(heads, L, d)`, and keys and values `(heads / group, S, ...)`."""
        low = autocast_dtype(query)
        if low is not None and query.dtype != torch.float64:  # as torch's own attention does
            query, key, value = query.to(low), key.to(low), value.to(low)
        whole = self.batch, self.key_batch, self.key_batch
        query, key, value = (
            one.expand(*batch, *one.shape[-2:]).reshape(batch.numel(), *one.shape[-2:])
            for one, batch in zip((query, key, value), whole, strict=True)
        )
        return query.contiguous(), key.contiguous(), value.contiguous()

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Masked scores of all queries and keys."""
        found = (query * self.scale) @ self.shared(key).transpose(-2, -1)
        if found.shape != self.shape:  # the values have a larger batch
            found = found.expand(self.shape)
        if self.causal:
            found = found.masked_fill(
                ~torch.ones(self.queries, self.keys, dtype=torch.bool, device=query.device).tril(),
                -math.inf,
            )
        if self.mask is None:
            return found
        if self.mask.dtype == torch.bool:
            return found.masked_fill(~self.mask, -math.inf)
        return found + self.mask.to(found.dtype)


def _check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
    kinds = (query.dtype, key.dtype, value.dtype)
    # Autocast does not cast double precision.
    cast = autocasts(query) and torch.float64 not in kinds
    if not (cast or query.dtype == key.dtype == value.dtype):
        raise TypeError(
            f"query, key and value must have the same dtype, got {query.dtype}, {key.dtype} and "
            f"{value.dtype}; write key.to(query.dtype)"
        )


def _check_scale(scale: float | None) -> None:
    if scale is None:
        return
    if isinstance(scale, Tensor) and scale.requires_grad:
        raise TypeError(
            "scale must be a number, got a tensor that requires a gradient; write query * scale, "
            "and scale=1"
        )
    try:
        finite = bool(-math.inf < scale < math.inf)  # a compiler traces it
    except (TypeError, RuntimeError):
        raise TypeError(f"scale must be a number, got {scale!r}") from None
    if not finite:
        raise ValueError(f"scale must be finite, got {scale}")


def _batch(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> tuple[torch.Size, int]:
    """Return the joint batch shape, and the number of query heads per key head."""
    given = [one.shape[:-2] for one in (query, key, value)]
    try:
        own = torch.broadcast_shapes(*given[1:])
        if grouped and query.dim() >= 3 and _divides(own, query.shape[-3]):
            before = torch.broadcast_shapes(query.shape[:-3], own[:-1])
            return torch.Size([*before, query.shape[-3]]), query.shape[-3] // own[-1]
        return torch.broadcast_shapes(*given), 1
    except RuntimeError:
        more = "; for fewer heads of keys write enable_gqa=True"
        if grouped:
            more = "; with enable_gqa the heads of keys must divide those of queries"
        raise ValueError(
            "query, key and value must have the same heads and batch, got "
            f"{', '.join(str(tuple(one)) for one in given)}{more}"
        ) from None


def _divides(batch: torch.Size, heads: int) -> bool:
    """Whether the number of query heads is a multiple of the number of key heads."""
    return bool(batch) and batch[-1] > 0 and heads % batch[-1] == 0


def joint_batch(query: Tensor, memory: Tensor) -> torch.Size:
    """Return the broadcast batch shape of queries and patterns."""
    try:
        both: torch.Size = torch.broadcast_shapes(query.shape[:-2], memory.shape[:-2])
    except RuntimeError:
        raise ValueError(
            "the batch dimensions of queries and patterns must broadcast, got "
            f"{tuple(query.shape[:-2])} and {tuple(memory.shape[:-2])}"
        ) from None
    return both


def check_vectors(tensor: Tensor, name: str, dim: int) -> None:
    """Raise unless the tensor is floating-point of shape (..., count, dim)."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dim() < 2 or tensor.shape[-1] != dim:
        raise ValueError(f"{name} must be (..., count, {dim}), got {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating-point vectors, got {tensor.dtype}")
