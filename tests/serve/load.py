"""Load on a server: threads that ask without a pause, and keep what they were told."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

Ask = Callable[[httpx.Client], Any]


class Load:
    """Threads that ask in turn, each on a connection of its own, until the load is stopped.

    Attributes:
        answers: what the questions returned, in order of arrival.
        errors: exceptions of the questions, which go on after one.
    """

    def __init__(self, url: str, questions: Iterable[Ask], threads: int) -> None:
        self.answers: list[Any] = []
        self.errors: list[Exception] = []
        self._url, self._questions = url, list(questions)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(threads)
        ]

    def _run(self, number: int) -> None:
        with httpx.Client(base_url=self._url, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    found = self._questions[number % len(self._questions)](client)
                except Exception as error:
                    self.errors.append(error)
                    if self._stop.wait(0.01):
                        return
                else:
                    self.answers.append(found)
                number += 1

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the questions under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
            assert not thread.is_alive(), "a request hangs"


@contextmanager
def load(url: str, questions: Iterable[Ask], threads: int = 2) -> Iterator[Load]:
    """Ask while the block runs."""
    found = Load(url, questions, threads)
    found.start()
    try:
        yield found
    finally:
        found.stop()
