"""Parts of statements about our rows."""

from collections.abc import Callable
from itertools import pairwise
from statistics import mean

from experiments.record import Row


def alike(rows: list[Row], **key: object) -> list[Row]:
    """Return the rows with these fields."""
    return [row for row in rows if key.items() <= row.items()]


def longest(rows: list[Row], **key: object) -> list[Row]:
    """Return the rows with these fields and the most epochs."""
    own = alike(rows, **key)
    most = max((row["epochs"] for row in own), default=0)
    return [row for row in own if row["epochs"] == most]


def ordered(groups: list[list[Row]], of: Callable[[Row], float]) -> bool | None:
    """Whether the mean of a quantity rises strictly from group to group; None if one is empty."""
    if not all(groups):
        return None
    values = [mean(of(row) for row in rows) for rows in groups]
    return all(first < second for first, second in pairwise(values))


def every(found: list[bool | None]) -> bool | None:
    """Whether all are true; None if one is None."""
    return None if None in found else all(found)
