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


class Batcher(Generic[T, R]):
    """Computes entries in batches in a thread of its own; a lone entry starts at once.

    Nothing ever waits for company: while the thread computes a batch, entries gather, and all of
    them, up to `most`, form the next one.

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
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._wake = threading.Semaphore(0)
        self._idle = True  # whether the thread waits for the semaphore
        self._lock = threading.Lock()
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
            wake, self._idle = self._idle, False
        if wake:
            self._wake.release()
        return futures

    def stop(self) -> None:
        """End the thread after what waits has been computed."""
        with self._lock:
            self._stopped = True
        self._wake.release()
        self._thread.join()

    def _take(self) -> "list[tuple[T, asyncio.Future[R]]]":
        """Return the next batch; if nothing waits, it is empty, and the thread is idle."""
        with self._lock:
            count = min(len(self._waiting), self._most)
            batch = [self._waiting.popleft() for _ in range(count)]
            self._idle = not batch
        return batch

    def _run(self) -> None:
        while True:
            batch = self._take()
            if not batch:
                if self._stopped:
                    return
                self._wake.acquire()
                continue
            # A request that was given up, by a time limit or its client, is not computed.
            batch = [entry for entry in batch if not entry[1].done()]
            if batch:
                self._run_batch(batch)

    def _run_batch(self, batch: "list[tuple[T, asyncio.Future[R]]]") -> None:
        began = time.perf_counter()
        try:
            results = self._compute([entry for entry, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        seconds = time.perf_counter() - began
        assert self._loop is not None  # set by submit
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._deliver, batch, results, seconds)

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
        self._observe(len(batch), seconds)
