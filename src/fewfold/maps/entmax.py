"""Softmax, sparsemax and alpha-entmax, a family of maps indexed by alpha."""

import math

import torch
from torch import Tensor

from fewfold._check import normal_dim, per_row, positive_number
from fewfold._torch import eager
from fewfold.maps import native_threshold, triton_threshold
from fewfold.maps.compiled_operators import threshold_operator, traceable
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
from fewfold.maps.solvers.steep import steep, steep_floor
from fewfold.maps.solvers.threshold import (
    linear,
    linear_floor,
    power,
    power_floor,
    quadratic,
    quadratic_floor,
)

__all__ = ["entmax", "softmax", "sparsemax"]


def softmax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Softmax with an optional mask; entmax with alpha = 1.

    Solves `argmax_p <p, scores> - sum p log p` over probabilities: `p = exp(scores) / Z`.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; broadcasts to the scores. Masked entries get probability 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A fully masked row is all zeros.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.softmax(torch.tensor([0.0, 0.0, 5.0]), mask=torch.tensor([True, True, False]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    return entmax(scores, 1.0, dim, mask=mask)


def sparsemax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """Euclidean projection of the scores onto the simplex, with exact zeros.

    Solves `argmin_p ||p - scores||^2` over probabilities; the solution is
    `p = [scores - tau]_+`. This is entmax with alpha = 2. The result is one-hot when the top score
    leads all others by at least 1.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; broadcasts to the scores. Masked entries get probability 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A fully masked row is all zeros.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])

    Reference: Martins and Astudillo, "From softmax to sparsemax", 2016.
    """
    if mask is None and dim == -1:
        probs = native_threshold.quick(scores, 2.0)
        if probs is not None:
            return probs
    return entmax_within(scores, 2.0, math.inf, dim, mask=mask)


def entmax(
    scores: Tensor,
    alpha: float | Tensor = 1.5,
    dim: int = -1,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """alpha-entmax: probabilities with exact zeros, sparser for larger alpha.

    Solves `argmax_p <p, scores> - (sum p^alpha - 1) / (alpha (alpha - 1))` over probabilities,
    with solution `p = [(alpha - 1) scores - tau]_+^(1 / (alpha - 1))`. Alpha 1 is softmax, 2 is
    sparsemax; for alpha of at most 1 all probabilities are positive. The result is one-hot when the
    top score leads all others by at least `1 / (alpha - 1)`.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        alpha: greater than 0. A number, or a tensor that broadcasts against the scores with size
            1 along `dim`, such as (heads, 1, 1). A tensor receives a gradient, also at 1.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; broadcasts to the scores. Masked entries get probability 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A fully masked row is all zeros, a row
        with scores of +inf is uniform over those, a row with NaN is all NaN.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.entmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.3260, 0.6740])

    Reference: Peters, Niculae and Martins, "Sparse sequence-to-sequence models", 2019; for
    learning alpha, Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """
    if mask is None and dim == -1 and type(alpha) is float:
        probs = native_threshold.quick(scores, alpha)
        if probs is not None:
            return probs
    return entmax_within(scores, alpha, math.inf, dim, mask=mask)


def entmax_within(
    scores: Tensor, alpha: float | Tensor, most: float, dim: int, *, mask: Tensor | None
) -> Tensor:
    """Entmax for alpha of at most `most`; traced graphs omit the solvers for larger alpha."""
    on_gpu = triton_threshold.ready(scores)
    rows = to_rows(scores, dim, mask, widen=not on_gpu)
    order = row_alpha(alpha, scores, dim, above=0.0)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    if on_gpu:
        if triton_threshold.covers(rows, order):
            return from_rows(triton_threshold.entmax_map(rows, order), dim, scores.dtype)
        rows = widened(rows)
    if native_threshold.covers(rows, order):
        return from_rows(native_threshold.threshold_map(rows, order, norm=False), dim, scores.dtype)
    if traceable(rows, order) and native_threshold.has_kernel(order):
        return from_rows(_entmax_operator(rows, order), dim, scores.dtype)
    return from_rows(_entmax_torch(rows, order, most), dim, scores.dtype)


def row_alpha(alpha: float | Tensor, scores: Tensor, dim: int, above: float) -> float | Tensor:
    """Return alpha as a float, or as a tensor that broadcasts against rows."""
    if not isinstance(alpha, Tensor):
        return positive_number(alpha, "alpha", above)
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating-point, got {alpha.dtype}; write alpha.float()")
    rows = per_row(widened(alpha), scores, normal_dim(dim, scores.dim()), "alpha")
    check_alpha(alpha, above)
    return rows


def check_alpha(alpha: float | Tensor, above: float) -> None:
    """Raise unless every entry of a tensor alpha is valid; not checked under transforms."""
    if not isinstance(alpha, Tensor) or not eager(alpha):
        return
    if not bool(((alpha > above) & alpha.isfinite()).all()):
        raise ValueError(f"alpha must be finite and greater than {above:g}, got {alpha}")


def _entmax_torch(rows: Tensor, alpha: float | Tensor, most: float = math.inf) -> Tensor:
    """Entmax along the last dimension in differentiable torch operations."""
    narrowed = entmax_candidates(rows, alpha)
    if narrowed is None:
        return _entmax_rows(rows, alpha, most)
    return narrowed.widen(_entmax_rows(narrowed.rows, flat_rows(alpha, rows), most))


def _entmax_checked(rows: Tensor, alpha: float | Tensor) -> Tensor:
    check_alpha(alpha, above=0.0)
    return _entmax_torch(rows, alpha)


_entmax_operator = threshold_operator("entmax", False, _entmax_checked)


def entmax_candidates(rows: Tensor, alpha: float | Tensor) -> Narrow | None:
    """Return the entries of long rows that can be in the support of entmax."""
    if isinstance(alpha, float) and alpha <= 1:
        return None
    order = flat_rows(alpha, rows)
    return narrow(rows, shifted(lambda part: _floor(part, order)))


def _entmax_rows(rows: Tensor, alpha: float | Tensor, most: float) -> Tensor:
    """Entmax of rows without first reducing them to candidates."""
    exact = rows.double() if most > 2 and is_steep(rows, alpha) else rows
    values, top = centre(exact)
    return finalize(_centred(values, alpha, most), top).to(rows.dtype)


def _centred(values: Tensor, alpha: float | Tensor, most: float) -> Tensor:
    """Entmax of rows whose maximum is 0."""
    if isinstance(alpha, Tensor):
        return _renormalised(_by_tensor(values, alpha - 1, most - 1))
    if alpha == 1.0:
        return _renormalised(torch.softmax(values, -1))
    if alpha == 2.0:
        return linear(values)
    if alpha == 1.5:
        return quadratic(values / 2).square()
    if alpha > 2.0:
        return _renormalised(steep(values, alpha - 1))
    return _renormalised(power(values, alpha - 1, 1.0)[0])


def _by_tensor(values: Tensor, c: Tensor, most: float) -> Tensor:
    """Entmax where each row has its own `c = alpha - 1`, on either side of 1."""
    above = c.detach() > 1
    if most <= 1 or (eager(values, c) and not bool(above.any())):
        return power(values, c, 1.0)[0]
    # Both solvers run on all rows; rows of the other solver get an exponent it can handle.
    return torch.where(
        above,
        steep(values, torch.where(above, c, 2.0)),
        power(values, torch.where(above, 0.5, c), 1.0)[0],
    )


def _renormalised(probs: Tensor) -> Tensor:
    """Divide by the sum, treated as a constant, to remove rounding error."""
    return probs / probs.detach().sum(-1, keepdim=True)


def _floor(part: Tensor, alpha: float | Tensor) -> Tensor:
    """Return a bound: no entry below it is in the support of a row that contains `part`."""
    if isinstance(alpha, Tensor):
        # The support shrinks as alpha grows: the bound for alpha = 2 holds for larger alpha.
        return power_floor(part, (alpha.detach() - 1).clamp(max=1), 1.0)
    if alpha == 2.0:
        return linear_floor(part)
    if alpha == 1.5:
        return 2 * quadratic_floor(part / 2)
    if alpha > 2.0:
        return steep_floor(part, alpha - 1)
    return power_floor(part, alpha - 1, 1.0)
