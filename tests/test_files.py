"""Atomic writing: complete or absent, for every reader, even if the process is killed."""

import errno
import os
import shutil
import signal
import stat
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fewfold import _files
from fewfold._files import move_into_place, new_file, new_folder, recovered, restore_interrupted

OLD, NEW = {"a": "old", "b": "old"}, {"a": "new", "b": "new", "c": "new"}
EVENTS = {
    *("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.listdir"),
    *("os.scandir", "shutil.rmtree"),
}
HOOK: list[Callable[[str], None]] = []
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills children that it forks")


def audited(event: str, _: object) -> None:
    if HOOK and event in EVENTS:
        HOOK[0](event)


@pytest.fixture(params=["exchange", "fallback"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to replace a folder."""
    if request.param == "fallback":
        monkeypatch.setattr(_files, "_renameat2", lambda: None)
    elif sys.platform != "linux":
        pytest.skip("only Linux exchanges names")
    return str(request.param)


def write(target: Path, files: dict[str, str]) -> None:
    with new_folder(target) as partial:
        for name, text in files.items():
            (partial / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(folder.iterdir())}


def killed_at(step: int, work: Callable[[], None]) -> bool:
    """Do the work in a child, killed before it touches files for the n-th time; whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and forks
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    left = [step]

    def count(_: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(audited)
        HOOK.append(count)
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


@fork
@pytest.mark.parametrize(
    "there", [OLD, pytest.param(None, marks=pytest.mark.nightly)], ids=["replaced", "new"]
)
def test_a_killed_writer_leaves_the_old_folder_or_the_new(
    tmp_path: Path, way: str, there: dict[str, str] | None
) -> None:
    target, seen, step = tmp_path / "model", set(), 1
    while True:
        if there is not None:
            write(target, there)
        killed = killed_at(step, lambda: write(target, NEW))
        place = recovered(target)
        assert there is None or place.exists(), step
        found = content(place) if place.exists() else None
        assert found in (there, NEW), step
        if way == "exchange":
            assert place == target, step
        seen.add((found == NEW, place == target))
        write(target, OLD)  # the next writer finds its way, and tidies up
        assert content(target) == OLD
        assert os.listdir(tmp_path) == ["model"], step
        shutil.rmtree(target)
        if not killed:
            break
        step += 1
    assert step > 15
    assert {new for new, _ in seen} == {False, True}
    if there is not None and way == "fallback":
        assert (False, False) in seen  # the moment in which the old one has another name


def test_a_failed_rename_puts_the_old_folder_back(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    write(target, OLD)
    rename = Path.rename

    def refuse(path: Path, to: Path) -> Path:
        if path.name.endswith(".partial"):
            raise OSError(errno.EIO, "broken")
        return rename(path, to)

    if way == "fallback":
        monkeypatch.setattr(Path, "rename", refuse)
    else:  # an error that does not mean that names cannot be exchanged
        monkeypatch.setattr(_files, "_renameat2", lambda: lambda *_: -1)
        monkeypatch.setattr(_files.ctypes, "get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match=r"broken|Input/output"):
        write(target, NEW)
    assert content(target) == OLD
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_where_names_cannot_be_exchanged_there_is_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    target = tmp_path / "model"
    write(target, OLD)
    monkeypatch.setattr(_files, "_renameat2", lambda: lambda *_: -1)
    monkeypatch.setattr(_files.ctypes, "get_errno", lambda: number)
    write(target, NEW)
    assert content(target) == NEW
    assert os.listdir(tmp_path) == ["model"]


def test_what_a_killed_writer_left_is_found_and_put_back(tmp_path: Path) -> None:
    target, old = tmp_path / "model", tmp_path / ".model.old"
    write(target, OLD)
    assert recovered(target) == target
    target.rename(old)
    assert recovered(target) == old
    assert not target.exists()  # a reader renames nothing
    restore_interrupted(target)
    assert content(target) == OLD
    assert not old.exists()
    write(old, NEW)  # and beside a folder that is there it is rubbish
    assert recovered(target) == target
    link = tmp_path / "link"
    link.symlink_to(target)
    assert recovered(link) == link
    shutil.rmtree(target)
    assert recovered(link) == old
    assert recovered(Path()) == Path()
    assert recovered(Path("/")) == Path("/")


def test_an_error_while_writing_leaves_nothing(tmp_path: Path, way: str) -> None:
    target = tmp_path / "model"
    write(target, OLD)
    with pytest.raises(KeyError), new_folder(target) as partial:
        (partial / "a").write_text("new")
        raise KeyError
    assert content(target) == OLD
    file = tmp_path / "file"
    file.write_text("old")
    with pytest.raises(KeyError), new_file(file) as beside:
        beside.write_text("new")
        raise KeyError
    assert file.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "model"]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is synced and renamed, in their order."""
    done: list[str] = []
    fsync, replace, rename = os.fsync, os.replace, Path.rename

    def synced(number: int) -> None:
        done.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{number}'))}")
        fsync(number)

    def replaced(one: Path, other: Path) -> None:
        done.append(f"replace {Path(other).name}")
        replace(one, other)

    def renamed(one: Path, other: Path) -> Path:
        done.append(f"rename {Path(other).name}")
        return rename(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(Path, "rename", renamed)
    return done


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for names")
def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, steps: list[str]) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with new_file(place / "file") as partial:
        partial.write_text("new")
    assert steps == ["sync .file.partial", "replace file", "sync place"]
    steps.clear()
    write(place / "model", {"a": "1", "b": "2"})
    assert steps == ["sync a", "sync b", "sync .model.partial", "rename model", "sync place"]
    steps.clear()
    write(place / "model", {"a": "3", "b": "4"})  # an exchange is no call of Python's
    assert steps == ["sync a", "sync b", "sync .model.partial", "sync place"]


def test_a_disk_that_fails_is_said_and_one_that_cannot_sync_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> Callable[[int], None]:
        def failing(_: int) -> None:
            raise OSError(number, os.strerror(number))

        return failing

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    write(tmp_path / "model", OLD)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        write(tmp_path / "model", NEW)
    assert content(tmp_path / "model") == OLD
    with pytest.raises(OSError, match="Input/output"), new_file(tmp_path / "file") as partial:
        partial.write_text("x")
    assert os.listdir(tmp_path) == ["model"]


def test_files_have_the_rights_of_other_files_of_this_user(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "model") as folder:
            (folder / "a").write_text("x")
            (folder / "a").chmod(0o600)  # as some libraries have it
        with new_file(tmp_path / "file") as partial:
            partial.write_text("x")
            partial.chmod(0o600)
    finally:
        os.umask(before)
    for file in (tmp_path / "model" / "a", tmp_path / "file"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_errors_of_libraries_become_those_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, new_file(tmp_path / "file"):
        raise RuntimeError("io: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="else"), new_file(tmp_path / "file"):
        raise RuntimeError("something else")
    assert os.listdir(tmp_path) == []


def test_a_partial_file_stays_until_it_can_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial, path = tmp_path / "data.part", tmp_path / "data"
    partial.write_text("new")
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise PermissionError("no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(PermissionError):
            move_into_place(partial, path)
    assert (partial.read_text(), path.read_text()) == ("new", "old")
    move_into_place(partial, path)
    assert content(tmp_path) == {"data": "new"}
