"""What parameters of every distribution must be, and low precision, which is computed in single."""

import copy
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from fewfold._check import check_scores

__all__ = [
    "Each",
    "Finite",
    "check_square",
    "check_vector",
    "finite",
    "finite_vector",
    "in_single",
    "joined",
    "lower_cholesky",
    "positive",
    "some_finite",
]

_HALF = (torch.float16, torch.bfloat16)
_Method = TypeVar("_Method", bound=Callable[..., Any])


class Finite(constraints.Constraint):
    """Finite numbers above a bound, or at least as large; torch's own let infinite ones pass."""

    def __init__(self, *, above: float = -math.inf, least: float = -math.inf) -> None:
        self.above, self.least = above, least
        super().__init__()

    def check(self, value: Any) -> Any:
        return value.isfinite() & (value > self.above) & (value >= self.least)

    def __repr__(self) -> str:
        bounds = {"above": self.above, "at least": self.least}
        given = (f"{word} {bound:g}" for word, bound in bounds.items() if bound > -math.inf)
        return f"Finite({', '.join(given)})"


class Each(constraints.Constraint):
    """Vectors whose every entry obeys; torch's `independent` fails where there are no rows."""

    event_dim = 1

    def __init__(self, base: constraints.Constraint) -> None:
        self.base = base
        super().__init__()

    def check(self, value: Any) -> Any:
        return self.base.check(value).all(-1)

    def __repr__(self) -> str:
        return f"Each({self.base})"


class _LowerCholesky(constraints.Constraint):
    """Lower triangular with a positive diagonal, and finite; torch's own fails without rows."""

    event_dim = 2

    def check(self, value: Any) -> Any:
        triangular = (value.tril() == value).flatten(-2).all(-1)
        finite = value.isfinite().flatten(-2).all(-1)
        return triangular & finite & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _SomeFinite(constraints.Constraint):
    """Vectors of which one entry at least is finite, and the others finite or minus infinity."""

    event_dim = 1

    def check(self, value: Any) -> Any:
        return (value < math.inf).all(-1) & (value > -math.inf).any(-1)


finite = Finite()
positive = Finite(above=0)
lower_cholesky = _LowerCholesky()
finite_vector = Each(finite)
some_finite = _SomeFinite()


def check_vector(given: Tensor, name: str) -> None:
    """Raise unless `given` is (..., K) with at least one entry."""
    check_scores(given, name)
    if given.shape[-1] == 0:
        raise ValueError(f"{name} must be (..., K) with K at least 1, got {tuple(given.shape)}")


def check_square(given: Tensor, size: int, name: str, of: str) -> None:
    """Raise unless `given` is (..., size, size)."""
    check_scores(given, name)
    if given.shape[-2:] != (size, size):
        raise ValueError(
            f"{name} must be (..., {size}, {size}) for {of} of {size} entries, got "
            f"{tuple(given.shape)}; for a row of scales write torch.diag_embed(scale)"
        )


def joined(**given: Tensor | torch.Size | float) -> torch.Size:
    """The shape that all broadcast to: of tensors, batches and numbers."""
    shapes = {
        name: value.shape if isinstance(value, Tensor) else value
        for name, value in given.items()
        if isinstance(value, (Tensor, torch.Size))
    }
    try:
        shape: torch.Size = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        came = " and ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"shapes must broadcast, got {came}") from None
    return shape


def in_single(method: _Method) -> _Method:
    """A method that computes in single precision if the parameters have less, and rounds back."""

    @functools.wraps(method)
    def found(self: Any, *given: Any, **options: Any) -> Any:
        low = _lowest(self)
        if low is None:
            return method(self, *given, **options)
        wide = [part.float() if _is_half(part) else part for part in given]
        return method(_widened(self), *wide, **options).to(low)

    return found  # type: ignore[return-value]


def _is_half(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in _HALF


def _lowest(law: Any) -> torch.dtype | None:
    return next((part.dtype for part in vars(law).values() if _is_half(part)), None)


def _widened(law: Any) -> Any:
    new = copy.copy(law)
    for name, part in vars(law).items():
        if _is_half(part):
            setattr(new, name, part.float())
        elif isinstance(part, Distribution):
            setattr(new, name, _widened(part))
    new._validate_args = False  # both the parameters and the values were rounded
    return new
