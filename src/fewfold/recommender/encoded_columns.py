"""Columns of attributes as numbered values, for masks of items in one pass."""

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.ids import Texts
from fewfold.recommender.reading.conditions import DATE, MISSING, parse_date, parse_number

__all__ = ["EncodedColumn"]

_EXACT = 2.0**53  # larger integers are ids, which float64 cannot tell apart


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column of attributes: its different values, and which of them each item has.

    Attributes:
        name: of the column.
        values: different values without surrounding blanks, sorted; missing ones (empty, nan and
            nat) are not among them.
        codes: (items,) int32, place of the item's value in `values`; ``len(values)`` if missing.

    Example:
        >>> from fewfold.recommender.encoded_columns import EncodedColumn
        >>> from fewfold.recommender.ids import Texts
        >>> column = EncodedColumn.of("kind", Texts.of(["tea", "", "nut", "tea"]))
        >>> column.values, column.codes.tolist()
        (['nut', 'tea'], [1, 2, 0, 1])
    """

    name: str
    values: list[str]
    codes: Tensor

    @classmethod
    def of(cls, name: str, texts: Texts) -> "EncodedColumn":
        """Number the different values of a column."""
        found = texts.to_arrow().dictionary_encode()
        written = [value.strip() for value in found.dictionary.to_pylist()]
        values = sorted({value for value in written if value.lower() not in MISSING})
        place = {value: code for code, value in enumerate(values)}
        renumbered = [place.get(value, len(values)) for value in written]
        codes = np.array(renumbered, dtype=np.int32)[found.indices.to_numpy()]
        return cls(name, values, torch.from_numpy(codes))

    @property
    def missing(self) -> Tensor:
        """(items,) true where the value is missing."""
        return self.codes == len(self.values)

    @cached_property
    def numbers(self) -> Tensor:
        """(values,) float64, nan for a value that is not a finite number, or an id such as 007."""
        return self._converted(_number)

    @cached_property
    def times(self) -> Tensor:
        """(values,) float64 seconds since 1970, nan for a value that is not an ISO 8601 date."""
        return self._converted(_seconds)

    def _converted(self, convert: Callable[[str], float | None]) -> Tensor:
        found = [convert(value) for value in self.values]
        numbers = [torch.nan if one is None else one for one in found]
        return torch.tensor(numbers, dtype=torch.float64)

    def among(self, wanted: Iterable[Any]) -> Tensor:
        """(values,) true for the values that equal one of these.

        Text equals text; a number, also one in a text, equals every spelling of it (4 and 4.0), and
        true and false equal those in any case.
        """
        found = torch.zeros(len(self.values), dtype=torch.bool)
        for value in wanted:
            text = str(value).strip()
            flag = text.lower() in ("true", "false")
            for spelling in {text, text.lower(), text.title(), text.upper()} if flag else {text}:
                place = bisect.bisect_left(self.values, spelling)
                if place < len(self.values) and self.values[place] == spelling:
                    found[place] = True
            number = _number(text)
            if number is not None and abs(number) < _EXACT:
                found |= self.numbers == number
        return found

    def mask(self, chosen: Tensor) -> Tensor:
        """(items,) true for the items whose value is chosen, (values,); missing ones never are."""
        table = torch.cat([chosen, chosen.new_zeros(1)])
        return table.index_select(0, self.codes)


def _number(text: str) -> float | None:
    digits = text.lstrip("+-")
    padded = digits.startswith("0") and digits[1:2].isdigit()
    return None if padded else parse_number(text)


def _seconds(text: str) -> float | None:
    date = parse_date(text) if DATE.fullmatch(text) else None
    return None if date is None else date.timestamp()
