"""alpha-normmax: the map whose regulariser is the alpha-norm."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fewfold._check import positive_number
from fewfold.maps import native_threshold
from fewfold.maps.compiled_operators import threshold_operator, traceable
from fewfold.maps.entmax import check_alpha, row_alpha
from fewfold.maps.omega import KernelOrder, Omega, filled
from fewfold.maps.rows import (
    Narrow,
    centre,
    finalize,
    flat_rows,
    from_rows,
    is_steep,
    narrow,
    shifted,
    to_rows,
    widened,
)
from fewfold.maps.solvers.threshold import power, power_floor, quadratic, quadratic_floor

__all__ = ["Norm", "normmax"]


def normmax(
    scores: Tensor,
    alpha: float | Tensor = 2.0,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """alpha-normmax: probabilities with exact zeros, more uniform on the support for larger alpha.

    Solves `argmax_p <p, scores> - ||p||_alpha` over probabilities; the solution is proportional to
    `[scores - tau]_+^(1 / (alpha - 1))`. For every alpha the result is one-hot when the top score
    leads all others by at least 1; as alpha grows, the weights on the support become uniform.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        alpha: greater than 1. A number, or a tensor that broadcasts against the scores with size
            1 along `dim`, such as (heads, 1, 1). A tensor receives a gradient.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; broadcasts to the scores. Masked entries get probability 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A fully masked row is all zeros, a row
        with scores of +inf is uniform over those, a row with NaN is all NaN.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.normmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.3110, 0.6890])

    Reference: Blondel, Martins and Niculae, "Learning with Fenchel-Young losses", 2020; in
    Hopfield networks, Santos et al., "Sparse and structured Hopfield networks", 2024.
    """
    if mask is None and dim == -1 and type(alpha) is float:
        probs = native_threshold.quick(scores, alpha, norm=True)
        if probs is not None:
            return probs
    rows = to_rows(scores, dim, mask)
    order = row_alpha(alpha, scores, dim, above=1.0)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    if native_threshold.covers(rows, order):
        return from_rows(native_threshold.threshold_map(rows, order, norm=True), dim, scores.dtype)
    if traceable(rows, order) and native_threshold.has_kernel(order):
        return from_rows(_normmax_operator(rows, order), dim, scores.dtype)
    return from_rows(_normmax_torch(rows, order), dim, scores.dtype)


def _normmax_torch(rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax along the last dimension in differentiable torch operations."""
    narrowed = normmax_candidates(rows, alpha)
    if narrowed is None:
        return _normmax_rows(rows, alpha)
    return narrowed.widen(_normmax_rows(narrowed.rows, flat_rows(alpha, rows)))


def _normmax_checked(rows: Tensor, alpha: float | Tensor) -> Tensor:
    check_alpha(alpha, above=1.0)
    return _normmax_torch(rows, alpha)


_normmax_operator = threshold_operator("normmax", True, _normmax_checked)


def normmax_candidates(rows: Tensor, alpha: float | Tensor) -> Narrow | None:
    """Return the entries of long rows that can be in the support of normmax."""
    order = flat_rows(alpha, rows)
    return narrow(rows, shifted(lambda part: _floor(part, order)))


def _normmax_rows(rows: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax of rows without first reducing them to candidates."""
    exact = rows.double() if is_steep(rows, alpha) else rows
    values, top = centre(exact)
    return finalize(_centred(values, alpha), top).to(rows.dtype)


def _centred(values: Tensor, alpha: float | Tensor) -> Tensor:
    """Normmax of rows whose maximum is 0."""
    if isinstance(alpha, float) and alpha == 2.0:
        shares = quadratic(values)
    else:
        weight, y = power(values, 1.0, alpha / (alpha - 1))
        shares = weight / y
    return shares / shares.sum(-1, keepdim=True)


def _floor(part: Tensor, alpha: float | Tensor) -> Tensor:
    """Return a bound: no entry below it is in the support of a row that contains `part`."""
    if isinstance(alpha, float) and alpha == 2.0:
        return quadratic_floor(part)
    return power_floor(part, 1.0, alpha / (alpha - 1))


@dataclass(frozen=True)
class Norm(Omega):
    """The alpha-norm less one, `||p||_alpha - 1`; its map is normmax.

    The 1 is computed as `sum p`: equal on probabilities, and 0 for a row of zeros.

    Args:
        alpha: greater than 1; a number, or a tensor as in `normmax`, which may be learnable.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.Norm(2.0).value(torch.tensor([0.5, 0.5, 0.0]))
        tensor(-0.2929)
    """

    zero_at_vertices: ClassVar[bool] = True
    learns_through_value: ClassVar[bool] = True
    margin: ClassVar[float] = 1.0
    alpha: float | Tensor = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.alpha, Tensor):
            positive_number(self.alpha, "alpha", above=1.0)

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        wide = widened(probs)
        powers = torch.where(wide.detach() > 0, filled(wide) ** self.alpha, 0.0)
        total = powers.sum(dim, keepdim=True)
        norm = torch.where(total.detach() > 0, filled(total) ** (1 / self.alpha), 0.0)
        return (norm.squeeze(dim) - wide.sum(dim)).to(probs.dtype)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        return normmax(scores, self.alpha, dim, mask=mask)

    @property
    def kernel_order(self) -> KernelOrder:
        alpha = self.alpha if isinstance(self.alpha, Tensor) else float(self.alpha)
        return KernelOrder(alpha, norm=True)

    def candidates(self, rows: Tensor, scores: Tensor, dim: int) -> tuple[Narrow, Omega] | None:
        order = row_alpha(self.alpha, scores, dim, above=1.0)
        found = normmax_candidates(rows, order)
        return None if found is None else (found, replace(self, alpha=flat_rows(order, rows)))
