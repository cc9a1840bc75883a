"""Choice of the backend of a computation: native kernels on the CPU, Triton on a GPU, plain torch.

Everything outside of this folder reaches compiled code through this module. A caller asks

1. `ready(*tensors)`: if true, it calls `kernel(name, dtype)`, a C++ kernel of the compiled module;
2. `triton_kernel(operation, *tensors)`: if that is not None, it calls the function returned;

and computes in plain torch otherwise, as everything does without the compiled module and on other
devices. Switches in the environment: `FEWFOLD_NATIVE=0` leaves out the C++ kernels, and
`FEWFOLD_TRITON=0` those of Triton; in a test the context `disabled()` leaves out both, and
`triton_on_cpu()` runs those of Triton without a GPU.

To add a Triton kernel, write it in a module of `fewfold._triton` and register it in `_TRITON`.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    *("available", "disabled", "enabled", "instruction_set", "kernel", "kernels", "map_directly"),
    *("pull_directly", "ready", "show_config", "table", "threads"),
    *("triton_available", "triton_fails", "triton_kernel", "triton_on_cpu"),
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


@dataclass(frozen=True)
class _Operation:
    """A function of `fewfold._triton`, and the tensors for which it is chosen."""

    module: str
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    """Dtypes of the first tensor."""
    elements: int = 0
    """Elements of the first tensor from which the kernel is chosen; plain torch serves fewer."""


_UP_TO_SINGLE = (torch.float32, torch.float16, torch.bfloat16)
_TRITON: dict[str, _Operation] = {
    "candidate_streams": _Operation("candidate_streams"),
    "draw_cells": _Operation("cell_draws", (torch.float32,)),
    "entmax_rows": _Operation("entmax_rows"),
    "entmax_rows_backward": _Operation("entmax_backward"),
    "picked_dots": _Operation("picked_rows"),
    "picked_pulls": _Operation("picked_rows"),
    "row_adam": _Operation("row_adam", _UP_TO_SINGLE),
    "sparse_attention": _Operation("attention", _UP_TO_SINGLE),
    "sparse_attention_backward": _Operation("attention_backward", _UP_TO_SINGLE),
}
"""Operations by the name of their function."""
_OLDEST = (8, 0)
"""Compute capability; older GPUs lack bfloat16, and shared memory for blocks of attention."""
_triton = os.environ.get("FEWFOLD_TRITON", "1") != "0"
_triton_on_cpu = False

_enabled = kernels is not None and os.environ.get("FEWFOLD_NATIVE", "1") != "0"
_PLAIN = (Tensor, torch.nn.Parameter)
_WIDE = (torch.float32, torch.float64)
_STRIDED = torch.strided

_compiling = torch.compiler.is_compiling
_transforming = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_batched = torch._C._functorch.is_legacy_batchedtensor  # autograd's own vmap over gradients
if kernels is not None:  # what `ready` asks, for `map_directly`
    kernels.accept_states(
        _PLAIN, (_transforming, _modes, _tracing), forward_ad, torch.is_grad_enabled, _batched
    )
    _map_directly = kernels.map_directly
    _pull_directly = kernels.pull_directly
_threads = torch.get_num_threads


def map_directly(
    rows: Tensor, alpha: float, norm: bool, record: Callable[..., Tensor] | None = None
) -> Tensor | None:
    """Entmax, or normmax if `norm`, of contiguous rows, in compiled code alone.

    While gradients of the rows are recorded, it is what `record(rows, alpha, norm)` returns. None
    if the inputs ask for more, as `ready` tells, or if torch has no DLPack exchange API.
    """
    if not _enabled or _compiling():
        return None
    probs: Tensor | None = _map_directly(rows, alpha, norm, _threads(), record)
    return probs


def pull_directly(probs: Tensor, grad: Tensor, alpha: float, norm: bool) -> Tensor | None:
    """Vector-Jacobian product of entmax or normmax in compiled code alone.

    None where `map_directly` returns None.
    """
    if not _enabled or _compiling():
        return None
    pulled: Tensor | None = _pull_directly(probs, grad, alpha, norm, _threads())
    return pulled


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
    global _enabled, _triton
    before = _enabled, _triton
    _enabled = _triton = False
    try:
        yield
    finally:
        _enabled, _triton = before


def triton_available() -> bool:
    """Return whether Triton is installed and not switched off."""
    return _triton and _triton_installed()


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def triton_fails(gpu: int) -> str:
    """Return why Triton's kernels cannot run on a GPU, and warn; empty if they can.

    A first kernel is launched to find out: Triton needs a driver and a C compiler at run time.
    """
    if torch.version.hip is not None:
        return "not for AMD GPUs"
    found = torch.cuda.get_device_capability(gpu)
    if found < _OLDEST:
        return "for compute capability {}.{} or later, got {}.{}".format(*_OLDEST, *found)
    try:
        with torch.cuda.device(gpu):
            _triton_function("entmax_rows", "entmax_rows")(torch.zeros(1, 2, device="cuda"), 1.5)
    except Exception as error:
        reason = (str(error) or type(error).__name__).strip().partition("\n")[0]
        warnings.warn(
            f"Triton's kernels do not run on GPU {gpu}, which is served by plain torch: {reason}. "
            "FEWFOLD_TRITON=0 in the environment switches them off.",
            stacklevel=2,
        )
        return f"fails: {reason}"
    return ""


def triton_kernel(operation: str, *tensors: Tensor) -> Callable[..., Any] | None:
    """Return the Triton function of an operation if it may run on these tensors, or else None.

    The tensors must be plain ones on one GPU on which Triton runs, outside of transforms and
    traces, the first of them of a dtype and a size that the kernel is made for. Inside
    `triton_on_cpu()` they are on the CPU.
    """
    first = tensors[0]
    if type(first) not in _PLAIN or not (first.is_cuda or _triton_on_cpu) or not triton_available():
        return None
    if _compiling() or _transforming() or _modes() or _tracing() is not None:
        return None
    if forward_ad._current_level >= 0:
        return None
    entry = _TRITON.get(operation)
    if entry is None or first.dtype not in entry.dtypes or first.numel() < entry.elements:
        return None
    for t in tensors:
        if type(t) not in _PLAIN or t.device != first.device or t.layout is not _STRIDED:
            return None
        if t.is_neg() or t._is_zerotensor() or _batched(t):
            return None
    if first.is_cuda and triton_fails(first.device.index):
        return None
    found = _triton_function(entry.module, operation)
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        return functools.partial(_on_device, first.device, found)
    return found


def _on_device(device: torch.device, run: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Call a function whose tensors are on a GPU that is not the current one."""
    with torch.cuda.device(device):
        return run(*given, **options)


@functools.cache
def _triton_function(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(importlib.import_module(f"fewfold._triton.{module}"), name)
    return found


@contextlib.contextmanager
def triton_on_cpu() -> Iterator[None]:
    """Return a context in which CPU tensors take Triton's kernels, run by its interpreter.

    Triton reads `TRITON_INTERPRET=1` when a kernel is defined: set it before the first use.
    """
    global _enabled, _triton_on_cpu
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(
            "Triton's kernels run on the CPU only under its interpreter: set TRITON_INTERPRET=1 "
            "in the environment before Python starts"
        )
    before = _enabled, _triton_on_cpu
    _enabled, _triton_on_cpu = False, True
    try:
        yield
    finally:
        _enabled, _triton_on_cpu = before


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
    """Print what computes on the CPU and on a GPU, and how many threads there are.

    Example:
        >>> import fewfold as ff
        >>> ff.show_config()  # doctest: +SKIP
        fewfold  0.2.0, torch 2.13.0+cpu
        CPU      native kernels, avx512
        GPU      plain torch (Triton not installed); none found
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
    print(f"CPU      native kernels, {name}" if name else f"CPU      plain torch ({why})")
    print(f"GPU      {_gpu()}")
    shared = kernels is not None and kernels.threaded()
    print(f"threads  {threads()}, shared with torch" if shared or not name else "threads  1")


def _gpu() -> str:
    """Return what computes on a GPU, and which one there is."""
    there = torch.cuda.is_available()
    found = torch.cuda.get_device_name() if there else "none found"
    if not triton_available():
        why = "not installed" if _triton else "switched off"
    elif there and (fails := triton_fails(torch.cuda.current_device())):
        why = fails
    else:
        return f"Triton kernels where there are some, plain torch otherwise; {found}"
    return f"plain torch (Triton {why}); {found}"
