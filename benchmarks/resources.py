"""Time and peak memory of a process, and of parts of it."""

import contextlib
import os
import time
from pathlib import Path

from fewfold._resources import peak_memory

_RESET = Path("/proc/self/clear_refs")


class Stopwatch:
    """Counts from the start of the process; memory peaks are kept although they are reset."""

    def __init__(self) -> None:
        self.highest = 0
        self._imported = time.process_time()  # what was loaded before this
        self.began = time.perf_counter() - self._imported

    def peak_since(self) -> int:
        """Peak memory of the process since the last call, in bytes."""
        peak = peak_memory()
        self.highest = max(self.highest, peak)
        with contextlib.suppress(OSError):  # then it is the peak of the whole process so far
            _RESET.write_text("5")
        return peak

    def stop(self) -> dict[str, float]:
        """Seconds of the clock and of processors, and the highest peak."""
        self.peak_since()
        spent = os.times()
        return {
            "seconds": time.perf_counter() - self.began,
            "cpu": spent.user + spent.system,
            "peak": self.highest,
        }
