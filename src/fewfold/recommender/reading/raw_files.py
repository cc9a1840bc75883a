"""Files as decompressed bytes; pipes and standard input are copied to temporary files."""

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
from fewfold.recommender.reading.table_source import explained, library

__all__ = ["COMPRESSIONS", "Compression", "File", "standard_input", "stored"]

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Compression:
    """A compression format: name, file ending, magic bytes and a decompressing reader.

    `open` takes the compressed file, opened in binary mode, and returns the decompressed one.
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
        path: location of the file.
        compression: its compression, or None.
        label: name of the copy of a pipe in messages; by default the path.
    """

    path: Path
    compression: Compression | None = None
    label: str = ""

    @classmethod
    def of(cls, path: Path, label: str = "") -> "File":
        """Construct from a path, detecting the compression by the first bytes."""
        with explained(label or str(path)), path.open("rb") as file:
            start = file.read(8)
        found = (one for one in COMPRESSIONS if start.startswith(one.magic))
        return cls(path, next(found, None), label)

    @property
    def name(self) -> str:
        """Name for messages."""
        return self.label or str(self.path)

    @property
    def packed(self) -> str:
        """Name of the compression, or an empty string."""
        return self.compression.name if self.compression else ""

    @contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Open the file; yield the decompressed stream and the raw one."""
        with self.path.open("rb") as raw:
            if self.compression is None:
                yield raw, raw
            else:
                with self.compression.open(raw) as plain:
                    yield plain, raw

    def start(self, size: int) -> bytes:
        """Return up to `size` decompressed bytes from the beginning."""
        with explained(self.name), self.open() as (plain, _):
            return bytes(plain.read(size))


def stored(path: Path, label: str = "") -> Path:
    """Return the path itself, or for a pipe a temporary file with its whole content.

    A log is opened more than once (to detect its format, to show its first rows, to read it), which
    a pipe does not allow. The copy is deleted when the program ends.
    """
    with explained(label or str(path)):
        mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return path
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return _copy_to_file(str(path), label or str(path))
    kind = "device" if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) else "special file"
    if path.samefile(os.devnull):
        raise DataError(f"{path}: the file is empty; expected a header and rows")
    raise DataError(f"{path}: this is a {kind}, not a file; name a file, a folder or - for a pipe")


def standard_input() -> Path:
    """Return a temporary file with the whole content of standard input."""
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("standard input: it is closed; pipe a log into it: cat log.csv | fewfold")
    if sys.stdin.isatty():
        raise DataError(
            "standard input: it is the keyboard; pipe a log into it: cat log.csv | fewfold fit -"
        )
    return _copy_to_file("-", "standard input")


@functools.cache
def _copy_to_file(source: str, name: str) -> Path:
    """Copy a pipe to a temporary file, once per process."""
    folder = Path(tempfile.mkdtemp(prefix="fewfold-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = folder / "input"
    try:
        with target.open("wb") as file:
            if source == "-":
                shutil.copyfileobj(getattr(sys.stdin, "buffer", sys.stdin), file, _CHUNK)
            else:
                with open(source, "rb") as pipe:
                    shutil.copyfileobj(pipe, file, _CHUNK)
    except OSError as error:
        raise DataError(
            f"{name}: cannot be copied to {folder} ({error.strerror}); free space there, set "
            "TMPDIR to another folder, or write the log to a file and name that"
        ) from error
    return target
