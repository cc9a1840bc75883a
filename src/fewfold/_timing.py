"""Fair races between functions: interleaved repetitions in one process, medians per call.

The demonstration and every benchmark measure with :func:`race`, so that a number means the same
thing wherever it is printed.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one contestant: the median and the quartiles over the rounds."""

    median: float
    low: float
    high: float
    rounds: int


def race(
    calls: Mapping[str, Call],
    *,
    seconds: float = 1.0,
    rounds: tuple[int, int] = (5, 200),
    before: Mapping[str, Call] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time several functions against each other and return the seconds one call of each takes.

    A round runs every contestant once, so that a slow moment of the machine hits all of them, and
    every other round runs them backwards, so that none always inherits the caches of the same
    neighbour. Calls too short for the clock are repeated within a round.

    Args:
        calls: the contestants by name.
        seconds: about how long the whole race may take.
        rounds: the least and the most rounds, whatever the time.
        before: what to run, untimed, right before a contestant's call, of which a round then
            holds just one.
        clock: the time in seconds. `time.thread_time` counts what this thread computes, and so
            leaves out the turns of others on a machine that is shared.

    >>> calls = {"short": lambda: sum(range(10)), "long": lambda: sum(range(5000))}
    >>> times = race(calls, seconds=0.05)
    >>> times["short"].median < times["long"].median
    True
    """
    prepare = before or {}
    once = {name: _warm(call, prepare.get(name), clock) for name, call in calls.items()}
    # About 200 microseconds a turn: far above the clock's grain, short enough to interleave.
    turns = {name: 1 if before else max(1, int(2e-4 / once[name])) for name in calls}
    one_round = sum(once[name] * turns[name] for name in calls)
    count = min(max(int(seconds / one_round), rounds[0]), rounds[1])
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number in range(count):
            for name in order if number % 2 == 0 else reversed(order):
                if name in prepare:
                    prepare[name]()
                taken[name].append(_taken(calls[name], turns[name], clock))
    finally:
        if collecting:
            gc.enable()
    return {name: _summary(times) for name, times in taken.items()}


def _warm(call: Call, prepare: Call | None, clock: Callable[[], float]) -> float:
    """Run a contestant until its first-call costs are paid; return about what one call takes."""
    times = []
    for _ in range(3):
        if prepare is not None:
            prepare()
        times.append(_taken(call, 1, clock))
        if times[-1] > 0.5:  # first-call costs are small next to this
            break
    return max(min(times), 1e-7)


def _taken(call: Call, turns: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(turns):
        call()
    return (clock() - start) / turns


def _summary(times: list[float]) -> Timing:
    low, middle, high = statistics.quantiles(times, n=4)
    return Timing(middle, low, high, len(times))
