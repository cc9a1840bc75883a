"""Processes of a test: each runs all jobs, and the tests compare what they returned.

Starting a process takes seconds, so that all jobs share it. World 1 runs in the test's process.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Job = Callable[[], Any]
JOBS: dict[str, Job] = {}
ROOT = Path(__file__).parents[2]
FOLDER = Path()  # shared by all processes and worlds
_CALL = "from tests.distributed.processes import main; main()"


def job(function: Job) -> Job:
    """Register a function that every process runs, and that returns tensors, numbers or text."""
    JOBS[function.__name__] = function
    return function


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def place() -> Path:
    """Return an existing folder for files of the jobs, the same in all processes of a world."""
    found = FOLDER / f"world-{dist.get_world_size() if dist.is_initialized() else 1}"
    found.mkdir(exist_ok=True)
    return found


def run_all(folder: Path) -> dict[str, Any]:
    """Run all jobs with one thread, and return the result of each."""
    global FOLDER
    from tests.distributed import (  # noqa: F401  registers them
        anchor_jobs,
        checkpoint_jobs,
        jobs,
        table_jobs,
    )

    FOLDER = folder
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: each() for name, each in JOBS.items()}
    finally:
        torch.set_num_threads(threads)


def results(world: int, folder: Path) -> list[dict[str, Any]]:
    """Run all jobs in so many processes unless it was done, and return the results of each rank."""
    files = [folder / f"{world}-{rank}" for rank in range(world)]
    if not all(file.exists() for file in files):
        _run(world, folder)
    return [torch.load(file) for file in files]


def _run(world: int, folder: Path) -> None:
    if world == 1:
        torch.save(run_all(folder), folder / "1-0")
        return
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _CALL, str(folder)],
            cwd=ROOT,
            env={
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        codes = [process.wait(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * world


def main() -> None:
    """Run all jobs as one process of a group."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    folder = Path(sys.argv[1])
    found = run_all(folder)
    torch.save(found, folder / f"{dist.get_world_size()}-{dist.get_rank()}")
    dist.destroy_process_group()
