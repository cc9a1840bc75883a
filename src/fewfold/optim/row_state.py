"""What an optimiser keeps for a parameter: whether it fits, and rows of it."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["check_param", "check_state", "take"]


def check_param(param: Any) -> None:
    if isinstance(param, Tensor) and not param.is_floating_point():
        raise TypeError(
            f"parameters must have a real floating-point dtype, got {param.dtype}; for a complex "
            "one write torch.view_as_real(param)"
        )


def check_state(param: Tensor, rows: int, state: dict[str, Tensor], *, slots: int) -> None:
    """Raise unless the state is that of a parameter of this shape: a kernel would write beyond."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"the state {name!r} must be a tensor, got {type(value).__name__}")
        if not value.is_contiguous():  # an expanded one cannot be written to
            state[name] = value.contiguous()
    memory, step, square = state.get("memory"), state.get("step"), state.get("square")
    if step is not None and (step.shape != (rows,) or step.dtype != torch.int32):
        raise _foreign("step", step, param)
    if square is not None and square.shape != (rows,):
        raise _foreign("square", square, param)
    if memory is not None and (
        memory.numel() != slots * param.numel() or (memory.dim() and len(memory) != rows)
    ):
        raise _foreign("memory", memory, param)


def _foreign(name: str, came: Tensor, param: Tensor) -> ValueError:
    return ValueError(
        f"the state {name!r} of shape {tuple(came.shape)} and dtype {came.dtype} does not belong "
        f"to a parameter of shape {tuple(param.shape)} and these options; load the state_dict that "
        "was saved with them"
    )


def take(whole: Tensor, index: Tensor | None) -> Tensor:
    """The rows of a table, its own memory if all of it; half precision is computed in single."""
    rows = whole if index is None else whole.index_select(0, index)
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
