"""Progress on one line of a terminal, with an estimate of the time left."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["Phase", "line", "notes", "over", "phase", "silence"]

_Part = TypeVar("_Part")
_PATIENCE = 2.0  # seconds of work that need no word
_TICK = 0.5  # seconds between two words
_NOTE = 30.0  # the same where it is a file that is written to
_silent = False
_notes = False


def line(text: str) -> None:
    """Overwrite one line of a terminal; say nothing into a file, nor if FEWFOLD_PROGRESS=0."""
    if _shown() and sys.stderr.isatty():
        with _phases.lock:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _shown() -> bool:
    if _silent or sys.stderr is None or sys.stderr.closed:
        return False
    return os.environ.get("FEWFOLD_PROGRESS", "1") != "0"


@contextlib.contextmanager
def silence(wanted: bool = True) -> Iterator[None]:
    """Not a word inside this block."""
    global _silent
    before, _silent = _silent, _silent or wanted
    try:
        yield
    finally:
        _silent = before


@contextlib.contextmanager
def notes(wanted: bool = True) -> Iterator[None]:
    """Inside this block also write into a file, a line now and then, what a terminal would show."""
    global _notes
    before, _notes = _notes, _notes or wanted
    try:
        yield
    finally:
        _notes = before


class Phase:
    """A piece of work that is under way.

    Attributes:
        what: its name.
        seconds: about how long it takes in all, if that is known in advance.
        total: of how many parts, if that is known.
        done: how many of these are.
        managed: whether it is sure to end with its block. One that `over` began lasts as long as
            its generator, which an exception may keep alive; nobody speaks for it.
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
        self.managed = managed
        self.began = self.told = self._counted = time.monotonic()

    def advance(self, done: float) -> None:
        """Say that so much of `total` is done by now, and show it if it is time to."""
        self.done, self._counted = done, time.monotonic()
        now = self._counted
        if done and now - self.told > _TICK:
            _phases.show(now)

    def each(self, parts: Sequence[_Part]) -> Iterator[_Part]:
        """The parts, one by one, each of them one of `total`."""
        for done, part in enumerate(parts):
            self.advance(done)
            yield part

    def left(self, now: float, inner: float = 0.0) -> tuple[float | None, float | None]:
        """The share that is done and the seconds left, as far as they are known.

        Args:
            inner: what is done of the part under way, by a phase within this one; from 0 to 1.
        """
        passed = now - self.began
        if self.total:
            share = min((self.done + inner) / self.total, 1.0)
            if share > 0:
                at = now if inner else self._counted  # up to when the share is known
                whole = (at - self.began) / share
                return share, max(whole - passed, 0.0)
        if self.seconds is not None:
            return None, max(self.seconds - passed, 0.0)
        return None, None


class _Phases:
    """The phases under way, outermost first, and the thread that speaks while they compute."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stack: list[Phase] = []
        self._thread: threading.Thread | None = None
        self._work = threading.Event()
        self._noted = time.monotonic()
        self._drawn = False
        self._busy = self._ended = -_TICK  # since when there is work, and until when there was

    def push(self, found: Phase) -> None:
        with self.lock:
            if not any(each.managed for each in self.stack):
                self.stack.clear()  # what an exception may have left
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
            if self._drawn and found.told > found.began:
                self._drawn = False
                line("")

    def _tick(self) -> None:
        while self._work.wait():
            time.sleep(_TICK)
            with self.lock:
                if any(each.managed for each in self.stack):
                    now = time.monotonic()
                    if now - self.stack[-1].told > _TICK:
                        self.show(now)

    def show(self, now: float) -> None:
        """Draw the line, or add one to a file."""
        with self.lock:
            if not self.stack or not _shown():
                return
            found, text = self._text(now)
            # Short phases one after the other are as long as a long one.
            if now - self._busy <= _PATIENCE or now - found.began <= _TICK:
                return
            if sys.stderr.isatty():
                found.told = self.stack[-1].told = now
                self._drawn = True
                line(text)
            elif _notes and now - self._noted > _NOTE:
                self._noted = now
                print(text, file=sys.stderr, flush=True)

    def _text(self, now: float) -> tuple[Phase, str]:
        """The outermost phase of which something is known, and what to say of it."""
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
        """In a child process nothing is under way, and nobody holds the lock."""
        self.__init__()  # type: ignore[misc]


_phases = _Phases()
os.register_at_fork(after_in_child=_phases.forked)


@contextlib.contextmanager
def phase(
    what: str, *, total: float | None = None, seconds: float | None = None
) -> Iterator[Phase]:
    """Name the work in this block; after two seconds it is shown how far it is.

    A thread speaks for it, so that it is also shown while one long operation runs.

    Args:
        what: its name.
        total: of how many parts; go through them by `each` of what is returned, or call `advance`.
        seconds: about how long it takes, where there are no parts to count.

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
    """The parts, one by one; what takes longer than two seconds tells how much of it is left.

    It speaks between two parts only; where one takes long, use `phase`.

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
