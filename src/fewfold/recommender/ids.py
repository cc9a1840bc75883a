"""Mapping between ids (strings or integers) and consecutive numbers."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._optional import optional_import
from fewfold.recommender.text_index import TextIndex

__all__ = ["Id", "Ids", "Texts"]

Id = str | int

_MOST_IN_DICT = 1 << 17  # of more ids a dict takes too much memory, in every process


@dataclass(frozen=True, eq=False, repr=False)
class Texts(Sequence[str]):
    """Many strings stored as two arrays: concatenated UTF-8 bytes and offsets.

    Attributes:
        data: (bytes,) uint8.
        offsets: (strings + 1,) int64.

    Example:
        >>> from fewfold.recommender.ids import Texts
        >>> texts = Texts.of(["libssl-dev", "", "naïve"])
        >>> texts[2], len(texts)
        ('naïve', 3)
    """

    data: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Texts":
        """Construct from strings."""
        return cls(*_joined(text.encode() for text in texts))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} texts, got index {index}")
        index %= len(self)
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes().decode()

    def take(self, numbers: Any) -> list[str]:
        """Return the texts with these numbers, none of them negative."""
        where = np.asarray(numbers, dtype=np.int64)
        data = self.data.data  # slices without copies
        ends = zip(self.offsets[where].tolist(), self.offsets[where + 1].tolist(), strict=True)
        return [str(data[first:last], "utf-8") for first, last in ends]

    def fault(self) -> str | None:
        """Return a description of invalid offsets or UTF-8, or None if the arrays are valid."""
        data, offsets = self.data, self.offsets
        if offsets[0] != 0 or offsets[-1] != len(data) or (offsets[1:] < offsets[:-1]).any():
            return f"has offsets that do not rise from 0 to {len(data)}"
        if not len(data) or data.max() < 128:
            return None
        try:
            data.tobytes().decode()
        except UnicodeDecodeError as error:
            return f"is no UTF-8 at byte {error.start}"
        begins = offsets[:-1][offsets[:-1] < len(data)]
        if (data[begins] & 0xC0 == 0x80).any():  # continuation byte
            return "has offsets within a character"
        return None

    @cached_property
    def by_hash(self) -> TextIndex:
        """Positions of the texts, by their hashes."""
        return TextIndex(self.data, self.offsets)

    def find(self, texts: Iterable[str | None]) -> np.ndarray:
        """Return the position of each text, (n,) int64, -1 if it is unknown or None."""
        given = list(texts)
        # A lone surrogate, which no text here has, is encoded as bytes that no text has.
        wanted = _joined(
            ("" if text is None else text).encode(errors="surrogatepass") for text in given
        )
        found = self.by_hash.find(*wanted)
        if None in given:
            found[[text is None for text in given]] = -1
        return found

    def to_arrow(self) -> Any:
        """Return a pyarrow array of large strings that shares the memory."""
        with optional_import("pyarrow", "recommender", "a table of texts"):
            import pyarrow
        buffers = [None, pyarrow.py_buffer(self.offsets), pyarrow.py_buffer(self.data)]
        return pyarrow.Array.from_buffers(pyarrow.large_string(), len(self), buffers)

    def tolist(self) -> list[str]:
        """Return all texts as a list."""
        whole, ends = self.data.tobytes(), self.offsets.tolist()
        return [whole[a:b].decode() for a, b in itertools.pairwise(ends)]


def _joined(parts: Iterable[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated bytes, and the offsets of the parts."""
    given = list(parts)
    offsets = np.zeros(len(given) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in given], out=offsets[1:])
    return np.frombuffer(b"".join(given), dtype=np.uint8), offsets


@dataclass(frozen=True, eq=False, repr=False)
class Ids:
    """The ids of users or items; `values[i]` is the id with number i.

    Ids are all strings or all integers. Lookup accepts either type, since ids often lose their type
    in files or on a command line: "42" finds the integer 42, and 42 finds the string "42".

    Attributes:
        values: (n,) int64, or `Texts`; distinct.

    Example:
        >>> from fewfold.recommender.ids import Ids
        >>> ids = Ids.of(["libssl-dev", "zlib1g-dev"])
        >>> ids.find(["zlib1g-dev", "nobody"])
        tensor([ 1, -1])
        >>> ids.take([1, 1, 0])
        ['zlib1g-dev', 'zlib1g-dev', 'libssl-dev']
    """

    values: np.ndarray | Texts

    @classmethod
    def of(cls, ids: Iterable[Id]) -> "Ids":
        """Construct from a list or array; integers are kept if all ids are integers."""
        listed = list(ids.tolist() if isinstance(ids, (np.ndarray, Tensor)) else ids)
        if listed and all(isinstance(i, int) and not isinstance(i, bool) for i in listed):
            found = cls(np.asarray(listed, dtype=np.int64))
        else:
            found = cls(Texts.of(map(str, listed)))
        if not found.distinct():
            raise ValueError("ids must differ from each other, got one twice")
        return found

    @property
    def textual(self) -> bool:
        """Whether the ids are strings."""
        return isinstance(self.values, Texts)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> Id:
        value = self.values[number]
        return value if isinstance(value, str) else int(value)

    def __repr__(self) -> str:
        listed = ", ".join(repr(self[i]) for i in range(min(3, len(self))))
        return f"Ids({listed}{', ...' if len(self) > 3 else ''}; {len(self)} of them)"

    def distinct(self) -> bool:
        """Return whether all ids are distinct."""
        if isinstance(self.values, Texts):
            return self.values.by_hash.distinct
        values = self.values
        rising = bool((values[1:] > values[:-1]).all())
        return rising or len(np.unique(values)) == len(values)

    def tolist(self) -> list[Any]:
        """Return all ids in order."""
        return self.values.tolist()

    def to_arrow(self) -> Any:
        """Return all ids as a pyarrow array that shares the memory."""
        if isinstance(self.values, Texts):
            return self.values.to_arrow()
        with optional_import("pyarrow", "recommender", "a table of ids"):
            import pyarrow
        return pyarrow.array(self.values)

    def take(self, numbers: Any) -> list[Any]:
        """Return the ids with these numbers."""
        if isinstance(numbers, Tensor):
            numbers = numbers.numpy()
        if isinstance(self.values, Texts):
            return self.values.take(numbers)
        chosen: list[int] = self.values[np.asarray(numbers, dtype=np.int64)].tolist()
        return chosen

    def select(self, numbers: np.ndarray) -> "Ids":
        """Return these ids, renumbered in the given order."""
        if isinstance(self.values, Texts):
            return Ids(Texts.of(self.take(numbers)))
        return Ids(self.values[numbers])

    @property
    def hashes(self) -> TextIndex | None:
        """The index by which `find` looks up texts; None for numbers, and where they are few."""
        large = isinstance(self.values, Texts) and len(self) > _MOST_IN_DICT
        return self.values.by_hash if large else None  # type: ignore[union-attr]

    @cached_property
    def _number(self) -> dict[Id | None, int]:
        return {value: number for number, value in enumerate(self.tolist())}

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Whole numbers in order, and the number of each; None if they are in order already."""
        values = np.asarray(self.values)
        if bool((values[1:] > values[:-1]).all()):
            return values, None
        order = np.argsort(values)
        return values[order], order

    def find(self, ids: Iterable[Any]) -> Tensor:
        """Return the number of each id, (n,) int64, -1 if unknown."""
        textual = self.textual
        if len(self) <= _MOST_IN_DICT:
            number = self._number
            found = [number.get(_as(one, textual), -1) for one in ids]
            return torch.tensor(found, dtype=torch.int64)
        given = [_as(one, textual) for one in ids]
        if isinstance(self.values, Texts):
            return torch.from_numpy(self.values.find(given))  # type: ignore[arg-type]
        return torch.from_numpy(self._find_numbers(given))

    def _find_numbers(self, given: list[Any]) -> np.ndarray:
        """Find whole numbers of at most 64 bits, or None, by bisection."""
        values, order = self._sorted
        fits = [one is not None and -(2**63) <= one < 2**63 for one in given]
        whole = [one if fit else 0 for one, fit in zip(given, fits, strict=True)]
        wanted, possible = np.array(whole, dtype=np.int64), np.array(fits, dtype=bool)
        place = np.searchsorted(values, wanted).clip(max=len(values) - 1)
        found = np.where((values[place] == wanted) & possible, place, -1)
        return found if order is None else np.where(found < 0, -1, order[found])

    def convert(self, value: Any) -> Id | None:
        """Return a value as an id of the type of these; None if it cannot be one."""
        return _as(value, self.textual)

    def extended(self, more: "Ids") -> "Ids":
        """Append `more` ids, which must be new."""
        if self.textual == more.textual:
            return Ids.of([*self.tolist(), *more.tolist()])
        return Ids.of([str(one) for one in (*self.tolist(), *more.tolist())])


def _as(value: Any, textual: bool) -> Id | None:
    """Convert an id to the type of the stored ids; None if that is impossible."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and value.is_integer():  # pandas, with missing values
        value = int(value)
    if isinstance(value, (bool, float)):
        return None
    if textual:
        return value if isinstance(value, str) else str(value)
    if isinstance(value, str):
        return int(value) if _canonical(value) else None
    return value if isinstance(value, int) else None


def _canonical(text: str) -> bool:
    """Return whether the text is a 64-bit integer in canonical form."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20 and str(int(text)) == text
