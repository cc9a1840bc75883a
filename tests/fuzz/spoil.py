"""Corrupted arguments: wrong sizes, strides, dtypes, ids and values."""

import math
import os

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "ALLOWED",
    "REFUSED",
    "Rng",
    "other_number",
    "other_tensor",
    "spoiled",
    "spoiled_given",
    "tried",
]

Rng = np.random.Generator
ALLOWED = (TypeError, ValueError, IndexError, MemoryError)
# What torch itself says, which has no other name for memory that is not there or for two dtypes.
REFUSED = (
    *("can't allocate memory", "calculation overflowed", "invalid size"),
    *("same dtype", "expected scalar type", "must match", "not implemented for"),
)
# Memory that is not there ends a process under the address sanitizer: then only sizes that no
# number of bytes can hold.
ABSURD = (2**61, 2**62) if "asan" in os.environ.get("LD_PRELOAD", "") else ()
ABSURD = ABSURD or (2**31, 2**40, 2**62, 2**63 - 1)
DTYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool, torch.float16)


def pick(rng: Rng, options: object) -> object:
    """One of the options."""
    return options[int(rng.integers(len(options)))]  # type: ignore[arg-type, index]


def other_number(rng: Rng, value: float) -> float:
    """Another number of the same kind."""
    if isinstance(value, float):
        return float(pick(rng, (math.nan, math.inf, -math.inf, 0.0, -value, 1e300, 1e-300)))
    near = (value - 1, value + 1, 2 * value, value // 2, 0, 1, -1, -(2**62), *ABSURD)
    return int(pick(rng, near))


def other_tensor(rng: Rng, value: Tensor) -> Tensor | None:
    """A tensor that is wrong in one thing: how many, how far apart, which type, which numbers."""
    kind = int(rng.integers(10))
    if kind == 0:
        return None
    if kind == 1:
        return value.to(pick(rng, DTYPES))  # type: ignore[call-overload, no-any-return]
    if kind == 2:
        return value.reshape(-1)[: int(rng.integers(value.numel() + 1))]
    if kind == 3:
        return torch.cat([value.reshape(-1), value.reshape(-1)])
    if kind == 4:
        return value.reshape(-1).repeat_interleave(2)[::2].reshape(value.shape)  # gaps between
    if kind == 5 and value.numel() and value.dim():
        return value.reshape(-1)[:1].expand(value.shape)  # every stride is 0
    if kind == 6 and value.dim() > 1:
        return value.transpose(0, -1)
    if kind == 7 and value.dim():
        return value.flip(0)[1:]
    return spoiled_numbers(rng, value)


def spoiled_numbers(rng: Rng, value: Tensor) -> Tensor:
    """The same shape with a few other numbers in it."""
    changed = value.contiguous().clone()
    flat = changed.view(-1)
    for _ in range(int(rng.integers(1, 4)) if flat.numel() else 0):
        at = int(rng.integers(flat.numel()))
        if value.is_floating_point():
            flat[at] = float(pick(rng, (math.nan, math.inf, -math.inf, 0.0, 1e30, -1e30)))
        elif value.dtype == torch.bool:
            flat[at] = not flat[at]
        else:
            info = torch.iinfo(value.dtype)
            near = (int(flat[at]) + 1, int(flat[at]) - 1, -1, info.max, info.min, flat.numel())
            flat[at] = min(max(int(pick(rng, near)), info.min), info.max)
    return changed


def spoiled(rng: Rng, arguments: list[object]) -> list[object]:
    """The arguments with none, one or two of them made wrong."""
    found = list(arguments)
    places = [at for at, one in enumerate(found) if isinstance(one, (Tensor, int, float))]
    for _ in range(int(pick(rng, (0, 1, 1, 1, 2)))):
        at = int(pick(rng, places))
        one = found[at]
        if isinstance(one, Tensor):
            found[at] = other_tensor(rng, one)
        elif isinstance(one, (int, float)) and not isinstance(one, bool):
            found[at] = other_number(rng, one)
    return found


def spoiled_given(rng: Rng, arguments: list[object]) -> list[object]:
    """As `spoiled`, but what was a tensor stays one: a function may say what it likes of None."""
    found = spoiled(rng, arguments)
    return [own if new is None else new for own, new in zip(arguments, found, strict=True)]


def tried(call: object, *arguments: object, **options: object) -> object:
    """The answer of a call, or the error that it may raise; any other error is a finding."""
    try:
        return call(*arguments, **options)  # type: ignore[operator]
    except ALLOWED as error:
        return error
    except RuntimeError as error:
        if any(text in str(error) for text in REFUSED):
            return error
        raise
