"""Interactions of a prepared log for training, of which two windows of parts are in memory."""

import bisect
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfold._check import whole_number
from fewfold.distributed.group import Group
from fewfold.recommender.group_agreement import check_same
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.jagged import Jagged, offsets_of
from fewfold.recommender.prepared.prepared_log import PreparedLog
from fewfold.recommender.prepared.prepared_manifest import part_name
from fewfold.recommender.prepared.shared_window import SharedWindow
from fewfold.recommender.prepared.window import divide_into_windows

__all__ = ["StreamedInteractions", "StreamedLog"]


@dataclass(frozen=True)
class StreamedLog:
    """A prepared log that `Recommender.fit` streams instead of reading it into memory.

    Attributes:
        folder: that `fewfold prepare` wrote.
        pairs_in_memory: pairs that are shuffled together, about; twice as many are held, the next
            of which a thread reads meanwhile. A part that has more is held as a whole. Several
            processes share them: each reads and holds its own parts.

    Example:
        >>> import tempfile
        >>> import fewfold as ff
        >>> from fewfold.recommender import StreamedLog, bundled, prepare
        >>> folder = tempfile.mkdtemp() + "/prepared"
        >>> log = prepare(bundled(), folder, parts=4, progress=False)
        >>> model = ff.VAE(16, 7, shortcut=8)
        >>> rec = ff.Recommender(model, training=ff.recommender.Training(epochs=1))
        >>> rec.fit(StreamedLog(folder, pairs_in_memory=100_000), progress=False)
        Recommender(VAE(hidden=16, latent=7, ...), 5,178 items)
    """

    folder: str | os.PathLike[str]
    pairs_in_memory: int = 4_000_000

    def __post_init__(self) -> None:
        whole_number(self.pairs_in_memory, "pairs_in_memory")


class StreamedInteractions:
    """Users of a prepared log in windows of several parts, read when they are trained on.

    Users are numbered from 0 in the order of the windows. In a group of processes each part is read
    by one of them, and histories of a batch are gathered from the readers; all processes call the
    methods that say so in the same order.

    Args:
        log: the prepared log.
        pairs_in_memory: see `StreamedLog`.
        hidden: by window, pairs that are left out, each as user * items + item with the user's
            number in the window; sorted.
        group: the processes that read it; this one alone by default.

    Attributes:
        starts: number of the first user of each window, and the number of all users.
        items: number of items.
    """

    def __init__(
        self,
        log: PreparedLog,
        pairs_in_memory: int = 4_000_000,
        hidden: Mapping[int, Tensor] | None = None,
        group: Group | None = None,
    ) -> None:
        self.log, self._pairs, self._hidden = log, pairs_in_memory, dict(hidden or {})
        self.group = group or Group()
        self.items = log.manifest.items
        self._windows = divide_into_windows(log.manifest, pairs_in_memory, self.group.world)
        sizes = (window.users for window in self._windows)
        self.starts: list[int] = [0, *itertools.accumulate(sizes)]
        self._pool = ThreadPoolExecutor(1, "prefetch")
        self._read: dict[int, Future[Interactions]] = {}
        self._entered: tuple[int, SharedWindow] | None = None
        self._expected: deque[tuple[Tensor, Callable[[], Jagged]]] = deque()

    @classmethod
    def open(cls, source: StreamedLog, group: Group) -> "StreamedInteractions":
        """Open a prepared log, by all processes; each verifies the parts that it reads."""
        with group.together():
            log = PreparedLog.open(source.folder, verify=False)
        found = cls(log, source.pairs_in_memory, group=group)
        sums = hashlib.sha256(str(sorted(log.manifest.files.items())).encode()).hexdigest()
        facts = {
            "prepared log": f"{log.manifest.pairs} pairs, {sums[:16]}",
            "size of a window": f"{source.pairs_in_memory} pairs in memory",
        }
        check_same(group, facts, "all processes need the same folder")

        def verify() -> None:
            others = {
                part_name(part)
                for window in found._windows
                for part, rank in zip(window.parts, window.ranks, strict=True)
                if rank != group.rank
            }
            log.manifest.verify(log.folder, [n for n in log.manifest.files if n not in others])

        with group.together():
            verify()
        return found

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
        """Return the users of a window that this process reads.

        Meanwhile those of `following` are read, and the others are released.
        """
        wanted = {number, following} - {None}
        for old in self._read.keys() - wanted:
            del self._read[old]
        for one in (number, following):
            if one is not None and one not in self._read:
                self._read[one] = self._pool.submit(self._load, one)
        return self._read[number].result()

    def _load(self, number: int) -> Interactions:
        return self._visible(number, self._parts(number, ()))

    def _parts(self, number: int, columns: tuple[str, ...]) -> list[Interactions]:
        """Read the parts of a window that belong to this process."""
        parts = self._windows[number].parts_of(self.group.rank)
        return [self.log.part(part, columns).interactions for part in parts]

    def _visible(self, number: int, parts: Sequence[Interactions]) -> Interactions:
        """Append parts of a window to each other, without the hidden pairs."""
        lengths = torch.cat([torch.empty(0, dtype=torch.int64), *(p.jagged.lengths for p in parts)])
        ids = torch.cat([torch.empty(0, dtype=torch.int64), *(part.ids for part in parts)])
        times = [part.times for part in parts if part.times is not None]
        found = Interactions.trusted(offsets_of(lengths), ids, self.items)
        found = found.with_values(times=torch.cat(times) if times else None)
        hidden = self._hidden.get(number)
        if hidden is None:
            return found
        users = (self._windows[number].owners() == self.group.rank).nonzero().squeeze(1)
        return found.keep(~torch.isin(users[found.row] * self.items + found.ids, hidden))

    def enter(self, number: int, following: int | None = None) -> SharedWindow:
        """Make a window the current one, by all processes; meanwhile `following` is read."""
        self._expected.clear()
        self._entered = None  # releases the window before
        with self.group.together():
            own = self.window(number, following)
        entered = SharedWindow(self.group, self._windows[number], own)
        self._entered = number, entered
        return entered

    def _current(self, number: int) -> SharedWindow:
        """Return a window, which is entered unless it is the current one."""
        if self._entered is None or self._entered[0] != number:
            return self.enter(number)
        return self._entered[1]

    def lengths(self, number: int) -> Tensor:
        """Return the number of items of each user of a window, by all processes."""
        return self._current(number).lengths

    def sample(self, number: int, users: Tensor, *, timed: bool = False) -> Interactions:
        """Return some users of a window, by all processes, with times if wanted and known."""
        window, kind = self._current(number), self.log.manifest.times
        found, times = window.start(users)(), None
        if timed and kind is not None:
            with self.group.together():
                own = self.timed_window(number).times
            own = torch.empty(0, dtype=getattr(torch, kind)) if own is None else own
            times = window.start(users, own)().values
        return Interactions(found.offsets, found.values, self.items, times)

    def blocks(self, most: int) -> Iterator[Interactions]:
        """Yield all users in the order of the windows, some at a time, by all processes."""
        for number, window in enumerate(self._windows):
            entered = self.enter(number, number + 1 if number + 1 < self.windows else None)
            for users in torch.arange(window.users).split(most):
                found = entered.start(users)()
                yield Interactions.trusted(found.offsets, found.values, self.items)

    def timed_window(self, number: int) -> Interactions:
        """Return the users of a window that this process reads, with times if the log has any."""
        if self.log.manifest.times is None:
            return self.window(number)
        return self._visible(number, self._parts(number, ("times",)))

    def without(
        self, number: int, pairs: Interactions, users: Tensor | None = None
    ) -> "StreamedInteractions":
        """Return the same log without these pairs of users of a window, given by their numbers."""
        row = pairs.row if users is None else users[pairs.row]
        hidden = self._hidden.get(number, pairs.ids[:0])
        keys = torch.cat([hidden, row * self.items + pairs.ids]).sort().values
        self.release()
        return StreamedInteractions(
            self.log, self._pairs, {**self._hidden, number: keys}, self.group
        )

    def release(self) -> None:
        """Release the windows in memory."""
        self._read.clear()
        self._expected.clear()
        self._entered = None

    def expect(self, steps: Sequence[Tensor]) -> None:
        """Start to gather the items of the users of the next steps, by all processes."""
        if self.group.world == 1:
            return
        if self._expected and not torch.equal(self._expected[0][0], steps[0]):
            self._expected.clear()
        for users in steps[len(self._expected) :]:
            self._expected.append((users, self._start(users)))

    def rows(self, users: Tensor) -> Jagged:
        """Return the items of these users of one window, by all processes."""
        if self._expected and torch.equal(self._expected[0][0], users):
            return self._expected.popleft()[1]()
        self._expected.clear()
        return self._start(users)()

    def _start(self, users: Tensor) -> Callable[[], Jagged]:
        number = bisect.bisect_right(self.starts, int(users[0])) - 1
        return self._current(number).start(users - self.starts[number])

    def describe(self) -> str:
        """Return the size of the log and a digest of its files, as text."""
        sums = [facts["sha256"][:8] for _, facts in sorted(self.log.manifest.files.items())]
        return (
            f"{self.pairs} pairs of {self.items} items, in {self.windows} windows, "
            f"{hashlib.sha256(''.join(sums).encode()).hexdigest()[:16]}"
        )
