"""Checkpoints of several processes: complete or not there, and readable by any number of them."""

from pathlib import Path

import pytest
import torch

from fewfold.distributed.group import Group
from fewfold.distributed.sharded_checkpoint import load, stored
from tests.distributed.conftest import Worlds
from tests.distributed.test_group import same

TABLES = ("inputs", "items", "posterior")


def test_a_resumed_training_ends_with_the_same_bytes(worlds: Worlds) -> None:
    for world, ranks in worlds.items():
        for rank in ranks:
            assert rank["resumed"]["message"][0].startswith("stopped by SIGTERM at step 5 of 9")
            assert "to go on, resume from the checkpoint" in rank["resumed"]["message"][0]
            same(rank["resumed"]["result"], rank["unbroken"])
            same(rank["resumed"]["again"], rank["unbroken"])
            assert rank["resumed"]["left"] == []
            if world > 1:
                shards = [
                    f"shard-{n + 1:05d}-model-00001-of-00001.safetensors" for n in range(world)
                ]
                assert rank["resumed"]["files"] == ["checkpoint.json", *shards]


@pytest.mark.parametrize("name", ["of one", "by one", "of two"])
def test_another_number_of_processes_resumes(worlds: Worlds, name: str) -> None:
    for world in (2, 3):
        for rank in worlds[world]:
            found = rank["resumed_by_others"]
            if name not in found:
                continue
            unbroken = worlds[2 if name == "of two" else world][0]["unbroken"]
            torch.testing.assert_close(found[name]["losses"], unbroken["losses"], rtol=1e-4, atol=0)
            for table in TABLES:
                torch.testing.assert_close(
                    found[name][table], unbroken[table], rtol=1e-2, atol=2e-3
                )
        assert name == "of two" or name in worlds[world][0]["resumed_by_others"]
        assert worlds[world][0]["resumed_by_others"]["kind"]  # one process writes a file again
        assert worlds[world][0]["resumed_by_others"]["kind after"]
    assert "of two" in worlds[3][2]["resumed_by_others"]


def test_all_processes_agree_that_writing_failed(worlds: Worlds) -> None:
    for world in (2, 3):
        for rank in worlds[world]:
            for place in ("_checksum", "sync", "full disk"):
                message, unchanged = rank["failed_writes"][place]
                assert "at step 5 of 9" in message[0]
                assert "could not be written" in message[0]
                assert "an earlier one stays" in message[0]
                assert unchanged


def test_a_damaged_checkpoint_is_refused(worlds: Worlds) -> None:
    for world in (2, 3):
        found = [rank["failed_writes"]["damaged"] for rank in worlds[world]]
        assert sum(each.startswith("ArtifactError") for each in found) == 1
        assert sum("shard-" in each and "is damaged: it has" in each for each in found) == 1
        assert sum("another process found" in each for each in found) == world - 1


@pytest.mark.parametrize("written_by", [2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6, 9])
def test_rows_go_to_their_owners(
    worlds: Worlds, shared_folder: Path, world: int, written_by: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    folder = shared_folder / f"checkpoints-{written_by}" / "copy"
    monkeypatch.setattr("fewfold.distributed.sharded_checkpoint._BLOCK", 12 * 7)  # a few rows
    names = [name for name, (_, shape) in stored(folder).items() if shape[:1] == (103,)]
    rows = dict.fromkeys((name for name in names if not name.startswith("proposal")), 103)
    assert {"model.inputs", "best.items", "tables.0.square", "tables.1.step"} <= set(rows)
    whole = load(folder, rows, written_by, Group())
    expected = worlds[written_by][0]["resumed"]["tables at the stop"]
    same(whole["model.inputs"], expected[0])
    same(whole["model.items"], expected[1])
    for rank in range(world):
        part = load(folder, rows, written_by, Group(rank, world))
        for name, value in whole.items():
            same(part[name], value[rank::world] if name in rows else value)


def test_processes_without_users_train_with_the_others(worlds: Worlds) -> None:
    expected = worlds[1][0]["few_users"]
    for ranks in worlds.values():
        for rank in ranks:
            found = rank["few_users"]
            assert "stopped by SIGTERM at step 2 of 3" in found["message"][0]
            torch.testing.assert_close(found["losses"], expected["losses"], rtol=1e-4, atol=0)
            assert found["recommended"] == expected["recommended"]
