"""`Support`: weighted atoms per row, the sparse result type shared by all modules."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import check_scores, normal_dim
from fewfold._torch import check_values

__all__ = ["Support", "sum_rows"]


@dataclass(frozen=True, eq=False)
class Support:
    """Sparse weights: a list of weighted atoms for each row.

    Row `r` has the atoms `i` with `row[i] == r`. The functions of this library return the atoms of
    a row consecutively, but accept any order. The rows are a flattened batch shape.

    Attributes:
        weights: (m,) weight of each atom; differentiable.
        atoms: `(m, *event)` the weighted objects, such as indices or structures.
        row: (m,) int64, the row of each atom.
        rows: the number of rows, including those without atoms.

    Example:
        >>> import torch
        >>> from fewfold.support import Support
        >>> support = Support.from_dense(torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]]))
        >>> support.atoms.tolist(), support.row.tolist()
        ([1, 2, 0], [0, 0, 1])
        >>> support.reduce(torch.tensor([4.0, 8.0, 5.0])).tolist()
        [7.0, 5.0]
    """

    weights: Tensor
    atoms: Tensor
    row: Tensor
    rows: int

    def __post_init__(self) -> None:
        if self.weights.dim() != 1 or self.row.shape != self.weights.shape:
            raise ValueError(
                "weights and row must both have shape (m,), got "
                f"{tuple(self.weights.shape)} and {tuple(self.row.shape)}"
            )
        if self.atoms.dim() == 0 or self.atoms.shape[0] != self.weights.shape[0]:
            raise ValueError(
                f"atoms must have shape (m={self.weights.shape[0]}, *event), "
                f"got {tuple(self.atoms.shape)}"
            )

    @classmethod
    def from_dense(cls, probs: Tensor, dim: int = -1) -> "Support":
        """Return the non-zero entries of `probs` along `dim`; other dimensions become the rows."""
        check_scores(probs, "probs")
        check_values(
            probs,
            "the number of atoms depends on the values",
            "use a function with a dense result, or another device",
        )
        dense = probs.movedim(normal_dim(dim, probs.dim()), -1)
        size = dense.shape[-1]
        flat = dense.reshape(-1)
        where = flat.detach().nonzero().squeeze(-1)
        step = max(size, 1)
        weights = flat.index_select(0, where)  # its backward does not sort the positions
        return cls(weights, where % step, where // step, dense.shape[:-1].numel())

    def to_dense(self, size: int) -> Tensor:
        """Return (rows, size) with the weights at their atoms, indices below `size`."""
        if self.atoms.dim() != 1 or self.atoms.is_floating_point():
            raise TypeError(
                "to_dense needs one integer index per atom, got atoms of shape "
                f"{tuple(self.atoms.shape)} and dtype {self.atoms.dtype}; "
                "reduce(values) sums any other kind of atom"
            )
        dense = self.weights.new_zeros(self.rows * size)
        return dense.index_add(0, self.row * size + self.atoms, self.weights).view(self.rows, size)

    @property
    def counts(self) -> Tensor:
        """(rows,) number of atoms of each row."""
        counts = torch.zeros(self.rows, dtype=torch.int64, device=self.row.device)
        return counts.index_add_(0, self.row, torch.ones_like(self.row))

    def reduce(self, values: Tensor) -> Tensor:
        """Return the weighted sum of the values of each row: (m, ...) -> (rows, ...)."""
        if values.dim() == 0 or values.shape[0] != self.weights.shape[0]:
            raise ValueError(
                f"values must have shape (m={self.weights.shape[0]}, ...), "
                f"got {tuple(values.shape)}; give one value per atom"
            )
        weights = self.weights.reshape((-1,) + (1,) * (values.dim() - 1))
        return sum_rows(weights * values, self.row, self.rows)


def sum_rows(terms: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return the sum of the terms of each row: (m, ...) -> (rows, ...).

    Accumulated in float32 or wider: long sums in half precision stop growing.
    """
    wide = terms.to(torch.promote_types(terms.dtype, torch.float32))
    return wide.new_zeros(rows, *wide.shape[1:]).index_add(0, row, wide).to(terms.dtype)
