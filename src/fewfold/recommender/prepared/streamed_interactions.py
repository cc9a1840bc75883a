"""Interactions of a prepared log for training, of which two windows of parts are in memory."""

import bisect
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.jagged import Jagged, offsets_of
from fewfold.recommender.prepared.prepared_log import PreparedLog
from fewfold.recommender.prepared.prepared_manifest import part_name

__all__ = ["StreamedEpoch", "StreamedInteractions", "StreamedLog"]


@dataclass(frozen=True)
class StreamedLog:
    """A prepared log that `Recommender.fit` streams instead of reading it into memory.

    Attributes:
        folder: that `fewfold prepare` wrote.
        pairs_in_memory: pairs that are shuffled together, about; twice as many are held, the next
            of which a thread reads meanwhile. A part that has more is held as a whole.

    Example:
        >>> import tempfile
        >>> import fewfold as ff
        >>> from fewfold.recommender import StreamedLog, bundled, prepare
        >>> folder = tempfile.mkdtemp() + "/prepared"
        >>> log = prepare(bundled(), folder, parts=4, progress=False)
        >>> rec = ff.Recommender(ff.VAE(16, 7), training=ff.recommender.Training(epochs=1))
        >>> rec.fit(StreamedLog(folder, pairs_in_memory=100_000), progress=False)
        Recommender(VAE(hidden=16, latent=7, layers=1, shortcut=None, anchors=None), 5,178 items)
    """

    folder: str | os.PathLike[str]
    pairs_in_memory: int = 4_000_000

    def __post_init__(self) -> None:
        whole_number(self.pairs_in_memory, "pairs_in_memory")


class StreamedInteractions:
    """Users of a prepared log in windows of several parts, read when they are trained on.

    Users are numbered from 0 in the order of the windows.

    Args:
        log: the prepared log.
        pairs_in_memory: see `StreamedLog`.
        hidden: by window, pairs that are left out, each as user * items + item with the user's
            number in the window; sorted.

    Attributes:
        starts: number of the first user of each window, and the number of all users.
        items: number of items.
    """

    def __init__(
        self,
        log: PreparedLog,
        pairs_in_memory: int = 4_000_000,
        hidden: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.log, self._pairs, self._hidden = log, pairs_in_memory, dict(hidden or {})
        self.items = log.manifest.items
        self._windows = list(_grouped(log, pairs_in_memory))
        sizes = [
            sum(log.manifest.files[part_name(part)]["rows"] for part in window)
            for window in self._windows
        ]
        self.starts: list[int] = [0, *itertools.accumulate(sizes)]
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._read: dict[int, Future[Interactions]] = {}

    @property
    def users(self) -> int:
        """Number of users."""
        return self.starts[-1]

    @property
    def pairs(self) -> int:
        """Number of pairs that are not hidden."""
        return self.log.manifest.pairs - sum(map(len, self._hidden.values()))

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self._windows)

    def counts(self) -> Tensor:
        """Return the number of users of each item, (items,)."""
        counts = self.log.counts.clone()
        for keys in self._hidden.values():
            counts -= torch.bincount(keys % self.items, minlength=self.items)
        return counts

    def window(self, number: int, following: int | None = None) -> Interactions:
        """Return a window; meanwhile `following` is read, and the others are released."""
        wanted = {number, following} - {None}
        for old in self._read.keys() - wanted:
            del self._read[old]
        for one in (number, following):
            if one is not None and one not in self._read:
                self._read[one] = self._pool.submit(self._load, one)
        return self._read[number].result()

    def _load(self, number: int) -> Interactions:
        parts = [self.log.part(part, ()).interactions for part in self._windows[number]]
        lengths = torch.cat([part.jagged.lengths for part in parts])
        ids = torch.cat([part.ids for part in parts])
        found = Interactions.trusted(offsets_of(lengths), ids, self.items)
        hidden = self._hidden.get(number)
        if hidden is None:
            return found
        return found.keep(~torch.isin(found.row * self.items + found.ids, hidden))

    def timed_window(self, number: int) -> Interactions:
        """Return a window with its times, if the log has any."""
        log = self.window(number)
        if self.log.manifest.times is None:
            return log
        parts = [self.log.part(part, ("times",)).interactions for part in self._windows[number]]
        times = torch.cat([part.times for part in parts if part.times is not None])
        hidden = self._hidden.get(number)
        if hidden is not None:
            row = torch.cat([part.row + start for part, start in _with_starts(parts)])
            ids = torch.cat([part.ids for part in parts])
            times = times[~torch.isin(row * self.items + ids, hidden)]
        return log.with_values(times=times)

    def without(self, number: int, pairs: Interactions) -> "StreamedInteractions":
        """Return the same log without these pairs of users of a window."""
        keys = torch.cat([self._hidden.get(number, pairs.ids[:0]), pairs.row * self.items
                          + pairs.ids])  # fmt: skip
        return StreamedInteractions(
            self.log, self._pairs, {**self._hidden, number: keys.sort().values}
        )

    def rows(self, users: Tensor) -> Jagged:
        """Return the items of these users of one window."""
        number = bisect.bisect_right(self.starts, int(users[0])) - 1
        if number not in self._read:
            self.window(number)
        return self._read[number].result().rows(users - self.starts[number])

    def describe(self) -> str:
        """Return the size of the log and a digest of its files, as text."""
        sums = [facts["sha256"][:8] for _, facts in sorted(self.log.manifest.files.items())]
        return (
            f"{self.pairs} pairs of {self.items} items, in {self.windows} windows, "
            f"{hashlib.sha256(''.join(sums).encode()).hexdigest()[:16]}"
        )


def _grouped(log: PreparedLog, most: int) -> Iterator[tuple[int, ...]]:
    """Yield consecutive parts with users that have about as many pairs as fit into memory."""
    window: list[int] = []
    pairs = 0
    for number in range(log.manifest.parts):
        mine = log.manifest.files[part_name(number)]["pairs"]
        if mine == 0:
            continue
        if window and pairs + mine > most:
            yield tuple(window)
            window, pairs = [], 0
        window.append(number)
        pairs += mine
    if window:
        yield tuple(window)


def _with_starts(parts: Sequence[Interactions]) -> Iterator[tuple[Interactions, int]]:
    start = 0
    for part in parts:
        yield part, start
        start += part.users


@dataclass(frozen=True)
class StreamedEpoch(Sequence[Tensor]):
    """Users of each step of an epoch: windows in random order, the users of each shuffled.

    A window is read while that before it is trained on.

    Attributes:
        log: the interactions.
        order: numbers of the windows.
        seed: of the order of the users.
        batch: most users of a step.
        first: steps that are left out at the start.
        last: step before which it ends; None for all.
    """

    log: StreamedInteractions
    order: tuple[int, ...]
    seed: int
    batch: int
    first: int = 0
    last: int | None = None
    _shuffled: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def draw(
        cls, log: StreamedInteractions, batch: int, generator: torch.Generator
    ) -> "StreamedEpoch":
        """Draw the order of an epoch."""
        order = torch.randperm(log.windows, generator=generator).tolist()
        seed = int(torch.randint(2**62, (), generator=generator))
        return cls(log, tuple(order), seed, batch)

    @staticmethod
    def steps(log: StreamedInteractions, batch: int) -> int:
        """Return the number of steps of every epoch."""
        sizes = (after - before for before, after in itertools.pairwise(log.starts))
        return sum(-(-size // batch) for size in sizes)

    def __len__(self) -> int:
        steps = self.steps(self.log, self.batch)
        return max(0, min(steps, steps if self.last is None else self.last) - self.first)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> "StreamedEpoch": ...

    def __getitem__(self, index: int | slice) -> "Tensor | StreamedEpoch":
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return StreamedEpoch(
                self.log, self.order, self.seed, self.batch, self.first + start, self.first + stop
            )
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} steps, got {index}")
        step = self.first + index
        for place, number in enumerate(self.order):
            size = self.log.starts[number + 1] - self.log.starts[number]
            steps = -(-size // self.batch)
            if step < steps:
                return self._users(place, number, size, steps)[step]
            step -= steps
        raise AssertionError

    def _users(self, place: int, number: int, size: int, steps: int) -> Sequence[Tensor]:
        """Return the users of each step of a window, whose items and the next are in memory."""
        if number not in self._shuffled:
            following = self.order[place + 1] if place + 1 < len(self.order) else None
            self.log.window(number, following)
            generator = torch.Generator().manual_seed(self.seed + place)
            order = torch.randperm(size, generator=generator) + self.log.starts[number]
            self._shuffled.clear()
            self._shuffled[number] = order.tensor_split(steps)
        found: Sequence[Tensor] = self._shuffled[number]
        return found
