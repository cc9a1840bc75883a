"""What a piece of work took: seconds, and the most memory the process ever held."""

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Spent", "format_bytes", "free_memory", "peak_memory", "spent"]


@dataclass
class Spent:
    """Filled when the block that asked for it ends.

    Attributes:
        seconds: on the clock.
        memory: bytes, the high-water mark of the process.
    """

    seconds: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.memory / 2**30:.2f} GiB at most"


@contextlib.contextmanager
def spent() -> Iterator[Spent]:
    """Measure a block.

    Example:
        >>> with spent() as cost:
        ...     pass
        >>> cost.memory > 0
        True
    """
    cost, began = Spent(), time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds, cost.memory = time.perf_counter() - began, peak_memory()


def peak_memory() -> int:
    """The most memory this process held, in bytes."""
    # The kernel's own record, because ru_maxrss starts from the parent's mark in some children.
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return 0
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def free_memory() -> int:
    """Bytes that could be had now, as far as the system tells; a great many where it does not."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[1]) * 1024 if found else 2**62
    except OSError:
        return 2**62


def format_bytes(size: float) -> str:
    """Format a number of bytes for a person, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
