"""Rows of experiments that train one small model for each method and seed."""

import argparse
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from experiments.early_stopping import Schedule
from experiments.record import Record, Row


@dataclass(frozen=True)
class Settings:
    """Settings of model and training, the same for all methods.

    Attributes:
        size: instances per step.
        least: occurrences of a word in the training part below which it is unknown.
    """

    width: int
    dropout: float
    size: int
    least: int
    schedule: Schedule


def folder(models: Path, *about: object) -> Path:
    """Return the folder of a training run, whose name is a hash of what it is about."""
    text = " ".join(map(str, about))
    return models / hashlib.sha256(text.encode()).hexdigest()[:16]


def add_rows(
    measure: Callable[[str], Row], methods: Iterable[str], settings: Settings, seed: int,
    results: Path,
) -> None:  # fmt: skip
    """Add the rows of the methods that are missing; `measure` returns that of one."""
    record = Record(results)
    for method in methods:
        print(method, flush=True)
        make = partial(measure, method)
        record.once(make, method=method, seed=seed, settings=asdict(settings))


def options(about: str | None, methods: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return methods and seeds of the command line, and use one thread."""
    known = [*methods]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--method", choices=known, action="append", help="by default all")
    parser.add_argument("--seed", type=int, action="append", help="by default 1")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return given.method or known, given.seed or [1]
