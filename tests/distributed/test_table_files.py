"""Folders whose tables are several files: by several processes the same as by one."""

import pytest

from tests.distributed.conftest import Worlds

TABLES = [f"table-{n:05}.safetensors" for n in range(1, 11)]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_folder_does_not_depend_on_the_number_of_processes(worlds: Worlds, world: int) -> None:
    expected = worlds[1][0]["table_files"]
    assert [name for name in sorted(expected["files"]) if name.startswith("table-")] == TABLES
    for rank in worlds[world]:
        found = rank["table_files"]
        assert found["files"] == expected["files"]
        assert found["several"] == found["single"] == expected["single"]
        items = [each["item"] for each in found["single"]]
        assert [each["item"] for each in found["together"]] == items


def test_no_process_has_more_than_a_block_of_rows(worlds: Worlds) -> None:
    for world in (2, 3):
        for rank in worlds[world]:
            assert 0 < rank["table_files"]["largest"] <= 4 * 12 * 4 < 500


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_error_on_one_process_is_raised_on_all_and_nothing_is_left(
    worlds: Worlds, world: int
) -> None:
    for number, rank in enumerate(worlds[world]):
        found = rank["failed_table_files"]
        for full in range(world):
            for case in (f"full {full}", f"full, replaced {full}"):
                words = ("OSError", "File too large", "table-") if full == number else (
                    "PeerError", f"rank {full} failed", "see its message"
                )  # fmt: skip
                assert all(word in found[case] for word in words), found[case]
        exists = "holds a model already" if number == 0 else "PeerError: rank 0 failed"
        assert exists in found["exists"]
        if world > 1:
            words = "file system that all machines share" if number else "PeerError: rank 1 failed"
            assert words in found["not shared"]
        assert found["left"] == ["model"]
        assert found["unchanged"]
