"""A file on disk as plain bytes, whatever it is compressed with; standard input as a file."""

import atexit
import bz2
import functools
import gzip
import lzma
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.tables import explained, library

__all__ = ["COMPRESSIONS", "Compression", "File", "standard_input", "stored"]

_PIECE = 1 << 20


@dataclass(frozen=True)
class Compression:
    """A way to compress a file: its name, the ending and first bytes of such files, and a reader.

    `open` takes the compressed file, opened for reading bytes, and returns the plain one.
    """

    name: str
    ending: str
    magic: bytes
    open: Callable[[IO[bytes]], Any]


COMPRESSIONS = (
    Compression("gzip", ".gz", b"\x1f\x8b", lambda raw: gzip.GzipFile(fileobj=raw)),
    Compression(
        "zstd",
        ".zst",
        b"\x28\xb5\x2f\xfd",
        lambda raw: library("pyarrow").CompressedInputStream(raw, "zstd"),
    ),
    Compression("bzip2", ".bz2", b"BZh", bz2.BZ2File),
    Compression("xz", ".xz", b"\xfd7zXZ\x00", lzma.LZMAFile),
)


@dataclass(frozen=True)
class File:
    """A file to read.

    Attributes:
        path: where it is.
        compression: how it is compressed, or None.
        label: what to call the copy of a pipe in messages; a file is called by its path.
    """

    path: Path
    compression: Compression | None = None
    label: str = ""

    @classmethod
    def of(cls, path: Path, label: str = "") -> "File":
        """The file, with the compression that its first bytes announce."""
        with explained(label or str(path)), path.open("rb") as file:
            start = file.read(8)
        found = (one for one in COMPRESSIONS if start.startswith(one.magic))
        return cls(path, next(found, None), label)

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return self.label or str(self.path)

    @property
    def packed(self) -> str:
        """The name of its compression, or an empty text."""
        return self.compression.name if self.compression else ""

    @contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """The plain bytes, and the file as stored."""
        with self.path.open("rb") as raw:
            if self.compression is None:
                yield raw, raw
            else:
                with self.compression.open(raw) as plain:
                    yield plain, raw

    def start(self, size: int) -> bytes:
        """Up to `size` plain bytes from its beginning."""
        with explained(self.name), self.open() as (plain, _):
            return bytes(plain.read(size))


def stored(path: Path, label: str = "") -> Path:
    """The path itself, or for a pipe a temporary file with all that came through it.

    A log is opened more than once (to recognise it, to look at its first rows, to read it), which
    a pipe does not allow. The copy is deleted when the program ends.
    """
    with explained(label or str(path)):
        mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return _copied(str(path), label or str(path))
    kind = "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "special file"
    if path.samefile(os.devnull):
        raise DataError(f"{path}: the file is empty; expected a header and rows")
    raise DataError(f"{path}: this is a {kind}, not a file; name a file, a folder or - for a pipe")


def standard_input() -> Path:
    """A file with all that comes through standard input."""
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input: it is closed; pipe a log into it: cat log.csv | fewfold")
    if sys.stdin.isatty():
        raise DataError(
            "standard input: it is the keyboard; pipe a log into it: cat log.csv | fewfold fit -"
        )
    return _copied("-", "standard input")


@functools.cache
def _copied(source: str, name: str) -> Path:
    """All that comes through a pipe, in a temporary file; read once, however often it is asked."""
    folder = Path(tempfile.mkdtemp(prefix="fewfold-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "input"
    try:
        with target.open("wb") as file:
            if source == "-":
                shutil.copyfileobj(getattr(sys.stdin, "buffer", sys.stdin), file, _PIECE)
            else:
                with open(source, "rb") as pipe:
                    shutil.copyfileobj(pipe, file, _PIECE)
    except OSError as error:
        raise DataError(
            f"{name}: cannot be copied to {folder} ({error.strerror}); make room there, set TMPDIR "
            "to another folder, or write the log to a file and name that"
        ) from error
    return target
