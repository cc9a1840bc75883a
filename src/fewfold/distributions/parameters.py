"""Parameter constraints and shape checks; half precision is computed in single precision."""

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
    """Finite numbers above a bound; the constraints of torch accept infinite ones.

    Args:
        above: exclusive lower bound.
        least: inclusive lower bound.
    """

    def __init__(self, *, above: float = -math.inf, least: float = -math.inf) -> None:
        self.above, self.least = above, least
        super().__init__()

    def check(self, value: Any) -> Any:
        return value.isfinite() & (value > self.above) & (value >= self.least)

    def __repr__(self) -> str:
        bounds = {"above": self.above, "at least": self.least}
        parts = (f"{word} {bound:g}" for word, bound in bounds.items() if bound > -math.inf)
        return f"Finite({', '.join(parts)})"


class Each(constraints.Constraint):
    """Vectors whose entries all satisfy `base`; torch's `independent` fails on empty batches."""

    event_dim = 1

    def __init__(self, base: constraints.Constraint) -> None:
        self.base = base
        super().__init__()

    def check(self, value: Any) -> Any:
        return self.base.check(value).all(-1)

    def __repr__(self) -> str:
        return f"Each({self.base})"


class _LowerCholesky(constraints.Constraint):
    """Finite lower triangular matrices with a positive diagonal.

    The constraint of torch fails on empty batches.
    """

    event_dim = 2

    def check(self, value: Any) -> Any:
        triangular = (value.tril() == value).flatten(-2).all(-1)
        finite = value.isfinite().flatten(-2).all(-1)
        return triangular & finite & (value.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


class _SomeFinite(constraints.Constraint):
    """Vectors with at least one finite entry; the others are finite or minus infinity."""

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
    """Return the shape that tensors, batch shapes and numbers broadcast to, or raise."""
    shapes = {
        name: value.shape if isinstance(value, Tensor) else value
        for name, value in given.items()
        if isinstance(value, (Tensor, torch.Size))
    }
    try:
        shape: torch.Size = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        received = " and ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"shapes must broadcast, got {received}") from None
    return shape


def in_single(method: _Method) -> _Method:
    """Decorate a method to compute half-precision parameters in float32 and round the result."""

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = _half_dtype(self)
        if dtype is None:
            return method(self, *args, **kwargs)
        wide = [value.float() if _is_half(value) else value for value in args]
        return method(_to_single(self), *wide, **kwargs).to(dtype)

    return wrapper  # type: ignore[return-value]


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _HALF


def _half_dtype(distribution: Any) -> torch.dtype | None:
    """The dtype of the first half-precision parameter, or None."""
    return next((value.dtype for value in vars(distribution).values() if _is_half(value)), None)


def _to_single(distribution: Any) -> Any:
    """A copy with half-precision parameters, also of nested distributions, in float32."""
    new = copy.copy(distribution)
    for name, value in vars(distribution).items():
        if _is_half(value):
            setattr(new, name, value.float())
        elif isinstance(value, Distribution):
            setattr(new, name, _to_single(value))
    new._validate_args = False  # rounding to half precision may violate the constraints
    return new
