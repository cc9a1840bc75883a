"""The function of pixels.cpp, compiled at first use."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

from experiments.compiled import library

SOURCE = Path(__file__).with_name("pixels.cpp")
Kernel = Callable[..., int]


@functools.cache
def kernel() -> Kernel | None:
    """Return the function of pixels.cpp; None if it cannot be compiled or must not be used.

    Torch is then several times slower.
    """
    compiled = library(SOURCE)
    if compiled is None:
        return None
    found = compiled.pixel_nll
    found.restype = ctypes.c_int64
    found.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 3
    return found
