"""Codes of item ids while a log is read, and their numbers in sorted order afterwards."""

from typing import Any

import numpy as np

from fewfold.recommender.ids import Ids
from fewfold.recommender.reading.numbering import narrow, texts
from fewfold.recommender.reading.table_source import library

__all__ = ["ItemCodes", "ItemNumbers"]

_WAITING = 1 << 22  # distinct whole numbers of batches, after which they are merged
_LARGEST_TABLE = 1 << 26  # largest range of codes for which there is a table


class ItemCodes:
    """The items of a log so far: texts are coded by first occurrence, whole numbers as they are.

    Only items that are liked count; the others are dropped when the log is complete.
    """

    def __init__(self) -> None:
        self._categories: Any = None  # an empty Series whose dtype holds the codes of the texts
        self._liked = np.zeros(0, dtype=bool)  # by code of a text
        self._known = np.empty(0, dtype=np.int64)
        self._new: list[np.ndarray] = []
        self._waiting = 0

    def add(self, column: Any, liked: Any = None) -> np.ndarray:
        """Return the codes of ids, a polars Series of text or integers without nulls.

        Args:
            column: the ids.
            liked: mask of the rows that count; None if all do.
        """
        pl = library("polars")
        if column.dtype == pl.String:
            return self._add_texts(column, liked)
        counted = column if liked is None else column.filter(liked)
        self._new.append(counted.unique().to_numpy())
        self._waiting += len(self._new[-1])
        if self._waiting > _WAITING:
            self._merge()
        numbers: np.ndarray = column.to_numpy()
        return narrow(numbers)

    def _add_texts(self, column: Any, liked: Any) -> np.ndarray:
        pl = library("polars")
        if self._categories is None:
            self._categories = pl.Series([], dtype=pl.Categorical(pl.Categories.random()))
        codes: np.ndarray = column.cast(self._categories.dtype).to_physical().to_numpy()
        most = int(codes.max()) + 1 if len(codes) else 0
        if most > len(self._liked):
            self._liked.resize(max(most, 2 * len(self._liked)), refcheck=False)
        self._liked[codes if liked is None else codes[liked.to_numpy()]] = True
        return codes

    def _merge(self) -> None:
        every = np.concatenate([self._known, *self._new])
        every.sort()  # np.unique hashes, which takes several times as long
        new = np.ones(len(every), dtype=bool)
        np.not_equal(every[1:], every[:-1], out=new[1:])
        self._known = every[new]
        self._new, self._waiting = [], 0

    def numbers(self) -> "ItemNumbers":
        """Return the numbers of all liked items, in the order of their ids."""
        if self._categories is None:
            self._merge()
            return ItemNumbers(Ids(self._known), self._known)
        pl = library("polars")
        codes = np.flatnonzero(self._liked).astype(np.uint32)
        values = pl.Series(codes).cat.to(self._categories.dtype).cast(pl.String)
        order = values.arg_sort().to_numpy()
        return ItemNumbers(Ids(texts(values.gather(order))), codes[order].astype(np.int64))


class ItemNumbers:
    """Numbers of items by the codes of `ItemCodes`.

    Attributes:
        ids: item ids, sorted.
        codes: (items,) int64, the code of each.
    """

    def __init__(self, ids: Ids, codes: np.ndarray) -> None:
        self.ids, self.codes = ids, codes
        low, high = (int(codes.min()), int(codes.max())) if len(codes) else (0, -1)
        self._low, self._table = low, None
        if high - low < _LARGEST_TABLE:
            self._table = np.full(high - low + 1, -1, dtype=np.int32)
            self._table[codes - low] = np.arange(len(codes), dtype=np.int32)

    def __len__(self) -> int:
        return len(self.codes)

    def of(self, codes: np.ndarray) -> np.ndarray:
        """Return the item numbers of codes, (n,) int32, -1 for those without."""
        if self._table is None:  # whole numbers of a wide range, which are sorted
            place = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
            return np.where(self.codes[place] == codes, place, -1).astype(np.int32)
        place = codes.astype(np.int64) - self._low
        inside = (place >= 0) & (place < len(self._table))
        if inside.all():
            return self._table[place]
        return np.where(inside, self._table[np.where(inside, place, 0)], np.int32(-1))
