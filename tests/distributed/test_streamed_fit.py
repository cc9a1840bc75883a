"""Training on a streamed log by several processes, compared with one."""

import pytest
import torch

from tests.distributed.conftest import Worlds
from tests.distributed.test_group import same


def test_histories_are_those_of_one_process(worlds: Worlds) -> None:
    expected = worlds[1][0]["streamed_histories"]
    users, pairs, windows, less = expected["sizes"]
    assert windows == 3
    assert 0 < less < pairs
    assert sum(len(offsets) - 1 for offsets, _ in expected["all"]) == users
    assert expected["read"] == [2, 2, 1]
    for world in (2, 3):
        found = [rank["streamed_histories"] for rank in worlds[world]]
        read = [rank.pop("read") for rank in found]
        assert [sum(parts) for parts in zip(*read, strict=True)] == expected["read"]
        assert max(map(max, read)) == 1  # the others read nothing of the last window
        for rank in found:
            same(rank, {name: each for name, each in expected.items() if name != "read"})


def test_training_is_that_of_one_process(worlds: Worlds) -> None:
    expected = worlds[1][0]["streamed"]["unbroken"]
    for world in (2, 3):
        for rank in worlds[world]:
            found = rank["streamed"]["unbroken"]
            torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=0)
            for name, table in expected["tables"].items():
                torch.testing.assert_close(found["tables"][name], table, rtol=1e-2, atol=2e-3)
            for metric, score in expected["scores"].items():
                assert found["scores"][metric] == pytest.approx(score, abs=2e-2), metric
            same(found, worlds[world][0]["streamed"]["unbroken"])


def test_a_resumed_training_ends_with_the_same_bytes(worlds: Worlds) -> None:
    for ranks in worlds.values():
        for rank in ranks:
            found = rank["streamed"]
            assert "stopped by SIGTERM at step 6 of" in found["message"][0]
            same(found["resumed"], found["unbroken"])
