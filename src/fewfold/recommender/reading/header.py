"""Detect the separator, the header and the columns of delimited text."""

import re
from collections.abc import Sequence

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.columns import ROLES, called, is_event
from fewfold.recommender.reading.table_source import Opening
from fewfold.recommender.reading.text_blocks import Record

__all__ = [
    "COLONS",
    "column_names",
    "detect_header",
    "find_separator",
    "first_fields",
    "first_row_is_data",
]

COLONS = "\x1f"  # stands for "::", since a separator must be one character
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
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


def detect_header(
    fields: Sequence[str], below: Sequence[Sequence[str]], opening: Opening
) -> tuple[bool, tuple[str, ...]]:
    """Return whether the first row is data, and a note if that is a guess."""
    if opening.header is not None:
        return not opening.header, ()
    if all(_NUMBER.fullmatch(field) for field in fields):
        return True, ()
    is_data = first_row_is_data(fields, below)
    shown = " | ".join(field if len(field) <= 24 else field[:21] + "..." for field in fields[:6])
    if is_data:
        return True, (
            f"the first row ({shown}) looks like data, so the columns have no names: they are "
            "called 1, 2, 3, ...; if it is a header, write header=True (--header)",
        )
    if is_data is None:
        taken = "names of the columns" if opening.unclear else "data"
        other = "data, write header=False (--no-header)"
        other = other if opening.unclear else "a header, write header=True (--header)"
        return not opening.unclear, (
            f"the first row ({shown}) was taken for {taken}; if it is {other}",
        )
    return False, ()


def find_separator(line: str) -> str:
    """Return the most frequent separator of a line."""
    bare = re.sub(r'"[^"]*"', "", line)
    counts = {sign: bare.count(sign) for sign in ("\t", ",", ";", "|")}
    best = max(counts, key=lambda sign: counts[sign])
    return COLONS if bare.count("::") > counts[best] else best


def first_fields(row: Record, line: str, name: str) -> list[str]:
    """Return the stripped fields of the first row; raise if it is malformed."""
    if row.fields is None:
        raise DataError(
            f"{name}, line {row.start + 1}: the quotes of the header do not match, {line[:60]!r}"
        )
    if len(row.fields) < 2:
        raise DataError(
            f"{name}: found one column, {line[:60]!r}; expected two or more, separated by a comma, "
            "a semicolon, a tab, | or ::"
        )
    return [field.strip() for field in row.fields]


def column_names(fields: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the column names of a header; an empty one is named by its position."""
    names = [field or f"column {number}" for number, field in enumerate(fields, 1)]
    twice = sorted({field for field in names if names.count(field) > 1})
    if twice:
        raise DataError(f"{name}: the header names {twice[0]!r} twice; rename one of them")
    return tuple(names)
