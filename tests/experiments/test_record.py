"""Storage of measured rows."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy")
from experiments import record
from experiments.record import Record, origin


def test_rows_of_several_writers_are_all_kept(tmp_path: Path) -> None:
    """Who writes last has read what was written before."""
    kept = Record(tmp_path / "results.json")
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(lambda number: kept.add([{"number": number}]), range(100)))
    assert sorted(row["number"] for row in kept.rows()) == list(range(100))
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_row_is_made_once_and_may_say_its_own_time(tmp_path: Path) -> None:
    kept = Record(tmp_path / "results.json")
    row = kept.once(lambda: {"found": 1, "seconds": 77.0}, method="this")
    assert row["seconds"] == 77.0
    assert kept.once(lambda: {"found": 2}, method="this")["found"] == 1
    assert kept.once(lambda: {"found": 2}, method="that")["seconds"] < 77
    assert {"commit", "machine", "cores", "threads", "torch"} <= set(row)


def test_the_commit_says_whether_the_code_is_that_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(found: int, changed: int) -> str:
        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            asked = found if "rev-parse" in command else changed
            return subprocess.CompletedProcess(command, asked, stdout="abc1234\n")

        monkeypatch.setattr(subprocess, "run", run)
        return record._commit()

    assert said(0, 0) == "abc1234"
    assert said(0, 1) == "abc1234-dirty"
    assert said(128, 0) == "unknown"
    assert origin()["commit"]
