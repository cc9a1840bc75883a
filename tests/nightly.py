"""Parameters of which some are tested in `make test` and the others at night."""

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, values: Iterable[Any]) -> list[Any]:
    """The values, all but the first so many of them marked `nightly`."""
    return [
        value if number < count else pytest.param(value, marks=pytest.mark.nightly)
        for number, value in enumerate(values)
    ]
