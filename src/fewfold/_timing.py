"""Compare the running times of functions by interleaved repetitions in one process.

The demo and all benchmarks measure with :func:`race`, so that their numbers are comparable.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Seconds per call of one function: median and quartiles over the rounds."""

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
    """Measure several functions in interleaved rounds; return the seconds per call of each.

    A round runs every function once, so that temporary slowness of the machine affects all of them.
    Every other round runs in reverse order, so that no function always follows the same one. Calls
    too short for the clock are repeated within a round.

    Args:
        calls: the functions by name.
        seconds: approximate duration of the whole measurement.
        rounds: minimum and maximum number of rounds.
        before: functions to run, untimed, before each call of the same name; then a round has a
            single call of each function.
        clock: returns the time in seconds. `time.thread_time` counts the processor time of this
            thread, which excludes other processes on a shared machine.

    >>> calls = {"short": lambda: sum(range(10)), "long": lambda: sum(range(5000))}
    >>> times = race(calls, seconds=0.05)
    >>> times["short"].median < times["long"].median
    True
    """
    prepare = before or {}
    once = {name: _warm(call, prepare.get(name), clock) for name, call in calls.items()}
    # About 200 microseconds per function and round: well above the resolution of the clock.
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
                taken[name].append(_seconds_per_call(calls[name], turns[name], clock))
    finally:
        if collecting:
            gc.enable()
    return {name: _summary(times) for name, times in taken.items()}


def _warm(call: Call, prepare: Call | None, clock: Callable[[], float]) -> float:
    """Run a function up to three times; return the approximate seconds per call."""
    times = []
    for _ in range(3):
        if prepare is not None:
            prepare()
        times.append(_seconds_per_call(call, 1, clock))
        if times[-1] > 0.5:  # first-call overhead is negligible compared with this
            break
    return max(min(times), 1e-7)


def _seconds_per_call(call: Call, turns: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(turns):
        call()
    return (clock() - start) / turns


def _summary(times: list[float]) -> Timing:
    low, middle, high = statistics.quantiles(times, n=4)
    return Timing(middle, low, high, len(times))
