"""Bytes that a training step sends, compared with the formula of the page on scaling out."""

import pytest

from tests.distributed.conftest import Worlds
from tests.distributed.traffic_jobs import STEPS


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_the_formula_is_what_a_step_sends(worlds: Worlds, world: int, name: str) -> None:
    sizes, ranks = STEPS[name], [rank["step_traffic"][name] for rank in worlds[world]]
    assert sizes.fetches(world) == (name == "few items")
    total, exchanges = sum(rank[0] for rank in ranks), ranks[0][1]
    assert total / sizes.batch == pytest.approx(sizes.bytes(world), rel=0.05)
    assert exchanges == sizes.exchanges(world)
