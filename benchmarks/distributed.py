"""Training and ranking by two processes with one thread each, compared with one process.

Each process has a processor of its own; blocks of both and of the first alone alternate.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.harness import Case, Pair, Peak
from benchmarks.scaling_out import Step, training_step
from fewfold.recommender.models.fastvae.tables import DenseTables

_MILLION = 1_000_000
_LARGEST = 14_500_000  # items of two processes within 20 GB


def cases() -> list[Case]:
    """Return all rows of the suite, in the order of the claims."""
    return [*_speed(), _one(), *_memory(), *_traffic()]


def _speed() -> Iterator[Case]:
    for what, job, size, arguments, times in (
        ("training, dense tables", "training", "1M items, batch 1024", (_MILLION, 1024), 1.6),
        ("training, dense tables", "training", "1M items, batch 256", (_MILLION, 256), 1.6),
        ("training, dense tables", "training", "1M items, batch 4096", (_MILLION, 4096), 1.6),
        ("training, 255 anchors", "training", "1M items, batch 1024", (_MILLION, 1024, 255), 1.5),
        ("best 100 items", "ranking", "1M items, 1024 users", (_MILLION, 1024), 1.8),
    ):
        yield Case(
            what=f"{what}, two processes",
            size=size,
            peer="one process",
            bar=1 / times,
            build=partial(_seconds, job, *arguments),
        )


def _one() -> Case:
    return Case(
        what="training, tables that several processes could share, one process",
        size="1M items, batch 256",
        peer="dense tables",
        bar=1.02,
        build=_without_others,
    )


def _without_others() -> Pair:
    sizes = Step(batch=256)
    shared, dense = sizes.tables(_MILLION), DenseTables(_MILLION, sizes.hidden, sizes.latent)
    return Pair(training_step(sizes, shared), training_step(sizes, dense))


def _memory() -> Iterator[Case]:
    yield Case(
        what="training, memory of one of two processes",
        size="10M items",
        peer="one process",
        bar=0.6,
        build=_against_one,
    )
    yield Case(
        what="200 steps of training, memory of both processes",
        size=f"{_LARGEST / 1e6:g}M items",
        peer="20 GB",
        bar=1.0,
        build=lambda: _limit(run("memory", _LARGEST, 200)),
    )


def _traffic() -> Iterator[Case]:
    yield Case(
        what="bytes sent per user, distance from the formula",
        size="1M items, batch 256",
        peer="5 %",
        bar=1.0,
        build=_off,
    )


def _seconds(job: str, *arguments: int) -> Peak:
    found = run(job, *arguments)
    alone = found["alone"]
    return Peak(alone / found["ratio"], alone, "seconds", found)  # the median of the ratios


def _against_one() -> Peak:
    two, one = (run("memory", 10 * _MILLION, 20, world=world) for world in (2, 1))
    return Peak(two["largest"], one["largest"], details={"both": two["all"]})


def _limit(found: dict[str, float]) -> Peak:
    return Peak(found["all"], 20e9, details=found)


def _off() -> Peak:
    found = run("training", _MILLION, 256)
    return Peak(abs(found["bytes"] / found["formula"] - 1), 0.05, "", found)


def run(job: str, *arguments: int, world: int = 2) -> dict[str, float]:
    """Run a job by so many processes; return what the first one printed."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.distributed_jobs", job, *map(str, arguments)]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    started = [
        subprocess.Popen(
            command, env={**os.environ, **place, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(world)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"{' '.join(command)} failed; its message is above")
    measured: dict[str, float] = json.loads(printed[0])
    return measured
