"""Tensors that are stored in parts of several files, mapped from disk as one tensor."""

import ctypes
import functools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["ALIGNMENT", "FilePart", "load_parts"]

ALIGNMENT = 1 << 16  # bytes; a multiple of the page size of all common systems
_FIXED = 0x10  # MAP_FIXED of Linux, macOS and the BSDs, which the module mmap does not name


@dataclass(frozen=True)
class FilePart:
    """Bytes of a file that are a part of a tensor.

    Attributes:
        file: its path.
        begin: first byte.
        end: end of the bytes.
    """

    file: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.begin


def load_parts(parts: Sequence[FilePart], dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the tensor whose bytes are these parts of files, one after the other.

    The files are mapped, so that a page is read when it is first used, and processes share it. A
    value that is assigned is seen by this process alone. If parts do not begin and end at pages,
    or the system cannot map them, they are read into memory.
    """
    total = sum(part.size for part in parts)
    if not total:
        return torch.empty(tuple(shape), dtype=dtype)
    found = _mapped(parts, total) if _aligned(parts) else None
    if found is None:
        found = _read(parts, total)
    return torch.from_numpy(found).view(dtype).view(tuple(shape))


def _aligned(parts: Sequence[FilePart]) -> bool:
    """Whether the parts can be mapped next to each other."""
    page = mmap.ALLOCATIONGRANULARITY
    return all(part.begin % page == 0 for part in parts) and all(
        part.size % page == 0 for part in parts[:-1]
    )


def _read(parts: Sequence[FilePart], total: int) -> np.ndarray:
    found, at = np.empty(total, np.uint8), 0
    for part in parts:
        with part.file.open("rb") as stream:
            stream.seek(part.begin)
            if stream.readinto(found[at : at + part.size]) != part.size:  # type: ignore[arg-type]
                raise ValueError(f"it ends before byte {part.end}")
        at += part.size
    return found


class _Memory:
    """Mapped memory as numpy sees it; it is unmapped when the last array that uses it is gone."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3
        }  # fmt: skip
        # At the end of the process the system does it, since tensors may be in use until then.
        weakref.finalize(self, _libc().munmap, address, size).atexit = False


def _mapped(parts: Sequence[FilePart], total: int) -> np.ndarray | None:
    """Map the parts into one range of addresses; None if the system cannot."""
    libc = _libc()
    if libc is None:
        return None
    lazily = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
    start = libc.mmap(None, total, 0, lazily | mmap.MAP_ANONYMOUS, -1, 0)
    if start == _failed():
        return None
    memory, at = _Memory(start, total), start
    for part in parts:
        if not part.size:
            continue
        number = os.open(part.file, os.O_RDONLY)
        try:
            if os.fstat(number).st_size < part.end:
                raise ValueError(f"it ends before byte {part.end}")
            access = mmap.PROT_READ | mmap.PROT_WRITE
            found = libc.mmap(at, part.size, access, lazily | _FIXED, number, part.begin)
        finally:
            os.close(number)
        if found != at:
            return None
        at += part.size
    return np.asarray(memory)


def _failed() -> int:
    """Return MAP_FAILED."""
    return int(ctypes.c_void_p(-1).value or 0)


@functools.cache
def _libc() -> Any:
    """Return the C library with mmap and munmap; None where there is none."""
    if sys.platform == "win32" or sys.maxsize < 2**32:
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        libc.mmap.argtypes = (address, size, number, number, number, ctypes.c_int64)
        libc.mmap.restype = address
        libc.munmap.argtypes, libc.munmap.restype = (address, size), number
    except (AttributeError, OSError):
        return None
    return libc
