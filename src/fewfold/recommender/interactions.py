"""Interactions: who touched what, as one jagged set that every model and metric reads."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewfold._check import int64_vector, whole_number
from fewfold._optional import optional_import

__all__ = ["Core", "Interactions", "Jagged", "from_keys"]


class Jagged(NamedTuple):
    """Rows of different lengths, end to end: row r is ``values[offsets[r]:offsets[r + 1]]``.

    Attributes:
        values: (m,) int64.
        offsets: (rows + 1,) int64, from 0 to m; what `embedding_bag` takes with
            ``include_last_offset=True``.
    """

    values: Tensor
    offsets: Tensor

    @property
    def lengths(self) -> Tensor:
        """(rows,) how long each row is."""
        return self.offsets.diff()

    @property
    def row(self) -> Tensor:
        """(m,) the row of each value."""
        lengths = self.lengths
        return torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def rows(self, ids: Any) -> "Jagged":
        """The rows `ids`, in that order; a slice is a view."""
        if isinstance(ids, slice):
            start, stop, _ = ids.indices(len(self.offsets) - 1)
            offsets = self.offsets[start : stop + 1]
            return Jagged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        offsets, positions = self.positions(ids)
        return Jagged(self.values[positions], offsets)

    def positions(self, ids: Any) -> tuple[Tensor, Tensor]:
        """Offsets of the rows `ids`, and where in `values` their entries are."""
        chosen = int64_vector(ids, "ids")
        _within(chosen, len(self.offsets) - 1, "ids", "rows")
        starts = self.offsets[chosen]
        lengths = self.offsets[chosen + 1] - starts
        offsets = _offsets(lengths)
        shift = torch.repeat_interleave(starts - offsets[:-1], lengths)
        return offsets, torch.arange(int(offsets[-1])) + shift


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """A set of (user, item) pairs, user after user: the jagged rows of a binary matrix.

    User u touched ``ids[offsets[u]:offsets[u + 1]]``, in increasing order and each once. Users and
    items are numbered from 0; either may have no pair at all. `from_pairs` and `from_csr` sort,
    merge and check what comes from outside.

    Attributes:
        offsets: (users + 1,) int64.
        ids: (pairs,) int64, the items.
        items: how many items there are.
        times: (pairs,) when each pair happened, int64 or float64, or None.

    Example:
        >>> from fewfold.recommender import Interactions
        >>> log = Interactions.from_pairs([0, 2, 0, 0], [3, 1, 1, 3])
        >>> log
        Interactions(users=3, items=4, pairs=3)
        >>> log.rows([2, 0])
        Jagged(values=tensor([1, 1, 3]), offsets=tensor([0, 1, 3]))
        >>> log.counts()
        tensor([0, 2, 0, 1])
    """

    offsets: Tensor
    ids: Tensor
    items: int
    times: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("offsets", "ids"):
            object.__setattr__(self, name, int64_vector(getattr(self, name), name))
        whole_number(self.items, "items", 0)
        if (
            len(self.offsets) == 0
            or int(self.offsets[0]) != 0
            or int(self.offsets[-1]) != self.pairs
        ):
            raise ValueError(
                f"offsets must go from 0 to the number of ids, {self.pairs}, "
                f"got {self.offsets[:1].tolist()} to {self.offsets[-1:].tolist()}"
            )
        if bool((self.offsets.diff() < 0).any()):
            user = int((self.offsets.diff() < 0).nonzero()[0])
            raise ValueError(f"offsets must not decrease, got a step down after user {user}")
        _within(self.ids, self.items, "ids", "items")
        rising = self.ids[1:] > self.ids[:-1]
        first = self.offsets[1:-1]  # where a new user begins the items may start again
        rising[first[(first > 0) & (first < self.pairs)] - 1] = True
        if not bool(rising.all()):
            at = int((~rising).nonzero()[0])
            raise ValueError(
                f"the items of a user must increase, got {int(self.ids[at])} then "
                f"{int(self.ids[at + 1])} for user {int(self.row[at])}; "
                "Interactions.from_pairs sorts and merges"
            )
        if self.times is not None:
            object.__setattr__(self, "times", _times(self.times, self.pairs))

    @classmethod
    def from_pairs(
        cls, users: Any, items: Any, times: Any = None, shape: tuple[int, int] | None = None
    ) -> "Interactions":
        """Pairs in any order, from lists, arrays or tensors; a pair that repeats counts once.

        Args:
            users: (n,) whole numbers from 0.
            items: (n,) whole numbers from 0.
            times: (n,) numbers that grow with time; a pair that repeats keeps its latest.
            shape: how many users and items there are; the largest numbers say so otherwise.

        Returns:
            The interactions, sorted by user and item.

        Example:
            >>> from fewfold.recommender import Interactions
            >>> Interactions.from_pairs([0, 1, 1], [2, 0, 0], times=[5, 3, 9], shape=(4, 3)).times
            tensor([5, 9])
        """
        who, what = int64_vector(users, "users"), int64_vector(items, "items")
        if len(who) != len(what):
            raise ValueError(
                f"users and items must have the same length, got {len(who)} and {len(what)}"
            )
        if len(who) == 0 and shape is None:
            raise ValueError("there are no pairs; to mean an empty log write shape=(users, items)")
        rows, columns = shape or (int(who.max()) + 1, int(what.max()) + 1)
        _within(who, rows, "users", "users")
        _within(what, columns, "items", "items")
        when = None if times is None else _times(times, len(who))
        return from_keys(
            (who * columns + what).numpy(), None if when is None else when.numpy(), (rows, columns)
        )

    @classmethod
    def from_csr(cls, matrix: Any) -> "Interactions":
        """The ones of a scipy sparse matrix of shape (users, items) that holds 0 and 1 alone.

        Example:
            >>> import scipy.sparse
            >>> from fewfold.recommender import Interactions
            >>> Interactions.from_csr(scipy.sparse.csr_array([[0, 1, 1], [1, 0, 0]]))
            Interactions(users=2, items=3, pairs=3)
        """
        if not hasattr(matrix, "tocsr"):
            raise TypeError(
                f"matrix must be a scipy sparse matrix, got {type(matrix).__name__}; "
                "write scipy.sparse.csr_array(matrix)"
            )
        csr = matrix.tocsr()
        row = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
        odd = np.flatnonzero((csr.data != 0) & (csr.data != 1))  # NaN equals neither
        if len(odd):
            raise ValueError(
                f"values must be 0 or 1, got {csr.data[odd[0]]} in row {row[odd[0]]}; say what "
                "counts as an interaction, as in (matrix >= 4).astype('int8')"
            )
        kept = csr.data != 0
        return cls.from_pairs(row[kept], csr.indices[kept].astype(np.int64), shape=csr.shape)

    def to_csr(self) -> Any:
        """A scipy `csr_array` of float32 ones, (users, items)."""
        with optional_import("scipy", "recommender", "to_csr"):
            from scipy.sparse import csr_array
        ones = np.ones(self.pairs, dtype=np.float32)
        # scipy may sort its arrays in place: it gets its own.
        ids, offsets = self.ids.numpy().copy(), self.offsets.numpy().copy()
        return csr_array((ones, ids, offsets), shape=(self.users, self.items))

    @property
    def users(self) -> int:
        """How many users there are."""
        return len(self.offsets) - 1

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.ids)

    @property
    def jagged(self) -> Jagged:
        """The items of every user."""
        return Jagged(self.ids, self.offsets)

    @property
    def row(self) -> Tensor:
        """(pairs,) the user of each pair."""
        return self.jagged.row

    def __repr__(self) -> str:
        timed = "" if self.times is None else ", timed"
        return f"Interactions(users={self.users}, items={self.items}, pairs={self.pairs}{timed})"

    def rows(self, ids: Any) -> Jagged:
        """The items of the users `ids`, in that order: a batch."""
        return self.jagged.rows(ids)

    def counts(self) -> Tensor:
        """(items,) how many users touched each item."""
        return torch.bincount(self.ids, minlength=self.items)

    def select(self, users: Any) -> "Interactions":
        """The same items for the users given alone, numbered anew in that order."""
        offsets, positions = self.jagged.positions(users)
        times = None if self.times is None else self.times[positions]
        return _sound(offsets, self.ids[positions], self.items, times)

    def keep(self, mask: Tensor) -> "Interactions":
        """The pairs where `mask` (pairs,) is true, for the same users and items."""
        if mask.dtype != torch.bool or mask.shape != self.ids.shape:
            raise ValueError(
                f"mask must be boolean with shape ({self.pairs},), "
                f"got {mask.dtype} with shape {tuple(mask.shape)}"
            )
        lengths = torch.bincount(self.row[mask], minlength=self.users)
        times = None if self.times is None else self.times[mask]
        return _sound(_offsets(lengths), self.ids[mask], self.items, times)

    def k_core(self, n: int) -> "Core":
        """Drop users and items with fewer than `n` pairs, again and again until none is left.

        The result is the largest set in which every user and every item has at least `n` pairs.

        Returns:
            A `Core`: the interactions, numbered anew, and the numbers they had here.

        Example:
            >>> from fewfold.recommender import Interactions
            >>> log = Interactions.from_pairs([0, 0, 1, 1, 2], [0, 2, 0, 2, 1])
            >>> log.k_core(2)
            Core(interactions=Interactions(users=2, items=2, pairs=4), users=tensor([0, 1]),
                 items=tensor([0, 2]))
        """
        whole_number(n, "n")
        row, item = self.row, self.ids
        alive = torch.arange(self.pairs)
        while True:
            busy = torch.bincount(row[alive], minlength=self.users) >= n
            known = torch.bincount(item[alive], minlength=self.items) >= n
            kept = busy[row[alive]] & known[item[alive]]
            if bool(kept.all()):
                break
            alive = alive[kept]
        if len(alive) == 0:
            raise ValueError(f"nothing is left of the {n}-core of {self!r}; lower n")
        users, items = busy.nonzero().squeeze(-1), known.nonzero().squeeze(-1)
        number = torch.cumsum(known, 0) - 1
        lengths = torch.bincount(row[alive], minlength=self.users)[users]
        times = None if self.times is None else self.times[alive]
        core = _sound(_offsets(lengths), number[item[alive]], len(items), times)
        return Core(core, users, items)


class Core(NamedTuple):
    """What `Interactions.k_core` keeps.

    Attributes:
        interactions: the pairs that are left, users and items numbered anew.
        users: (users left,) the numbers they had before.
        items: (items left,) the numbers they had before.
    """

    interactions: Interactions
    users: Tensor
    items: Tensor


def _sound(offsets: Tensor, ids: Tensor, items: int, times: Tensor | None) -> Interactions:
    """What is in order by the way it was made; looking again would take longer than making it."""
    log = object.__new__(Interactions)
    for name, value in (("offsets", offsets), ("ids", ids), ("items", items), ("times", times)):
        object.__setattr__(log, name, value)
    return log


def from_keys(keys: np.ndarray, times: np.ndarray | None, shape: tuple[int, int]) -> Interactions:
    """Pairs in any order, each as the one number user * items + item.

    Args:
        keys: (n,) int64, given away: a log may be most of the memory, so it is sorted in place and
            becomes the interactions.
        times: (n,) int64 or float64, or None; a pair that repeats keeps its latest.
        shape: how many users and items there are.
    """
    rows, columns = shape
    step = max(columns, 1)
    if times is not None:
        times = times[_order(keys, rows * step)]
    keys.sort()  # numpy's is several times as quick as torch's
    new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    if not new.all():
        if times is not None:
            times = np.maximum.reduceat(times, np.flatnonzero(new))
        keys = keys[new]
    offsets = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) * step)
    np.remainder(keys, step, out=keys)
    when = None if times is None else torch.from_numpy(times)
    return _sound(torch.from_numpy(offsets), torch.from_numpy(keys), columns, when)


def _order(keys: np.ndarray, below: int) -> np.ndarray:
    """What sorts the keys, equal ones in any order."""
    bits = len(keys).bit_length()
    if below.bit_length() + bits > 63:
        return np.argsort(keys)
    # Sorting numbers that end in their own position is several times as quick.
    packed = keys << bits
    packed |= np.arange(len(keys))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def _offsets(lengths: Tensor) -> Tensor:
    """(rows,) -> (rows + 1,), where each row begins and the last ends."""
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def _within(values: Tensor, size: int, name: str, what: str) -> None:
    """Raise unless every value is a number from 0 below `size`; say which is not."""
    if len(values) == 0 or 0 <= int(values.min()) <= int(values.max()) < size:
        return
    wrong = (values < 0) | (values >= size)
    at = int(wrong.nonzero()[0])
    raise ValueError(
        f"{name} must be between 0 and {size - 1}, as there are {size} {what}; "
        f"got {int(values[at])} in row {at}"
    )


def _times(times: Any, pairs: int) -> Tensor:
    """Times as int64 or float64, one per pair, none of them NaN."""
    try:
        given = times if isinstance(times, Tensor) else torch.as_tensor(np.array(times))
    except TypeError:
        raise TypeError(
            f"times must be numbers, got {np.asarray(times).dtype}; "
            "write times.astype('datetime64[s]').astype('int64') for dates"
        ) from None
    if given.shape != (pairs,):
        raise ValueError(f"times must have shape ({pairs},), got {tuple(given.shape)}")
    given = given.double() if given.is_floating_point() else given.long()
    missing = given.isnan()
    if bool(missing.any()):
        raise ValueError(f"times must be numbers, got nan in row {int(missing.nonzero()[0])}")
    return given
