"""Fetching public data from a server on this machine, with archives of the true formats."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import polars
import pytest

from fewfold.recommender.datasets import download, public
from fewfold.recommender.datasets.public import PUBLIC, fetch, is_fetched
from fewfold.recommender.errors import DataError


def packed(files: dict[str, bytes]) -> bytes:
    """A zip archive of these files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def u_item(number: int, name: str, *genres: int) -> str:
    marks = ["1" if place in genres else "0" for place in range(19)]
    return "|".join([str(number), name, "01-Jan-1995", "", "http://link", *marks])


def comma_separated(name: str) -> bytes:
    return packed(
        {
            f"{name}/README.txt": b"read me",
            f"{name}/ratings.csv": b"userId,movieId,rating,timestamp\n"
            b"1,296,5.0,1147880044\n1,306,3.5,1147868817\n7,296,0.5,1147868828\n",
            f"{name}/movies.csv": "movieId,title,genres\n"
            '296,"Misérables, Les (1995)",Drama|War\n'
            '306,"Say ""Hi"" (1999)",(no genres listed)\n'.encode(),
        }
    )


def two_colons(folder: str, encoding: str) -> bytes:
    return packed(
        {
            f"{folder}/ratings.dat": b"1::296::5::1147880044\n1::306::3.5::1147868817\n"
            b"7::296::0.5::1147868828\n",
            f"{folder}/movies.dat": "296::Misérables, Les: Part 2 (1995)::Drama|War\n"
            '306::Say "Hi" (1999)::Comedy\n'.encode(encoding),
        }
    )


ARCHIVES = {
    "ml-100k": packed(
        {
            "ml-100k/u.data": b"1\t296\t5\t1147880044\n1\t306\t3\t1147868817\n"
            b"7\t296\t1\t1147868828\n",
            "ml-100k/u.item": "\n".join(
                [u_item(296, "Misérables, Les (1995)", 8, 17), u_item(306, "unknown", 0), ""]
            ).encode("latin-1"),
        }
    ),
    "ml-1m": two_colons("ml-1m", "latin-1"),
    "ml-10m": two_colons("ml-10M100K", "utf-8"),
    **{name: comma_separated(name) for name in ("ml-20m", "ml-25m", "ml-32m", "ml-latest-small")},
    "lastfm-2k": packed(
        {
            "user_artists.dat": b"userID\tartistID\tweight\r\n1\t296\t13883\r\n1\t306\t11690\r\n"
            b"7\t296\t1\r\n",
            "artists.dat": "id\tname\turl\tpictureURL\n296\tSigur Rós\thttp://a\thttp://b\n"
            '306\t"Weird'.encode()
            + b"\xff\thttp://a\thttp://b\n",
        }
    ),
    "gowalla": gzip.compress(
        b"1\t2006-05-17T15:34:04Z\t30.2359091167\t-97.7951395833\t296\n"
        b"1\t2006-05-17T12:26:57Z\t30.2691029532\t-97.7493953705\t306\n"
        b"7\t2006-05-17T12:27:08Z\t30.2\t-97.7\t296\n"
    ),
}
LOG = {
    "user": [1, 1, 7],
    "item": [296, 306, 296],
    "time": [1147880044, 1147868817, 1147868828],
}
RATINGS = {"ml-100k": [5.0, 3.0, 1.0], "lastfm-2k": [13883.0, 11690.0, 1.0], "gowalla": None}
TITLES = {
    "ml-100k": (["Misérables, Les (1995)", "unknown"], ["Drama|War", ""]),
    "ml-1m": (["Misérables, Les: Part 2 (1995)", 'Say "Hi" (1999)'], ["Drama|War", "Comedy"]),
    "ml-10m": (["Misérables, Les: Part 2 (1995)", 'Say "Hi" (1999)'], ["Drama|War", "Comedy"]),
    "lastfm-2k": (["Sigur Rós", '"Weird\ufffd'], None),
    "gowalla": None,
}


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; the first answers can be made to go wrong."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str | None] = []  # the Range of each request
        self.drops: list[int] = []  # bytes after which an answer breaks, for the first answers
        self.codes: list[int] = []  # statuses of the first answers
        self.ranges = True
        self.pause = 0.0  # seconds between two blocks
        self.length = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is part of the tests."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/data"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        body = self.server.files.get(self.path.rpartition("/")[2])
        if self.server.codes or body is None:
            self.send_error(self.server.codes.pop(0) if self.server.codes else 404)
            return
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if self.server.length:
            self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = self.server.drops.pop(0) if self.server.drops else len(body)
        for place in range(start, end, 64):
            self.wfile.write(body[place : min(place + 64, end)])
            time.sleep(self.server.pause)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with every archive of the table, and the table made to expect them."""
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    with Server() as running:
        for name, data in ARCHIVES.items():
            running.files[PUBLIC[name].archive] = data
            expect(monkeypatch, name, data)
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def expect(monkeypatch: pytest.MonkeyPatch, name: str, data: bytes) -> None:
    """Make the table of public sets expect these bytes."""
    checksum = f"sha256:{hashlib.sha256(data).hexdigest()}"
    changed = dataclasses.replace(PUBLIC[name], size=len(data), checksum=checksum)
    monkeypatch.setitem(public.PUBLIC, name, changed)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", PUBLIC)
def test_table_is_complete(name: str) -> None:
    chosen = PUBLIC[name]
    assert name in ARCHIVES
    assert re.fullmatch(r"https://(files\.grouplens\.org|snap\.stanford\.edu)/\S+", chosen.url)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", chosen.checksum or "")
    assert chosen.archive.endswith((".zip", ".gz"))
    assert 0 < chosen.users < chosen.rows
    assert 0 < chosen.items < chosen.rows
    for word in ("Licence: ", "Cite: ", "Source: https://"):
        assert word in chosen.notice


@pytest.mark.parametrize("name", PUBLIC)
def test_every_format_becomes_tidy(name: str, server: Server, tmp_path: Path) -> None:
    made = fetch(name, tmp_path / "new" / "data", base=server.base, progress=False)
    assert made == tmp_path / "new" / "data" / name
    assert names(made.parent) == {name}
    log = polars.read_parquet(made / "log.parquet").to_dict(as_series=False)
    rating = RATINGS.get(name, [5.0, 3.5, 0.5])
    expected: dict[str, object] = {**LOG, **({"rating": rating} if rating else {})}
    if name == "lastfm-2k":
        del expected["time"]
    assert log == expected
    titles = TITLES.get(name, (["Misérables, Les (1995)", 'Say "Hi" (1999)'], ["Drama|War", ""]))
    assert (made / "items.parquet").exists() == (titles is not None)
    if titles is not None:
        items = polars.read_parquet(made / "items.parquet").to_dict(as_series=False)
        genres = {"genres": titles[1]} if titles[1] is not None else {}
        assert items == {"item": [296, 306], "name": titles[0], **genres}
    licence = (made / "LICENCE.txt").read_text()
    assert PUBLIC[name].notice in licence
    assert hashlib.sha256(ARCHIVES[name]).hexdigest() in licence


def test_second_run_does_nothing_unless_forced(server: Server, tmp_path: Path) -> None:
    made = fetch("ml-100k", tmp_path, base=server.base)
    (made / "mine.txt").write_text("kept")
    before = (made / "log.parquet").stat().st_mtime_ns
    assert is_fetched("ml-100k", tmp_path)
    assert fetch("ml-100k", tmp_path, base=server.base) == made
    assert len(server.asked) == 1
    assert (made / "log.parquet").stat().st_mtime_ns == before
    fetch("ml-100k", tmp_path, base=server.base, force=True)
    assert len(server.asked) == 2
    assert (made / "log.parquet").stat().st_mtime_ns > before
    assert names(made) == {"log.parquet", "items.parquet", "LICENCE.txt", "mine.txt"}


def test_folder_of_somebody_else_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").write_text("mine")
    for force in (False, True):
        with pytest.raises(DataError, match="was not fetched"):
            fetch("ml-100k", tmp_path, base=server.base, force=force)
    assert (tmp_path / "ml-100k" / "u.data").read_text() == "mine"


def test_archive_in_the_folder_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "ml-1m.zip").write_bytes(ARCHIVES["ml-1m"])
    fetch("ml-1m", tmp_path, base="http://127.0.0.1:9")
    assert names(tmp_path) == {"ml-1m", "ml-1m.zip"}
    (tmp_path / "ml-100k.zip").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"sha256 should be \w{64}, it is \w{64}.*delete"):
        fetch("ml-100k", tmp_path, base=server.base)
    assert (tmp_path / "ml-100k.zip").read_bytes() == b"something else"


def test_dropped_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.drops = [200, 300]
    fetch("ml-20m", tmp_path, base=server.base)
    assert server.asked == [None, "bytes=200-", "bytes=300-"]
    assert names(tmp_path) == {"ml-20m"}


def test_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.drops, server.ranges = [200], False
    fetch("ml-20m", tmp_path, base=server.base)
    assert server.asked == [None, "bytes=200-"]
    assert is_fetched("ml-20m", tmp_path)


def test_server_that_names_no_length(server: Server, tmp_path: Path) -> None:
    server.length = False
    fetch("ml-20m", tmp_path, base=server.base)
    server.files["ml-25m.zip"] = ARCHIVES["ml-25m"] * 2
    with pytest.raises(DataError, match="sends more"):
        fetch("ml-25m", tmp_path, base=server.base)


def test_truncated_body_is_kept_for_the_next_run(server: Server, tmp_path: Path) -> None:
    server.drops = [100, 200, 300]
    with pytest.raises(ConnectionError, match=r"broke 3 times.*300 of.*from the 300 bytes"):
        fetch("ml-20m", tmp_path, base=server.base)
    assert names(tmp_path) == {"ml-20m.zip.part"}
    fetch("ml-20m", tmp_path, base=server.base)
    assert server.asked[-1] == "bytes=300-"
    assert names(tmp_path) == {"ml-20m"}


def test_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.codes = [503, 429]
    fetch("ml-20m", tmp_path, base=server.base)
    server.codes = [500, 502, 503]
    with pytest.raises(ConnectionError, match="answered 503 Service Unavailable"):
        fetch("ml-25m", tmp_path, base=server.base)


def test_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "ml-20m.zip.part"
    part.write_bytes(b"x" * 10_000)
    with pytest.raises(DataError, match=r"should be.*it is.*it was deleted: run again"):
        fetch("ml-20m", tmp_path, base=server.base)
    assert not part.exists()
    # Where the size is not known only the server can tell.
    server_side = dataclasses.replace(PUBLIC["ml-20m"], size=None)
    part.write_bytes(b"x" * 10_000)
    public.PUBLIC["ml-20m"] = server_side  # the fixture puts the old one back
    fetch("ml-20m", tmp_path, base=server.base)
    assert server.asked == ["bytes=10000-", None]


def test_wrong_checksum_says_both(server: Server, tmp_path: Path) -> None:
    wrong = bytearray(ARCHIVES["ml-20m"])
    wrong[50] ^= 1
    server.files["ml-20m.zip"] = bytes(wrong)
    sums = [hashlib.sha256(data).hexdigest() for data in (ARCHIVES["ml-20m"], wrong)]
    with pytest.raises(DataError, match=rf"sha256 should be {sums[0]}, it is {sums[1]}"):
        fetch("ml-20m", tmp_path, base=server.base)
    assert names(tmp_path) == set()


def test_other_size_is_refused_before_it_comes(server: Server, tmp_path: Path) -> None:
    server.files["ml-20m.zip"] += b"more"
    with pytest.raises(DataError, match=r"should have [\d,]+ bytes, the server has [\d,]+"):
        fetch("ml-20m", tmp_path, base=server.base)
    assert names(tmp_path) == set()


def test_md5_and_no_checksum(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ARCHIVES["ml-1m"]
    chosen = dataclasses.replace(
        PUBLIC["ml-1m"], checksum=f"md5:{hashlib.md5(data).hexdigest().upper()}"
    )
    monkeypatch.setitem(public.PUBLIC, "ml-1m", chosen)
    fetch("ml-1m", tmp_path, base=server.base)
    monkeypatch.setitem(public.PUBLIC, "ml-1m", dataclasses.replace(chosen, checksum=None))
    with pytest.warns(
        UserWarning, match=f"compare with; its sha256 is {hashlib.sha256(data).hexdigest()}"
    ):
        fetch("ml-1m", tmp_path, base=server.base, force=True)
    monkeypatch.setitem(
        public.PUBLIC, "ml-1m", dataclasses.replace(chosen, checksum="md5:" + "0" * 32)
    )
    with pytest.raises(DataError, match=r"its md5 should be 0{32}"):
        fetch("ml-1m", tmp_path, base=server.base, force=True)
    assert is_fetched("ml-1m", tmp_path)


def test_missing_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    del server.files["ml-20m.zip"]
    with pytest.raises(DataError, match=r"answered 404 Not Found.*yourself to .*ml-20m\.zip"):
        fetch("ml-20m", tmp_path, base=server.base)
    assert len(server.asked) == 1
    assert names(tmp_path) == set()


def test_no_server(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        ConnectionError,
        match=r"could not reach 127\.0\.0\.1: .*refused.*check the connection or proxy, or "
        r"download http://127\.0\.0\.1:9/ml-20m\.zip yourself to .*ml-20m\.zip and run again",
    ):
        fetch("ml-20m", tmp_path, base="http://127.0.0.1:9/")
    assert names(tmp_path) == set()


def test_silent_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_TIMEOUT", 0.1)
    server.pause = 0.5
    with pytest.raises(ConnectionError, match=r"broke 3 times.*timed out"):
        fetch("ml-20m", tmp_path, base=server.base)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("ml-20m", packed({"ml-20m/ratings.csv": b"0" * 30_000_000}), "unpacks to more than"),
        ("gowalla", gzip.compress(b"0" * 30_000_000), "unpacks to more than"),
        ("ml-20m", packed({"other/ratings.csv": b"1,2,3,4\n"}), "cannot be unpacked.*no item"),
        ("ml-20m", ARCHIVES["ml-20m"][:-30], "cannot be unpacked"),
        ("ml-20m", b"<html>log in</html>", "cannot be unpacked"),
        ("gowalla", ARCHIVES["gowalla"][:-20], "cannot be unpacked"),
        ("gowalla", b"<html>log in</html>", "cannot be unpacked"),
        ("gowalla", gzip.compress(b""), "not the table"),
        ("gowalla", gzip.compress(b"1\tyesterday\t0\t0\t3\n"), "not the table"),
        ("gowalla", gzip.compress(b"1\t2006-05-17T15:34:04Z\t0\n"), "not the table"),
        ("ml-20m", packed({"ml-20m/ratings.csv": b"userId\n1,2,x,4\n"}), "not the table"),
        ("ml-20m", packed({"ml-20m/ratings.csv": b"a,b,c,d\n1,2,,4\n"}), "not the table"),
        ("ml-1m", packed({"ml-1m/ratings.dat": b"1::2::3::4::5\n"}), "not the table"),
        (
            "ml-1m",
            packed({"ml-1m/ratings.dat": b"1::2::3::4\n", "ml-1m/movies.dat": b"x::y::z\n"}),
            "movies.dat of ml-1m.zip is not the table",
        ),
        (
            "ml-1m",
            packed({"ml-1m/ratings.dat": b"1::2::3::4\n", "ml-1m/movies.dat": b"1::y\n"}),
            "movies.dat of ml-1m.zip is not the table",
        ),
    ],
    ids=itertools.count(),  # bytes of an archive have its date in them
)
def test_archives_that_are_not_what_they_should_be(
    name: str,
    data: bytes,
    message: str,
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expect(monkeypatch, name, data)
    server.files[PUBLIC[name].archive] = data
    with pytest.raises(DataError, match=message):
        fetch(name, tmp_path, base=server.base)
    assert names(tmp_path) == {PUBLIC[name].archive}


def test_members_are_never_written_by_their_path(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(io.BytesIO(ARCHIVES["ml-20m"])) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    data = packed({"../../escaped.txt": b"!", "/tmp/escaped.txt": b"!", **files})
    expect(monkeypatch, "ml-20m", data)
    server.files["ml-20m.zip"] = data
    fetch("ml-20m", tmp_path / "a" / "b", base=server.base)
    assert not list(tmp_path.rglob("escaped.txt"))
    assert names(tmp_path / "a" / "b" / "ml-20m") == {"log.parquet", "items.parquet", "LICENCE.txt"}


def test_no_room(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(OSError, match=r"no space left.*are to come"):
            fetch("ml-20m", tmp_path, base=server.base)
    if os.path.exists("/dev/full"):
        (tmp_path / "ml-20m.zip.part").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"no space left for .*free some"):
            fetch("ml-20m", tmp_path, base=server.base)


def test_folder_that_cannot_be_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match=r"cannot write into .*is a file"):
            fetch("ml-20m", folder, base=server.base)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(PermissionError, match=r"cannot write into .*Read-only.*may write to"):
        fetch("ml-20m", tmp_path / "new", base=server.base)


def test_unknown_names_and_addresses(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"perhaps 'ml-100k'\? there are ml-100k, ml-1m"):
        fetch("ml100k", tmp_path)
    with pytest.raises(DataError, match="http or https, got 'file:///etc'"):
        fetch("ml-100k", tmp_path, base="file:///etc")
    assert names(tmp_path) == set()


def test_killed_halfway_leaves_no_folder(server: Server, tmp_path: Path) -> None:
    chosen = PUBLIC["ml-20m"]
    # The room is entered by the back door: its front door loads torch, which takes seconds.
    program = f"""
        import dataclasses, os, signal, sys, types
        room = types.ModuleType("fewfold.recommender")
        room.__path__ = [{str(Path(public.__file__).parents[1])!r}]
        sys.modules["fewfold.recommender"] = room
        from fewfold.recommender.datasets import public
        public.PUBLIC["ml-20m"] = dataclasses.replace(
            public.PUBLIC["ml-20m"], size={chosen.size}, checksum={chosen.checksum!r})
        public.write_titles = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        public.fetch("ml-20m", {str(tmp_path)!r}, base={server.base!r})
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert {name for name in names(tmp_path) if not name.startswith(".")} == {"ml-20m.zip"}
    fetch("ml-20m", tmp_path, base=server.base)
    assert len(server.asked) == 1
    assert is_fetched("ml-20m", tmp_path)


def test_interrupted_while_writing_leaves_no_folder(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(public, "write_titles", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch("ml-20m", tmp_path, base=server.base)
    assert names(tmp_path) == {"ml-20m.zip"}
    old, fresh = tmp_path / ".ml-20m-0123abcd.part", tmp_path / ".ml-20m-4567abcd.part"
    for left in (old, fresh):
        left.mkdir()
    os.utime(old, (0, 0))
    fetch("ml-20m", tmp_path, base=server.base)
    assert names(tmp_path) == {"ml-20m", "ml-20m.zip", fresh.name}


def test_progress_is_told_on_a_terminal_only(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(download, "line", said.append)
    fetch("ml-20m", tmp_path, base=server.base)
    assert any(re.fullmatch(r"ml-20m\.zip: \d+% of \d+ MB, \d+\.\d MB/s", text) for text in said)
    assert said[-1] == ""
