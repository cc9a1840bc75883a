"""Locks of files and folders, so that two commands do not write one of them at once."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked"]

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # file systems without locks


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of a path, the file `.NAME.lock` beside it, until the block ends.

    The lock of a killed process is free. Systems and file systems without locks go on without one.

    Args:
        target: to be written; its folder exists.

    Raises:
        FileExistsError: another process, or another block of this one, holds the lock.
    """
    path = target.with_name(f".{target.name}.lock")
    descriptor = None if fcntl is None else _acquired(path, target)
    try:
        yield
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)  # while it is locked: who has it open tries again
            os.close(descriptor)


def _acquired(path: Path, target: Path) -> int:
    """Return the descriptor of the lock file, locked."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            _lock(descriptor, target)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was removed by the process that held it before


def _lock(descriptor: int, target: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileExistsError(
            f"another command is writing {target} at the moment; wait until it has finished, or "
            "choose another name"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
