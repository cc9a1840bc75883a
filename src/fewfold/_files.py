"""Atomic writes of files and folders: under a temporary name, synced to disk, then renamed."""

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
    *(
        "discard",
        "move_into_place",
        "new_file",
        "new_folder",
        "partial_of",
        "recovered",
        "remove",
        "replace_folder",
        "restore_interrupted",
        "sync",
        "sync_data",
    ),
    "writing",
]

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # file systems without fsync
_NO_EXCHANGE = (*_NO_SYNC, errno.EPERM)  # also from seccomp filters and network file systems
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD


@contextlib.contextmanager
def new_file(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; it is renamed to `path` when the block ends.

    Until then, and if the block raises or the process is killed, the old file at `path` remains.
    The new file and its name have been synced to disk when this returns.

    Args:
        path: of the file; its folder exists.
        partial: where to write, in the same folder; by default `partial_of(path)`.
    """
    partial = partial_of(path) if partial is None else partial
    try:
        partial.open("wb").close()
        mode = partial.stat().st_mode  # the default of this user; libraries may set another
        with writing(path):
            yield partial
        os.chmod(partial, mode)
        move_into_place(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def move_into_place(partial: Path, path: Path) -> None:
    """Sync a complete file or folder to disk and rename it; the name of a folder must be free.

    A file replaces what is at `path`. For partial files that are kept after an interruption, such
    as downloads; all others are written by `new_file`.
    """
    if path.is_dir() and not partial.is_dir():
        replace_folder(partial, path)
        return
    sync(partial)
    os.replace(partial, path)
    with contextlib.suppress(OSError):  # already renamed; some folders cannot be synced
        sync(path.parent)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; it replaces `target` when the block ends.

    Until then, and if the block raises, the old folder at `target` remains. The replacement is
    atomic where the system can exchange two names (`renameat2` of Linux). Elsewhere the old folder
    is renamed first, to `.NAME.old`, and `recovered` finds it there if the process is killed before
    the new one is renamed. The next write removes the remains of a killed process after its own
    folder is in place.
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
        replace_folder(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def replace_folder(partial: Path, target: Path) -> None:
    """Rename a complete folder, whose files are on disk, to `target`, and remove the old one there.

    For folders that are kept after an interruption; all others are written by `new_folder`, which
    says what is atomic. A file may take the place of a folder, and a folder that of a file.
    """
    sync(partial)
    _take_place(partial, target)
    with contextlib.suppress(OSError):
        sync(target.parent)
    remove(partial)  # the old folder, after an exchange
    remove(_old(target))


def remove(path: Path) -> None:
    """Remove a file or folder if it exists and may be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def discard(path: Path) -> None:
    """Remove a file or folder, so that no part of it is left under its name at any moment."""
    if path.is_dir():
        partial = partial_of(path)
        remove(partial)
        path.rename(partial)
        path = partial
    remove(path)


def _take_place(partial: Path, target: Path) -> None:
    if not target.exists() or (partial.is_dir() and target.is_dir() and not any(target.iterdir())):
        partial.rename(target)  # replaces an empty folder, too
    elif not _exchanged(partial, target):
        old = _old(target)
        remove(old)  # left by a killed process
        target.rename(old)
        try:
            partial.rename(target)
        except BaseException:
            old.rename(target)
            raise


def recovered(folder: Path) -> Path:
    """Return the path to read a folder from: its own, or that of `.NAME.old` if it is missing.

    Nothing is renamed, because another process may be writing at this moment.
    """
    if folder.exists():
        return folder
    old = _old(folder.resolve() if folder.is_symlink() else folder)
    return old if old.exists() else folder


def restore_interrupted(folder: Path) -> None:
    """Rename `.NAME.old` back if a killed process left it; to be called before writing."""
    left = recovered(folder)
    if left != folder:
        left.rename(folder)


def partial_of(path: Path) -> Path:
    """Return the temporary path under which a file or folder is written."""
    return path.with_name(f".{path.name}.partial")


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names atomically; return False where that is not supported."""
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
    """Flush a file, or the entries of a folder, to disk; do nothing where that is not supported."""
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


def sync_data(descriptor: int) -> None:
    """Flush what was written to an open file to disk; do nothing where that is not supported."""
    try:
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Convert errors of other libraries about a full or read-only disk to OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        for number in _DISK:
            if f"os error {number}" in str(error) or os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(file)) from error
        raise
