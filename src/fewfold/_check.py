"""Argument validation shared by all modules."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._torch import has_values

__all__ = [
    "check_mask",
    "check_scores",
    "check_temperature",
    "fraction",
    "int64_vector",
    "known_names",
    "non_negative_number",
    "normal_dim",
    "per_row",
    "positive_number",
    "whole_number",
]


def check_scores(scores: Tensor, name: str = "scores") -> None:
    """Raise unless `scores` is a real floating-point tensor with at least one dimension."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(scores).__name__}; "
            f"write torch.as_tensor({name}, dtype=torch.float32)"
        )
    if not scores.is_floating_point():
        raise TypeError(
            f"{name} must have a real floating-point dtype, got {scores.dtype}; "
            f"write {name}.float()"
        )
    if scores.layout is not torch.strided:
        raise TypeError(
            f"{name} must be a dense tensor, got {scores.layout}; write {name}.to_dense()"
        )
    if scores.dim() == 0:
        raise ValueError(
            f"{name} must have at least one dimension, got a scalar; write {name}.unsqueeze(-1)"
        )


def normal_dim(dim: int, ndim: int) -> int:
    """Return `dim` as a non-negative index; raise if it is out of range."""
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    if not -ndim <= dim < ndim:
        raise ValueError(
            f"dim must be between {-ndim} and {ndim - 1} for a tensor with {ndim} dimensions, "
            f"got {dim}"
        )
    return dim % ndim


def check_mask(mask: Tensor, scores: Tensor) -> None:
    """Raise unless `mask` is boolean and broadcasts to the shape of `scores`."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"mask must be a boolean tensor (True = keep), got {got}; write mask.bool(), "
            "or ~mask.bool() if True marks entries to drop"
        )
    if not fits(mask.shape, scores.shape):
        raise ValueError(
            f"mask must broadcast to the shape of the scores {tuple(scores.shape)}, "
            f"got {tuple(mask.shape)}"
        )


def positive_number(value: float, name: str, above: float = 0.0) -> float:
    """Return `value` as a float; raise unless it is finite and greater than `above`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number or a tensor, got {type(value).__name__}")
    if not above < value < math.inf:  # a comparison that torch.compile can trace
        raise ValueError(f"{name} must be finite and greater than {above:g}, got {value}")
    return float(value)


def check_temperature(temperature: float) -> None:
    """Raise unless `temperature` is a positive number; tensors would receive no gradient."""
    if isinstance(temperature, Tensor):
        raise TypeError("temperature must be a number, got a Tensor; divide the scores by it")
    positive_number(temperature, "temperature")


def whole_number(value: int, name: str, least: int = 1) -> int:
    """Return `value` as an int; raise unless it is an integer of at least `least`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def known_names(given: Iterable[str], known: Sequence[str], function: str) -> None:
    """Raise TypeError unless all given keyword arguments of a function are known.

    The message lists the known names, those most similar to the unknown one first.
    """
    for name in given:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=len(known))
            listed = ", ".join([*similar, *(each for each in known if each not in similar)])
            raise TypeError(f"{function} has no option {name!r}; its options are {listed}")


def jagged(values: Tensor, offsets: Tensor, rows: int | None = None) -> tuple[Tensor, Tensor]:
    """Return values (n,) and offsets (rows + 1,) of lists, contiguous; raise if inconsistent."""
    if values.dtype != torch.int64 or offsets.dtype != torch.int64:
        raise TypeError(f"ids must be int64, got {values.dtype}, and offsets {offsets.dtype}")
    count = max(offsets.numel() - 1, 0) if rows is None else rows
    if not has_values(offsets):
        return values.contiguous(), offsets.contiguous()
    edges = offsets.cpu().numpy()  # numpy is faster than torch on small arrays
    if (
        values.dim() != 1 or edges.shape != (count + 1,) or edges[0] != 0
        or edges[-1] != len(values)
    ):  # fmt: skip
        raise ValueError(
            f"offsets must be ({count + 1},), from 0 to the number of values {len(values)}, "
            f"got {tuple(offsets.shape)} for values {tuple(values.shape)}"
        )
    if (edges[1:] < edges[:-1]).any():
        raise ValueError("offsets must not decrease")
    return values.contiguous(), offsets.contiguous()


def int64_vector(values: Any, name: str) -> Tensor:
    """Convert integers in a list, an array or a tensor to an int64 tensor of shape (n,)."""
    try:
        # Copies only if the dtype changes: a log of interactions may fill most of the memory.
        given = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be whole numbers, got {np.asarray(values).dtype}; number the names: "
            f"names, {name} = numpy.unique({name}, return_inverse=True)"
        ) from None
    if given.dim() != 1:
        raise ValueError(f"{name} must have shape (n,), got {tuple(given.shape)}")
    if given.is_floating_point() and given.numel():
        invalid = (~given.isfinite()).nonzero()
        if len(invalid):
            at = int(invalid[0])
            raise ValueError(
                f"{name} must be whole numbers, got {float(given[at])} in row {at}; "
                "drop the rows without one"
            )
    if given.numel() and (given.is_floating_point() or given.is_complex()):
        raise TypeError(f"{name} must be integers, got {given.dtype}; convert them to int64")
    if given.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got torch.bool; write {name}.nonzero()")
    return given.detach().to("cpu", torch.int64)


def non_negative_number(value: float | Tensor, name: str) -> float:
    """Return a number or one-element tensor as a float; raise unless finite and at least 0."""
    one = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    if isinstance(value, bool) or not (one or isinstance(value, Real)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if isinstance(value, Tensor) and value.requires_grad:
        raise ValueError(f"{name} is a constant and does not learn; write {name}=value.item()")
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {float(value)}")
    return float(value)


def fraction(value: float | Tensor, name: str) -> float:
    """Return a number or one-element tensor as a float; raise unless in [0, 1)."""
    number = non_negative_number(value, name)
    if number >= 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {number}")
    return number


def per_row(value: Tensor, scores: Tensor, dim: int, name: str) -> Tensor:
    """Reshape a parameter with one value per row to broadcast against scores with `dim` last.

    `dim` must be non-negative. The result has as many dimensions as the scores, the last of size
    1; a 0-dimensional value is returned unchanged.
    """
    if value.dim() == 0:
        return value
    ndim = scores.dim()
    aligned = (1,) * (ndim - value.dim()) + tuple(value.shape)
    if value.dim() > ndim or aligned[dim] != 1 or not fits(aligned, scores.shape):
        expected = list(scores.shape)
        expected[dim] = 1
        raise ValueError(
            f"{name} must be a number, a 0-dimensional tensor, or broadcast against scores of "
            f"shape {tuple(scores.shape)} with size 1 along dim={dim}, as {tuple(expected)} does; "
            f"got {tuple(value.shape)}"
        )
    return value.reshape(aligned).movedim(dim, -1)


def fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether `shape` broadcasts to `target` without enlarging it."""
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a == 1 or a == b for a, b in zip(shape, tail, strict=True))
