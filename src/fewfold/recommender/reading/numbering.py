"""Number ids in sorted order, in a compact memory layout."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids, Texts
from fewfold.recommender.reading.table_source import library

__all__ = ["Growing", "IdType", "Numbering", "narrow", "texts"]

_CHUNK = 1 << 20  # rows per chunk
_LARGEST_TABLE = 1 << 28  # largest id range for which a lookup table is used instead of a search
_WHOLE = r"^(?:0|-?[1-9][0-9]{0,18})$"


class Growing:
    """An appendable array that never holds two copies in memory.

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
        self._buffer = np.empty(0, dtype=bool)  # bool promotes to any other dtype
        self.size = 0

    def append(self, values: np.ndarray) -> None:
        """Append values; the dtype is promoted where necessary."""
        kind = np.promote_types(self._buffer.dtype, values.dtype)
        if kind != self._buffer.dtype:
            self._buffer = self._buffer.astype(kind)
        end = self.size + len(values)
        if end > len(self._buffer):
            # For large arrays the allocator remaps pages instead of copying.
            self._buffer.resize(max(end, self.size + self.size // 8), refcheck=False)
        self._buffer[self.size : end] = values
        self.size = end

    def parts(self) -> Iterator[np.ndarray]:
        """Yield the values in chunks."""
        for start in range(0, self.size, _CHUNK):
            yield self._buffer[start : min(start + _CHUNK, self.size)]

    def taken(self) -> np.ndarray:
        """Return the whole array and reset."""
        buffer = self._buffer
        buffer.resize(self.size, refcheck=False)
        self._buffer, self.size = np.empty(0, dtype=bool), 0
        return buffer


class IdType:
    """The type of the ids of one role, text or integers, as found batch by batch.

    Attributes:
        textual: whether the ids are text so far; None if there are none. With `as_numbers` integers
            may become text, but text never becomes integers.

    Example:
        >>> import polars as pl
        >>> from fewfold.recommender.reading.numbering import IdType
        >>> kind = IdType("user", as_numbers=True)
        >>> kind.convert(pl.Series(["12", "7"]), "log.csv").to_list(), kind.textual
        ([12, 7], False)
        >>> kind.convert(pl.Series(["12", "x7"]), "log.csv").to_list(), kind.textual
        (['12', 'x7'], True)
    """

    def __init__(self, role: str, *, as_numbers: bool, textual: bool | None = None) -> None:
        """`as_numbers`: treat text as integers if all of it is in canonical form."""
        self._role, self._as_numbers, self.textual = role, as_numbers, textual

    def convert(self, column: Any, name: str) -> Any:
        """Convert a polars Series of text or integers without nulls to the type of the ids."""
        pl = library("polars")
        textual = column.dtype == pl.String
        if self._as_numbers and textual and not self.textual:
            numbers = _as_numbers(column)
            if numbers is not None:
                column, textual = numbers, False
        elif self._as_numbers and not textual and self.textual:
            column, textual = column.cast(pl.String), True
        elif not self._as_numbers and self.textual not in (None, textual):
            kinds = ("text", "numbers") if textual else ("numbers", "text")
            raise DataError(
                f"{name}: the {self._role} ids are {kinds[0]} here and {kinds[1]} before; write "
                "the files with one type"
            )
        self.textual = textual
        return column


class Numbering:
    """Collects the ids of one role in batches, then numbers them in sorted order.

    Text ids are stored as 32-bit codes, so that a row takes four bytes whatever the length of its
    id; integers are stored as they are, in four bytes where they fit.

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
        """`as_numbers`: treat text as integers if all of it is in canonical form."""
        self._type = IdType(role, as_numbers=as_numbers)
        self._raw = Growing()
        self._categories: Any = None  # an empty Series whose dtype holds the codes of the texts
        # Sorted: an int64 array, or a polars Series of text.
        self._values: Any = np.empty(0, dtype=np.int64)
        # Lookup table from a code, or an integer minus `_first`, to the number of the id.
        self._table: np.ndarray | None = None
        self._first = 0

    def add(self, column: Any, name: str) -> None:
        """Add ids: a polars Series of text or integers without nulls."""
        before = self._type.textual
        column = self._type.convert(column, name)
        if before is False and self._type.textual:
            self._convert_to_text()
        textual = self._type.textual
        self._raw.append(self._category_codes(column) if textual else narrow(column.to_numpy()))

    def _convert_to_text(self) -> None:
        """Convert the integers collected so far to text."""
        pl, before, self._raw = library("polars"), self._raw, Growing()
        for part in before.parts():
            self._raw.append(self._category_codes(pl.Series(part).cast(pl.String)))

    def _category_codes(self, column: Any) -> np.ndarray:
        """Encode text as categorical codes, in order of first occurrence."""
        if self._categories is None:
            pl = library("polars")
            self._categories = pl.Series([], dtype=pl.Categorical(pl.Categories.random()))
        codes: np.ndarray = column.cast(self._categories.dtype).to_physical().to_numpy()
        return codes

    @property
    def textual(self) -> bool | None:
        """Whether the ids are text so far; None if there are none."""
        return self._type.textual

    def close(self) -> None:
        """Finish adding and sort the ids."""
        if self._categories is not None:
            self._sort_texts()
        elif self._raw.size:
            self._sort_numbers()

    def __len__(self) -> int:
        return len(self._values)

    def codes(self) -> Iterator[np.ndarray]:
        """Yield the number of each id in the order of addition, in chunks."""
        for part in self._raw.parts():
            if self._table is not None:
                yield self._table[part - self._first if self._first else part]
            else:
                distinct, place = np.unique(part, return_inverse=True)
                yield np.searchsorted(self._values, distinct).astype(np.int32)[place]

    def ids(self) -> Ids:
        """Return the ids in order and release the rows."""
        self._raw = Growing()
        return Ids(self._values if isinstance(self._values, np.ndarray) else texts(self._values))

    def _sort_texts(self) -> None:
        pl = library("polars")
        size = max((int(part.max()) + 1 for part in self._raw.parts()), default=0)
        codes = pl.Series(np.arange(size, dtype=np.uint32))
        values = codes.cat.to(self._categories.dtype).cast(pl.String)
        order = values.arg_sort().to_numpy()
        self._table = np.empty(size, dtype=np.int32)
        self._table[order] = np.arange(size, dtype=np.int32)
        self._values, self._categories = values.gather(order), None

    def _sort_numbers(self) -> None:
        low = min(int(part.min()) for part in self._raw.parts())
        high = max(int(part.max()) for part in self._raw.parts())
        if high - low < _LARGEST_TABLE:
            seen = np.zeros(high - low + 1, dtype=bool)
            for part in self._raw.parts():
                seen[part - low if low else part] = True
            self._values = np.flatnonzero(seen) + low
            self._table, self._first = np.cumsum(seen, dtype=np.int32), low
            self._table -= 1
            return
        pl = library("polars")
        for part in self._raw.parts():
            distinct = pl.Series(part.astype(np.int64, copy=False)).unique().to_numpy()
            self._values = np.union1d(self._values, distinct)


def texts(column: Any) -> Texts:
    """Convert a polars Series of text to `Texts`."""
    if len(column) == 0:
        return Texts.of([])
    array = column.rechunk().to_arrow(compat_level=library("polars").CompatLevel.oldest())
    _, offsets, data = array.cast(library("pyarrow").large_string()).buffers()
    edges = np.frombuffer(offsets, dtype=np.int64)[: len(column) + 1]
    return Texts(np.frombuffer(data or b"", dtype=np.uint8)[: int(edges[-1])], edges)


def narrow(numbers: np.ndarray) -> np.ndarray:
    """Return integers as int32 if all of them fit, otherwise as int64."""
    small = len(numbers) == 0 or (numbers.min() >= -(2**31) and numbers.max() < 2**31)
    return numbers.astype(np.int32 if small else np.int64, copy=False)


def _as_numbers(column: Any) -> Any:
    """Convert text to int64 if all of it is integers in canonical form; otherwise return None."""
    if not column.str.contains(_WHOLE).all():
        return None
    numbers = column.cast(library("polars").Int64, strict=False)
    return None if numbers.null_count() else numbers
