"""Whether the first row of a text file names its columns or is data already."""

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
    """Compare the first row of a file with those below it.

    A row with a usual name in it, such as user_id, is a header. Otherwise one column is enough to
    tell that it is data: its first field is a number or a date like those below, comes again below,
    or is made like all below (``u0`` and ``u17``).

    Args:
        first: the fields of the first row.
        rows: the fields of some rows below.

    Returns:
        True for data, False for names, None where neither shows.

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
    # Files that were joined have their header again, as a whole row: that is no evidence.
    same = [
        row for row in rows if len(row) == len(first) and [f.strip() for f in row] != list(first)
    ]
    if not same:
        return None
    for name, column in zip(first, zip(*same, strict=True), strict=True):
        if name and _alike(name, [field.strip() for field in column]):
            return True
    return None


def _alike(name: str, column: Sequence[str]) -> bool:
    """Whether a field could be one of a column."""
    filled = [field for field in column if field]
    if name in filled:
        return True
    if _VALUE.fullmatch(name):
        values = sum(_VALUE.fullmatch(field) is not None for field in filled)
        return 2 * values > len(filled)
    made = _made(name)
    # Two rows that are made alike may be an accident.
    return "0" in made and len(filled) > 2 and all(_made(field) == made for field in filled)


def _made(field: str) -> str:
    """What a field is made of: a0 for u17, a-0 for item-3."""
    letters = re.sub(r"[^\W\d_]+", "a", field)
    return re.sub(r"\d+", "0", letters)
