"""The counters of all workers in the format of Prometheus."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fewfold
from fewfold._optional import optional_import
from fewfold.serve.board import BATCH_BOUNDS, LATENCY_BOUNDS, STATUSES, Board
from fewfold.serve.live_model import Snapshot

with optional_import("prometheus-client", "serve", "fewfold serve"):
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector

__all__ = ["exposition", "memory"]


def memory(pid: int) -> int:
    """Return the bytes of memory of a process; what processes share is divided among them."""
    for name, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            lines = Path(f"/proc/{pid}/{name}").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith(field):
                return 1024 * int(line.split()[1])
    return 0


def exposition(board: Board, snapshot: Snapshot) -> bytes:
    """Return the measurements of all workers as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Measurements(board, snapshot))
    text: bytes = generate_latest(registry)
    return text


class _Measurements(Collector):
    """Reads the board when it is asked."""

    def __init__(self, board: Board, snapshot: Snapshot) -> None:
        self._board, self._snapshot = board, snapshot

    def collect(self) -> Iterator[Any]:
        """Yield all families."""
        rows, pids = self._board.rows, self._board.pids()
        yield from self._requests(rows)
        yield _histogram(
            "fewfold_batch_size", "Queries that were ranked together.",
            BATCH_BOUNDS, rows["batches"].sum(0), float(rows["entries"].sum()),
        )  # fmt: skip
        yield _counter(
            "fewfold_ranking_seconds", "Time spent in ranking.", rows["compute_seconds"].sum()
        )
        worker = rows["worker"]
        yield _counter("fewfold_reloads", "Models that took over.", worker["reloads"].sum())
        yield _counter(
            "fewfold_failed_reloads", "Models that could not be loaded.",
            worker["failed_reloads"].sum(),
        )  # fmt: skip
        yield _gauge("fewfold_workers", "Processes that answer.", len(pids))
        memories = GaugeMetricFamily(
            "fewfold_memory_bytes", "Memory; what workers share is divided among them.",
            labels=["worker"],
        )  # fmt: skip
        for number, pid in enumerate(worker["pid"].astype(int).tolist()):
            if pid in pids:
                memories.add_metric([str(number)], memory(pid))
        yield memories
        loaded = self._snapshot.loaded.timestamp()
        yield _gauge(
            "fewfold_model_age_seconds", "Time since the model was loaded.", time.time() - loaded
        )
        info = GaugeMetricFamily(
            "fewfold_model_info", "The model that answered this.", labels=["model", "fewfold"]
        )
        info.add_metric([self._snapshot.version, fewfold.__version__], 1)
        yield info

    def _requests(self, rows: np.ndarray) -> Iterator[Any]:
        requests = CounterMetricFamily(
            "fewfold_requests", "Requests by route and status.", labels=["route", "status"]
        )
        latency = HistogramMetricFamily(
            "fewfold_request_seconds", "Time to answer a request.", labels=["route"]
        )
        counts, times = rows["requests"].sum(0), rows["latencies"].sum(0)
        sums = rows["latency_sum"].sum(0)
        for route, number in self._board.routes.items():
            if not counts[number].any():
                continue
            for status, count in zip(STATUSES, counts[number].tolist(), strict=True):
                if count:
                    requests.add_metric([route, str(status or "other")], count)
            buckets = _buckets(LATENCY_BOUNDS, times[number])
            latency.add_metric([route], buckets, float(sums[number]))
        yield requests
        yield latency


def _buckets(bounds: tuple[float, ...], counts: np.ndarray) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound."""
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, np.cumsum(counts).tolist(), strict=True))


def _histogram(
    name: str, text: str, bounds: tuple[float, ...], counts: np.ndarray, total: float
) -> Any:
    family = HistogramMetricFamily(name, text)
    family.add_metric([], _buckets(bounds, counts), total)
    return family


def _counter(name: str, text: str, value: float) -> Any:
    return CounterMetricFamily(name, text, value=float(value))


def _gauge(name: str, text: str, value: float) -> Any:
    return GaugeMetricFamily(name, text, value=float(value))
