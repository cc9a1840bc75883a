"""Upper bound on the magnitude of finite scores."""

import math

import torch
from torch import Tensor

__all__ = ["LARGEST", "check_size"]

LARGEST = 1e150
"""sums and squares of larger scores could overflow float64"""


def check_size(values: Tensor) -> None:
    """Raise a ValueError if a finite score is larger than `LARGEST` in magnitude.

    Example:
        >>> import torch
        >>> check_size(torch.tensor([1e100, -torch.inf, torch.nan], dtype=torch.float64))
        >>> check_size(torch.tensor([0.0, -1e200], dtype=torch.float64))
        Traceback (most recent call last):
        ValueError: scores must be at most 1e+150 in size, got -1e+200; write -inf for what must ...
    """
    if values.dtype != torch.float64 or not values.numel():
        return
    if bool(torch.linalg.vector_norm(values, math.inf) <= LARGEST):  # the usual case, in one pass
        return
    size = values.abs()
    huge = (size > LARGEST) & (size < math.inf)
    if bool(huge.any()):
        raise ValueError(
            f"scores must be at most {LARGEST:g} in size, got {float(values[huge][0]):g}; write "
            "-inf for what must not be used"
        )
