"""Processes of a test: each runs all jobs, and the tests compare what they returned.

World 1 runs in the test's process; the others are forks of one that has loaded everything.
"""

import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

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


def load_jobs() -> None:
    """Import all jobs, which registers them."""
    from tests.distributed import (  # noqa: F401
        agreement_jobs,
        anchor_jobs,
        checkpoint_jobs,
        jobs,
        stream_jobs,
        table_jobs,
        traffic_jobs,
    )


def run_all(folder: Path) -> dict[str, Any]:
    """Run all jobs with one thread, and return the result of each."""
    global FOLDER
    load_jobs()
    FOLDER = folder
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: each() for name, each in JOBS.items()}
    finally:
        torch.set_num_threads(threads)


def results(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Run all jobs in each world unless it was done; return the results of each rank."""
    if not (folder / "done").exists():
        torch.save(run_all(folder), folder / "1-0")
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _CALL, str(folder)]
        subprocess.run(command, cwd=ROOT, env=env, timeout=300, check=True)
        (folder / "done").touch()
    return {
        world: [torch.load(folder / f"{world}-{rank}") for rank in range(world)]
        for world in (1, 2, 3)
    }


def main() -> None:
    """Load everything, which takes seconds; then run all jobs in forks of this process."""
    load_jobs()
    torch.set_num_threads(1)
    for world in (2, 3):
        started = [os.fork() or _rank(rank, world, Path(sys.argv[1])) for rank in range(world)]
        codes = [os.waitpid(one, 0)[1] for one in started]
        if any(codes):
            raise SystemExit(f"processes of a group of {world} ended with {codes}")


def _rank(rank: int, world: int, folder: Path) -> NoReturn:
    """Run all jobs as one process of a group, and end."""
    code = 1
    try:
        store = dist.FileStore(str(folder / f"store-{world}"), world)
        limit = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        torch.save(run_all(folder), folder / f"{world}-{rank}")
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
