"""Conditions on item attributes: which items may be recommended."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.attributes import Attributes
from fewfold.recommender.encoded_columns import EncodedColumn
from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.conditions import (
    DATE,
    MISSING,
    Condition,
    parse_date,
    parse_number,
)

__all__ = ["Where", "attributes_for", "matching_items", "parse_where", "unmatched_values"]

Where = Mapping[str, Any]  # from columns to a value, a list of values, or a range
_KEYS = ("min", "max", "not")
_SHOWN = 10  # values that a message lists


def matching_items(attributes: Attributes | None, where: Where) -> Tensor:
    """Return (items,) true for the items that meet all conditions.

    Args:
        attributes: of the items.
        where: from the name of a column to a value that the item must have, a list of values of
            which it must have one, or a mapping with `min` and `max` (inclusive; numbers, or dates
            such as "2024-01-31" and months such as "2024-01") or `not` (a value or a list of them).
            Numbers equal every spelling (4 and 4.0). An item whose value is missing never matches.

    Example:
        >>> from fewfold.recommender.attributes import Attributes
        >>> from fewfold.recommender.item_conditions import matching_items
        >>> attributes = Attributes.of({"kind": ["tea", "nut", None], "year": [1990, 2001, 1995]})
        >>> matching_items(attributes, {"kind": ["tea", "nut"]}).tolist()
        [True, True, False]
        >>> matching_items(attributes, {"kind": "tea", "year": {"min": 1990, "max": 2000}}).tolist()
        [True, False, False]
    """
    if not isinstance(where, Mapping):
        raise TypeError(
            "where must be a mapping from columns to conditions, as {'section': 'libdevel', "
            f"'year': {{'min': 1990}}}}, got {type(where).__name__}"
        )
    known = attributes_for(attributes, "where")
    found: Tensor | None = None
    for name, condition in where.items():
        column = known.encoded(name)
        mask = column.mask(_chosen(column, condition))
        found = mask if found is None else found.logical_and_(mask)
    if found is None:
        raise ValueError("where must have at least one condition, got none; leave it out")
    return found


def attributes_for(attributes: Attributes | None, what: str) -> Attributes:
    """Return the attributes; raise if there are none, naming what needs them."""
    if attributes is None or not attributes.columns:
        raise ValueError(
            f"{what} needs attributes of the items, and this model has none; attach a table of "
            "them with attach(table), or fit with items_table=... (--items-table)"
        )
    return attributes


def _chosen(column: EncodedColumn, condition: Any) -> Tensor:
    """(values,) true for the values of a column that meet the condition."""
    if not isinstance(condition, Mapping):
        return column.among(_listed(column.name, condition))
    unknown = [key for key in condition if key not in _KEYS]
    if unknown or not condition:
        came = f"the key {unknown[0]!r}" if unknown else "none"
        raise ValueError(
            f"the condition on {column.name!r} must have some of the keys min, max and not, as "
            f"{{'min': 1990, 'max': 2000}}, got {came}"
        )
    found = torch.ones(len(column.values), dtype=torch.bool)
    bounds = {key: condition[key] for key in ("min", "max") if condition.get(key) is not None}
    if bounds:
        found &= _between(column, bounds)
    if "not" in condition:
        found &= ~column.among(_listed(column.name, condition["not"]))
    elif not bounds:
        raise ValueError(f"the condition on {column.name!r} must have a min or a max, got None")
    return found


def _listed(name: str, condition: Any) -> list[Any]:
    """Return a value, or several, as a list; raise for one that no item can have."""
    if isinstance(condition, np.ndarray | Tensor):
        condition = condition.tolist()
    several = isinstance(condition, Iterable) and not isinstance(condition, (str, bytes, Mapping))
    values = list(condition) if several else [condition]
    for value in values:
        if isinstance(value, (Mapping, list, tuple, set, bytes)):
            raise TypeError(
                f"the condition on {name!r} must be a value, a list of values or a range such as "
                f"{{'min': 1990}}, got {value!r} among its values"
            )
        if value is None or str(value).strip().lower() in MISSING:
            raise ValueError(
                f"the condition on {name!r} asks for {value!r}, a missing value, which never "
                "matches; name values that items have"
            )
    return values


def _between(column: EncodedColumn, bounds: dict[str, Any]) -> Tensor:
    """(values,) true for the values within the bounds, which are numbers or dates."""
    numbers = _all_or_none({key: _finite(value) for key, value in bounds.items()})
    dates = _all_or_none({key: _period(value, key) for key, value in bounds.items()})
    if numbers is not None:
        found, known, what = numbers, column.numbers, "number"
    elif dates is not None:
        found, known, what = dates, column.times, "date"
    else:
        shown = ", ".join(f"{key}={value!r}" for key, value in bounds.items())
        raise ValueError(
            f"the range of {column.name!r} must be of finite numbers, or of dates such as "
            f"'2024-01-31', got {shown}"
        )
    if column.values and bool(known.isnan().all()):
        other = "dates such as '2024-01-31'" if what == "number" else "numbers"
        has_other = not bool((column.times if what == "number" else column.numbers).isnan().all())
        advice = f"compare it with {other}" if has_other else "name values: {column: ['a', 'b']}"
        raise ValueError(
            f"a range of {what}s needs {what}s, and the item attribute {column.name!r} has none, "
            f"as {column.values[0]!r}; {advice}"
        )
    low, high = found.get("min", -math.inf), found.get("max", math.inf)
    if low > high:
        raise ValueError(
            f"the range of {column.name!r} must have a min of at most its max, got "
            f"{bounds['min']!r} to {bounds['max']!r}"
        )
    return (known >= low) & (known <= high)  # false for nan


def _finite(value: Any) -> float | None:
    if isinstance(value, (bool, date)):
        return None
    return parse_number(str(value))


def _period(value: Any, key: str) -> float | None:
    """Return the first second of a date, a month or a moment; for "max" the last."""
    text = str(value).strip()
    first = parse_date(text) if DATE.fullmatch(text) else None
    if first is None:
        return None
    if key == "min" or len(text) > 10:
        return first.timestamp()
    return math.nextafter(_end(first, len(text) == 7).timestamp(), -math.inf)


def _all_or_none(values: dict[str, float | None]) -> dict[str, float] | None:
    found = {key: value for key, value in values.items() if value is not None}
    return found if len(found) == len(values) else None


def _end(first: datetime, month: bool) -> datetime:
    """Return the moment after a day, or a month."""
    try:
        after = first + timedelta(days=1)
        while month and after.month == first.month:
            after += timedelta(days=1)
    except OverflowError:  # the last day that Python has
        return datetime.max.replace(tzinfo=first.tzinfo)
    return after


def parse_where(texts: Sequence[str], attributes: Attributes | None) -> dict[str, Any]:
    """Return the conditions of a command line, as `matching_items` takes them.

    The spelling is that of conditions on a log: ``section=a``, ``section=a,b``, ``section!=a``,
    ``year>=1990``; all must hold.

    Example:
        >>> from fewfold.recommender.attributes import Attributes
        >>> from fewfold.recommender.item_conditions import parse_where
        >>> attributes = Attributes.of({"kind": ["tea"], "year": [1990]})
        >>> parse_where(["kind=tea,nut", "year>=1990", "year<=2000"], attributes)
        {'kind': ['tea', 'nut'], 'year': {'min': '1990', 'max': '2000'}}
    """
    known = attributes_for(attributes, "where (--where)")
    keys = {">=": "min", "<=": "max", "!=": "not"}
    found: dict[str, Any] = {}
    for text in texts:
        try:
            one = Condition.parse(text, list(known.columns), "the item attributes")
        except DataError as error:  # the condition is wrong, not the data
            raise ValueError(str(error)) from None
        if one.operator == "=":
            if one.column in found:
                raise ValueError(
                    f"--where {text}: there is another condition on {one.column!r}; name all "
                    f"values in one, as {one.column}=a,b"
                )
            found[one.column] = list(one.values)
            continue
        key = keys.get(one.operator)
        if key is None:
            raise ValueError(
                f"--where {text}: write {one.operator}= for a range, which includes its bounds"
            )
        before = found.setdefault(one.column, {})
        if not isinstance(before, dict) or key in before:
            raise ValueError(
                f"--where {text}: there is another such condition on {one.column!r}; write one"
            )
        before[key] = list(one.values) if key == "not" else one.values[0]
    return found


def unmatched_values(attributes: Attributes, where: Where) -> list[str]:
    """Return a sentence for each value that is asked for and no item has."""
    notes = []
    for name, condition in where.items():
        if isinstance(condition, Mapping):
            continue
        column = attributes.encoded(name)
        asked = _listed(name, condition)
        absent = [str(value) for value in asked if not bool(column.among([value]).any())]
        if absent:
            counts = torch.bincount(column.codes, minlength=len(column.values) + 1)[:-1]
            common = counts.topk(min(_SHOWN, len(counts))).indices.tolist()
            there = ", ".join(column.values[code] for code in common) or "none"
            more = ", ..." if len(column.values) > _SHOWN else ""
            notes.append(f"no item has {name}={','.join(absent)}; there are {there}{more}")
    return notes
