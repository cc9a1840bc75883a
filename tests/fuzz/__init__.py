"""Differential fuzzing: random inputs made for every branch, the kernels against plain torch.

``python -m tests.fuzz --minutes 5 --room maps`` draws until the time is up and prints how to
repeat what it finds. A room is a module of this package with a table ``TRIALS`` of functions that
take a random generator, check one batch of inputs and return how many inputs it had.
`tests/fuzz/test_selection.py` runs a fixed selection with the other tests.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np

__all__ = ["ROOMS", "Trial", "run", "trials"]

Trial = Callable[[np.random.Generator], int]
ROOMS = (
    *("maps", "losses", "attention", "structured", "sampling", "optim", "embeddings", "ranking"),
    *("distributions",),
)


def trials(room: str) -> dict[str, Trial]:
    """The trials of a room, by name."""
    table: dict[str, Trial] = import_module(f"tests.fuzz.{room}").TRIALS
    return table


def run(room: str, name: str, seed: int) -> int:
    """Run one trial; the same seed draws the same inputs."""
    return trials(room)[name](np.random.default_rng([seed, *name.encode()]))
