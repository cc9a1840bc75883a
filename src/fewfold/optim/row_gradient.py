"""What a parameter's gradient says: which rows, and what to add to each."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["RowGradient", "read", "refuse_row", "summed"]


@dataclass(frozen=True)
class RowGradient:
    """Gradients of some rows, repeats allowed; `index` is None where every row has one."""

    index: Tensor | None
    """(n,) int64"""
    values: Tensor
    """(n, *row shape)"""

    def check(self, rows: int, shape: tuple[int, ...]) -> None:
        """Raise unless these are gradients of rows of that shape; torch lets odd ones through."""
        count = rows if self.index is None else len(self.index)
        if tuple(self.values.shape) != (count, *shape):
            raise ValueError(
                f"a gradient of {count} rows must have values of shape {(count, *shape)}, "
                f"got {tuple(self.values.shape)}"
            )


def read(grad: Tensor) -> RowGradient:
    """The rows of a dense gradient, or of a sparse one as it is, without coalescing it."""
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
    # The underscored ones: the public ones exist for coalesced tensors alone.
    return RowGradient(grad._indices()[0].to(torch.int64), grad._values().detach())


def refuse_row(row: int, rows: int) -> ValueError:
    """The error for a row that the parameter does not have."""
    return ValueError(
        f"a gradient names row {row}, but its parameter has the rows 0 to {rows - 1}; look at the "
        "indices given to torch.sparse_coo_tensor, and pass check_invariants=True to it"
    )


def summed(gradient: RowGradient, rows: int) -> tuple[Tensor | None, Tensor]:
    """Each row once, with the sum of its gradients."""
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
