"""Ids counted from 0 in their order, in few bytes a row."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.reading.tables import library

__all__ = ["Growing", "Numbering", "texts"]

_PIECE = 1 << 20  # rows at a time
_WIDEST = 1 << 28  # the span of ids up to which a table of all of them beats a search
_WHOLE = r"^(?:0|-?[1-9][0-9]{0,18})$"


class Growing:
    """One array that grows at its end, without ever being in memory twice.

    Example:
        >>> import numpy as np
        >>> from fewfold.recommender.reading.numbering import Growing
        >>> array = Growing()
        >>> array.append(np.array([1, 2]))
        >>> array.append(np.array([0.5]))
        >>> array.taken()
        array([1. , 2. , 0.5])
    """

    def __init__(self) -> None:
        self._room = np.empty(0, dtype=bool)  # which every other dtype is wider than
        self.size = 0

    def append(self, values: np.ndarray) -> None:
        """More values; the dtype widens where it must."""
        kind = np.promote_types(self._room.dtype, values.dtype)
        if kind != self._room.dtype:
            self._room = self._room.astype(kind)
        end = self.size + len(values)
        if end > len(self._room):
            # Where it is large, the system moves it by renaming its pages.
            self._room.resize(max(end, self.size + self.size // 8), refcheck=False)
        self._room[self.size : end] = values
        self.size = end

    def parts(self) -> Iterator[np.ndarray]:
        """What there is, a piece at a time."""
        for start in range(0, self.size, _PIECE):
            yield self._room[start : min(start + _PIECE, self.size)]

    def taken(self) -> np.ndarray:
        """All of it, given away."""
        room = self._room
        room.resize(self.size, refcheck=False)
        self._room, self.size = np.empty(0, dtype=bool), 0
        return room


class Numbering:
    """The ids of one role, collected batch after batch, then numbered in their order.

    Text is held as a 32-bit code from the start, so that a row costs four bytes however long its id
    is; whole numbers are held as they are, in four bytes where they fit.

    Example:
        >>> import polars as pl
        >>> from fewfold.recommender.reading.numbering import Numbering
        >>> users = Numbering("user", as_numbers=True)
        >>> users.add(pl.Series(["12", "7"]), "log.csv")
        >>> users.add(pl.Series(["12"]), "log.csv")
        >>> users.close()
        >>> [codes.tolist() for codes in users.codes()], users.ids().tolist()
        ([[1, 0, 1]], [7, 12])
    """

    def __init__(self, role: str, *, as_numbers: bool) -> None:
        """`as_numbers`: text and numbers are the same, and numbers if all text can be."""
        self._role, self._as_numbers = role, as_numbers
        self._raw = Growing()
        self._known: Any = None  # an empty column that keeps the codes of its texts alive
        self._textual: bool | None = None
        # Sorted: an int64 array, or a polars Series of text.
        self._values: Any = np.empty(0, dtype=np.int64)
        self._table: np.ndarray | None = None  # from a code, or a number less the first, to ours
        self._first = 0

    def add(self, column: Any, name: str) -> None:
        """Some more ids: a polars Series of text or whole numbers without a missing one."""
        pl = library("polars")
        textual = column.dtype == pl.String
        if self._as_numbers and textual and self._known is None:
            numbers = _as_numbers(column)
            if numbers is None:
                self._spell_out()
            else:
                column, textual = numbers, False
        elif self._as_numbers and not textual and self._known is not None:
            column, textual = column.cast(pl.String), True
        elif not self._as_numbers and self._textual not in (None, textual):
            kinds = ("text", "numbers") if textual else ("numbers", "text")
            raise DataError(
                f"{name}: the {self._role} ids are {kinds[0]} here and {kinds[1]} before; write "
                "the files with one type"
            )
        self._textual = textual
        self._raw.append(self._coded(column) if textual else _narrow(column.to_numpy()))

    def _spell_out(self) -> None:
        """What looked like numbers so far is text as well."""
        pl, before, self._raw = library("polars"), self._raw, Growing()
        for part in before.parts():
            self._raw.append(self._coded(pl.Series(part).cast(pl.String)))

    def _coded(self, column: Any) -> np.ndarray:
        """Text as numbers in the order polars meets it."""
        if self._known is None:
            pl = library("polars")
            self._known = pl.Series([], dtype=pl.Categorical(pl.Categories.random()))
        codes: np.ndarray = column.cast(self._known.dtype).to_physical().to_numpy()
        return codes

    def close(self) -> None:
        """No more will come: put the ids in order."""
        if self._known is not None:
            self._order_texts()
        elif self._raw.size:
            self._order_numbers()

    def __len__(self) -> int:
        return len(self._values)

    def codes(self) -> Iterator[np.ndarray]:
        """The number of each id as they came, a piece at a time."""
        for part in self._raw.parts():
            if self._table is not None:
                yield self._table[part - self._first if self._first else part]
            else:
                few, place = np.unique(part, return_inverse=True)
                yield np.searchsorted(self._values, few).astype(np.int32)[place]

    def ids(self) -> Ids:
        """The ids in order; the rows are forgotten."""
        self._raw = Growing()
        return Ids(self._values if isinstance(self._values, np.ndarray) else texts(self._values))

    def _order_texts(self) -> None:
        pl = library("polars")
        size = max((int(part.max()) + 1 for part in self._raw.parts()), default=0)
        codes = pl.Series(np.arange(size, dtype=np.uint32))
        values = codes.cat.to(self._known.dtype).cast(pl.String)
        order = values.arg_sort().to_numpy()
        self._table = np.empty(size, dtype=np.int32)
        self._table[order] = np.arange(size, dtype=np.int32)
        self._values, self._known = values.gather(order), None

    def _order_numbers(self) -> None:
        low = min(int(part.min()) for part in self._raw.parts())
        high = max(int(part.max()) for part in self._raw.parts())
        if high - low < _WIDEST:
            seen = np.zeros(high - low + 1, dtype=bool)
            for part in self._raw.parts():
                seen[part - low if low else part] = True
            self._values = np.flatnonzero(seen) + low
            self._table, self._first = np.cumsum(seen, dtype=np.int32), low
            self._table -= 1
            return
        pl = library("polars")
        for part in self._raw.parts():
            few = pl.Series(part.astype(np.int64, copy=False)).unique().to_numpy()
            self._values = np.union1d(self._values, few)


def texts(column: Any) -> Texts:
    """A polars Series of text as `Texts`."""
    if len(column) == 0:
        return Texts.of([])
    array = column.rechunk().to_arrow(compat_level=library("polars").CompatLevel.oldest())
    _, offsets, data = array.cast(library("pyarrow").large_string()).buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[: len(column) + 1]
    return Texts(np.frombuffer(data or b"", dtype=np.uint8)[: int(edges[-1])], edges)


def _narrow(numbers: np.ndarray) -> np.ndarray:
    small = len(numbers) == 0 or (numbers.min() >= -(2**31) and numbers.max() < 2**31)
    return numbers.astype(np.int32 if small else np.int64, copy=False)


def _as_numbers(column: Any) -> Any:
    """Text as int64, if all of it is what whole numbers are usually written as; otherwise None."""
    if not column.str.contains(_WHOLE).all():
        return None
    numbers = column.cast(library("polars").Int64, strict=False)
    return None if numbers.null_count() else numbers
