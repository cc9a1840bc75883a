"""Detect whether the first row of a text file is a header."""

import re
from collections.abc import Sequence

from fewfold.recommender.reading.columns import ROLES, called, is_event

__all__ = ["first_row_is_data"]

_VALUE = re.compile(
    r"[-+]?[0-9]+([.,][0-9]*)?([eE][-+]?[0-9]+)?"  # a number
    r"|[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}([T ].*)?"  # a date
    r"|[0-9]{1,2}:[0-9]{2}.*"  # a time of the day
)


def first_row_is_data(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool | None:
    """Return whether the first row of a file is data, by comparison with the rows below.

    A row with a common column name, such as user_id, is a header. Otherwise the row is data if, in
    one column, its field is a number or date like those below, occurs again below, or has the same
    pattern as all fields below (``u0`` and ``u17``).

    Args:
        first: the fields of the first row.
        rows: the fields of some following rows.

    Returns:
        True for data, False for a header, None if inconclusive.

    Example:
        >>> first_row_is_data(["u0", "i0"], [["u1", "i0"], ["u2", "i7"]])
        True
        >>> first_row_is_data(["user", "item"], [["u1", "i0"], ["u2", "i7"]])
        False
        >>> first_row_is_data(["who", "what"], [["ann", "tea"], ["bob", "milk"]]) is None
        True
    """
    if any(is_event(name) or any(called(name, role) for role in ROLES) for name in first):
        return False
    # Concatenated files repeat their header as a whole row, which is no evidence of data.
    same = [
        row for row in rows if len(row) == len(first) and [f.strip() for f in row] != list(first)
    ]
    if not same:
        return None
    for name, column in zip(first, zip(*same, strict=True), strict=True):
        if name and _looks_like_value(name, [field.strip() for field in column]):
            return True
    return None


def _looks_like_value(name: str, column: Sequence[str]) -> bool:
    """Return whether a field looks like a value of the column below it."""
    filled = [field for field in column if field]
    if name in filled:
        return True
    if _VALUE.fullmatch(name):
        values = sum(_VALUE.fullmatch(field) is not None for field in filled)
        return 2 * values > len(filled)
    pattern = _pattern(name)
    # Two rows with the same pattern may be a coincidence.
    return (
        "0" in pattern and len(filled) > 2 and all(_pattern(field) == pattern for field in filled)
    )


def _pattern(field: str) -> str:
    """Return the pattern of a field: a0 for u17, a-0 for item-3."""
    letters = re.sub(r"[^\W\d_]+", "a", field)
    return re.sub(r"\d+", "0", letters)
