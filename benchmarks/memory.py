"""Peak memory of one training step of an output layer: ``python -m benchmarks.memory NAME``.

Prints the bytes the step needed beyond its inputs. The process does nothing else, because a
high-water mark cannot be taken back.
"""

import sys

import torch

from benchmarks.losses import LINEAR, layer, step
from fewfold._resources import peak_memory


def main() -> None:
    """Measure the loss named on the command line."""
    torch.set_num_threads(1)
    loss = LINEAR[sys.argv[1]]
    hidden, weight = torch.randn(4, 8).requires_grad_(), torch.randn(16, 8).requires_grad_()
    step(loss, hidden, weight, torch.arange(4))  # what is loaded on first use is not the step's
    inputs = layer()
    before = peak_memory()
    step(loss, *inputs)
    print(peak_memory() - before)


if __name__ == "__main__":
    main()
