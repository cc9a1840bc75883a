"""Micro-batches: nothing waits for company, and what waits is computed together."""

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from fewfold.serve import batching
from fewfold.serve.batching import Batcher


class Computing:
    """Doubles numbers, one batch at a time, when it is let; remembers batches and threads."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.batches: list[list[int]] = []
        self.threads: list[str] = []
        self.seconds, self.let = seconds, threading.Event()
        self.let.set()

    def __call__(self, entries: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(entries))
        self.threads.append(threading.current_thread().name)
        self.let.wait()
        time.sleep(self.seconds)
        if -1 in entries:
            raise RuntimeError("all of it")
        return [ValueError(str(n)) if n == 13 else 2 * n for n in entries]


def batcher(compute: Computing, most: int = 8) -> tuple[Batcher[int, int], list[int]]:
    seen: list[int] = []
    return Batcher(compute, most, "computing", lambda entries, _: seen.append(entries)), seen


def test_what_waits_forms_the_next_batch() -> None:
    compute = Computing()
    compute.let.clear()
    made, seen = batcher(compute)

    async def run() -> list[int]:
        first = made.submit([1])
        await asyncio.sleep(0.05)  # the first is being computed
        others = [future for n in range(2, 12) for future in made.submit([n])]
        await asyncio.sleep(0.05)
        compute.let.set()
        return list(await asyncio.gather(*first, *others))

    assert asyncio.run(run()) == [2 * n for n in range(1, 12)]
    made.stop()
    assert compute.batches == [[1], list(range(2, 10)), [10, 11]]  # at most eight, each once
    assert seen == [1, 8, 2]


def test_requests_received_together_are_computed_together() -> None:
    compute = Computing()
    made, _ = batcher(compute)

    async def ask(n: int) -> int:
        return await made.submit([n])[0]

    async def run() -> list[int]:
        return list(await asyncio.gather(*(ask(n) for n in range(5))))

    assert asyncio.run(run()) == [0, 2, 4, 6, 8]
    assert compute.batches == [[0, 1, 2, 3, 4]]
    made.stop()


@pytest.mark.parametrize(("seconds", "place"), [(0.0, "MainThread"), (0.02, "computing")])
def test_short_batches_are_computed_in_the_event_loop(seconds: float, place: str) -> None:
    compute = Computing(seconds)
    made, _ = batcher(compute)

    async def run() -> None:
        for n in range(4):
            assert await made.submit([n])[0] == 2 * n
        many = [future for n in range(8) for future in made.submit([n])]
        await asyncio.gather(*many)

    asyncio.run(run())
    assert compute.threads[0] == "computing"  # it is not known yet how long it takes
    assert compute.threads[1:4] == [place] * 3
    assert compute.threads[4] == "computing"  # more than a few
    made.stop()


def test_errors_reach_whom_they_concern() -> None:
    compute = Computing()
    made, _ = batcher(compute)

    async def run() -> None:
        results = await asyncio.gather(*made.submit([1, 13, 2]), return_exceptions=True)
        assert [str(one) for one in results] == ["2", "13", "4"]
        for _ in range(2):  # in the thread, then in the loop
            failed = await asyncio.gather(*made.submit([5, -1]), return_exceptions=True)
            assert [type(one) for one in failed] == [RuntimeError, RuntimeError]
        assert await made.submit([6])[0] == 12

    asyncio.run(run())
    made.stop()


def test_what_was_given_up_is_not_computed() -> None:
    compute = Computing()
    compute.let.clear()
    made, _ = batcher(compute)

    async def run() -> None:
        (first,) = made.submit([1])
        await asyncio.sleep(0.05)
        (second, third) = made.submit([2, 3])
        first.cancel()
        second.cancel()
        compute.let.set()
        assert await third == 6

    asyncio.run(run())
    assert compute.batches == [[1], [3]]
    made.stop()


def test_stop_computes_what_waits() -> None:
    compute = Computing(0.02)
    made, _ = batcher(compute)

    async def run() -> list[int]:
        futures = made.submit(list(range(100, 120)))
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, made.stop)
        return list(await asyncio.gather(*futures))

    assert asyncio.run(run()) == [2 * n for n in range(100, 120)]


def test_many_threads_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every entry is answered once, whatever the order of events."""
    monkeypatch.setattr(batching, "_SHORT", 0.0005)
    compute = Computing(0.0003)
    made, seen = batcher(compute)

    async def ask(n: int) -> None:
        for step in range(20):
            assert await made.submit([100 * n + step])[0] == 2 * (100 * n + step)
            await asyncio.sleep(0.0005 * (n % 3))

    async def run() -> None:
        await asyncio.gather(*(ask(n) for n in range(20, 40)))

    asyncio.run(run())
    assert sum(seen) == 400
    assert sorted(n for batch in compute.batches for n in batch) == sorted(
        100 * n + step for n in range(20, 40) for step in range(20)
    )
    made.stop()
