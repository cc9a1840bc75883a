"""How far something is, on one line of a terminal."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["line", "over", "silence"]

_Part = TypeVar("_Part")
_PATIENCE = 2.0  # seconds that need no word
_silent = False


def line(text: str) -> None:
    """Overwrite one line of a terminal; say nothing into a file, nor if FEWFOLD_PROGRESS=0."""
    if _silent or sys.stderr is None or sys.stderr.closed or not sys.stderr.isatty():
        return
    if os.environ.get("FEWFOLD_PROGRESS", "1") != "0":
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Not a word inside this block."""
    global _silent
    before, _silent = _silent, _silent or wanted
    try:
        yield
    finally:
        _silent = before


def over(what: str, parts: Sequence[_Part]) -> Iterator[_Part]:
    """The parts, one by one; what takes longer than two seconds tells how much of it is left.

    Example:
        >>> [part * part for part in over("squaring", range(4))]
        [0, 1, 4, 9]
    """
    began = told = time.monotonic()
    try:
        for done, part in enumerate(parts):
            now = time.monotonic()
            if done and now - began > _PATIENCE and now - told > 0.5:
                left = (now - began) / done * (len(parts) - done)
                line(f"{what}: {done / len(parts):.0%}, {left:.0f} s left")
                told = now
            yield part
    finally:
        if told > began:
            line("")
