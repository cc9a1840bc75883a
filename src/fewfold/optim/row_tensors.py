"""Row gradients and per-row optimiser state: reading, validation and selection of rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = [
    *("RowGradient", "check_param", "check_state", "read_gradient", "refuse_row"),
    *("select_rows", "sum_repeats"),
]


@dataclass(frozen=True)
class RowGradient:
    """Gradients of rows, repeats allowed; `index` is None for a dense gradient."""

    index: Tensor | None
    """(n,) int64"""
    values: Tensor
    """(n, *row shape)"""

    def check(self, rows: int, shape: tuple[int, ...]) -> None:
        """Raise unless `values` has one row of this shape per index; torch does not check that."""
        count = rows if self.index is None else len(self.index)
        if tuple(self.values.shape) != (count, *shape):
            raise ValueError(
                f"a gradient of {count} rows must have values of shape {(count, *shape)}, "
                f"got {tuple(self.values.shape)}"
            )


def read_gradient(grad: Tensor) -> RowGradient:
    """Return the rows of a dense or sparse COO gradient, without coalescing it."""
    if grad.layout is torch.strided:
        return RowGradient(None, grad.detach().unsqueeze(0) if grad.dim() == 0 else grad.detach())
    if grad.layout is not torch.sparse_coo:
        raise TypeError(
            f"a gradient must be dense or sparse COO, got {grad.layout}; "
            "write param.grad = param.grad.to_sparse(1)"
        )
    if grad.sparse_dim() != 1:
        raise ValueError(
            f"a sparse gradient must have 1 sparse dimension, the rows, got {grad.sparse_dim()}; "
            "write torch.sparse_coo_tensor(rows.unsqueeze(0), values, param.shape) with values of "
            "shape (len(rows), *param.shape[1:]), or param.grad = param.grad.to_dense()"
        )
    # The public accessors raise for tensors that are not coalesced.
    return RowGradient(grad._indices()[0].to(torch.int64), grad._values().detach())


def refuse_row(row: int, rows: int) -> ValueError:
    """Return the error for a row index out of range."""
    return ValueError(
        f"a gradient names row {row}, but its parameter has the rows 0 to {rows - 1}; look at the "
        "indices given to torch.sparse_coo_tensor, and pass check_invariants=True to it"
    )


def sum_repeats(gradient: RowGradient, rows: int) -> tuple[Tensor | None, Tensor]:
    """Return distinct rows and the sum of the gradients of each."""
    index, values = gradient.index, gradient.values
    if index is None:
        return None, values
    low, high = (int(end) for end in torch.aminmax(index))
    if low < 0 or high >= rows:
        raise refuse_row(low if low < 0 else high, rows)
    size = (rows, *values.shape[1:])
    total = torch.sparse_coo_tensor(index.unsqueeze(0), values, size, check_invariants=False)
    total = total.coalesce()
    return total.indices()[0], total.values()


def check_param(param: Any) -> None:
    """Raise TypeError unless the parameter has a real floating-point dtype."""
    if isinstance(param, Tensor) and not param.is_floating_point():
        raise TypeError(
            f"parameters must have a real floating-point dtype, got {param.dtype}; for a complex "
            "one write torch.view_as_real(param)"
        )


def check_state(param: Tensor, rows: int, state: dict[str, Tensor], *, slots: int) -> None:
    """Raise unless the state fits the parameter: a kernel would write out of bounds."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"the state {name!r} must be a tensor, got {type(value).__name__}")
        if not value.is_contiguous():  # an expanded tensor cannot be written to
            state[name] = value.contiguous()
    memory, step, square = state.get("memory"), state.get("step"), state.get("square")
    if step is not None and (step.shape != (rows,) or step.dtype != torch.int32):
        raise _wrong_state("step", step, param)
    if square is not None and square.shape != (rows,):
        raise _wrong_state("square", square, param)
    if memory is not None and (
        memory.numel() != slots * param.numel() or (memory.dim() and len(memory) != rows)
    ):
        raise _wrong_state("memory", memory, param)


def _wrong_state(name: str, got: Tensor, param: Tensor) -> ValueError:
    return ValueError(
        f"the state {name!r} of shape {tuple(got.shape)} and dtype {got.dtype} does not belong "
        f"to a parameter of shape {tuple(param.shape)} and these options; load the state_dict that "
        "was saved with them"
    )


def select_rows(whole: Tensor, index: Tensor | None) -> Tensor:
    """Return the rows of `index`, or the table itself if None; half precision becomes float32."""
    rows = whole if index is None else whole.index_select(0, index)
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
