"""Sparsemax and softmax under upper bounds on the probabilities."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import normal_dim
from fewfold._torch import eager
from fewfold.maps.entropies import Gini, Shannon
from fewfold.maps.grouped.chain import solver_dtype
from fewfold.maps.omega import Omega
from fewfold.maps.rows import from_rows, to_rows
from fewfold.maps.solvers.bounds import bounded_softmax, bounded_sparsemax

__all__ = ["Bounded", "constrained_softmax", "constrained_sparsemax"]


def constrained_sparsemax(
    scores: Tensor, upper: float | Tensor, dim: int = -1, *, mask: Tensor | None = None
) -> Tensor:
    """Sparsemax under upper bounds: `p = clip(scores - tau, 0, upper)`.

    Solves `argmin_p ||p - scores||^2` subject to `0 <= p <= upper` and `sum p = 1`. Bounds of 1 or
    more (or inf) have no effect; bounds that sum to 1 are the solution. Scores and bounds receive
    gradients. Where every entry is 0 or at its bound the derivative is one-sided; there the scores
    receive zero gradient and each active bound the gradient of its entry.

    Args:
        scores: (..., n) along `dim`. Entries of +inf share the mass as if equal, up to their
            bounds; the others receive the rest.
        upper: at least 0, broadcasts to the scores; over the unmasked entries of a row it must sum
            to at least 1, up to rounding. Not checked under transforms.
        mask: boolean, True = keep; broadcasts to the scores.

    Returns:
        Probabilities with the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.constrained_sparsemax(torch.tensor([1.0, 0.3, 0.0]), torch.tensor([0.4, 1.0, 1.0]))
        tensor([0.4000, 0.4500, 0.1500])

    Reference: Malaviya, Ferreira and Martins, "Sparse and constrained attention for neural machine
    translation", ACL 2018.
    """
    return _constrained(scores, upper, dim, mask, bounded_sparsemax)


def constrained_softmax(
    scores: Tensor, upper: float | Tensor, dim: int = -1, *, mask: Tensor | None = None
) -> Tensor:
    """Softmax under upper bounds: `p = min(exp(scores - tau), upper)`.

    Solves `argmin_p KL(p || softmax(scores))` subject to `p <= upper` and `sum p = 1`. Bounds of 1
    or more (or inf) have no effect; bounds that sum to 1 are the solution. Scores and bounds
    receive gradients. Where every entry is at its bound the scores receive zero gradient and each
    bound the gradient of its entry.

    Args:
        scores: (..., n) along `dim`. Entries of +inf share the mass as if equal, up to their
            bounds; the others receive the rest.
        upper: at least 0, broadcasts to the scores; over the unmasked entries of a row it must sum
            to at least 1, up to rounding. Not checked under transforms.
        mask: boolean, True = keep; broadcasts to the scores.

    Returns:
        Probabilities with the shape and dtype of the scores.

    Example:
        >>> import torch, fewfold as ff
        >>> from fewfold.maps import constrained_softmax
        >>> constrained_softmax(torch.tensor([2.0, 0.0, 0.0]), torch.tensor([0.5, 1.0, 1.0]))
        tensor([0.5000, 0.2500, 0.2500])

    Reference: Martins and Kreutzer, "Learning what's easy: fully differentiable neural easy-first
    taggers", EMNLP 2017.
    """
    return _constrained(scores, upper, dim, mask, bounded_softmax)


def _constrained(
    scores: Tensor,
    upper: float | Tensor,
    dim: int,
    mask: Tensor | None,
    solve: Callable[[Tensor, Tensor, float], Tensor],
) -> Tensor:
    """Convert scores and bounds to rows, check them, solve, and set rows with NaN to NaN."""
    rows = to_rows(scores, dim, mask)
    bounds, slack = _row_bounds(upper, scores, dim, rows)
    if rows.shape[-1] == 0:
        return from_rows(rows, dim, scores.dtype)
    fixed = rows.detach()
    bounds = torch.where(fixed == -math.inf, 0.0, bounds)
    if eager(rows, bounds):
        _check_bounds(bounds.detach(), fixed, slack)
    broken = (fixed.isnan() | bounds.detach().isnan()).any(-1, keepdim=True)
    rows = torch.where(broken, 0.0, rows)
    bounds = torch.where(broken, math.inf, bounds)
    probs = solve(rows, bounds, slack)
    return from_rows(torch.where(broken, math.nan, probs), dim, scores.dtype)


def _row_bounds(
    upper: float | Tensor, scores: Tensor, dim: int, rows: Tensor
) -> tuple[Tensor, float]:
    """Return the bounds in the shape of the rows, and the tolerance for their sum."""
    if not isinstance(upper, Tensor):
        if isinstance(upper, bool) or not isinstance(upper, (int, float)):
            raise TypeError(f"upper must be a number or a tensor, got {type(upper).__name__}")
        upper = torch.full((), float(upper), dtype=scores.dtype, device=scores.device)
    if not upper.is_floating_point():
        raise TypeError(f"upper must be floating-point, got {upper.dtype}; write upper.float()")
    slack = max(torch.finfo(upper.dtype).eps, torch.finfo(scores.dtype).eps)
    if upper.dim() > scores.dim() or any(
        a not in (1, b) for a, b in zip(upper.shape[::-1], scores.shape[::-1], strict=False)
    ):
        raise ValueError(
            f"upper must broadcast to the shape of the scores {tuple(scores.shape)}, "
            f"got {tuple(upper.shape)}"
        )
    axis = normal_dim(dim, scores.dim())
    return upper.expand(scores.shape).movedim(axis, -1).to(rows.dtype), slack


def _check_bounds(bounds: Tensor, rows: Tensor, slack: float) -> None:
    """Raise if a bound is negative or the bounds of a row sum to less than 1."""
    lowest = bounds.amin(-1)
    if bool((lowest < 0).any()):
        row, least = _first_row(lowest < 0, lowest)
        raise ValueError(
            f"upper must be at least 0, got {least:g} in row {row}; write upper.clamp(min=0)"
        )
    total = bounds.sum(-1, dtype=solver_dtype(bounds))
    short = (total < 1 - 4 * slack) & (rows > -math.inf).any(-1)
    if bool(short.any()):
        row, most = _first_row(short, total)
        raise ValueError(
            f"upper must sum to at least 1 over the unmasked entries of every row, got {most:.6g} "
            f"in row {row}; raise a bound, or append an entry whose bound is inf"
        )


def _first_row(bad: Tensor, value: Tensor) -> tuple[object, float]:
    """Return the first index where `bad` is true (a tuple if several dims) and the value there."""
    place = tuple(bad.nonzero()[0].tolist())
    row = place[0] if len(place) == 1 else place or 0
    return row, float(value[place])


@dataclass(frozen=True)
class Bounded(Omega):
    """Gini or Shannon under upper bounds; the map is constrained sparsemax or softmax.

    `value` is that of `omega`; it does not check the bounds, outside which the regulariser is
    infinite. `upper` broadcasts to the scores; see `constrained_sparsemax`.

    Example:
        >>> import torch, fewfold as ff
        >>> ff.maps.Bounded(0.5).argmax(torch.tensor([2.0, 0.0, -1.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """

    upper: float | Tensor
    omega: Gini | Shannon = Gini()  # noqa: RUF009

    def __post_init__(self) -> None:
        if not isinstance(self.omega, (Gini, Shannon)):
            raise TypeError(f"omega must be Gini() or Shannon(), got {type(self.omega).__name__}")

    def value(self, probs: Tensor, dim: int = -1) -> Tensor:
        return self.omega.value(probs, dim)

    def argmax(self, scores: Tensor, dim: int = -1, *, mask: Tensor | None = None) -> Tensor:
        if self.omega.euclidean:
            return constrained_sparsemax(scores, self.upper, dim, mask=mask)
        return constrained_softmax(scores, self.upper, dim, mask=mask)
