"""Results of all jobs in one, two and three processes, run once for all tests."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import results

Worlds = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all processes and worlds."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # whose folder is inside that of all workers
        base = base.parent
    folder = base / "worlds"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def worlds(shared_folder: Path) -> Worlds:
    """Return what every rank returned, by the number of processes."""
    folder = shared_folder
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the worker that comes first runs them for all
        return results(folder)
