"""Search for a part of a text among many: equal, then beginning with it, then containing it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["TextSearch"]

_MARK = "\n"  # before and after every text
_CHUNK = 1 << 20  # characters searched at once; in between other threads may run


class TextSearch:
    """Finds rows by a part of one of their texts, ignoring case.

    All texts are one string, in the order in which rows are to be listed, so that the first hits
    are the best ones and a search ends with them.

    Args:
        columns: texts of each row, for one or several columns.
        order: all rows, in the order in which equally good hits are listed.

    Example:
        >>> from fewfold.serve.text_search import TextSearch
        >>> search = TextSearch([["tea", "Green tea", "steam"]], [2, 1, 0])
        >>> search.find("TEA", 10)
        [0, 2, 1]
    """

    def __init__(self, columns: Sequence[Sequence[str]], order: Any) -> None:
        self._order = np.asarray(order, dtype=np.int64)
        pieces: list[str] = []
        for row in self._order.tolist():
            texts = (column[row] for column in columns)
            pieces.append(_MARK.join(_folded(text) for text in texts if text) + _MARK)
        self._text = _MARK + "".join(pieces)
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        self._ends = np.cumsum(lengths) + 1
        self._rows = len(pieces)

    def find(self, part: str, limit: int) -> list[int]:
        """Return at most `limit` rows."""
        wanted = _folded(part)
        if not wanted:
            return _listed(self._order[:limit])
        found: dict[int, None] = {}
        for text in (_MARK + wanted + _MARK, _MARK + wanted, wanted):
            for place in self._hits(text):
                found.setdefault(place, None)
                if len(found) == limit:
                    break
            if len(found) == limit:
                break
        return _listed(self._order[list(found)])

    def _hits(self, text: str) -> Iterable[int]:
        """Yield the places in the order whose texts contain this one, each once."""
        at = 0
        while at < len(self._text):
            end = at + _CHUNK + len(text)
            hit = self._text.find(text, at, end)
            if hit < 0:
                at += _CHUNK
                continue
            # A mark at the end of a row belongs to the next one as well.
            middle = hit + 1 if text[0] == _MARK else hit
            place = int(np.searchsorted(self._ends, middle, side="right"))
            yield place
            at = int(self._ends[place]) - 1


def _listed(rows: np.ndarray) -> list[int]:
    found: list[int] = rows.tolist()
    return found


def _folded(text: str) -> str:
    return text.casefold().replace(_MARK, " ")
