"""Compiles a C++ file of an experiment at first use for the processor of this machine."""

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
from pathlib import Path

from fewfold._files import new_file

BUILD = Path(__file__).parents[1] / "build" / "experiments"
# Nothing that reorders sums: results should not depend on the compiler.
FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]


@functools.cache
def library(source: Path, *flags: str) -> ctypes.CDLL | None:
    """Return the compiled library; None without a compiler, or with `FEWFOLD_NATIVE=0`."""
    if os.environ.get("FEWFOLD_NATIVE", "1") == "0":
        return None
    try:
        return ctypes.CDLL(str(_compiled(source, *flags)))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        logging.getLogger(__name__).warning("%s was not compiled: %s", source.name, reason)
        return None


def _compiled(source: Path, *flags: str) -> Path:
    """Return the library, compiling it unless it is cached for this source and processor."""
    key = "\n".join([*FLAGS, *flags, _processor(), source.read_text()])
    path = BUILD / f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler; install one or set CXX")
    BUILD.mkdir(parents=True, exist_ok=True)
    # Two processes may compile it at a time.
    with new_file(path, path.with_name(f".{path.name}.{os.getpid()}.partial")) as partial:
        command = [compiler, *FLAGS, *flags, str(source), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return path


def _processor() -> str:
    """Return the instruction sets of the processor, as a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
