"""Signals: functions on the line or the plane, fitted to vectors by ridge regression."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fewfold._check import check_mask, check_scores, positive_number
from fewfold._torch import untransformed
from fewfold.continuous.basis import Basis
from fewfold.continuous.density import Density, joint_shape

__all__ = [
    "Ridge",
    "Signal",
    "cell_centres",
    "check_basis",
    "cached_matrix",
    "masked_positions",
    "ridge_matrix",
    "solution",
]

_MOST = 2**23  # total size of the cached matrices of a basis, 64 MB


@dataclass(frozen=True)
class Ridge:
    """Options of the ridge regression that fits signals.

    Args:
        penalty: penalty on the squared coefficients, positive.
        padded: also fit the signal to zero on [-1/2, 0] and [1, 3/2], so that attention outside
            [0, 1] contributes nothing.
    """

    penalty: float = 0.01
    padded: bool = False

    def __post_init__(self) -> None:
        positive_number(self.penalty, "penalty")

    @classmethod
    def of(cls, given: "float | Ridge") -> "Ridge":
        """Return `given`, with a number interpreted as the penalty."""
        return given if isinstance(given, Ridge) else cls(given)


@dataclass(frozen=True, eq=False)
class Signal:
    """A function `V(t) = B^T psi(t)`, of the line or the plane.

    Args:
        coefficients: `(..., n, d)`, the matrices B.
        basis: the n functions psi.

    Example:
        >>> import torch, fewfold as ff
        >>> values = torch.tensor([[1.0], [0.0], [0.0], [2.0]])
        >>> signal = ff.continuous.Signal.fit(values, ff.continuous.GaussianBasis.grid(8))
        >>> signal(torch.tensor([0.125, 0.5]))
        tensor([[ 0.9996],
                [-0.2825]])
    """

    coefficients: Tensor
    basis: Basis

    def __post_init__(self) -> None:
        check_basis(self.basis)
        check_scores(self.coefficients, "coefficients")
        if self.coefficients.dim() < 2 or self.coefficients.shape[-2] != len(self.basis):
            raise ValueError(
                f"coefficients must be (..., {len(self.basis)}, d), a row for each function of "
                f"the basis, got {tuple(self.coefficients.shape)}"
            )

    @classmethod
    def fit(
        cls,
        values: Tensor,
        basis: Basis,
        *,
        mask: Tensor | None = None,
        ridge: float | Ridge = 0.01,
    ) -> Self:
        """Fit a signal to values by ridge regression: `B = G^T X`, `G = F (F^T F + c I)^-1`.

        Positions are the centres of equal cells of [0, 1], one per unmasked value; on the plane,
        the centres of all grid cells. The basis caches G for each length or grid.

        Args:
            values: `(..., L, d)` on the line, `(..., H, W, d)` on the plane.
            mask: boolean, True = keep, broadcasts to values without the last dimension. On the
                line, masked values leave no gap: positions are those of the shorter sequence.
            ridge: penalty c, or `Ridge(penalty, padded)`.
        """
        check_basis(basis)
        check_scores(values, "values")
        if values.dim() < basis.dim + 1:
            expected = "(..., L, d)" if basis.dim == 1 else "(..., H, W, d)"
            raise ValueError(
                f"values must be {expected} for a basis of dimension {basis.dim}, got "
                f"{tuple(values.shape)}"
            )
        ridge = Ridge.of(ridge)
        sizes = tuple(values.shape[-1 - basis.dim : -1])
        if mask is None:
            matrix = _whole_matrix(basis, sizes, ridge, values)
        else:
            check_mask(mask, values[..., 0])
            mask = mask.expand(values.shape[:-1])
            values = torch.where(mask.unsqueeze(-1), values, 0.0)
            build = _line_matrices if basis.dim == 1 else _plane_matrices
            matrix = build(basis, mask, ridge, values)
        return cls(solution(matrix, values.flatten(-1 - basis.dim, -2)), basis)

    def __call__(self, points: Tensor) -> Tensor:
        """Evaluate the signal, `(..., m, d)`, at points `(..., m)`, or `(..., m, 2)`."""
        points = points.to(torch.promote_types(points.dtype, torch.float32))
        return self.basis(points).to(self.coefficients) @ self.coefficients

    def expect(self, density: Density) -> Tensor:
        """Expectation `E_p[V]`, `(..., m, d)`, under densities `(..., m)` of the same batch."""
        found = self.basis.expect(density).to(self.coefficients)
        if joint_shape(found.shape[:-2], self.coefficients.shape[:-2]) is None:
            raise ValueError(
                f"densities must be (..., m) with the batch of the signal "
                f"{tuple(self.coefficients.shape[:-2])}, got {tuple(found.shape[:-1])}"
            )
        return found @ self.coefficients

    def detach(self) -> Self:
        """The signal detached from the autograd graph."""
        return type(self)(self.coefficients.detach(), self.basis)


def cell_centres(length: int, padded: bool = False) -> Tensor:
    """Cell centres `(l - 1/2) / length`, float64; padded: half as many on either side too."""
    more = length // 2 if padded else 0
    return (torch.arange(-more, length + more, dtype=torch.float64) + 0.5) / length


def masked_positions(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """`(..., L)` positions of unmasked values in the sequence without the masked ones."""
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    return (mask.cumsum(-1).to(dtype) - 0.5) / count


def ridge_matrix(features: Tensor, more: Tensor, penalty: float) -> Tensor:
    """G, `(..., L, n)`, for features of positions with values, and `more` fitted to zero."""
    gram = features.mT @ features + more.mT @ more
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + penalty * eye)
    return torch.cholesky_solve(features.mT, factor).mT


def solution(matrix: Tensor, values: Tensor) -> Tensor:
    """B = G^T X, `(..., n, d)`, for G `(..., L, n)` and values `(..., L, d)`."""
    dtype = torch.promote_types(values.dtype, torch.float32)
    return (matrix.to(dtype).mT @ values.to(dtype)).to(values.dtype)


def check_basis(basis: Basis) -> None:
    """Raise TypeError unless it is a Basis."""
    if not isinstance(basis, Basis):
        raise TypeError(f"basis must be a value such as GaussianBasis.grid(32), got {basis!r}")


def cached_matrix(basis: Basis, key: Any, like: Tensor, build: Callable[[], Tensor]) -> Tensor:
    """Return the cached matrix of a key, building it if absent; no caching under transforms."""
    if basis.learns:
        return build().to(like.device)
    full = (key, like.device)
    found = basis.cached_fit(full)
    if found is None:
        if not untransformed(like):
            return build().to(like.device)
        with torch.inference_mode(False), torch.no_grad():
            found = build().to(like.device)
        basis.fits[full] = found
        while sum(one.numel() for one in basis.fits.values()) > _MOST and len(basis.fits) > 1:
            del basis.fits[next(iter(basis.fits))]  # the oldest
    return found


def _whole_matrix(basis: Basis, sizes: tuple[int, ...], ridge: Ridge, like: Tensor) -> Tensor:
    """G, `(L, n)`, for values in all cells, cached per size."""
    return cached_matrix(basis, (sizes, ridge), like, lambda: _grid_matrix(basis, sizes, ridge))


def _grid_matrix(
    basis: Basis, sizes: tuple[int, ...], ridge: Ridge, keep: Tensor | None = None
) -> Tensor:
    """G, `(L, n)`, for values in all L cells, or `(..., L, n)` for those to keep, `(..., L)`."""
    lines = [cell_centres(size, ridge.padded) for size in sizes]
    more = [size // 2 if ridge.padded else 0 for size in sizes]
    points = lines[0] if len(lines) == 1 else torch.cartesian_prod(*lines)
    number = torch.arange(len(points)).view([len(line) for line in lines])
    for axis, (start, size) in enumerate(zip(more, sizes, strict=True)):
        number = number.narrow(axis, start, size)
    features = basis(points if keep is None else points.to(keep.device))
    own = number.flatten().to(features.device)
    around = features.index_fill(0, own, 0.0)
    inside = features[own] if keep is None else features[own] * keep.unsqueeze(-1)
    return ridge_matrix(inside, around, ridge.penalty)


def _line_matrices(basis: Basis, mask: Tensor, ridge: Ridge, like: Tensor) -> Tensor:
    """G, `(..., L, n)`, for masked sequences, from the matrices of shorter lengths."""
    if basis.learns or not untransformed(mask, like):
        return _solved_lines(basis, mask, ridge)
    length, count = mask.shape[-1], mask.sum(-1)
    kinds, kind = count.unique(return_inverse=True)
    table = like.new_zeros(len(kinds), length, len(basis), dtype=torch.float64)
    for row, number in enumerate(kinds.tolist()):
        if number:
            table[row, :number] = _whole_matrix(basis, (number,), ridge, like)
    place = (mask.cumsum(-1) - 1).clamp(min=0)
    return table[kind.unsqueeze(-1), place] * mask.unsqueeze(-1)


def _solved_lines(basis: Basis, mask: Tensor, ridge: Ridge) -> Tensor:
    """G, `(..., L, n)`, for masked sequences, by one solve per row."""
    features = basis(masked_positions(mask, torch.float64)) * mask.unsqueeze(-1)
    more = features[..., :0, :]
    if ridge.padded:
        count = mask.sum(-1, keepdim=True)
        step = torch.arange(mask.shape[-1] // 2, device=mask.device)
        far = (step + 0.5) / count.clamp(min=1).double()
        keep = (step < count // 2).unsqueeze(-1)
        more = torch.cat([basis(-far) * keep, basis(1 + far) * keep], -2)
    return ridge_matrix(features, more, ridge.penalty)


def _plane_matrices(basis: Basis, mask: Tensor, ridge: Ridge, like: Tensor) -> Tensor:
    """G, `(..., H W, n)`, for a masked grid; positions are unchanged."""
    height, width = mask.shape[-2:]
    return _grid_matrix(basis, (height, width), ridge, mask.flatten(-2))
