"""Download a file over HTTP, with resumption and checksum verification."""

import contextlib
import errno
import hashlib
import hmac
import http.client
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fewfold._files import move_into_place
from fewfold._progress import line
from fewfold.recommender.errors import DataError

__all__ = ["download", "verify", "writing"]

_BLOCK = 1 << 18
_TIMEOUT = 30.0  # seconds without data
_TRIES = 3
_PAUSE = 1.0  # seconds before the second attempt, doubled for each further one


class _DroppedError(Exception):
    """The connection was lost; the partial file can be resumed."""


def download(
    url: str, target: Path, *, size: int | None = None, checksum: str | None = None
) -> str:
    """Download `url` to `target`, resuming from `target` + ".part" if it exists.

    Args:
        url: an http or https address; HTTPS_PROXY and the like are respected.
        target: written only after the checksum has been verified.
        size: size in bytes, if known; a server that announces another is rejected.
        checksum: "sha256:..." or "md5:...", if known.

    Returns:
        The sha256 of the file, in hexadecimal.

    Raises:
        ConnectionError: the server cannot be reached or the connection broke three times.
        DataError: the file does not exist, or is not the expected one.
    """
    part = target.with_name(target.name + ".part")
    yourself = f"download {url} yourself to {target} and run again"
    host = urlsplit(url).hostname
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        try:
            if size is None or _size_of(part) < size:
                _resume(url, part, size, yourself)
            break
        except _DroppedError as dropped:
            reason = str(dropped)
        finally:
            line("")
    else:
        raise ConnectionError(
            f"the connection to {host} broke {_TRIES} times: {reason}; run again to go on "
            f"from the {_size_of(part):,} bytes that have come, or {yourself}"
        )
    try:
        seen = verify(part, checksum)
    except DataError as error:
        part.unlink()  # resuming it could never succeed
        raise DataError(
            f"{error}; it was deleted: run again, and if that does not help, {url} has been "
            "changed by its owner or something on the way changes it"
        ) from None
    move_into_place(part, target)
    return seen


def verify(path: Path, checksum: str | None) -> str:
    """Return the sha256; raise a DataError if `checksum` ("sha256:..." or "md5:...") differs."""
    kind, _, wanted = (checksum or "sha256:").partition(":")
    sums = {name: hashlib.new(name, usedforsecurity=False) for name in {"sha256", kind}}
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            for one in sums.values():
                one.update(block)
    found = sums[kind].hexdigest()
    if wanted and not hmac.compare_digest(found, wanted.lower()):
        raise DataError(
            f"{path.name} is damaged or another file: its {kind} should be {wanted}, "
            f"it is {found} ({path.stat().st_size:,} bytes)"
        )
    return sums["sha256"].hexdigest()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn errors of writing into `folder` into messages with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                f"no space left for {folder}: {error.strerror}; free some or name another folder"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise PermissionError(
                f"cannot write into {folder}: {error.strerror}; name a folder you may write to"
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise NotADirectoryError(
                f"cannot write into {folder}: {error.filename} is a file; name a folder"
            ) from error
        raise


def _size_of(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _resume(url: str, part: Path, size: int | None, yourself: str) -> None:
    """Request the missing part of the file and append it."""
    present = _size_of(part)
    with _open_url(url, present, part, yourself) as answer:
        if answer.status == 206:
            if not (answer.headers["Content-Range"] or "").startswith(f"bytes {present}-"):
                part.unlink()
                raise _DroppedError("the server resumed at another position; started again")
        else:
            present = 0  # the server ignored the range
        length = answer.headers["Content-Length"]
        total = present + int(length) if length and length.isdecimal() else None
        if size is not None and total is not None and total != size:
            raise DataError(
                f"{url} should have {size:,} bytes, the server has {total:,}: its owner "
                "has changed it, or a proxy answers in its place; if you can get at the right one, "
                f"{yourself}"
            )
        _check_free_space(part.parent, (total or size or 0) - present)
        with part.open("ab" if present else "wb") as file:
            present += _copy(answer, file, part.name.removesuffix(".part"), present, total or size)
    if total is not None and present < total:
        raise _DroppedError(f"it ended after {present:,} of {total:,} bytes")


def _open_url(url: str, present: int, part: Path, yourself: str) -> Any:
    """Open the URL; raise _DroppedError for errors worth a retry."""
    range_header = {"Range": f"bytes={present}-"} if present else {}
    request = urllib.request.Request(url, headers={"User-Agent": "fewfold", **range_header})
    host = urlsplit(url).hostname
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the partial file is longer than the file
            part.unlink(missing_ok=True)
        if error.code in (408, 416, 425, 429) or error.code >= 500:
            raise _DroppedError(f"{host} answered {error.code} {error.reason}") from None
        raise DataError(
            f"{url} cannot be had: {host} answered {error.code} {error.reason}; if its owner has "
            f"moved it, {yourself.replace(url, 'it')}"
        ) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _DroppedError(f"{host} did not answer within {_TIMEOUT:.0f} s") from None
        what = "the connection or proxy"
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            what = "this machine's clock and certificates"
        raise ConnectionError(
            f"could not reach {host}: {error.reason}; check {what}, or {yourself}"
        ) from None
    except (http.client.HTTPException, OSError, ValueError) as error:  # or a bad address
        raise _DroppedError(f"{type(error).__name__}: {error}") from None


def _check_free_space(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise OSError(
            f"no space left for {folder}: {wanted / 1e6:,.0f} MB are to come and "
            f"{free / 1e6:,.0f} MB are free; free some or name another folder"
        )


def _copy(answer: Any, file: Any, name: str, begun: int, total: int | None) -> int:
    """Write the body to the file, report progress, and return the number of bytes written."""
    got, start, reported = 0, time.monotonic(), 0.0
    while True:
        try:
            block = answer.read(_BLOCK)
        except (http.client.HTTPException, OSError) as error:
            raise _DroppedError(
                f"{type(error).__name__}: {error} after {begun + got:,} bytes"
            ) from None
        if not block:
            return got
        file.write(block)
        got += len(block)
        now = time.monotonic()
        if now - reported > 0.5:
            share = f"{(begun + got) / total:.0%} of {total / 1e6:,.0f} MB" if total else ""
            rate = got / max(now - start, 1e-3) / 1e6
            line(f"{name}: {share or f'{(begun + got) / 1e6:,.0f} MB'}, {rate:.1f} MB/s")
            reported = now
        if total is not None and begun + got > total:  # bounds disk usage
            raise DataError(f"{name} should have {total:,} bytes, the server sends more")
