"""Files and folders that are complete or not there: written beside their place, synced, renamed."""

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = [
    *("move_into_place", "new_file", "new_folder", "partial_of", "recovered", "settled", "sync"),
    "writing",
]

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # of file systems that have none
_NO_EXCHANGE = (*_NO_SYNC, errno.EPERM)  # what seccomp filters and network file systems answer
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD


@contextlib.contextmanager
def new_file(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield a path to write to; the file takes the place of `path` when the block ends.

    Until then, and if the block raises or the process is killed, what was at `path` stays. The new
    file and its name are on the disk when this returns.

    Args:
        path: of the file; its folder exists.
        partial: where to write, in the same folder; by default `partial_of(path)`.
    """
    partial = partial_of(path) if partial is None else partial
    try:
        partial.open("wb").close()
        mode = partial.stat().st_mode  # as this user's files are; libraries have their own ideas
        with writing(path):
            yield partial
        os.chmod(partial, mode)
        move_into_place(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def move_into_place(partial: Path, path: Path) -> None:
    """Rename a complete file, or a folder to a name that is free; it is on the disk afterwards.

    A file takes the place of what was at `path`. For a partial file that is kept when its writer is
    interrupted, as that of a download; all others are written by `new_file`.
    """
    sync(partial)
    os.replace(partial, path)
    with contextlib.suppress(OSError):  # it has its name; some folders cannot be synced
        sync(path.parent)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to write files to; it takes the place of `target` when the block ends.

    Until then, and if the block raises, what was at `target` stays. Its replacement is one step
    where the system can exchange two names (`renameat2` of Linux). Elsewhere the old folder is
    renamed first, to `.NAME.old`, and `recovered` finds it there if the process is killed before
    the new one has its name. Whoever writes next removes what a killed process has left, once the
    new folder is there.
    """
    partial = partial_of(target)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        mode = partial.stat().st_mode & 0o666
        with writing(target):
            yield partial
        for file in sorted(partial.iterdir()):
            os.chmod(file, mode)
            sync(file)
        sync(partial)
        _take_place(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        sync(target.parent)
    shutil.rmtree(partial, ignore_errors=True)  # after an exchange it is the old one
    shutil.rmtree(_old(target), ignore_errors=True)


def _take_place(partial: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        partial.rename(target)  # also of an empty folder
    elif not _exchanged(partial, target):
        old = _old(target)
        shutil.rmtree(old, ignore_errors=True)  # of a process killed when the new one was there
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise


def recovered(folder: Path) -> Path:
    """Where the folder is to be read: at its place, or where a killed process has left it.

    Nothing is renamed, for the process may be at work at this moment.
    """
    if folder.exists():
        return folder
    old = _old(folder.resolve() if folder.is_symlink() else folder)
    return old if old.is_dir() else folder


def settled(folder: Path) -> None:
    """Put a folder back that a killed process has left under another name; for writers."""
    left = recovered(folder)
    if left != folder:
        left.rename(folder)


def partial_of(path: Path) -> Path:
    """Where a file or folder is written before it has its name."""
    return path.with_name(f".{path.name}.partial")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where this system or file system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[[int, bytes, int, bytes, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # an old C library
        return None
    path, number = ctypes.c_char_p, ctypes.c_int
    found.argtypes, found.restype = (number, path, number, path, ctypes.c_uint), number
    call: Callable[[int, bytes, int, bytes, int], int] = found
    return call


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder; nothing where it cannot be asked."""
    if os.name != "posix" and path.is_dir():
        return
    number = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(number)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn what other libraries raise when a disk is full, or may not be written, to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        for number in _DISK:
            if f"os error {number}" in str(error) or os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(file)) from error
        raise
