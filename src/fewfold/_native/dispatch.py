"""Choice of the kernel for a computation: which kernels exist, and which tensors they accept.

Everything outside of this folder reaches the compiled code through this module. A caller checks
`ready(*tensors)` and, if true, calls `kernel(name, dtype)`; otherwise it computes in plain torch,
as everything does without the compiled module. `FEWFOLD_NATIVE=0` in the environment and
`disabled()` choose plain torch although the module is present.

Kernels are looked up in a table from (kernel name, device type) to a function, which today has one
column: `_MODULES` maps the device type "cpu" to the compiled module. To add a GPU backend, add its
module there, with functions of the same names and arguments; let `ready` accept tensors of that
device if all of them are on it; and let `kernel` return a function that selects the column by the
device of its first tensor. Callers pass tensors and sizes, and do not change.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    *("available", "disabled", "enabled", "instruction_set", "kernel", "kernels", "ready"),
    *("show_config", "table", "threads"),
]

kernels: ModuleType | None
try:
    from fewfold._native import kernels
except ImportError:
    kernels = None
else:  # kernels read tensors without being linked against torch
    kernels.accept_tensors(  # type: ignore[union-attr]
        torch.Tensor,
        (
            *(torch.float32, torch.float64, torch.int8, torch.uint8),
            *(torch.int16, torch.int32, torch.int64, torch.bool),
        ),
    )

_MODULES: dict[str, ModuleType] = {} if kernels is None else {"cpu": kernels}
_SUFFIX = {None: "", torch.float32: "_f32", torch.float64: "_f64"}

_enabled = kernels is not None and os.environ.get("FEWFOLD_NATIVE", "1") != "0"
_PLAIN = (Tensor, torch.nn.Parameter)
_WIDE = (torch.float32, torch.float64)
_STRIDED = torch.strided

_compiling = torch.compiler.is_compiling
_transforming = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_batched = torch._C._functorch.is_legacy_batchedtensor  # autograd's own vmap over gradients


def ready(*tensors: Tensor) -> bool:
    """Return whether kernels may run on these: plain float tensors on the CPU, no transform active.

    A kernel reads memory. A tensor that stands for others (vmap, forward mode, tracing, a fake
    tensor) has none to read, so every transform takes the plain torch path.
    """
    # The checks of `fewfold._torch.runs_directly`, inlined: a map of some short rows takes
    # microseconds, and these checks are a fifth of it.
    if not _enabled or _compiling() or _transforming() or _modes() or _tracing() is not None:
        return False
    if forward_ad._current_level >= 0:
        return False
    for t in tensors:  # a loop, not all(...): this runs on every call, and a call may be tiny
        if type(t) not in _PLAIN or t.dtype not in _WIDE or not t.is_cpu:
            return False
        if t.layout is not _STRIDED or t.is_neg() or t._is_zerotensor() or _batched(t):
            return False
    return True


@functools.cache
def kernel(name: str, dtype: torch.dtype | None = None) -> Any:
    """Return the function or class `name` of the compiled module.

    Args:
        name: without the suffix of its dtype.
        dtype: float32 or float64 for a kernel compiled for both; None for all others.
    """
    if not available():
        raise RuntimeError(
            f"kernel {name!r} was requested, but the compiled module is missing: call "
            "dispatch.ready(...) or dispatch.enabled() first, and compute in plain torch otherwise"
        )
    return getattr(_MODULES["cpu"], f"{name}{_SUFFIX[dtype]}")


def available() -> bool:
    """Return whether the compiled module is present, even if it is switched off."""
    return "cpu" in _MODULES


def enabled() -> bool:
    """Return whether the compiled module is present and not switched off."""
    return _enabled


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Return a context in which everything is computed in plain torch."""
    global _enabled
    before = _enabled
    _enabled = False
    try:
        yield
    finally:
        _enabled = before


def table(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised CPU tensor in large memory pages, for rows read in random order."""
    empty = torch.empty(shape, dtype=dtype)
    if kernels is not None:
        kernels.large_pages(empty)
    return empty


def threads() -> int:
    """Return how many threads a kernel may use: as many as torch."""
    return torch.get_num_threads()


def instruction_set() -> str | None:
    """Return the name of the instruction set in use, or None on the plain torch path."""
    return str(kernels.instruction_set()) if kernels is not None and _enabled else None


def show_config() -> None:
    """Print which path is active, with which instruction set and how many threads.

    Example:
        >>> import fewfold as ff
        >>> ff.show_config()  # doctest: +SKIP
        fewfold  0.1.0, torch 2.13.0+cpu
        kernels  native, avx512
        threads  2, shared with torch
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("fewfold")
    except PackageNotFoundError:
        own = "not installed"
    name = instruction_set()
    why = "compiled module missing" if kernels is None else "switched off"
    print(f"fewfold  {own}, torch {torch.__version__}")
    print(f"kernels  native, {name}" if name else f"kernels  plain torch ({why})")
    shared = kernels is not None and kernels.threaded()
    print(f"threads  {threads()}, shared with torch" if shared or not name else "threads  1")
