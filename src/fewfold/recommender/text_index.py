"""Find texts among millions by their hashes, in eight bytes per text."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

__all__ = ["TextIndex"]

_BLOCK = 1 << 16  # texts hashed per block
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial hash
_SHIFT = np.uint64(32)


class TextIndex:
    """The positions of texts, sorted by hash; a dict of Python strings takes 20 times as much.

    Args:
        data: (bytes,) uint8, the concatenated texts in UTF-8.
        offsets: (texts + 1,) int64.

    Attributes:
        distinct: whether all texts differ.

    Example:
        >>> import numpy as np
        >>> from fewfold.recommender.text_index import TextIndex
        >>> index = TextIndex(np.frombuffer(b"teamilk", np.uint8), np.array([0, 3, 7]))
        >>> index.find(np.frombuffer(b"milknuts", np.uint8), np.array([0, 4, 8]))
        array([ 1, -1])
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        self._data, self._offsets = data, offsets
        hashes = np.concatenate([np.empty(0, np.uint64), *_hashes(data, offsets)])
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        self._order = order.astype(np.uint32 if len(order) < 2**32 else np.uint64)
        self._keys = (hashes >> _SHIFT).astype(np.uint32)  # half a hash; texts are compared anyway
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        doubtful = np.union1d(order[same], order[same + 1]).tolist()
        self.distinct = len({self._text(number) for number in doubtful}) == len(doubtful)

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors of the index, which `replace` takes."""
        return {"keys": torch.from_numpy(self._keys), "order": torch.from_numpy(self._order)}

    def replace(self, keys: Tensor, order: Tensor) -> None:
        """Use the equal `parts` of another index of the same texts."""
        self._keys, self._order = keys.numpy(), order.numpy()

    def _text(self, number: int) -> bytes:
        return self._data[self._offsets[number] : self._offsets[number + 1]].tobytes()

    def find(self, data: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the position of each text, given like the others; (n,) int64, -1 if unknown."""
        found = np.full(len(offsets) - 1, -1, dtype=np.int64)
        if len(found) == 0 or len(self._order) == 0:
            return found
        keys = np.concatenate([*_hashes(data, offsets)]) >> _SHIFT
        keys = keys.astype(np.uint32)
        first = np.searchsorted(self._keys, keys)
        first[first == len(self._keys)] = 0  # whose key differs
        likely = np.flatnonzero(self._keys[first] == keys)
        number = self._order[first[likely]].astype(np.int64)
        equal = self._equal(number, data, offsets, likely)
        found[likely[equal]] = number[equal]
        for place in likely[~equal].tolist():  # a text with the same half of a hash comes first
            found[place] = self._search(int(first[place]), data[slice(*offsets[place : place + 2])])
        return found

    def _equal(
        self, number: np.ndarray, data: np.ndarray, offsets: np.ndarray, place: np.ndarray
    ) -> np.ndarray:
        """Return whether each text `number` equals the given text at `place`."""
        begin, size = offsets[place], offsets[place + 1] - offsets[place]
        mine, length = self._offsets[number], self._offsets[number + 1] - self._offsets[number]
        equal: np.ndarray = length == size
        size = np.where(equal, size, 0)
        step = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        differ = self._data[np.repeat(mine, size) + step] != data[np.repeat(begin, size) + step]
        if differ.any():
            row = np.repeat(np.arange(len(size)), size)
            equal &= np.bincount(row[differ], minlength=len(size)) == 0
        return equal

    def _search(self, at: int, text: np.ndarray) -> int:
        """Return the position of a text among those with the key at `at` and its neighbours."""
        wanted, key = text.tobytes(), self._keys[at]
        while at < len(self._keys) and self._keys[at] == key:
            if self._text(int(self._order[at])) == wanted:
                return int(self._order[at])
            at += 1
        return -1


def _hashes(data: np.ndarray, offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Yield a polynomial hash of each text, in blocks."""
    for start in range(0, len(offsets) - 1, _BLOCK):
        edges = offsets[start : start + _BLOCK + 1]
        lengths = np.diff(edges)
        part = data[edges[0] : edges[-1]].astype(np.uint64) + np.uint64(1)
        powers = np.full(max(int(lengths.max()), 1), _MULTIPLIER, np.uint64)
        powers[0] = 1
        place = np.arange(len(part)) - np.repeat(edges[:-1] - edges[0], lengths)
        total = np.zeros(len(lengths), np.uint64)
        some = lengths > 0
        if some.any():
            words = part * np.cumprod(powers)[place]
            total[some] = np.add.reduceat(words, (edges[:-1] - edges[0])[some])
        yield total
