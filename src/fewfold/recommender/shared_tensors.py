"""Large tensors computed from a model, in files that several processes map instead of copies."""

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from fewfold._files import partial_of, sync, writing
from fewfold._optional import optional_import

try:
    import fcntl
except ImportError:  # without locks, each process may compute them once
    fcntl = None  # type: ignore[assignment]

__all__ = ["SharedTensors"]

_TRIES = 10  # to read a file that others may remove

T = TypeVar("T")


class SharedTensors:
    """Files of what is computed from one version of a model, each computed by one process.

    They are in the folder `.NAME.serving` beside the model folder, which may be deleted at any
    time. Files of other versions are removed when a new version is shared, and remain mapped where
    they are in use. A file is valid until the system is started again, so it is not synced.

    Args:
        model: the model folder.
        version: of the model, as letters and digits.
        prefix: of the names, for a part of a model.

    Raises:
        OSError: if the folder cannot be written; then each process needs its own copy.
    """

    def __init__(self, model: Path, version: str, prefix: str = "") -> None:
        self._model, self._version, self._prefix = model, version, prefix
        # Not beside what a symbolic link leads to, or each of its targets would leave one behind.
        self.folder = model.absolute().with_name(f".{model.absolute().name}.serving")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"{self.folder} cannot be written")

    def inside(self, prefix: str) -> "SharedTensors":
        """Return the same with other names, for a part of the model."""
        return SharedTensors(self._model, self._version, f"{self._prefix}{prefix}-")

    def tensors(self, name: str, build: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """Return mapped tensors, which `build` computes in the first process that needs them."""
        with optional_import("safetensors", "recommender", "sharing a model"):
            from safetensors.torch import load_file, save_file

        def write(file: Path) -> None:
            save_file({key: value.detach().contiguous() for key, value in build().items()}, file)

        found: dict[str, Tensor] = self.opened(f"{name}.safetensors", write, load_file)
        return found

    def opened(self, name: str, write: Callable[[Path], object], read: Callable[[Path], T]) -> T:
        """Return what `read` makes of a file, which `write` makes where it is missing."""
        path = self.folder / f"{self._version}-{_boot()}-{self._prefix}{name}"
        for _ in range(_TRIES):
            if not path.exists():
                with self._lock():  # the others wait
                    if not path.exists():
                        self._remove_others()
                        _write(path, write)
            with contextlib.suppress(FileNotFoundError):  # removed for another version
                return read(path)
        raise FileNotFoundError(errno.ENOENT, "was removed again and again", str(path))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with open(self.folder / "lock", "wb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # released with the file
            yield

    def _remove_others(self) -> None:
        """Remove files of other versions, and what killed processes left; under the lock."""
        for one in self.folder.iterdir():
            if one.name != "lock" and not one.name.startswith(f"{self._version}-{_boot()}-"):
                one.unlink(missing_ok=True)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name; it is not synced unless it outlives the system."""
    partial = partial_of(path)
    try:
        with writing(path):
            write(partial)
        if not _boot():
            sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@functools.cache
def _boot() -> str:
    """Return what tells this start of the system from others, since a crash may damage files."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]
    except OSError:
        return ""
