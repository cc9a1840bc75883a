"""Options of the command line, and the parsers of their values; imports no torch."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Option", "non_negative_integer", "number", "positive_integer", "real_number"]

_HUGE = 2**31


@dataclass(frozen=True)
class Option:
    """One flag; its value may also come from the environment or a file.

    A switch also has --no-NAME, which the help shows if `off` describes it; the help does not show
    NAME itself if it is `hidden`. `exclusive` is for an option of a model that may not be given
    with another model: what the other one lacks, such as "has no tables". `requires` names an
    option without which this one is an error, and what to write.
    """

    name: str
    help: str
    default: Any = None
    type: Callable[[str], Any] = str
    metavar: str | None = None
    choices: Sequence[str] = ()
    switch: bool = False
    many: bool = False
    off: str = ""
    hidden: bool = False
    short: str | None = None
    group: str = "any command"
    exclusive: str = ""
    requires: tuple[str, str] | None = None

    @property
    def dest(self) -> str:
        """Name of the parsed value: the option's name with underscores."""
        return self.name.replace("-", "_")


def number(text: str, kind: Callable[[str], Any], fits: Callable[[Any], bool], what: str) -> Any:
    """Parse a number; ArgumentTypeError says that it must be `what` unless it `fits`."""
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not fits(value):
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}")
    return value


def positive_integer(text: str) -> Any:
    """Parse a whole number from 1 to 2^31 - 1."""
    return number(text, int, lambda n: 0 < n < _HUGE, "a whole number from 1 to 2147483647")


def non_negative_integer(text: str) -> Any:
    """Parse a whole number from 0 to 2^62 - 1."""
    return number(text, int, lambda n: 0 <= n < _HUGE**2, "a whole number, 0 or more")


def real_number(text: str) -> Any:
    """Parse a finite number."""
    return number(text, float, math.isfinite, "a number")
