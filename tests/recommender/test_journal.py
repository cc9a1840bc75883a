"""The journal: what was appended is there, once and whole, whatever happens to its writers."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fewfold.recommender import journal as journal_module
from fewfold.recommender.errors import DataError
from fewfold.recommender.journal import Event, Journal, read_journal
from fewfold.recommender.journal_events import encode

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def events(*names: str) -> list[Event]:
    return [Event(name, f"item of {name}", NOON) for name in names]


def users(found: list[Event]) -> list[Any]:
    return [event.user for event in found]


@pytest.mark.parametrize(
    "time", [NOON, "2024-05-01T12:00:00Z", "2024-05-01T14:00+02:00", 1714564800, 1714564800.0]
)
def test_an_event_keeps_its_time(time: Any, tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append([Event("naïve\nname", -7, time, "answer 1")])
        assert journal.tail() == [Event("naïve\nname", -7, NOON, "answer 1")]


def test_an_event_without_a_time_is_now() -> None:
    before = datetime.now(UTC)
    assert before <= Event(1, 2).time <= datetime.now(UTC)
    assert Event(1, 2, datetime(2024, 5, 1, 12)).time == NOON


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (("", 1), ValueError, "user must not be empty"),
        (("ann", " "), ValueError, "item must not be empty"),
        ((True, 1), TypeError, "user must be text or a whole number, got bool"),
        (("ann", 1.5), TypeError, "item must be text or a whole number, got float"),
        ((2**63, 1), ValueError, "user must be a whole number of 64 bits"),
        (("\ud800", 1), ValueError, "user must be valid Unicode"),
        ((1, 2, "yesterday"), ValueError, "time must be ISO 8601 text"),
        ((1, 2, float("nan")), ValueError, "time must be ISO 8601 text"),
        ((1, 2, 1e18), ValueError, "time must be ISO 8601 text"),
        ((1, 2, "0001-01-01T00:00:00+02:00"), ValueError, "time must be ISO 8601 text"),
        ((1, 2, [3]), TypeError, "time must be ISO 8601 text"),
        ((1, 2, 3, ""), ValueError, "recommendation must not be empty"),
        ((1, 2, 3, 4), TypeError, "recommendation must be text"),
    ],
)
def test_an_event_is_validated(given: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Event(*given)


def test_tail_returns_each_event_once_whoever_wrote_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as one, Journal(tmp_path / "j") as two:
        assert one.tail() == []
        one.append(events("a"))
        two.append(events("b", "c"))
        assert users(one.tail()) == users(two.tail()) == ["a", "b", "c"]
        assert one.tail() == two.tail() == []
        two.append([])
        two.append(events("d"))
        assert users(one.tail()) == ["d"]
    with Journal(tmp_path / "j") as again:
        assert users(again.tail()) == ["a", "b", "c", "d"]


def test_a_closed_journal_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(events("a"))
    journal.close()
    assert journal.tail() == []
    with pytest.raises(OSError, match="closed"):
        journal.append(events("b"))


def test_a_last_line_cut_anywhere_is_repaired(tmp_path: Path) -> None:
    whole, last = b"".join(map(encode, events("a", "b"))), encode(events("c")[0])
    file = tmp_path / "j"
    for cut in range(len(last) + 1):
        file.write_bytes(whole + last[:cut])
        # Only the newline may be missing without harm.
        expected = ["a", "b", "c"] if cut >= len(last) - 1 else ["a", "b"]
        assert read_journal(file).users == expected
        with Journal(file) as journal:
            assert users(journal.tail()) == expected
            journal.append(events("d"))
            assert users(journal.tail()) == ["d"]
        assert read_journal(file).users == [*expected, "d"]
        assert read_journal(file).skipped == 0


def test_a_writer_repairs_what_another_left(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append(events("a"))
        with open(tmp_path / "j", "ab") as file:
            file.write(b'{"user": "half')
        assert users(journal.tail()) == ["a"]
        journal.append(events("b"))
        assert users(journal.tail()) == ["b"]
    assert (tmp_path / "j").read_bytes() == b"".join(map(encode, events("a", "b")))


@pytest.mark.parametrize(
    "damage",
    [
        b'{"user": "half{"user": "whole"}\n', b"\0" * 50 + b"\n", b"\n", b"[1, 2]\n", b"7\n",
        b'{"user": "a", "item": "b"}\n', b'{"user": "a", "item": null, "time": "2024-05-01"}\n',
        b'{"user": "\\ud800", "item": "b", "time": "2024-05-01"}\n', b"\xff\xfe\n",
        b"[" * 9999 + b"\n",
    ],
    ids=range(10),
)  # fmt: skip
def test_a_damaged_line_is_skipped_and_counted(damage: bytes, tmp_path: Path) -> None:
    lines = [encode(event) for event in events("a", "b")]
    (tmp_path / "j").write_bytes(lines[0] + damage + lines[1])
    with Journal(tmp_path / "j") as journal:
        assert users(journal.tail()) == ["a", "b"]
        assert journal.skipped == 1
    found = read_journal(tmp_path / "j")
    assert (found.users, found.skipped) == (["a", "b"], 1)


def test_zeros_after_a_power_failure_are_removed(tmp_path: Path) -> None:
    line = encode(events("a")[0])
    (tmp_path / "j").write_bytes(line + b"\0" * 5000)
    with Journal(tmp_path / "j") as journal:
        assert users(journal.tail()) == ["a"]
    assert (tmp_path / "j").read_bytes() == line
    (tmp_path / "k").write_bytes(b"\0" * 5000)
    Journal(tmp_path / "k").close()
    assert (tmp_path / "k").read_bytes() == b""


@pytest.mark.parametrize("content", [b"user,item\nann,tea", b"user", b'{"name": 1}\n{"a'])
def test_another_file_is_refused_and_not_changed(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_bytes(content)
    for use in (Journal, read_journal):
        with pytest.raises(DataError, match="expected a journal"):
            use(file)
    assert file.read_bytes() == content
    with pytest.raises(DataError, match="cannot be opened"):
        read_journal(tmp_path / "missing")


def test_long_lines_and_many_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["short", "x" * 3000, "y" * 100, "z" * 9000, "end"]
    with Journal(tmp_path / "j") as journal:
        journal.append(events(*names))
        monkeypatch.setattr(journal_module, "_BLOCK", 256)
        assert users(journal.tail()) == names
    assert read_journal(tmp_path / "j").users == names
    with open(tmp_path / "j", "ab") as file:
        file.write(b'{"user": "' + b"h" * 2000)
    with Journal(tmp_path / "j") as journal:
        assert users(journal.tail()) == names


def test_a_renamed_journal_is_followed_by_a_new_one(tmp_path: Path) -> None:
    path, old = tmp_path / "j", tmp_path / "old"
    with Journal(path) as one, Journal(path) as two:
        one.append(events("a"))
        assert users(two.tail()) == ["a"]
        one.append(events("b"))
        os.rename(path, old)
        assert users(two.tail()) == ["b"]
        one.append(events("c"))
        two.append(events("d"))
        assert users(two.tail()) == ["c", "d"]
        assert users(one.tail()) == ["a", "b", "c", "d"]
    assert read_journal(old).users == ["a", "b"]
    assert read_journal(path).users == ["c", "d"]


def test_an_emptied_journal_is_read_from_its_beginning(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.append(events("a", "b"))
        assert len(journal.tail()) == 2
        os.truncate(tmp_path / "j", 0)
        journal.append(events("c"))
        assert users(journal.tail()) == ["c"]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def slow(descriptor: int) -> None:
        time.sleep(0.01)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(journal_module, "sync_data", slow)
    late: list[str] = []
    with Journal(tmp_path / "j") as journal:

        def work(number: int) -> None:
            for turn in range(5):
                journal.append(events(f"{number}-{turn}"))
                content = (tmp_path / "j").read_bytes()
                end = content.index(f'"{number}-{turn}"'.encode())
                if max(synced) < end:
                    late.append(f"{number}-{turn}")

        in_threads(16, work)
        found = users(journal.tail())
    assert not late, "an event was acknowledged before it was synced"
    assert len(found) == len(set(found)) == 80
    assert len(synced) <= 20  # about 6, of 80
    for number in range(16):  # in the order in which each thread appended
        mine = [name for name in found if name.startswith(f"{number}-")]
        assert mine == [f"{number}-{turn}" for turn in range(5)]


def test_a_failed_sync_fails_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []

    def broken(descriptor: int) -> None:
        time.sleep(0.01)
        raise OSError(5, "Input/output error")

    with Journal(tmp_path / "j") as journal:
        with monkeypatch.context() as patched:
            patched.setattr(journal_module, "sync_data", broken)

            def work(number: int) -> None:
                try:
                    journal.append(events(str(number)))
                except OSError:
                    failed.append(number)

            in_threads(6, work)
        assert sorted(failed) == list(range(6))
        journal.append(events("later"))
        assert users(journal.tail())[-1] == "later"


def python(script: str, *arguments: Any, **more: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **more)


WRITER = """
import os, sys, threading
from fewfold.recommender.journal import Event, Journal
path, name, limit, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
journal = Journal(path)
def work(thread):
    for turn in range(limit):
        mine = [f"{name}/{thread}/{turn}/{part}" for part in range(1 + turn % 3)]
        journal.append([Event(one, "x" * size, turn) for one in mine])
        os.write(1, "".join(one + "\\n" for one in mine).encode())  # acknowledged
threads = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_processes_append_to_one_file(tmp_path: Path) -> None:
    writers = [python(WRITER, tmp_path / "j", name, 40, 5) for name in range(3)]
    acknowledged = [line for one in writers for line in one.communicate()[0].decode().split()]
    found = read_journal(tmp_path / "j")
    assert found.skipped == 0
    assert len(acknowledged) == 3 * 3 * (13 * (1 + 2 + 3) + 1)
    assert sorted(found.users) == sorted(acknowledged)


def test_killed_writers_lose_nothing_and_leave_no_half(tmp_path: Path) -> None:
    path, acknowledged = tmp_path / "j", set()
    lasting = python(WRITER, path, "lasting", 10**6, 3000)  # goes on beside the killed ones
    with Journal(path) as reader:
        seen: list[str] = []
        for turn in range(20):
            one = python(WRITER, path, turn, 10**6, 30000)
            assert one.stdout is not None
            first = one.stdout.readline()
            time.sleep(0.003 * turn)
            one.kill()
            rest = one.communicate()[0]
            # The last acknowledgement may be cut as well.
            acknowledged |= set((first + rest).decode().rpartition("\n")[0].split())
            found = reader.tail()
            seen += users(found)
            assert all(len(str(event.item)) in (3000, 30000) for event in found)
        lasting.kill()
        acknowledged |= set(lasting.communicate()[0].decode().rpartition("\n")[0].split())
        seen += users(reader.tail())
        assert reader.skipped == 0
    assert acknowledged <= set(seen)
    assert len(seen) == len(set(seen))
    whole = read_journal(path)
    assert (whole.users, whole.skipped) == (seen, 0)
    assert len({name.split("/")[0] for name in acknowledged}) == 21


FULL = """
import resource, signal, sys
from fewfold.recommender.journal import Event, Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Journal(sys.argv[1])
journal.append([Event("first", "x" * 1000)])
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    journal.append([Event(f"too much {part}", "y" * 1000) for part in range(9)])
except OSError as error:
    print(error.errno, error.strerror)
journal.append([Event("fits", "z")])
print([event.user for event in journal.tail()])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits are of Unix")
def test_a_full_disk_is_an_error_and_leaves_no_half_event(tmp_path: Path) -> None:
    found = python(FULL, tmp_path / "j").communicate()[0].decode()
    assert found == "27 File too large\n['first', 'fits']\n"
    assert read_journal(tmp_path / "j").users == ["first", "fits"]


FORKED = """
import os, sys
from fewfold.recommender.journal import Event, Journal
journal = Journal(sys.argv[1])
journal.append([Event("before", "x")])
journal.tail()
child = os.fork()
for turn in range(200):
    journal.append([Event("child" if child == 0 else "parent", turn)])
if child == 0:
    print(len(journal.tail()) >= 200, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(journal.tail()))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_journal_goes_on(tmp_path: Path) -> None:
    assert python(FORKED, tmp_path / "j").communicate()[0] == b"True\n400\n"
    assert read_journal(tmp_path / "j").skipped == 0


def test_a_prefix_is_read_while_others_write(tmp_path: Path) -> None:
    writer = python(WRITER, tmp_path / "j", "w", 10**6, 2000)
    assert writer.stdout is not None
    writer.stdout.readline()
    before: list[Any] = []
    for _ in range(10):
        found = read_journal(tmp_path / "j")
        assert found.skipped == 0
        assert found.users[: len(before)] == before
        assert len(found.users) == len(found.items) == len(found.times)
        before = found.users
    writer.kill()
    writer.communicate()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed on Linux")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n")
    before = len(os.listdir("/proc/self/fd"))
    with Journal(tmp_path / "j") as journal:
        journal.append(events("a"))
        journal.tail()
        os.rename(tmp_path / "j", tmp_path / "old")
        journal.append(events("b"))
        assert users(journal.tail()) == ["b"]
    read_journal(tmp_path / "old")
    for use in (Journal, read_journal):
        with pytest.raises(DataError):
            use(tmp_path / "log.csv")
    assert len(os.listdir("/proc/self/fd")) == before
