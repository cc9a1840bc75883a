"""Solvers as torch operators: one node in a compiled graph instead of an unrolled loop.

Solvers work on detached tensors, so these operators need no derivative, and their control flow may
depend on the data. Exported graphs cannot contain them; export traces the loop.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["number", "opaque"]


def number(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a parameter as a detached tensor, as operators require."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.full((), value, dtype=like.dtype, device=like.device)


def opaque(solve: Callable[..., Tensor], dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """Register `solve` as an operator; it returns one entry per row of its first argument."""
    name = f"fewfold::{solve.__name__.strip('_')}"
    operator: Any = torch.library.custom_op(name, solve, mutates_args=())

    def fake(rows: Tensor, *rest: Tensor) -> Tensor:
        return rows.new_empty((*rows.shape[:-1], 1), dtype=dtype or rows.dtype)

    def over_batch(
        info: Any, dims: tuple[int | None, ...], rows: Tensor, *rest: Tensor
    ) -> tuple[Tensor, int]:
        if dims[0] is None:
            rows = rows.expand(info.batch_size, *rows.shape)
        else:
            rows = rows.movedim(dims[0], 0)
        moved = []
        for value, dim in zip(rest, dims[1:], strict=True):
            if dim is not None:  # the other dimensions align with the last ones of the rows
                value = value.movedim(dim, 0)
                missing = rows.dim() - value.dim()
                value = value.reshape(value.shape[0], *(1,) * missing, *value.shape[1:])
            moved.append(value)
        return operator(rows, *moved), 0

    operator.register_fake(fake)
    operator.register_vmap(over_batch)
    registered: Callable[..., Tensor] = operator
    return registered
