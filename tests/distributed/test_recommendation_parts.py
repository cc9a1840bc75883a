"""Recommendations to all users as a folder: by one process and several, interrupted, resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fewfold as ff
from fewfold.distributed.group import Group
from fewfold.recommender import EASE
from fewfold.recommender import recommendation_files as files
from fewfold.recommender import recommendation_parts as parts
from tests.cli.invoke import fewfold
from tests.distributed.processes import ROOT, free_port

USERS, K = 230, 5
# Ten users are ranked at once, and two blocks are one part: twelve parts, and one of the table.
# Processes are forks of one that has loaded everything, which takes seconds.
_FORKS = """
import json, os, signal, sys
import pyarrow.parquet, torch.distributed
from fewfold.recommender import recommendation_files as files
from fewfold.recommender import recommendation_parts as parts
from fewfold.cli import main
files._USERS, parts._PART_ROWS, parts._PARTS = 10, 100, 1
folder, world, killed, left, write = sys.argv[1], *map(int, sys.argv[2:5]), files.AllUsers.write
def counted(self, file, *others):
    global left
    rows, left = write(self, file, *others), left - 1
    if left == 0 and int(os.environ["RANK"]) == killed:
        os.kill(os.getpid(), signal.SIGKILL)  # with a complete file that has no name yet
    print("part", file.name, flush=True)
    return rows
files.AllUsers.write = counted
def child(rank):
    os.environ["RANK"] = str(rank)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    code = 99
    try:
        code = main([each.format(rank=rank) for each in sys.argv[5:]])
        sys.stdout.flush()
    except SystemExit as error:
        code = error.code
    finally:
        os._exit(code)
started = [os.fork() or child(rank) for rank in range(world)]
print([os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in started])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 230 users of a log, and seven of a users table alone."""
    rows = [(u, i) for u in range(USERS) for i in range(30) if (u * 5 + i * 7) % 11 < 3]
    log = {"user": [f"u{u}" for u, _ in rows], "item": [f"i{i}" for _, i in rows]}
    numbers = range(USERS + 7)
    users = {"user": [f"u{u}" for u in numbers], "group": ["ab"[u % 2] for u in numbers]}
    folder = tmp_path_factory.mktemp("all") / "model"
    rec = ff.Recommender(EASE(l2=2.0)).fit(log, users_table=users, progress=False)
    rec.save(folder)
    return folder


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_USERS", 10)
    monkeypatch.setattr(parts, "_PART_ROWS", 100)
    monkeypatch.setattr(parts, "_PARTS", 1)


def run(
    model: Path, out: Path, world: int, *flags: str, killed: int = -1, after: int = 0
) -> list[tuple[int, str, str]]:
    """Run the command in so many processes; one may kill itself when it has written a part."""
    environment = {
        "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    command = ["recommend", model, "--all-users", "-k", K, "--out", f"{out}/", *flags]
    arguments = [sys.executable, "-c", _FORKS, out.parent, world, killed, after, *command]
    done = subprocess.run(
        [str(one) for one in arguments], env={**os.environ, **environment}, timeout=60, text=True,
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return [
        (code, *((out.parent / f"{rank}.{name}").read_text() for name in ("out", "err")))
        for rank, code in enumerate(json.loads(done.stdout))
    ]


def written(out: Path) -> pl.DataFrame:
    return pl.read_parquet(sorted(out.glob("part-*.parquet")))


def expected(model: Path, folder: Path, k: int = K) -> pl.DataFrame:
    file = folder / "one.parquet"
    ff.Recommender.load(model).recommend_all(file, k, overwrite=True, progress=False)
    return pl.read_parquet(file)


def test_a_folder_has_the_rows_of_the_file(model: Path, tmp_path: Path) -> None:
    rec, out = ff.Recommender.load(model), tmp_path / "recs"
    rows = rec.recommend_all(f"{out}/", K, progress=False)
    one = expected(model, tmp_path)
    assert written(out).equals(one)
    assert (one["user"].n_unique(), rows) == (USERS + 7, len(one))
    manifest = json.loads((out / parts.MANIFEST).read_text())
    assert (manifest["users"], manifest["rows"]) == (USERS + 7, rows)
    assert [part["users"] for part in manifest["parts"]] == [20] * 11 + [10, 7]
    assert sum(part["rows"] for part in manifest["parts"]) == rows
    names = {parts.MANIFEST, *(part["file"] for part in manifest["parts"])}
    assert {file.name for file in out.iterdir()} == names
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []

    with pytest.raises(FileExistsError, match="--overwrite"):
        rec.recommend_all(out, K, progress=False)  # a folder also without the slash
    assert rec.recommend_all(out, 2, overwrite=True, progress=False) == len(written(out))
    assert written(out).equals(expected(model, tmp_path, 2))
    other = tmp_path / "mine"
    other.mkdir()
    (other / "note.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="not a folder of recommendations"):
        rec.recommend_all(other, overwrite=True, progress=False)
    assert (other / "note.txt").read_text() == "mine"


def test_there_are_parts_for_all_processes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_PARTS", 20)  # and 24 blocks
    rec, out = ff.Recommender.load(model), tmp_path / "recs"
    rec.recommend_all(f"{out}/", K, progress=False)
    manifest = json.loads((out / parts.MANIFEST).read_text())
    assert [part["users"] for part in manifest["parts"]] == [10] * 23 + [7]
    assert written(out).equals(expected(model, tmp_path))


@pytest.mark.parametrize(
    ("change", "kept"), [({}, True), ({"k": 4}, False), ({"filter_items": ["i3"]}, False)]
)
def test_only_parts_with_the_same_settings_are_kept(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], kept: bool
) -> None:
    rec, out, write, calls = ff.Recommender.load(model), tmp_path / "recs", files.AllUsers.write, []

    def full(self: Any, file: Path, *others: Any) -> int:
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        calls.append(file.name)
        return write(self, file, *others)

    with monkeypatch.context() as patched:
        patched.setattr(files.AllUsers, "write", full)
        with pytest.raises(OSError, match="No space"):
            rec.recommend_all(f"{out}/", **{"k": K, **change}, progress=False)
    assert not out.exists()
    work = tmp_path / ".recs.partial"
    assert sorted(file.name for file in work.glob("*.parquet")) == [
        f"part-{n:06}.parquet" for n in range(4)
    ]
    before = {file.name: file.stat().st_mtime_ns for file in work.glob("*.parquet")}
    rec.recommend_all(f"{out}/", K, progress=False)
    same = [(out / name).stat().st_mtime_ns == time for name, time in before.items()]
    assert same == [kept] * 4
    assert written(out).equals(expected(model, tmp_path))


def _during(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> None:
    """Call a function before the first part is written."""
    write = files.AllUsers.write

    def wrapped(*arguments: Any) -> int:
        monkeypatch.setattr(files.AllUsers, "write", write)
        call()
        return write(*arguments)

    monkeypatch.setattr(files.AllUsers, "write", wrapped)


def test_a_second_command_on_the_same_folder_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec, out, refused = ff.Recommender.load(model), tmp_path / "new" / "recs", []

    def second() -> None:
        with pytest.raises(FileExistsError, match=r"is writing .*recs at the moment") as error:
            rec.recommend_all(f"{out}/", 4, overwrite=True, progress=False)
        refused.append(error)

    _during(monkeypatch, second)
    rec.recommend_all(f"{out}/", K, progress=False)
    assert len(refused) == 1
    assert written(out).equals(expected(model, tmp_path))
    assert [one.name for one in out.parent.iterdir()] == ["recs"]


def test_parts_of_another_command_are_not_published(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rec, out = ff.Recommender.load(model), tmp_path / "recs"
    monkeypatch.setattr(parts, "locked", lambda _: contextlib.nullcontext())  # as on Windows

    def second() -> None:
        with pytest.raises(KeyboardInterrupt):
            _during(monkeypatch, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            rec.recommend_all(f"{out}/", 4, progress=False)

    _during(monkeypatch, second)
    with pytest.raises(FileExistsError, match="another command has written other"):
        rec.recommend_all(f"{out}/", K, progress=False)
    assert not out.exists()


def test_killed_in_two_processes_and_resumed_in_three(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "recs"
    first = run(model, out, 2, killed=1, after=3)
    assert first[1][0] == -signal.SIGKILL
    assert first[0][0] not in (0, -signal.SIGKILL)  # it cannot go on without the other
    assert not out.exists()
    kept = sorted(file.name for file in (tmp_path / ".recs.partial").glob("part-*.parquet"))
    assert len(kept) == 7 + 2  # all of rank 0, and those that rank 1 had finished
    second = run(model, out, 3, "--json")
    assert [code for code, _, _ in second] == [0, 0, 0], second
    assert [text.count("part ") for _, text, _ in second] == [2, 1, 1]
    one = expected(model, tmp_path)
    assert json.loads(second[0][1].rpartition("partial\n")[2])["rows"] == len(one)
    assert written(out).equals(one)
    assert not (tmp_path / ".recs.partial").exists()

    ended = run(model, tmp_path / "others", 2, "-k", "{rank}4")  # 4 items, and 14
    assert all(code != 0 for code, _, _ in ended)
    assert "rank 1 has another k than rank 0: 14; start all processes with" in ended[1][2]
    assert not (tmp_path / "others").exists()

    ended = run(model, tmp_path / "one.parquet", 2)
    assert all(code != 0 for code, _, _ in ended)
    shown = "".join(text for _, _, text in ended)
    assert shown.count("not a folder of recommendations") == shown.count("fewfold:") == 1
    assert "(rank 0)" in shown


@pytest.mark.parametrize("flags", [("--all-users", "--out", "recs.parquet"), ("--users", "u1")])
def test_several_processes_write_a_folder(
    model: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Group, "current", staticmethod(lambda: Group(0, 2)))
    done = fewfold("recommend", model, *flags)
    assert done.code == 2
    assert "2 processes" in done.message
    assert "--out recs/" in done.message
