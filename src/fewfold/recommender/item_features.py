"""Features of items from a table of attributes: categories, tags, numbers, dates and words."""

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from fewfold._progress import phase
from fewfold.recommender.attributes import Attributes

__all__ = ["ItemFeatures", "item_features"]

_WIDTH = 2048  # columns that the words of a text column are hashed to, and its character n-grams
_NGRAMS = (3, 4, 5)  # lengths of the character n-grams of a word with its edges
_BINS = 10  # indicators of a number, between its quantiles
_WORD = re.compile(r"\w+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_REPEATED = 0.7  # at most so many different values per value in a column of categories
_DATED = 0.9  # least share of dates in a column of them; other values count as missing
_LISTED = 0.05  # least share of values with a separator in a column of tags

Rows = list[list[tuple[int, float]]]  # column and value of the entries of each item


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """Sparse features of items.

    Attributes:
        matrix: (items, features) scipy `csr_array` of float32.
        columns: how each column of the table is used: "number", "date", "category",
            "tags separated by '|'", "text", or "not used" with the reason.
    """

    matrix: Any
    columns: dict[str, str]

    def __str__(self) -> str:
        used = "; ".join(f"{name}: {kind}" for name, kind in self.columns.items())
        return f"{self.matrix.shape[1]:,} features of {self.matrix.shape[0]:,} items ({used})"


def item_features(attributes: Attributes, *, width: int = _WIDTH) -> ItemFeatures:
    """Convert a table of attributes to features.

    The values decide how a column is used. Numbers and dates are standardised, with an indicator
    of each tenth of the items and one of missing values. Repeated values are categories; lists
    separated by "|" or "," whose entries repeat are tags. Everything else is text: its words, pairs
    of words and character n-grams are hashed with a sign. Categories, tags and words that only one
    item has are left out. Tags and words are weighted by inverse document frequency, and the
    features of each column have length one.

    Args:
        attributes: of the items, in their order.
        width: columns that words are hashed to; the character n-grams have as many.

    Example:
        >>> from fewfold.recommender.attributes import Attributes
        >>> from fewfold.recommender.item_features import item_features
        >>> table = {"kind": ["tea", "tea", "nut", "nut"], "price": [1, 2.5, None, 4]}
        >>> found = item_features(Attributes.of(table))
        >>> found.columns
        {'kind': 'category', 'price': 'number'}
        >>> found.matrix.shape
        (4, 14)
    """
    from scipy.sparse import csr_array, hstack

    blocks, columns = [], {}
    with phase("reading attributes", total=len(attributes.columns)) as progress:
        for name in progress.each(list(attributes.columns)):
            values = [value.strip() for value in attributes.columns[name].tolist()]
            kind, encode = _kind(values)
            rows, count = encode(values, width)
            columns[name] = kind if count else "not used: no value is shared by two items"
            if count:
                blocks.append(_csr(rows, count))
    if not blocks:
        items = max((len(column) for column in attributes.columns.values()), default=0)
        return ItemFeatures(csr_array((items, 0), dtype=np.float32), columns)
    return ItemFeatures(csr_array(hstack(blocks, format="csr", dtype=np.float32)), columns)


Encode = Callable[[Sequence[str], int], tuple[Rows, int]]


def _kind(values: Sequence[str]) -> tuple[str, Encode]:
    """Name how a column is used, and return the function that encodes it."""
    there = [value for value in values if value]
    different = len(set(there))
    if not there:
        return "not used: no values", lambda values, width: ([], 0)
    if all(_number(value) is not None for value in there) and different > 2 * _BINS:
        return "number", lambda values, width: _numbers([_number(value) for value in values])
    if sum(_day(value) is not None for value in there) >= _DATED * len(there):
        return "date", lambda values, width: _numbers([_day(value) for value in values])
    for mark in "|,":
        parts = [part for value in there for part in _parts(value, mark)]
        listed = sum(mark in value for value in there) >= _LISTED * len(there)
        if listed and len(set(parts)) <= 0.5 * len(parts):
            return f"tags separated by {mark!r}", lambda values, width, mark=mark: _tags(
                [_parts(value, mark) for value in values]
            )
    if all(_number(value) is not None for value in there):  # few different numbers
        if different > 1 and different <= _REPEATED * len(there):
            return "category", _categories
        return "number", lambda values, width: _numbers([_number(value) for value in values])
    return ("category", _categories) if different <= _REPEATED * len(there) else ("text", _text)


def _number(value: str) -> float | None:
    """Return the number a text is, None if it is none or not finite."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _day(value: str) -> float | None:
    """Return the day a date begins with, None if there is no such day."""
    if not _DATE.match(value):
        return None
    try:
        return float(date.fromisoformat(value[:10]).toordinal())
    except ValueError:
        return None


def _parts(value: str, mark: str) -> list[str]:
    parts = (part.strip() for part in value.split(mark))
    return sorted({part for part in parts if part})


def _numbers(values: Sequence[float | None]) -> tuple[Rows, int]:
    """Encode numbers: standardised, an indicator of the tenth, one of missing values."""
    there = np.array([value for value in values if value is not None])
    deviation = float(there.std())
    if deviation == 0:
        return [], 0
    mean, edges = float(there.mean()), np.quantile(there, np.arange(1, _BINS) / _BINS)
    rows: Rows = []
    for value in values:
        if value is None:
            rows.append([(1 + _BINS, 1.0)])
        else:
            tenth = int(np.searchsorted(edges, value, side="right"))
            # Far outliers must not rule the regression.
            standard = max(-3.0, min(3.0, (value - mean) / deviation))
            rows.append([(0, standard), (1 + tenth, 1.0)])
    return _normalized(rows), 2 + _BINS


def _categories(values: Sequence[str], width: int) -> tuple[Rows, int]:
    """Encode repeated values by one indicator each."""
    return _tags([[value] if value else [] for value in values])


def _tags(values: Sequence[Sequence[str]]) -> tuple[Rows, int]:
    """Encode lists of tags by inverse document frequency, in length one."""
    weight = _inverse_frequency(values)
    column = {tag: number for number, tag in enumerate(weight)}
    rows = [[(column[tag], weight[tag]) for tag in tags if tag in column] for tags in values]
    return _normalized(rows), len(column)


def _text(values: Sequence[str], width: int) -> tuple[Rows, int]:
    """Encode texts by hashed words and pairs of them, and by hashed character n-grams."""
    words = [_WORD.findall(value.lower()) for value in values]
    first, some = _hashed([_words_and_pairs(each) for each in words], width)
    second, others = _hashed([list(_ngrams(each)) for each in words], width)
    if not some + others:
        return [], 0
    half = math.sqrt(0.5)
    return [
        [(column, half * value) for column, value in mine]
        + [(width + column, half * value) for column, value in more]
        for mine, more in zip(first, second, strict=True)
    ], 2 * width


def _words_and_pairs(words: Sequence[str]) -> list[str]:
    pairs = (f"{one} {two}" for one, two in itertools.pairwise(words))
    return sorted({*words, *pairs})


def _ngrams(words: Sequence[str]) -> Iterable[str]:
    edged = [f"<{word}>" for word in words]
    found = {
        word[start : start + size]
        for word in edged
        for size in _NGRAMS
        for start in range(len(word) - size + 1)
    }
    return sorted(found)


def _hashed(values: Sequence[Sequence[str]], width: int) -> tuple[Rows, int]:
    """Hash tokens to columns with a sign; return the rows, and how many tokens there are."""
    weight = _inverse_frequency(values)
    rows: Rows = []
    for tokens in values:
        mine: dict[int, float] = {}
        for token in tokens:
            if token in weight:
                code = zlib.crc32(token.encode())
                sign = 1.0 if code >> 31 else -1.0
                mine[code % width] = mine.get(code % width, 0.0) + sign * weight[token]
        rows.append(sorted(mine.items()))
    return _normalized(rows), len(weight)


def _inverse_frequency(values: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ``1 + log(n / frequency)`` of each token that two values have or more."""
    frequency = Counter(token for tokens in values for token in tokens)
    return {
        token: 1 + math.log(len(values) / count)
        for token, count in sorted(frequency.items())
        if count > 1
    }


def _normalized(rows: Rows) -> Rows:
    """Scale each row to length one; empty rows stay."""
    found: Rows = []
    for row in rows:
        length = math.sqrt(sum(value * value for _, value in row)) or 1.0
        found.append([(column, value / length) for column, value in row])
    return found


def _csr(rows: Rows, count: int) -> Any:
    """Return rows of entries as a sparse matrix with `count` columns."""
    from scipy.sparse import csr_array

    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    columns = np.array([column for row in rows for column, _ in row], dtype=np.int64)
    values = np.array([value for row in rows for _, value in row], dtype=np.float32)
    return csr_array((values, columns, offsets), shape=(len(rows), count))
