"""Interactions in the compact form of a model folder, converted only where that is needed."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold.recommender.interactions import Interactions, check_dislikes
from fewfold.recommender.jagged import Jagged, offsets_of

__all__ = ["StoredInteractions"]

_BLOCK = 1 << 22  # numbers converted at once


class StoredInteractions(Interactions):
    """Interactions whose item numbers stay as they are stored, perhaps in a mapped file.

    Rows of some users, the number of users of each item and the sizes are computed from the stored
    numbers. The attributes of `Interactions`, and all that uses them, convert everything once.

    Args:
        touched: (pairs,) uint16 or uint32, the items of all users, of each user rising.
        lengths: (users,) uint32, the number of items of each user; they add up to the pairs.
        items: number of items, above all of `touched`.
        order: (pairs,) unsigned, ranks of the times within each user, or None.
        dislikes: disliked pairs, or None.
    """

    _starts: np.ndarray
    _touched: np.ndarray
    _order: np.ndarray | None
    _dislikes: "StoredInteractions | None"

    def __init__(
        self,
        touched: Tensor,
        lengths: Tensor,
        items: int,
        order: Tensor | None = None,
        dislikes: "StoredInteractions | None" = None,
    ) -> None:
        offsets = offsets_of(lengths.to(torch.int64))
        ranks = None if order is None else order.numpy()
        vars(self).update(  # the fields of a frozen dataclass
            offsets=offsets, items=items, _starts=offsets.numpy(), _touched=touched.numpy(),
            _order=ranks, _dislikes=dislikes,
        )  # fmt: skip
        if not self._rising():
            Interactions(self.offsets, self.ids, items)  # raises and says where
        if dislikes is not None:
            check_dislikes(dislikes._converted(), self._converted())

    def _rising(self) -> bool:
        """Return whether the items of every user rise."""
        rising = self._touched[1:] > self._touched[:-1]
        first = self._starts[1:-1]  # the items of the next user start again
        rising[first[(first > 0) & (first < self.pairs)] - 1] = True
        return bool(rising.all())

    def _converted(self) -> Interactions:
        """Return a plain copy that is not kept."""
        plain = object.__new__(Interactions)
        ids = torch.from_numpy(self._touched.astype(np.int64))
        vars(plain).update(offsets=self.offsets, ids=ids, items=self.items)
        return plain

    @cached_property
    def ids(self) -> Tensor:
        """(pairs,) int64."""
        return self._converted().ids

    @cached_property
    def times(self) -> Tensor | None:
        """(pairs,) int64, ranks within each user: 0 is the oldest, equal times have equal ranks."""
        return None if self._order is None else torch.from_numpy(self._order.astype(np.int64))

    @property
    def dislikes(self) -> Interactions | None:
        """Disliked pairs."""
        return self._dislikes

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self._touched)

    def rows(self, ids: Any, *, ordered: bool = False) -> Jagged:
        """Return the items of the users `ids`, in this order; a slice selects consecutive users."""
        if isinstance(ids, slice):
            return super().rows(ids, ordered=ordered)
        nothing = self.offsets[:0]
        offsets, positions = Jagged(nothing, self.offsets).positions(ids)
        place = positions.numpy()
        found = Jagged(torch.from_numpy(self._touched[place].astype(np.int64)), offsets)
        if not ordered:
            return found
        order = np.lexsort((self._ranks(place), found.row.numpy()))
        return Jagged(found.values[torch.from_numpy(order)], offsets)

    def items_of(self, user: int, *, ordered: bool = False) -> np.ndarray:
        """Return the items of one user, (n,) int64, by number or with `ordered` by time."""
        part = slice(self._starts[user], self._starts[user + 1])
        found: np.ndarray = self._touched[part].astype(np.int64)
        return found[self._ranks(part).argsort(kind="stable")] if ordered else found

    def _ranks(self, part: Any) -> np.ndarray:
        if self._order is None:
            self._by_time()  # raises: the order is not known
        ranks: np.ndarray = self._order[part]  # type: ignore[index]
        return ranks

    def replace_offsets(self, offsets: Tensor) -> None:
        """Use equal offsets, which may be mapped from a file."""
        vars(self).update(offsets=offsets, _starts=offsets.numpy())

    def counts(self) -> Tensor:
        """Return the number of users of each item, (items,)."""
        total = np.zeros(self.items, dtype=np.int64)
        for start in range(0, self.pairs, _BLOCK):
            total += np.bincount(self._touched[start : start + _BLOCK], minlength=self.items)
        return torch.from_numpy(total)
