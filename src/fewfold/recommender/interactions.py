"""Sparse sets of (user, item) pairs, a row of items per user."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fewfold._check import int64_vector, whole_number
from fewfold._optional import optional_import
from fewfold.recommender.jagged import Jagged, check_range, offsets_of

__all__ = ["Core", "Interactions", "Jagged", "check_dislikes", "from_keys"]


@dataclass(frozen=True, eq=False, repr=False)
class Interactions:
    """A set of (user, item) pairs sorted by user: a binary matrix in CSR layout.

    The items of user u are ``ids[offsets[u]:offsets[u + 1]]``, strictly increasing. Users and items
    are numbered from 0; either may have no pairs. `from_pairs` and `from_csr` sort, merge and
    validate external data.

    Attributes:
        offsets: (users + 1,) int64.
        ids: (pairs,) int64, the items.
        items: number of items.
        times: (pairs,) time of each pair, int64 or float64, or None.
        weights: (pairs,) float32 weight of each pair, finite and above 0, or None if all are 1.
        dislikes: other pairs of the same users and items, which are known to be disliked and are
            never recommended; None if there are none.

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
    weights: Tensor | None = None
    dislikes: "Interactions | None" = None

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
        check_range(self.ids, self.items, "ids", "items")
        rising = self.ids[1:] > self.ids[:-1]
        first = self.offsets[1:-1]  # the items of the next user start again
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
        if self.weights is not None:
            object.__setattr__(self, "weights", _weights(self.weights, self.pairs).float())
        if self.dislikes is not None:
            check_dislikes(self.dislikes, self)

    @classmethod
    def from_pairs(
        cls,
        users: Any,
        items: Any,
        times: Any = None,
        shape: tuple[int, int] | None = None,
        weights: Any = None,
    ) -> "Interactions":
        """Construct from pairs in any order (lists, arrays or tensors); repeated pairs are merged.

        Args:
            users: (n,) user numbers from 0.
            items: (n,) item numbers from 0.
            times: (n,) times in chronological numbers; merged pairs keep the latest.
            shape: (users, items); by default one more than the largest numbers.
            weights: (n,) finite numbers above 0; those of merged pairs are added.

        Returns:
            The interactions, sorted by user and item.

        Example:
            >>> from fewfold.recommender import Interactions
            >>> Interactions.from_pairs([0, 1, 1], [2, 0, 0], times=[5, 3, 9], shape=(4, 3)).times
            tensor([5, 9])
            >>> Interactions.from_pairs([0, 1, 1], [2, 0, 0], weights=[1, 2, 0.5]).weights
            tensor([1.0000, 2.5000])
        """
        who, what = int64_vector(users, "users"), int64_vector(items, "items")
        if len(who) != len(what):
            raise ValueError(
                f"users and items must have the same length, got {len(who)} and {len(what)}"
            )
        if len(who) == 0 and shape is None:
            raise ValueError("there are no pairs; to mean an empty log write shape=(users, items)")
        rows, columns = shape or (int(who.max()) + 1, int(what.max()) + 1)
        check_range(who, rows, "users", "users")
        check_range(what, columns, "items", "items")
        when = None if times is None else _times(times, len(who))
        weight = None if weights is None else _weights(weights, len(who))
        return from_keys(
            (who * columns + what).numpy(),
            None if when is None else when.numpy(),
            (rows, columns),
            None if weight is None else weight.numpy(),
        )

    @classmethod
    def trusted(cls, offsets: Tensor, ids: Tensor, items: int) -> "Interactions":
        """Construct from int64 tensors that are known to be valid and sorted."""
        return _unchecked(offsets, ids, items)

    @classmethod
    def from_csr(cls, matrix: Any) -> "Interactions":
        """Construct from a scipy sparse matrix of shape (users, items) with values 0 and 1.

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
        nonzero = csr.data != 0
        items = csr.indices[nonzero].astype(np.int64)
        return cls.from_pairs(row[nonzero], items, shape=csr.shape)

    def to_csr(self, values: Tensor | None = None) -> Any:
        """A scipy `csr_array` of float32, (users, items), of ones or of these (pairs,) values."""
        with optional_import("scipy", "recommender", "to_csr"):
            from scipy.sparse import csr_array
        given = np.ones(self.pairs, dtype=np.float32) if values is None else values.float().numpy()
        # Copies, since scipy may sort its arrays in place.
        ids, offsets = self.ids.numpy().copy(), self.offsets.numpy().copy()
        return csr_array((given.copy(), ids, offsets), shape=(self.users, self.items))

    @property
    def users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def pairs(self) -> int:
        """Number of pairs."""
        return len(self.ids)

    @property
    def jagged(self) -> Jagged:
        """Items of every user."""
        return Jagged(self.ids, self.offsets)

    @property
    def row(self) -> Tensor:
        """User of each pair, (pairs,)."""
        return self.jagged.row

    def __repr__(self) -> str:
        also = "" if self.times is None else ", timed"
        also += "" if self.weights is None else ", weighted"
        also += "" if self.dislikes is None else f", dislikes={self.dislikes.pairs}"
        return f"Interactions(users={self.users}, items={self.items}, pairs={self.pairs}{also})"

    def rows(self, ids: Any, *, ordered: bool = False) -> Jagged:
        """Return the items of the users `ids`, in this order; a slice selects consecutive users.

        Items increase; with `ordered` they are from oldest to newest, as in `in_order`.
        """
        if not ordered:
            return self.jagged.rows(ids)
        chosen = range(self.users)[ids] if isinstance(ids, slice) else ids
        return self.select(chosen).in_order()

    def items_of(self, user: int, *, ordered: bool = False) -> np.ndarray:
        """Return the items of one user, (n,) int64, by number or with `ordered` by time.

        Example:
            >>> from fewfold.recommender import Interactions
            >>> log = Interactions.from_pairs([0, 1, 1], [4, 2, 3], times=[5, 9, 5])
            >>> log.items_of(1), log.items_of(1, ordered=True)
            (array([2, 3]), array([3, 2]))
        """
        part = slice(int(self.offsets[user]), int(self.offsets[user + 1]))
        found = self.ids[part].numpy()
        if not ordered:
            return found
        if self.times is None:
            self._by_time()  # raises: the order is not known
        return found[np.argsort(self.times[part].numpy(), kind="stable")]  # type: ignore[index]

    def in_order(self) -> Jagged:
        """Return the items of every user from oldest to newest; items of one time increase.

        Example:
            >>> from fewfold.recommender import Interactions
            >>> log = Interactions.from_pairs([0, 0, 0, 1], [4, 2, 3, 4], times=[5, 9, 5, 1])
            >>> log.in_order()
            Jagged(values=tensor([3, 4, 2, 4]), offsets=tensor([0, 3, 4]))
            >>> log.tied_neighbours()
            1
        """
        return Jagged(self.ids[self._by_time()], self.offsets)

    def tied_neighbours(self) -> int:
        """Return the number of pairs with the same time as the pair before, in `in_order`."""
        order = self._by_time()
        return len(order) - len(self.jagged.lengths.nonzero()) - int(self._later(order).sum())

    def time_ranks(self) -> Tensor:
        """Return (pairs,) int64: how many different times of the same user are earlier."""
        order = self._by_time()
        steps = self._later(order).cumsum(0)
        first = self.offsets[:-1].clamp(max=max(self.pairs - 1, 0))
        ranks = torch.empty_like(self.ids)
        ranks[order] = steps - steps[first][self.row] if self.pairs else steps
        return ranks

    def _by_time(self) -> Tensor:
        """Return the permutation of the pairs that sorts them by user, time and item."""
        if self.times is None:
            raise ValueError(
                "these interactions have no times, so their order is not known; name the column "
                "of times with time= (--time COLUMN), or write "
                "Interactions.from_pairs(users, items, times)"
            )
        return torch.from_numpy(np.lexsort((self.times.numpy(), self.row.numpy())))

    def _later(self, order: Tensor) -> Tensor:
        """Return (pairs,) true where a pair is later than the one before it of the same user."""
        times, later = self.times[order], torch.zeros(self.pairs, dtype=torch.bool)  # type: ignore[index]
        later[1:] = (times[1:] > times[:-1]) & (self.row[1:] == self.row[:-1])
        return later

    def counts(self) -> Tensor:
        """Return the number of users of each item, (items,)."""
        return torch.bincount(self.ids, minlength=self.items)

    @property
    def disliked(self) -> Jagged | None:
        """Items that each user dislikes, if any are known."""
        return None if self.dislikes is None else self.dislikes.jagged

    def popularity(self) -> Tensor:
        """Return the sum of the weights of each item's pairs, (items,) float32."""
        if self.weights is None:
            return self.counts().float()
        return torch.bincount(self.ids, self.weights.double(), minlength=self.items).float()

    def seen(self, users: Any = slice(None)) -> Jagged:
        """Return the items of these users and those they dislike, which are not recommended."""
        items = self.jagged.rows(users)
        if self.dislikes is None:
            return items
        return items.union(self.dislikes.jagged.rows(users))

    def with_values(self, **values: Any) -> "Interactions":
        """Return the same pairs with other times, weights or dislikes, without validation."""
        given = {name: getattr(self, name) for name in ("times", "weights", "dislikes")} | values
        return _unchecked(self.offsets, self.ids, self.items, **given)

    def replace_offsets(self, offsets: Tensor) -> None:
        """Use equal offsets, which may be mapped from a file."""
        object.__setattr__(self, "offsets", offsets)

    def with_items(self, items: int) -> "Interactions":
        """Return the same pairs of more items, which have none."""
        more = None if self.dislikes is None else self.dislikes.with_items(items)
        return _unchecked(self.offsets, self.ids, items, self.times, self.weights, more)

    def select(self, users: Any) -> "Interactions":
        """Select users, renumbered in the given order."""
        offsets, positions = self.jagged.positions(users)
        dislikes = None if self.dislikes is None else self.dislikes.select(users)
        values = self._values(positions)
        return _unchecked(offsets, self.ids[positions], self.items, *values, dislikes)

    def keep(self, mask: Tensor) -> "Interactions":
        """Select the pairs where `mask` (pairs,) is true; users and items keep their numbers."""
        if mask.dtype != torch.bool or mask.shape != self.ids.shape:
            raise ValueError(
                f"mask must be boolean with shape ({self.pairs},), "
                f"got {mask.dtype} with shape {tuple(mask.shape)}"
            )
        lengths = torch.bincount(self.row[mask], minlength=self.users)
        values = self._values(mask)
        return _unchecked(offsets_of(lengths), self.ids[mask], self.items, *values, self.dislikes)

    def k_core(self, n: int) -> "Core":
        """Repeatedly drop users and items with fewer than `n` pairs.

        The result is the largest set in which every user and every item has at least `n` pairs.

        Returns:
            A `Core`: the renumbered interactions, and their original numbers.

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
            selected = busy[row[alive]] & known[item[alive]]
            if bool(selected.all()):
                break
            alive = alive[selected]
        if len(alive) == 0:
            raise ValueError(f"nothing is left of the {n}-core of {self!r}; lower n")
        users, items = busy.nonzero().squeeze(-1), known.nonzero().squeeze(-1)
        number = torch.cumsum(known, 0) - 1
        lengths = torch.bincount(row[alive], minlength=self.users)[users]
        values = self._values(alive)
        dislikes = None
        if self.dislikes is not None:
            dislikes = self.dislikes.select(users)._renumbered(known, number, len(items))
        core = _unchecked(offsets_of(lengths), number[item[alive]], len(items), *values, dislikes)
        return Core(core, users, items)

    def _renumbered(self, known: Tensor, number: Tensor, items: int) -> "Interactions":
        """Keep the pairs of known items (a mask), with these numbers, which rise."""
        some = self.keep(known[self.ids])
        return _unchecked(some.offsets, number[some.ids], items, some.times, some.weights)

    def _values(self, chosen: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return times and weights of the chosen pairs, by position or mask."""
        return (
            None if self.times is None else self.times[chosen],
            None if self.weights is None else self.weights[chosen],
        )


class Core(NamedTuple):
    """Result of `Interactions.k_core`.

    Attributes:
        interactions: the remaining pairs, with renumbered users and items.
        users: (remaining users,) original numbers.
        items: (remaining items,) original numbers.
    """

    interactions: Interactions
    users: Tensor
    items: Tensor


def _unchecked(
    offsets: Tensor,
    ids: Tensor,
    items: int,
    times: Tensor | None = None,
    weights: Tensor | None = None,
    dislikes: Interactions | None = None,
) -> Interactions:
    """Construct without validation; inputs are already sorted."""
    log = object.__new__(Interactions)
    values = {"offsets": offsets, "ids": ids, "items": items, "times": times, "weights": weights}
    for name, value in {**values, "dislikes": dislikes}.items():
        object.__setattr__(log, name, value)
    return log


def from_keys(
    keys: np.ndarray,
    times: np.ndarray | None,
    shape: tuple[int, int],
    weights: np.ndarray | None = None,
) -> Interactions:
    """Construct from pairs in any order, each encoded as user * items + item.

    Args:
        keys: (n,) int64; sorted in place and reused as storage, since a log may take most of the
            memory.
        times: (n,) int64 or float64, or None; merged pairs keep the latest.
        shape: (users, items).
        weights: (n,) float64, or None; those of merged pairs are added.
    """
    rows, columns = shape
    step = max(columns, 1)
    if times is not None or weights is not None:
        order = _sort(keys, rows * step)
        times = None if times is None else times[order]
        weights = None if weights is None else weights[order]
    else:
        keys.sort()  # several times faster than torch's sort
    new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    if not new.all():
        if times is not None:
            times = np.maximum.reduceat(times, np.flatnonzero(new))
        if weights is not None:
            weights = np.add.reduceat(weights, np.flatnonzero(new))
        keys = keys[new]
    offsets = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) * step)
    np.remainder(keys, step, out=keys)
    when = None if times is None else torch.from_numpy(times)
    weight = None if weights is None else torch.from_numpy(weights).float()
    return _unchecked(torch.from_numpy(offsets), torch.from_numpy(keys), columns, when, weight)


def _sort(keys: np.ndarray, below: int) -> np.ndarray:
    """Sort the keys in place, and return the permutation."""
    bits = len(keys).bit_length()
    if below.bit_length() + bits > 63:
        order = np.argsort(keys, kind="stable")
        keys[:] = keys[order]
        return order
    # Sorting keys with the position in their low bits is several times faster than argsort.
    packed = keys << bits
    packed |= np.arange(len(keys))
    packed.sort()
    np.right_shift(packed, bits, out=keys)
    packed &= (1 << bits) - 1
    return packed


def _times(times: Any, pairs: int) -> Tensor:
    """Convert times to int64 or float64, one per pair, without NaN."""
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


def check_dislikes(dislikes: Interactions, log: Interactions) -> None:
    """Raise unless these are pairs of the same users and items that the log does not have."""
    if (dislikes.users, dislikes.items) != (log.users, log.items):
        raise ValueError(
            f"dislikes must have the {log.users} users and {log.items} items of the pairs, got "
            f"{dislikes.users} and {dislikes.items}"
        )
    both = dislikes.jagged.isin(log.jagged)
    if bool(both.any()):
        at = int(both.nonzero()[0])
        raise ValueError(
            f"a pair must not be liked and disliked, got both for user {int(dislikes.row[at])} "
            f"and item {int(dislikes.ids[at])}; drop one of them"
        )


def _weights(weights: Any, pairs: int) -> Tensor:
    """Convert weights to float64, one per pair, finite in single precision and above 0."""
    given = weights if isinstance(weights, Tensor) else torch.as_tensor(np.array(weights))
    if given.shape != (pairs,):
        raise ValueError(f"weights must have shape ({pairs},), got {tuple(given.shape)}")
    given = given.double()
    single = given.float()
    wrong = ~(single.isfinite() & (single > 0))
    if bool(wrong.any()):
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"weights must be finite and above 0, got {float(given[at]):g} in row {at}; "
            "drop pairs that do not count"
        )
    return given
