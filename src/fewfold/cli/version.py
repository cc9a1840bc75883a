"""Version of fewfold and facts of its build, without importing torch."""

import ctypes
import importlib
import os
import platform
import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import fewfold

__all__ = ["build_facts"]

_KERNELS = "fewfold._native.kernels"


def build_facts() -> str:
    """Describe version, Python, torch and kernels, a line each.

    >>> print(build_facts())  # doctest: +SKIP
    fewfold 0.2.0
    python  CPython 3.11.7 on Linux x86_64, torch 2.13.0+cpu
    kernels avx512, compiled by GCC 12.2.0 for Python 3.11, with OpenMP
    """
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.machine()}"
    return (
        f"fewfold {fewfold.__version__}\n"
        f"python  {python} on {system}, torch {_torch_version()}\n"
        f"kernels {_kernels()}"
    )


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def _kernels() -> str:
    try:
        kernels = _load()
    except ImportError as error:
        return f"cannot be loaded, plain torch is used: {error}"
    if kernels is None:
        return "not built, plain torch is used"
    switched_off = os.environ.get("FEWFOLD_NATIVE") == "0"
    used = "switched off by FEWFOLD_NATIVE=0" if switched_off else kernels.instruction_set()
    threads = "with OpenMP" if kernels.threaded() else "one thread"
    return f"{used}, compiled by {kernels.compiler()} for Python {kernels.python_abi()}, {threads}"


def _load() -> ModuleType | None:
    """Return the compiled module, or None if there is none.

    A plain import would first import the package that contains it, and with that torch.
    """
    if _KERNELS in sys.modules:
        return sys.modules[_KERNELS]
    if (spec := _spec()) is None or spec.loader is None:
        return None
    try:
        module = module_from_spec(spec)
    except (
        ImportError
    ):  # perhaps a system without an OpenMP library; torch would have loaded its own
        _open_openmp_of_torch()
        module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_KERNELS] = module  # a second copy must not be loaded
    return module


def _open_openmp_of_torch() -> None:
    torch = find_spec("torch")  # does not import it
    if torch is not None and torch.origin is not None:
        for library in Path(torch.origin).parent.glob("lib/libgomp.so*"):
            ctypes.CDLL(str(library))


def _spec() -> ModuleSpec | None:
    """Find the compiled module as an import would; an editable installation has a finder."""
    importlib.invalidate_caches()
    folder = str(Path(fewfold.__file__).parent / "_native")
    for finder in sys.meta_path:
        if (spec := finder.find_spec(_KERNELS, [folder])) is not None:
            return spec
    return None
