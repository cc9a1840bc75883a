"""Results of all jobs in one, two and three processes, run once for all tests."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.processes import results

Worlds = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Return what every rank returned, by the number of processes."""
    folder: Path = tmp_path_factory.mktemp("worlds")
    return {world: results(world, folder) for world in (1, 2, 3)}
