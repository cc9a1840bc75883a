"""Softmax, sparsemax and alpha-entmax: one family, indexed by alpha."""

import math

import torch
from torch import Tensor

from fewfold._check import normal_dim, per_row, positive_number
from fewfold._torch import eager
from fewfold.maps import native_threshold as fast
from fewfold.maps.compiled_operators import threshold_operator, traceable
from fewfold.maps.rows import (
    Narrow,
    centre,
    flat_rows,
    from_rows,
    is_steep,
    narrow,
    settle,
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
    """Softmax that honours a mask; the member alpha = 1 of entmax.

    Solves `argmax_p <p, scores> - sum p log p` over probabilities: `p = exp(scores) / Z`.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; it broadcasts to the scores. Dropped entries get 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A row with nothing kept is all zeros.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.softmax(torch.tensor([0.0, 0.0, 5.0]), mask=torch.tensor([True, True, False]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    return entmax(scores, 1.0, dim, mask=mask)


def sparsemax(scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
    """The probabilities nearest to the scores, most of them exactly 0.

    Solves `argmin_p ||p - scores||^2` over probabilities, whose answer is
    `p = [scores - tau]_+`; the member alpha = 2 of entmax. One entry takes everything when it
    leads by 1.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; it broadcasts to the scores. Dropped entries get 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A row with nothing kept is all zeros.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.sparsemax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.2500, 0.7500])

    Reference: Martins and Astudillo, "From softmax to sparsemax", 2016.
    """
    if mask is None and dim == -1:
        probs = fast.quick(scores, 2.0)
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
    """Probabilities with exact zeros, more of them the larger alpha.

    Solves `argmax_p <p, scores> - (sum p^alpha - 1) / (alpha (alpha - 1))` over probabilities,
    whose answer is `p = [(alpha - 1) scores - tau]_+^(1 / (alpha - 1))`. Alpha 1 is softmax, 2 is
    sparsemax; below 1 nothing is ever 0. One entry takes everything when it leads by
    `1 / (alpha - 1)`.

    Args:
        scores: (..., n, ...) with n entries along `dim`.
        alpha: greater than 0. A number, or a tensor that broadcasts against the scores with size
            1 along `dim`, such as (heads, 1, 1); a tensor receives its gradient, at 1 too.
        dim: the dimension that sums to 1.
        mask: boolean, True = keep; it broadcasts to the scores. Dropped entries get 0.

    Returns:
        Probabilities of the shape and dtype of the scores. A row with nothing kept is all zeros,
        one with scores at +inf is uniform over those, one with a NaN is NaN.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.entmax(torch.tensor([-2.0, 0.0, 0.5]))
        tensor([0.0000, 0.3260, 0.6740])

    Reference: Peters, Niculae and Martins, "Sparse sequence-to-sequence models", 2019; for
    learning alpha, Correia, Niculae and Martins, "Adaptively sparse transformers", 2019.
    """
    if mask is None and dim == -1 and type(alpha) is float:
        probs = fast.quick(scores, alpha)
        if probs is not None:
            return probs
    return entmax_within(scores, alpha, math.inf, dim, mask=mask)


def entmax_within(
    scores: Tensor, alpha: float | Tensor, most: float, dim: int, *, mask: Tensor | None
) -> Tensor:
    """Entmax for alpha up to `most`: a trace then leaves out what no such alpha needs."""
    rows = to_rows(scores, dim, mask)
    order = row_alpha(alpha, scores, dim, above=0.0)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    if fast.covers(rows, order):
        return from_rows(fast.threshold_map(rows, order, norm=False), dim, scores.dtype)
    if traceable(rows, order) and fast.has_kernel(order):
        return from_rows(_entmax_operator(rows, order), dim, scores.dtype)
    return from_rows(_entmax_torch(rows, order, most), dim, scores.dtype)


def row_alpha(alpha: float | Tensor, scores: Tensor, dim: int, above: float) -> float | Tensor:
    """Alpha as a float, or as a tensor that broadcasts against rows."""
    if not isinstance(alpha, Tensor):
        return positive_number(alpha, "alpha", above)
    if not alpha.is_floating_point():
        raise TypeError(f"alpha must be floating-point, got {alpha.dtype}; write alpha.float()")
    rows = per_row(widened(alpha), scores, normal_dim(dim, scores.dim()), "alpha")
    check_alpha(alpha, above)
    return rows


def check_alpha(alpha: float | Tensor, above: float) -> None:
    """Raise unless every alpha of a tensor is valid, where its values may be looked at."""
    if not isinstance(alpha, Tensor) or not eager(alpha):
        return
    if not bool(((alpha > above) & alpha.isfinite()).all()):
        raise ValueError(f"alpha must be finite and greater than {above:g}, got {alpha}")


def _entmax_torch(rows: Tensor, alpha: float | Tensor, most: float = math.inf) -> Tensor:
    """Entmax along the last dimension in plain differentiable ops."""
    few = entmax_candidates(rows, alpha)
    if few is None:
        return _entmax_rows(rows, alpha, most)
    return few.widen(_entmax_rows(few.rows, flat_rows(alpha, rows), most))


def _entmax_checked(rows: Tensor, alpha: float | Tensor) -> Tensor:
    check_alpha(alpha, above=0.0)
    return _entmax_torch(rows, alpha)


_entmax_operator = threshold_operator("entmax", False, _entmax_checked)


def entmax_candidates(rows: Tensor, alpha: float | Tensor) -> Narrow | None:
    """The entries of long rows that can be in the support of entmax."""
    if isinstance(alpha, float) and alpha <= 1:
        return None
    order = flat_rows(alpha, rows)
    return narrow(rows, shifted(lambda part: _floor(part, order)))


def _entmax_rows(rows: Tensor, alpha: float | Tensor, most: float) -> Tensor:
    """Entmax of every entry given."""
    exact = rows.double() if most > 2 and is_steep(rows, alpha) else rows
    values, top = centre(exact)
    return settle(_centred(values, alpha, most), top).to(rows.dtype)


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
    # Each side sees a harmless exponent in the rows that belong to the other one.
    return torch.where(
        above,
        steep(values, torch.where(above, c, 2.0)),
        power(values, torch.where(above, 0.5, c), 1.0)[0],
    )


def _renormalised(probs: Tensor) -> Tensor:
    """Divided by what rounding left of the sum, a constant."""
    return probs / probs.detach().sum(-1, keepdim=True)


def _floor(part: Tensor, alpha: float | Tensor) -> Tensor:
    """A value below which no entry of a row that contains `part` is in the support."""
    if isinstance(alpha, Tensor):
        # A larger alpha has a smaller support: what bounds alpha = 2 bounds those beyond.
        return power_floor(part, (alpha.detach() - 1).clamp(max=1), 1.0)
    if alpha == 2.0:
        return linear_floor(part)
    if alpha == 1.5:
        return 2 * quadratic_floor(part / 2)
    if alpha > 2.0:
        return steep_floor(part, alpha - 1)
    return power_floor(part, alpha - 1, 1.0)
