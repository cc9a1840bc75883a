"""Micro-batches: what waits while a batch is computed forms the next batch."""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Batcher"]

T = TypeVar("T")
R = TypeVar("R")

_FEW = 4  # entries of a small batch
_SHORT = 0.004  # seconds that the event loop may be kept from other work
_SMOOTHING = 0.1  # weight of the last small batch in the estimate of their time


class Batcher(Generic[T, R]):
    """Computes entries in batches; nothing ever waits for company.

    If nothing is being computed, an entry starts at once, together with those that the event loop
    has already received. While a batch is computed entries gather, and all of them, up to `most`,
    form the next one.

    Batches are computed in a thread, so that the event loop goes on receiving and sending. Small
    ones are computed in the event loop itself if they have proved to be short: handing a lone entry
    to a thread and back takes about as long as ranking it.

    Args:
        compute: returns a result, or an exception to raise, for each entry of a batch.
        most: entries of a batch.
        name: of the thread.
        observe: called in the event loop with the entries and seconds of each batch.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[T]], Sequence[R | Exception]],
        most: int,
        name: str,
        observe: Callable[[int, float], None],
    ) -> None:
        self._compute, self._most, self._observe = compute, most, observe
        self._lock = threading.Lock()  # guards the next two
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._busy = False  # whether a batch is computed or about to be
        self._batch: list[tuple[T, asyncio.Future[R]]] = []  # handed to the thread
        self._wake = threading.Semaphore(0)
        self._few_seconds: float | None = None  # of a small batch
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, entries: Sequence[T]) -> "list[asyncio.Future[R]]":
        """Return the future results of the entries; call it in the event loop."""
        loop = self._loop = self._loop or asyncio.get_running_loop()
        futures: list[asyncio.Future[R]] = [loop.create_future() for _ in entries]
        with self._lock:
            self._waiting.extend(zip(entries, futures, strict=True))
            start, self._busy = not self._busy, True
        if start:  # after the other requests that have been received
            loop.call_soon(self._start)
        return futures

    def stop(self) -> None:
        """End the thread after what waits has been computed."""
        self._stopped = True
        self._wake.release()
        self._thread.join()

    def _take(self) -> "list[tuple[T, asyncio.Future[R]]]":
        """Return the next batch; if nothing waits, it is empty, and nobody is busy any more."""
        batch: list[tuple[T, asyncio.Future[R]]] = []
        with self._lock:
            while self._waiting and len(batch) < self._most:
                entry = self._waiting.popleft()
                # A request that was given up, by a time limit or its client, is not computed.
                if not entry[1].done():
                    batch.append(entry)
            self._busy = bool(batch)
        return batch

    def _start(self) -> None:
        """Compute the next batch here, or hand it to the thread."""
        batch = self._take()
        short = self._few_seconds is not None and self._few_seconds < _SHORT
        if not batch or len(batch) > _FEW or not short:
            self._batch = batch
            if batch:
                self._wake.release()
            return
        self._deliver(batch, *self._computed(batch))
        assert self._loop is not None
        self._loop.call_soon(self._start)  # what has come meanwhile

    def _run(self) -> None:
        while True:
            self._wake.acquire()
            batch, self._batch = self._batch, []
            while batch:
                results, seconds = self._computed(batch)
                following = self._take()
                assert self._loop is not None  # set by submit
                with contextlib.suppress(RuntimeError):  # the loop was closed
                    self._loop.call_soon_threadsafe(self._deliver, batch, results, seconds)
                batch = following
            if self._stopped:
                return

    def _computed(
        self, batch: "list[tuple[T, asyncio.Future[R]]]"
    ) -> tuple[Sequence[R | Exception], float]:
        began = time.perf_counter()
        try:
            results = self._compute([entry for entry, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        return results, time.perf_counter() - began

    def _deliver(
        self,
        batch: "list[tuple[T, asyncio.Future[R]]]",
        results: Sequence[R | Exception],
        seconds: float,
    ) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        if len(batch) <= _FEW:
            before = seconds if self._few_seconds is None else self._few_seconds
            self._few_seconds = before + _SMOOTHING * (seconds - before)
        self._observe(len(batch), seconds)
