"""Files of object stores such as S3, copied to temporary files through fsspec.

A log is opened more than once (to detect its format, to show its first rows, to read it), so that a
file is copied as a whole before it is read, once per process as long as it does not change.
"""

import atexit
import contextlib
import functools
import importlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfold.recommender.errors import DataError

__all__ = ["RemoteFile", "is_remote", "remote_files"]

# Packages that give fsspec the scheme, and the extra of fewfold with it, if there is one.
_PACKAGES: Mapping[str, str] = {
    "s3": "s3fs: pip install 'fewfold[s3]'",
    "s3a": "s3fs: pip install 'fewfold[s3]'",
    "gs": "gcsfs: pip install gcsfs",
    "gcs": "gcsfs: pip install gcsfs",
    "abfs": "adlfs: pip install adlfs",
    "abfss": "adlfs: pip install adlfs",
    "az": "adlfs: pip install adlfs",
    "memory": "fsspec: pip install fsspec",
}
_URL = re.compile(r"(?P<scheme>[A-Za-z0-9]+):/{1,2}(?P<rest>[^/].*)", re.DOTALL)


@dataclass(frozen=True)
class RemoteFile:
    """A file of an object store.

    Attributes:
        store: the fsspec file system.
        path: its path there.
        name: its address.
        within: its path below the folder or the pattern that was named; otherwise its own name.
    """

    store: Any
    path: str
    name: str
    within: str

    def copied(self) -> Path:
        """Return a copy, the same as before if the file has not changed."""
        with _explained(self.name):
            size = self.store.info(self.path).get("size")
            target = _target(self.store, self.path, str(self.store.ukey(self.path)))
            if not target.exists():
                partial = target.with_name("partial")
                self.store.get_file(self.path, str(partial))
                found = partial.stat().st_size
                if size is not None and found != size:
                    raise DataError(f"{self.name}: got {found} of {size} bytes; try again")
                partial.rename(target)
            return target


def is_remote(text: str) -> bool:
    """Return whether a text is an address of an object store."""
    found = _URL.fullmatch(text)
    return found is not None and found["scheme"].lower() in _PACKAGES


def remote_files(text: str, way_out: str) -> tuple[list[RemoteFile], bool]:
    """Return the files of an address, a folder or a pattern, and whether it is a folder.

    Hidden files, and folders other than partitions (NAME=VALUE), are left out of a folder.

    Args:
        text: such as ``s3://bucket/log.parquet``, for which `is_remote` is true.
        way_out: what to do if the package for the scheme is missing.
    """
    found = _URL.fullmatch(text)
    assert found is not None
    scheme = found["scheme"].lower()
    url = f"{found['scheme']}://{found['rest']}"  # pathlib collapses the double slash
    try:
        store = importlib.import_module("fsspec").filesystem(scheme)
    except (ImportError, ValueError):
        raise DataError(
            f"{url}: this is an address, and reading it needs {_PACKAGES[scheme]}; or {way_out}"
        ) from None
    with _explained(url):
        store.invalidate_cache()
        path = store._strip_protocol(url)
        listed, is_folder = _listed(store, path, url)
        files = [
            RemoteFile(store, one, f"{scheme}://{one.lstrip('/')}", one.removeprefix(start))
            for one, start in listed
        ]
    return files, is_folder


def _listed(store: Any, path: str, url: str) -> tuple[list[tuple[str, str]], bool]:
    """Return the files of a path, folder or pattern, each with the folder that was named."""
    if any(sign in path for sign in "*?["):
        start = re.split(r"[^/]*[*?\[]", path, maxsplit=1)[0]
        found = [(one, start) for one in sorted(store.glob(path)) if store.isfile(one)]
        if not found:
            raise DataError(f"{url}: no file matches this pattern; in a shell, put it in quotes")
        return found, False
    if not store.isdir(path):
        store.info(path)  # raises if there is none
        return [(path, path[: path.rfind("/") + 1])], False
    start = path.rstrip("/") + "/"
    found = [(one, start) for one in sorted(store.find(path))]
    for name, kind in (("_delta_log", "a Delta Lake table"), (".hoodie", "a Hudi table")):
        if any(one.startswith(f"{start}{name}/") for one, _ in found):
            raise DataError(
                f"{url}: this is {kind}, some of whose files may be outdated; write its rows to "
                "files first"
            )
    return [(one, start) for one, _ in found if _is_data(one.removeprefix(start))], True


def _is_data(within: str) -> bool:
    """Return whether a file of a folder is neither hidden nor in a folder but a partition."""
    *folders, name = within.split("/")
    visible = all(one[:1] not in (".", "_") for one in (*folders, name))
    return visible and all("=" in one for one in folders)


@contextlib.contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn any error of the libraries below fsspec into a `DataError`."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{url}: there is no such file or folder; check the address") from None
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(
            f"{url}: cannot be read ({said}); check the address, the network and your credentials"
        ) from error


@functools.cache
def _target(store: Any, path: str, version: str) -> Path:
    """Return where to copy one version of a file, a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="fewfold-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / path.rsplit("/", 1)[-1]
