"""Progress display on one line of a terminal, with an estimate of the remaining time."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["Phase", "inside_phase", "line", "notes", "over", "phase", "silence"]

_Part = TypeVar("_Part")
_PATIENCE = 2.0  # seconds of work before anything is shown
_TICK = 0.5  # seconds between two updates
_NOTE = 30.0  # seconds between two lines in a file
_ENOUGH = 0.01  # finished fraction from which the remaining time is estimated
_silent = False
_notes = False


def line(text: str) -> None:
    """Overwrite the progress line of a terminal; no output to a file or if FEWFOLD_PROGRESS=0."""
    if _shown() and sys.stderr.isatty():
        with _phases.lock:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _shown() -> bool:
    if _silent or sys.stderr is None or sys.stderr.closed:
        return False
    return os.environ.get("FEWFOLD_PROGRESS", "1") != "0"


@contextlib.contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Suppress all progress inside this block, if `wanted`."""
    global _silent
    before, _silent = _silent, _silent or wanted
    try:
        yield
    finally:
        _silent = before


@contextlib.contextmanager
def notes(wanted: bool = True) -> Iterator[None]:
    """Inside this block, write progress lines also if stderr is a file, at longer intervals."""
    global _notes
    before, _notes = _notes, _notes or wanted
    try:
        yield
    finally:
        _notes = before


class Phase:
    """A running computation whose progress is shown.

    Attributes:
        what: its name.
        seconds: estimated total duration, if known in advance.
        total: number of parts, if known.
        done: number of finished parts.
        part: size of the current part, in parts; a phase inside this one shows how much of it is
            finished.
        managed: whether it is certain to end with its `with` block. A phase started by `over` lasts
            as long as its generator, which an exception may keep alive, so that the thread does not
            show it.
        shown_at: when it was last shown.
    """

    def __init__(
        self,
        what: str,
        *,
        total: float | None = None,
        seconds: float | None = None,
        managed: bool = True,
    ) -> None:
        self.what, self.total, self.seconds, self.done = what, total, seconds, 0.0
        self.managed, self.part, self._reached = managed, 1.0, 0.0
        self.began = self.shown_at = self._counted = time.monotonic()

    def advance(self, done: float) -> None:
        """Set the number of finished parts, and update the display if it is due."""
        self.done, self._counted = done, time.monotonic()
        now = self._counted
        if done and now - self.shown_at > _TICK:
            _phases.show(now)

    def each(self, parts: Sequence[_Part]) -> Iterator[_Part]:
        """Iterate over the parts, counting each as one of `total`."""
        for done, part in enumerate(parts):
            self.advance(done)
            yield part

    def left(self, now: float, inner: float = 0.0) -> tuple[float | None, float | None]:
        """Return the finished fraction and the remaining seconds, None where unknown.

        Args:
            inner: finished fraction of the current part, from the phase inside this one.
        """
        passed = now - self.began
        if self.total:
            share = min((self.done + inner * self.part) / self.total, 1.0)
            self._reached = share = max(share, self._reached)
            if share < _ENOUGH and self.seconds is None:
                return share, None  # too little to tell
            if share > 0:
                at = now if inner else self._counted  # the time at which the share was measured
                whole = (at - self.began) / share
                return share, max(whole - passed, 0.0)
        if self.seconds is not None:
            return None, max(self.seconds - passed, 0.0)
        return None, None


class _Phases:
    """Stack of the running phases, outermost first, and the thread that displays them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stack: list[Phase] = []
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._noted = time.monotonic()
        self._drawn = False
        self._busy = self._ended = -_TICK  # start of the current work, end of the last

    def push(self, found: Phase) -> None:
        with self.lock:
            if not any(each.managed for each in self.stack):
                self.stack.clear()  # phases that an exception left behind
                self._noted = found.began
                if found.began - self._ended > _TICK:
                    self._busy = found.began
            self.stack.append(found)
        if not _shown() or not (_notes or sys.stderr.isatty()):
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._thread.start()
        self._work.set()

    def pop(self, found: Phase) -> None:
        with self.lock:
            if found in self.stack:
                self.stack.remove(found)
            if not any(each.managed for each in self.stack):
                self._ended = time.monotonic()
            if not self.stack:
                self._work.clear()
            if self._drawn and found.shown_at > found.began:
                self._drawn = False
                line("")

    def _tick(self) -> None:
        while self._work.wait():
            time.sleep(_TICK)
            with self.lock:
                if any(each.managed for each in self.stack):
                    now = time.monotonic()
                    if now - self.stack[-1].shown_at > _TICK:
                        self.show(now)

    def show(self, now: float) -> None:
        """Update the line of a terminal, or write a line to a file."""
        with self.lock:
            if not self.stack or not _shown():
                return
            found, text = self._text(now)
            # Consecutive short phases count as one long one.
            if now - self._busy <= _PATIENCE or now - found.began <= _TICK:
                return
            if sys.stderr.isatty():
                found.shown_at = self.stack[-1].shown_at = now
                self._drawn = True
                line(text)
            elif _notes and now - self._noted > _NOTE:
                self._noted = now
                print(text, file=sys.stderr, flush=True)

    def _text(self, now: float) -> tuple[Phase, str]:
        """Return the outermost phase with an estimate, and the text to show."""
        inner = 0.0
        known: tuple[Phase, float | None, float | None] | None = None
        for found in reversed(self.stack):
            share, left = found.left(now, inner)
            if left is not None:
                known = found, share, left
            inner = share or 0.0
        if known is None:
            found = self.stack[-1]
            return found, f"{found.what}: {now - found.began:.0f} s so far"
        found, share, left = known
        parts = [] if share is None else [f"{share:.0%}"]
        return found, f"{found.what}: {', '.join([*parts, f'{left:.0f} s left'])}"

    def forked(self) -> None:
        """Reset after a fork: the child has no running phases and no thread holding the lock."""
        self.__init__()  # type: ignore[misc]


def inside_phase() -> bool:
    """Return whether an outer phase with a known total is running and displays the progress."""
    return any(found.total is not None and found.managed for found in _phases.stack)


_phases = _Phases()
os.register_at_fork(after_in_child=_phases.forked)


@contextlib.contextmanager
def phase(
    what: str, *, total: float | None = None, seconds: float | None = None
) -> Iterator[Phase]:
    """Show the progress of the block after two seconds.

    A thread updates the display, also while one long operation runs.

    Args:
        what: its name.
        total: number of parts; iterate with `each` of the returned phase, or call `advance`.
        seconds: estimated duration, if there are no parts to count.

    Example:
        >>> with phase("adding", total=3) as adding:
        ...     sum(adding.each([1, 2, 3]))
        6
    """
    found = Phase(what, total=total, seconds=seconds)
    _phases.push(found)
    try:
        yield found
    finally:
        _phases.pop(found)


def over(what: str, parts: Sequence[_Part]) -> Iterator[_Part]:
    """Iterate over the parts and show the progress after two seconds.

    The display is updated between two parts only; for long parts use `phase`.

    Example:
        >>> [part * part for part in over("squaring", range(4))]
        [0, 1, 4, 9]
    """
    found = Phase(what, total=len(parts), managed=False)
    _phases.push(found)
    try:
        yield from found.each(parts)
    finally:
        _phases.pop(found)
