"""An append-only journal of events in JSON lines, safe against crashes and shared by processes.

Each line is an event: ``{"user": "ann", "item": "tea", "time": "2024-05-01T10:30:00.000000Z"}``,
with the id of a ``"recommendation"`` if it followed from one. What was appended is on disk when
`Journal.append` returns. A line that a killed process or a power failure left incomplete is never
read as an event: the next writer removes it at the end of the file, and readers skip it elsewhere.

To retire a journal, rename it: writers and readers go on with a new file at the old path.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from fewfold._files import sync, sync_data
from fewfold._progress import phase
from fewfold.recommender.errors import DataError
from fewfold.recommender.journal_events import Event, decode, encode, microseconds

try:
    import fcntl
except ImportError:  # a system without locks of files: one process per journal
    fcntl = None  # type: ignore[assignment]

__all__ = ["Event", "Journal", "JournalColumns", "read_journal"]

_BLOCK = 1 << 22  # bytes read at once
_SHOWN = 60  # characters of a line in a message


@dataclass
class _Batch:
    """Lines of several threads that are written and synced together."""

    lines: list[bytes] = field(default_factory=list)
    written: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class Journal:
    """A journal of events, opened for reading and appending.

    Threads and processes may use one file at the same time. Threads that append while another one
    waits for the disk share the next sync (group commit).

    Args:
        path: of the file; it is created if it does not exist, in a folder that does. A file that
            does not begin with an event is refused.

    Attributes:
        path: of the file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fewfold.recommender.journal import Event, Journal
        >>> folder = tempfile.TemporaryDirectory()
        >>> with Journal(Path(folder.name) / "shop.journal.jsonl") as journal:
        ...     journal.append([Event("ann", "tea"), Event("bob", "nuts")])
        ...     [(event.user, event.item) for event in journal.tail()], journal.tail()
        ([('ann', 'tea'), ('bob', 'nuts')], [])
        >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._joining, self._writing, self._reading = (threading.Lock() for _ in range(3))
        self._waiting = _Batch()
        self._written: int | None = None  # descriptor to append to
        self._reader: _Reader | None = None
        self._skipped = 0
        self._process = os.getpid()
        self._closed = False
        try:
            with self._writing, self._locked() as descriptor:
                _check_begins_with_event(self.path, descriptor)
                _repair(descriptor)
            self._reader = _Reader(self.path)
        except BaseException:
            self.close()
            raise

    @property
    def skipped(self) -> int:
        """Number of lines that `tail` could not read as an event."""
        return self._skipped + (0 if self._reader is None else self._reader.skipped)

    def append(self, events: Sequence[Event]) -> None:
        """Append events; they are on disk when this returns.

        An OSError, as of a full disk, means that they are not acknowledged, and leaves no
        incomplete line.
        """
        lines = b"".join(map(encode, events))
        if not lines:
            return
        with self._joining:
            batch = self._waiting
            first = not batch.lines
            batch.lines.append(lines)
        if first:  # writes for all who join while the batch before is synced
            self._write_next(batch)
        else:
            batch.written.wait()
        if batch.error is not None:
            error = batch.error
            number, text = getattr(error, "errno", None), getattr(error, "strerror", None)
            raise OSError(number, text or repr(error), str(self.path)) from error

    def _write_next(self, batch: _Batch) -> None:
        """Write a batch when the one before is written; wakes all who wait for it."""
        try:
            with self._writing:
                self._seal(batch)
                self._write(batch)
        except BaseException as error:  # an interruption, perhaps before anything was written
            batch.error = batch.error or error
            raise
        finally:
            self._seal(batch)
            batch.written.set()

    def _seal(self, batch: _Batch) -> None:
        """Let nobody join a batch any more."""
        with self._joining:
            if self._waiting is batch:
                self._waiting = _Batch()

    def _write(self, batch: _Batch) -> None:
        """Write and sync the lines of a batch; its error is kept for all who wait for it."""
        try:
            with self._locked() as descriptor:
                _repair(descriptor)
                _write_whole(descriptor, b"".join(batch.lines))
            # Not under the lock of the file, so that nobody waits twice for the disk.
            sync_data(descriptor)
        except BaseException as error:
            batch.error = error
            if not isinstance(error, Exception):
                raise

    def tail(self) -> list[Event]:
        """Return the events appended since the last call, by any process; all at the first call."""
        return [event for events in self.new_batches() for event in events]

    def new_batches(self) -> Iterator[list[Event]]:
        """Yield the events appended since the last call in batches, for a journal of any size."""
        with self._reading:
            if self._closed:
                return
            self._reopen_after_fork()
            while True:
                if self._reader is None:
                    self._reader = _Reader(self.path)
                # Determined first: nobody appends to a file that was renamed before.
                replaced = not _same_file(self.path, self._reader.descriptor)
                yield from self._reader.batches()
                if not replaced or not self.path.exists():
                    return
                self._skipped += self._reader.skipped
                self._reader.close()
                self._reader = None

    def close(self) -> None:
        """Close the file; further appends raise."""
        with self._writing, self._reading:
            self._closed = True
            if self._written is not None:
                os.close(self._written)
            if self._reader is not None:
                self._skipped += self._reader.skipped
                self._reader.close()
            self._written = self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r})"

    def _reopen_after_fork(self) -> None:
        """Open the files again in a forked process, which shares locks with its parent."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        if self._written is not None:
            os.close(self._written)
            self._written = None
        if self._reader is not None:
            self._reader = self._reader.reopened(self.path)

    def _descriptor(self) -> int:
        """Return the descriptor to append to; the file is created if it is missing."""
        if self._written is None:
            new = not self.path.exists()
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._written = os.open(self.path, flags, 0o666)
            if new:
                sync(self.path.parent)
        return self._written

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file at the path; if it is renamed meanwhile, the one that is there then."""
        if self._closed:
            raise ValueError(f"the journal {self.path} is closed; open it again")
        self._reopen_after_fork()
        while True:
            descriptor = self._descriptor()
            with _lock(descriptor, exclusive=True):
                if _same_file(self.path, descriptor):
                    yield descriptor
                    return
            os.close(descriptor)
            self._written = None


class _Reader:
    """Reads complete events of a file from a position onwards."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self.skipped = 0
        self.position = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def reopened(self, path: Path) -> "_Reader":
        """Return a reader at the same position with a descriptor of its own, if that is possible.

        It is, unless the file was renamed.
        """
        if not _same_file(path, self.descriptor):
            return self
        fresh = _Reader(path)
        fresh.skipped, fresh.position = self.skipped, self.position
        self.close()
        return fresh

    def batches(self, until: int | None = None) -> Iterator[list[Event]]:
        """Yield the new events, in batches; `until` is where to stop, by default the end."""
        end = os.fstat(self.descriptor).st_size if until is None else until
        if end < self.position:  # emptied by somebody
            self.position = 0
        while self.position < end:
            data = self._complete_lines(end)
            if not data:
                return
            self.position += len(data)
            yield self._events(data)

    def rest(self, end: int) -> list[Event]:
        """Return the event of the last line if only its newline is missing; after `batches`."""
        data = os.pread(self.descriptor, end - self.position, self.position)
        return self._events(data + b"\n") if data else []

    def _complete_lines(self, end: int) -> bytes:
        """Read complete lines, at least one if there is one before `end`."""
        # Under the lock, so that what a failing writer takes back is not read.
        with _lock(self.descriptor, exclusive=False):
            size = min(_BLOCK, end - self.position)
            while True:
                data = os.pread(self.descriptor, size, self.position)
                line = data.rfind(b"\n") + 1
                if line or self.position + size >= end:
                    return data[:line]
                size *= 2  # an unusually long line

    def _events(self, data: bytes) -> list[Event]:
        lines = data.split(b"\n")[:-1]
        found = [event for line in lines if (event := decode(line)) is not None]
        self.skipped += len(lines) - len(found)
        return found


@dataclass(frozen=True, eq=False)
class JournalColumns:
    """The events of a journal, column by column.

    Attributes:
        users: ids of the users.
        items: ids of the items.
        times: (events,) int64, microseconds since 1970.
        skipped: number of lines that are not events.
    """

    users: list[Any]
    items: list[Any]
    times: np.ndarray
    skipped: int

    def __len__(self) -> int:
        return len(self.users)


def read_journal(path: str | os.PathLike[str]) -> JournalColumns:
    """Read the complete events of a journal, up to its end at the time of the call.

    Others may go on appending meanwhile. Lines that are not events are skipped and counted; a file
    that does not begin with an event raises a `DataError`.
    """
    file = Path(path)
    users: list[Any] = []
    items: list[Any] = []
    times: list[int] = []
    try:
        reader = _Reader(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be opened ({error.strerror}); check the path") from None
    try:
        _check_begins_with_event(file, reader.descriptor)
        with _lock(reader.descriptor, exclusive=False):  # not within a line
            end = os.fstat(reader.descriptor).st_size
        with phase(f"reading {file.name}", total=max(end, 1)) as progress:
            rest = (reader.rest(end) for _ in range(1))  # once the batches are read
            for events in itertools.chain(reader.batches(end), rest):
                users += [event.user for event in events]
                items += [event.item for event in events]
                times += [microseconds(event.time) for event in events]
                progress.advance(reader.position)
    finally:
        reader.close()
    return JournalColumns(users, items, np.array(times, dtype=np.int64), reader.skipped)


@contextlib.contextmanager
def _lock(descriptor: int, *, exclusive: bool) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _same_file(path: Path, descriptor: int) -> bool:
    """Return whether the open file is the one at the path."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _write_whole(descriptor: int, data: bytes) -> None:
    """Append the data, or raise and take back what was written of it."""
    end = os.fstat(descriptor).st_size
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    except BaseException:
        with contextlib.suppress(OSError):  # otherwise the next writer removes it
            os.ftruncate(descriptor, end)
        raise


def _repair(descriptor: int) -> None:
    """Remove an incomplete last line, or complete it if only the newline is missing."""
    end = os.fstat(descriptor).st_size
    if end == 0 or os.pread(descriptor, 1, end - 1) == b"\n":
        return
    start, tail = end, b""
    while start > 0 and b"\n" not in tail:
        step = min(_BLOCK, start)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
    line = tail.rfind(b"\n") + 1
    if decode(tail[line:]) is not None:
        os.write(descriptor, b"\n")
    else:
        os.ftruncate(descriptor, start + line)


def _check_begins_with_event(path: Path, descriptor: int) -> None:
    """Raise a DataError for a file that was never a journal, before anything is changed in it."""
    head = os.pread(descriptor, _BLOCK, 0)
    line, newline, _ = head.partition(b"\n")
    begun = encode(Event(0, 0))[: len(b'{"user": ')]
    # Of an incomplete only line the beginning, or the zeros that a power failure leaves.
    torn = not newline and (
        line.startswith(begun) or begun.startswith(line) or not line.strip(b"\0")
    )
    if not torn and decode(line) is None and not line.startswith((begun, b"\0")):
        shown = line[:_SHOWN].decode(errors="replace")
        raise DataError(
            f"{path}: expected a journal, whose lines are as {encode(Event('ann', 'tea'))!r}, got "
            f"{shown!r}; choose another file"
        )
