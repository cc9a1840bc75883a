"""Resource usage: elapsed time and peak memory of the process."""

import contextlib
import ctypes
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ResourceUsage",
    "available_processors",
    "format_bytes",
    "free_memory",
    "peak_memory",
    "release_freed_memory",
    "resource_usage",
]

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass
class ResourceUsage:
    """Time and memory of a block measured by `resource_usage`, set when it ends.

    Attributes:
        seconds: elapsed wall-clock time.
        memory: peak memory of the process in bytes.
    """

    seconds: float = 0.0
    memory: int = 0

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.memory / 2**30:.2f} GiB at most"


@contextlib.contextmanager
def resource_usage() -> Iterator[ResourceUsage]:
    """Measure the elapsed time of a block and the peak memory of the process.

    Example:
        >>> with resource_usage() as cost:
        ...     pass
        >>> cost.memory > 0
        True
    """
    cost, began = ResourceUsage(), time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds, cost.memory = time.perf_counter() - began, peak_memory()


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; 0 if unknown."""
    # Preferred to ru_maxrss, which a child process may inherit from its parent.
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
    """Return the available memory in bytes; 2**62 if unknown."""
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[1]) * 1024 if found else 2**62
    except OSError:
        return 2**62


def release_freed_memory() -> None:
    """Return memory that was freed to the system, where the C library can (glibc)."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def available_processors(cgroups: Path = _CGROUPS) -> int:
    """Return the number of processors this process may use: its affinity and its quota.

    A container with a quota of 1.5 processors on a machine with 64 may use two, not 64.

    Args:
        cgroups: where the control groups are mounted.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota(cgroups)
    return count if quota is None else max(1, min(count, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """Return the processors of the control group's quota, or None without one."""
    try:
        first, second = (cgroups / "cpu.max").read_text().split()  # version 2
    except (OSError, ValueError):
        try:  # version 1
            first = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            second = (cgroups / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        quota, period = float(first), float(second)
    except ValueError:  # "max"
        return None
    return quota / period if quota > 0 and period > 0 else None


def format_bytes(size: float) -> str:
    """Format a number of bytes for a person, such as 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
