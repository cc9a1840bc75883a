"""Compiles pixels.cpp at first use for the processor of this machine."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from fewfold._files import new_file

SOURCE = Path(__file__).with_name("pixels.cpp")
BUILD = Path(__file__).parents[2] / "build" / "bit_vector_vae"
# Nothing that reorders sums: the rounding of powers depends on their order.
FLAGS = ["-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"]
Kernel = Callable[..., int]


@functools.cache
def kernel() -> Kernel | None:
    """Return the function of pixels.cpp; None without a compiler, or with `FEWFOLD_NATIVE=0`."""
    if os.environ.get("FEWFOLD_NATIVE", "1") == "0":
        return None
    try:
        found = ctypes.CDLL(str(_compiled())).pixel_nll
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        logging.getLogger(__name__).warning(
            "no kernel, torch will be several times slower: %s", reason
        )
        return None
    found.restype = ctypes.c_int64
    found.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 3
    return found


def _compiled() -> Path:
    """Return the library, compiling it unless it is cached for this source and processor."""
    key = "\n".join([*FLAGS, _processor(), SOURCE.read_text()])
    path = BUILD / f"pixels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler; install one or set CXX")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Two processes may compile it at a time.
    with new_file(path, path.with_name(f".{path.name}.{os.getpid()}.partial")) as partial:
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return path


def _processor() -> str:
    """Return the instruction sets of the processor, as a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
