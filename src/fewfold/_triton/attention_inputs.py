"""Arguments of the attention kernels; importable without Triton."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["AttentionInputs", "AttentionStats"]

_LARGEST = {torch.float32: 128, torch.float16: 256, torch.bfloat16: 256}  # entries of a vector


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs of an attention call.

    Attributes:
        query: (heads, L, d), contiguous.
        key: (heads / group, S, d), contiguous.
        value: (heads / group, S, dv), contiguous.
        mask: (batch, heads / batch, L, S) of any strides: boolean (True = take part), or numbers to
            add; or None.
        causal: whether query i attends to keys 0, ..., i only.
        scale: factor of the scores.
        alpha: a number, or (heads, L or 1).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    alpha: float | Tensor

    @property
    def covered(self) -> bool:
        """Whether the kernels can do this: vectors neither empty nor too long."""
        longest = max(self.query.shape[-1], self.value.shape[-1])
        every = min(*self.query.shape, *self.key.shape, *self.value.shape)
        return every > 0 and longest <= _LARGEST[self.query.dtype]


@dataclass(frozen=True)
class AttentionStats:
    """What the backward pass needs.

    Attributes:
        top: (heads, L) largest score.
        tau: (heads, L) threshold.
        total: (heads, L) sum of the weights before normalisation.
        active: (heads, blocks of queries, blocks of keys), 1 for blocks with weights.
    """

    top: Tensor
    tau: Tensor
    total: Tensor
    active: Tensor
