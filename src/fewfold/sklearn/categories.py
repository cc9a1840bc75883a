"""Numbers of the categories of a column."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Categories"]


@dataclass(frozen=True)
class Categories:
    """The categories of a column, numbered from 1; 0 is every category that was not fitted.

    Attributes:
        values: the categories in sorted order, of numbers before texts; missing values (None, NaN)
            are one category, None, at the end.
        number: the number of each category.

    Example:
        >>> import numpy as np
        >>> from fewfold.sklearn.categories import Categories
        >>> sizes, numbers = Categories.of(np.array(["m", "s", None, "s"], dtype=object))
        >>> sizes.values, numbers
        (('m', 's', None), array([1, 2, 3, 2]))
        >>> sizes.numbers(np.array(["xl", "m"], dtype=object))
        array([0, 1])
    """

    values: tuple[Any, ...]
    number: Mapping[Hashable, int]

    @classmethod
    def of(cls, column: np.ndarray) -> tuple["Categories", np.ndarray]:
        """Return the categories of a column, and the number of each entry."""
        distinct, place = _distinct(column)
        values = sorted(distinct, key=_order)
        categories = cls(tuple(values), {value: n for n, value in enumerate(values, 1)})
        return categories, categories._number(distinct)[place]

    def numbers(self, column: np.ndarray) -> np.ndarray:
        """Return the number of each entry of a column."""
        distinct, place = _distinct(column)
        found: np.ndarray = self._number(distinct)[place]
        return found

    def _number(self, values: list[Any]) -> np.ndarray:
        return np.array([self.number.get(value, 0) for value in values], dtype=np.int64)


def _distinct(column: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Return the different values of a column, and the position of each entry among them."""
    if column.dtype != object:
        values, place = np.unique(column, return_inverse=True)
        return [_key(value) for value in values.tolist()], place
    position: dict[Any, int] = {}
    try:
        places = [position.setdefault(_key(value), len(position)) for value in column]
    except TypeError as error:
        raise TypeError(
            f"categories must be texts or numbers, got a column with other values ({error}); "
            "convert it with astype(str)"
        ) from None
    return list(position), np.array(places, dtype=np.int64)


def _key(value: Any) -> Any:
    """Return the value, or None if it is missing."""
    try:
        return value if value is not None and bool(value == value) else None
    except TypeError:  # pandas.NA is not comparable
        return None


def _order(value: Any) -> tuple[int, str, Any]:
    if value is None:
        return 2, "", 0
    if isinstance(value, (bool, int, float, np.number)):
        return 0, "", value
    return 1, type(value).__name__, value
