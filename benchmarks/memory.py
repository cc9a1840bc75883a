"""Peak memory of one training step of an output layer: ``python -m benchmarks.memory NAME``.

Prints the bytes the step needed beyond its inputs. The process does nothing else, because a
high-water mark cannot be taken back.
"""

import re
import resource
import sys
from pathlib import Path

import torch

from benchmarks.losses import LINEAR, layer, step


def peak() -> int:
    """High-water mark of resident memory in bytes.

    On Linux the kernel's own record is read, because ru_maxrss starts from the parent's mark when
    a process is spawned without copying.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def main() -> None:
    """Measure the loss named on the command line."""
    torch.set_num_threads(1)
    loss = LINEAR[sys.argv[1]]
    hidden, weight = torch.randn(4, 8).requires_grad_(), torch.randn(16, 8).requires_grad_()
    step(loss, hidden, weight, torch.arange(4))  # what is loaded on first use is not the step's
    inputs = layer()
    before = peak()
    step(loss, *inputs)
    print(peak() - before)


if __name__ == "__main__":
    main()
