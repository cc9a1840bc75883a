"""Time that importing fewfold adds to importing torch, in fresh interpreters."""

import os
import statistics
import subprocess
import sys
import time

from benchmarks.harness import Case, Peak

ROUNDS = 15
TORCH = "import torch"
OURS = """
import time, torch
began = time.perf_counter()
import fewfold
fewfold.sparsemax
print(time.perf_counter() - began)
"""


def cases() -> list[Case]:
    """Yield all rows of the suite."""
    return [Case("import fewfold, first use of sparsemax", "after torch", "60 ms", 1.0, _added)]


def _added() -> Peak:
    """Interleave both programs; the row is what the second needs after torch, in its own clock.

    The difference of the medians of their whole times, in the details, varies by more than it is.
    """
    inside: list[float] = []
    taken: dict[str, list[float]] = {TORCH: [], OURS: []}
    for number in range(-1, ROUNDS):  # the first round fills the caches of files and of bytecode
        order = (TORCH, OURS) if number % 2 else (OURS, TORCH)
        for program in order:
            seconds, printed = _run(program)
            if number >= 0:
                taken[program].append(seconds)
                inside += [float(line) for line in printed.split()]
    torch, ours = (statistics.median(taken[program]) for program in (TORCH, OURS))
    details = {"torch": torch, "torch and fewfold": ours}
    return Peak(statistics.median(inside), 0.060, "seconds", details)


def _run(program: str) -> tuple[float, str]:
    """Return the seconds of a program and what it prints; it may keep bytecode, as after pip."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return time.perf_counter() - began, done.stdout
