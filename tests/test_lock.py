"""A path is locked by one process at a time, also while the lock file is removed."""

from pathlib import Path
from typing import Any

import pytest

from fewfold._lock import locked

fcntl = pytest.importorskip("fcntl")


def test_one_holds_the_lock_and_removes_its_file(tmp_path: Path) -> None:
    for _ in range(2):
        with locked(tmp_path / "out"):
            second = locked(tmp_path / "out")
            with pytest.raises(FileExistsError, match="another command is writing"), second:
                raise AssertionError
            assert [file.name for file in tmp_path.iterdir()] == [".out.lock"]
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", [False, True], ids=["removed", "made again"])
def test_the_lock_of_a_removed_file_does_not_count(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, file = fcntl.flock, tmp_path / ".out.lock"

    def late(descriptor: int, operation: int) -> Any:
        monkeypatch.setattr(fcntl, "flock", flock)
        file.rename(tmp_path / "old")  # which keeps its inode from being given to the next
        if again:
            file.touch()
        return flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path / "out"), pytest.raises(FileExistsError), locked(tmp_path / "out"):
        raise AssertionError
    assert [one.name for one in tmp_path.iterdir()] == ["old"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "out"), locked(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
