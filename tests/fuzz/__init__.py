"""Differential fuzzing: random inputs made for every branch, the kernels against plain torch.

``python -m tests.fuzz --minutes 5 --module maps`` draws until the time is up and prints how to
repeat what it finds. A module has a file in this folder with a table ``TRIALS`` of functions that
take a random generator, check one batch of inputs and return how many inputs it had.
`tests/fuzz/test_selection.py` runs a fixed selection with the other tests.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np

__all__ = ["MODULES", "Trial", "run", "trials"]

Trial = Callable[[np.random.Generator], int]
MODULES = (
    *("maps", "losses", "attention", "structured", "sampling", "optim", "embeddings", "ranking"),
    *("distributions",),
)


def trials(module: str) -> dict[str, Trial]:
    """The trials of a module, by name."""
    table: dict[str, Trial] = import_module(f"tests.fuzz.{module}").TRIALS
    return table


def run(module: str, name: str, seed: int) -> int:
    """Run one trial; the same seed draws the same inputs."""
    return trials(module)[name](np.random.default_rng([seed, *name.encode()]))
