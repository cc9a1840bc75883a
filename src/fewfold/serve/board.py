"""Counters of all workers in one file of shared memory.

Each worker writes to a row of its own, without locks; whoever is asked reads all rows. A worker
that replaces a dead one continues its row, so that counters never go back.
"""

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

try:
    import fcntl
except ImportError:  # a system without locks of files, which has one worker only
    fcntl = None  # type: ignore[assignment]

__all__ = ["BATCH_BOUNDS", "LATENCY_BOUNDS", "STATUSES", "Board", "LastMinute", "Totals"]

STATUSES = (200, 201, 304, 400, 401, 404, 405, 408, 413, 415, 429, 500, 503, 504, 0)  # 0: others
LATENCY_BOUNDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_FINE = [1e-4 * 1.1**power for power in range(140)]  # up to about a minute, for percentiles
_WINDOW, _SLOTS = 60, 64  # seconds of the window, and slots of one second each
_SPARE = 2  # rows for workers that start before those they replace have ended
_PLACE = {status: place for place, status in enumerate(STATUSES)}

_WORKER = np.dtype(
    [(name, np.float64) for name in ("pid", "started", "loaded", "reloads", "failed_reloads")]
)
_SECOND = np.dtype(
    [(name, np.float64) for name in ("time", "requests", "errors", "batches", "entries", "most")]
    + [("latencies", np.float64, len(_FINE) + 1)]
)

_IN_SECOND = {name: place // 8 for name, (_, place, *_) in (_SECOND.fields or {}).items()}
_BUCKETS = len(LATENCY_BOUNDS) + 1


def _row(routes: int) -> np.dtype:
    """The record of a worker."""
    return np.dtype(
        [
            ("worker", _WORKER),
            ("requests", np.float64, (routes, len(STATUSES))),
            ("latencies", np.float64, (routes, len(LATENCY_BOUNDS) + 1)),
            ("latency_sum", np.float64, routes),
            ("batches", np.float64, len(BATCH_BOUNDS) + 1),
            ("entries", np.float64),
            ("compute_seconds", np.float64),
            ("seconds", _SECOND, _SLOTS),
        ]
    )


@dataclass(frozen=True, eq=False)
class LastMinute:
    """Sums over all workers and the last minute.

    Attributes:
        seconds: length of the window; shorter at the beginning.
        requests: how many.
        errors: how many of them had a status of 500 or more.
        batches, entries, most: number of batches, their entries, entries of the largest.
        latencies: requests by latency, as `percentile` reads them.
    """

    seconds: float
    requests: int
    errors: int
    batches: int
    entries: int
    most: int
    latencies: np.ndarray

    def percentile(self, share: float) -> float | None:
        """Return the latency in seconds within which this share of the requests was answered."""
        total = self.latencies.sum()
        if not total:
            return None
        sums = np.cumsum(self.latencies)
        place = int(np.searchsorted(sums, share * total))
        low = 0.0 if place == 0 else _FINE[place - 1]
        high = _FINE[min(place, len(_FINE) - 1)]
        inside = (share * total - (sums[place - 1] if place else 0)) / self.latencies[place]
        return float(low + (high - low) * inside)


@dataclass(frozen=True)
class Totals:
    """Counts of all workers since the start.

    Attributes:
        requests: how many.
        errors: how many of them had a status of 500 or more.
        reloads: models that took over, in the worker that had most.
        started: when the first worker started, in seconds since 1970.
    """

    requests: int
    errors: int
    reloads: int
    started: float


class Board:
    """Counters of all workers.

    Args:
        folder: of the files that all workers share.
        workers: number of workers.
        routes: names of the routes that are counted.

    Attributes:
        rows: a record of counters per worker; the first are those of the workers.
        mine: the record of this process, after `claim`.
    """

    def __init__(self, folder: Path, workers: int, routes: Sequence[str]) -> None:
        self.routes = {name: number for number, name in enumerate(routes)}
        self._folder = folder
        kind = _row(len(routes))
        size = (workers + _SPARE) * kind.itemsize
        with (folder / "counters").open("a+b") as file:
            file.truncate(size)  # new bytes are zero
            self._memory = mmap.mmap(file.fileno(), size)
        self.rows = np.frombuffer(self._memory, kind, workers + _SPARE)
        self._at = {name: place // 8 for name, (_, place, *_) in (kind.fields or {}).items()}
        self._use(0)

    def _use(self, row: int) -> None:
        self.mine = self.rows[row]
        # Written at every request, so by place: fields of a record take longer to find.
        size = self.rows.dtype.itemsize // 8
        self._numbers = memoryview(self._memory)[8 * row * size : 8 * (row + 1) * size].cast("d")

    def claim(self) -> None:
        """Take a row that no living process has; the lock ends with this process."""
        for row in range(len(self.rows)):
            descriptor = os.open(self._folder / f"{row}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self._use(row)
            break
        worker = self.mine["worker"]
        worker["pid"] = os.getpid()
        worker["started"] = worker["started"] or time.time()

    @property
    def stopping(self) -> bool:
        """Whether the server is about to end."""
        return (self._folder / "stopping").exists()

    def request(self, route: int, status: int, seconds: float) -> None:
        """Count an answered request."""
        numbers, at = self._numbers, self._at
        place = at["requests"] + route * len(STATUSES) + _PLACE.get(status, _PLACE[0])
        numbers[place] += 1
        place = at["latencies"] + route * _BUCKETS + bisect_left(LATENCY_BOUNDS, seconds)
        numbers[place] += 1
        numbers[at["latency_sum"] + route] += seconds
        slot = self._slot()
        numbers[slot + _IN_SECOND["requests"]] += 1
        numbers[slot + _IN_SECOND["errors"]] += status >= 500
        numbers[slot + _IN_SECOND["latencies"] + bisect_left(_FINE, seconds)] += 1

    def batch(self, entries: int, seconds: float) -> None:
        """Count a computed batch."""
        numbers, at = self._numbers, self._at
        numbers[at["batches"] + bisect_left(BATCH_BOUNDS, entries)] += 1
        numbers[at["entries"]] += entries
        numbers[at["compute_seconds"]] += seconds
        slot = self._slot()
        numbers[slot + _IN_SECOND["batches"]] += 1
        numbers[slot + _IN_SECOND["entries"]] += entries
        most = slot + _IN_SECOND["most"]
        numbers[most] = max(numbers[most], entries)

    def loaded(self, when: float, *, first: bool) -> None:
        """Count a model that was loaded."""
        self.mine["worker"]["loaded"] = when
        if not first:
            self.mine["worker"]["reloads"] += 1

    def failed_reload(self) -> None:
        """Count a model that could not be loaded."""
        self.mine["worker"]["failed_reloads"] += 1

    def _slot(self) -> int:
        """Return the place of the counters of this second."""
        now = int(time.monotonic())
        slot = self._at["seconds"] + now % _SLOTS * (_SECOND.itemsize // 8)
        if self._numbers[slot] != now:
            self.mine["seconds"][now % _SLOTS] = 0
            self._numbers[slot] = now
        return slot

    def totals(self) -> "Totals":
        """Return the counts of all workers since the start."""
        counts, worker = self.rows["requests"].sum((0, 1)), self.rows["worker"]
        failed = np.array([status >= 500 for status in STATUSES])
        started = worker["started"]
        return Totals(
            int(counts.sum()),
            int(counts[failed].sum()),
            int(worker["reloads"].max()),
            float(started[started > 0].min(initial=time.time())),
        )

    def last_minute(self) -> LastMinute:
        """Return what happened in the last minute, in all workers."""
        now = int(time.monotonic())
        slots = self.rows["seconds"].ravel()
        recent = slots[(slots["time"] >= now - _WINDOW) & (slots["time"] < now)]
        age = time.time() - self.totals().started
        return LastMinute(
            max(1.0, min(float(_WINDOW), age)),
            int(recent["requests"].sum()),
            int(recent["errors"].sum()),
            int(recent["batches"].sum()),
            int(recent["entries"].sum()),
            int(recent["most"].max(initial=0)),
            recent["latencies"].sum(0),
        )

    def pids(self) -> list[int]:
        """Return the processes of the workers that live."""
        found = self.rows["worker"]["pid"].astype(int).tolist()
        return [pid for pid in found if pid and Path(f"/proc/{pid}").exists()]
