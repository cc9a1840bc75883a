"""`fewfold serve` under load from a second process on the same machine, k = 10.

One server process with two threads; clients with 1 and 32 connections, each of which sends its next
request after the last answer (`http_load`, raw sockets; server and client share two processors).
Models have random weights (`http_models`). "In process" is `recommend_from_history` with batches of
the mean size that the server formed. Every figure is the median of three rounds, in which server
and peer alternate.

``python -m benchmarks.http_soak MINUTES`` puts on a mixed load and prints memory over time.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import fewfold as ff
from benchmarks.harness import Case, Peak
from benchmarks.http_load import Load, Request, measure, write_requests
from benchmarks.http_models import FOLDER, folder_of, histories, requests
from benchmarks.http_servers import Server, fewfold_server, peer_server

SECONDS, ROUNDS, MANY = 3.0, 3, 32
SMALL, LARGE = 50_000, 1_000_000
RECALL = 0.95
FLASK, BARE = "implicit behind Flask", "Starlette, constant answer"


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_served(SMALL), *_started(), *_peers(), *_served(LARGE), *_indexed(), *_shared()]


def _case(what: str, items: int, peer: str, bar: float, build: Callable[[], Peak]) -> Case:
    return Case(what, f"{items} items", peer, bar, build, threads=2)


def _served(items: int) -> Iterator[Case]:
    measured = partial(_measured, items, None)
    yield _case(
        "32 connections, time per user", items, "in process, same batches", 1 / 0.6,
        lambda: measured().per_user(),
    )  # fmt: skip
    if items == SMALL:
        yield _case(
            "32 connections, time per user", items, "1 connection", 1 / 5,
            lambda: measured().next_to_one(),
        )  # fmt: skip
    yield _case(
        "1 connection, p50 beyond in process", items, "1 ms", 1.0, lambda: measured().alone()
    )
    yield _case("32 connections, p99", items, "5 times p50", 1.0, lambda: measured().tail())


def _indexed() -> Iterator[Case]:
    measured, what = partial(_measured, LARGE, RECALL), f"index of recall {RECALL}, "
    yield _case(
        what + "32 connections", LARGE, "in process, same batches", 1 / 0.6,
        lambda: measured().per_user(),
    )  # fmt: skip
    yield _case(
        what + "1 connection, p50", LARGE, "1 ms beyond in process", 1.0,
        lambda: measured().alone(),
    )  # fmt: skip
    yield _case(what + "p99", LARGE, "5 times p50", 1.0, lambda: measured().tail())


def _started() -> Iterator[Case]:
    yield _case("start until ready", SMALL, "5 s", 1.0, _start)


def _peers() -> Iterator[Case]:
    for connections in (1, MANY):
        what = f"{connections} connection{'s' if connections > 1 else ''}, time per user"
        if find_spec("flask") and find_spec("implicit"):
            yield _case(what, SMALL, FLASK, 1.0, partial(_next_to, connections, _flask))
        # What a server in Python can reach at most.
        yield _case(
            what,
            SMALL,
            BARE,
            10.0 if connections == 1 else 5.0,
            partial(_next_to, connections, _bare),
        )


def _shared() -> Iterator[Case]:
    yield _case("memory of two workers", LARGE, "one worker", 1.2, _workers)


@dataclass(frozen=True, eq=False)
class _Measured:
    """Medians of all rounds.

    Attributes:
        one, many: seconds per answer with 1 and with 32 connections.
        one_p50, many_p50, many_p99: latencies.
        alone_in_process: seconds of a call for one history.
        batch: mean size of the batches at 32 connections.
        in_process: seconds per history in batches of this size.
        failed: requests of a round that failed.
    """

    one: float
    many: float
    one_p50: float
    many_p50: float
    many_p99: float
    alone_in_process: float
    batch: float
    in_process: float
    failed: float

    def _peak(self, ours: float, peer: float) -> Peak:
        return Peak(ours, peer, "seconds", {name: float(v) for name, v in vars(self).items()})

    def per_user(self) -> Peak:
        """Time per user at 32 connections, next to calls in process."""
        return self._peak(self.many, self.in_process)

    def next_to_one(self) -> Peak:
        """Time per user at 32 connections, next to that of one."""
        return self._peak(self.many, self.one)

    def alone(self) -> Peak:
        """How much later a lone request is answered than a call in process."""
        return self._peak(max(self.one_p50 - self.alone_in_process, 1e-6), 1e-3)

    def tail(self) -> Peak:
        """The 99th percentile next to five times the median."""
        return self._peak(self.many_p99, 5 * self.many_p50)


@cache
def _measured(items: int, recall: float | None) -> _Measured:
    folder = folder_of(items)
    rec = ff.Recommender.load(folder).prepare()
    search = None if recall is None else rec.index(recall=recall)
    asked = [[f"item-{one}" for one in row] for row in histories(items)]
    file = write_requests(FOLDER / f"requests-{items}.json", requests(items))

    def in_process(batch: int) -> float:
        """Seconds per history."""
        taken: list[float] = []
        place, until = 0, time.perf_counter() + SECONDS / 2
        while time.perf_counter() < until or len(taken) < 3:
            some = [asked[(place + n) % len(asked)] for n in range(batch)]
            place += batch
            began = time.perf_counter()
            rec.recommend_from_history(some, 10, search=search)
            taken.append((time.perf_counter() - began) / batch)
        return statistics.median(taken)

    arguments = () if recall is None else ("--recall", str(recall))
    rounds: list[tuple[float, ...]] = []
    with fewfold_server(folder, *arguments) as server:
        for _ in range(ROUNDS):
            one = measure(server.url, 1, SECONDS, file)
            alone = in_process(1)
            many, size = _with_batches(server, file)
            together = in_process(max(1, round(size)))
            rounds.append(
                (
                    one.each, many.each, one.percentile(0.5), many.percentile(0.5),
                    many.percentile(0.99), alone, size, together, one.failed + many.failed,
                )
            )  # fmt: skip
    medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
    return _Measured(*medians)


def _with_batches(server: Server, file: Path) -> tuple[Load, float]:
    """Put on a load of 32 connections; return it, and the mean size of the batches."""
    count, entries = server.batches()
    found = measure(server.url, MANY, SECONDS, file)
    more, sum_ = server.batches()
    return found, (sum_ - entries) / (more - count)


def _start() -> Peak:
    folder, found = folder_of(SMALL), []
    for _ in range(4):
        with fewfold_server(folder) as server:
            found.append(server.start)
    return Peak(statistics.median(found[1:]), 5.0, "seconds")  # the first may read from the disk


def _next_to(connections: int, peer: Callable[[int], float]) -> Peak:
    ours = _measured(SMALL, None)
    return Peak(ours.one if connections == 1 else ours.many, peer(connections), "seconds")


@cache
def _flask(connections: int) -> float:
    asked: list[Request] = [("GET", f"/recommend?uid={n}&k=10", None) for n in range(2000)]
    width = ff.Recommender.load(folder_of(SMALL)).fitted.vectors
    assert width is not None
    return _peer(
        "flask", connections, asked, "benchmarks.http_flask", str(SMALL), str(width.shape[1])
    )


@cache
def _bare(connections: int) -> float:
    return _peer("bare", connections, requests(SMALL), "benchmarks.http_bare")


def _peer(name: str, connections: int, asked: list[Request], module: str, *arguments: str) -> float:
    """Seconds per answer of another server."""
    file = write_requests(FOLDER / f"requests-{name}.json", asked)
    with peer_server(module, *arguments) as server:
        time.sleep(1)
        found = [measure(server.url, connections, SECONDS, file).each for _ in range(ROUNDS)]
    return statistics.median(found)


def _workers() -> Peak:
    folder = folder_of(LARGE)
    file = write_requests(FOLDER / f"requests-{LARGE}.json", requests(LARGE))
    found = []
    for workers in (1, 2):
        with fewfold_server(folder, "--workers", str(workers), threads=1) as server:
            measure(server.url, 4 * workers, SECONDS, file)
            found.append(server.memory())
    return Peak(found[1], found[0], "bytes")
