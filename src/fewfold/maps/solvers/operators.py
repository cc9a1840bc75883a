"""Solvers as operators of their own: one node in a compiled graph instead of an unrolled loop.

A solver works on constants, so such an operator needs no derivative, and may look at the data.
Exporters cannot take it along; they trace the loop.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["number", "opaque"]


def number(value: float | Tensor, like: Tensor) -> Tensor:
    """A parameter as a constant tensor, which is what operators take."""
    if isinstance(value, Tensor):
        return value.detach()
    return torch.full((), value, dtype=like.dtype, device=like.device)


def opaque(solve: Callable[..., Tensor], dtype: torch.dtype | None = None) -> Callable[..., Tensor]:
    """`solve` as an operator; its answer has one entry per row of its first argument."""
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
            if dim is not None:  # its own dimensions still line up with the last ones of the rows
                value = value.movedim(dim, 0)
                missing = rows.dim() - value.dim()
                value = value.reshape(value.shape[0], *(1,) * missing, *value.shape[1:])
            moved.append(value)
        return operator(rows, *moved), 0

    operator.register_fake(fake)
    operator.register_vmap(over_batch)
    answer: Callable[..., Tensor] = operator
    return answer
