"""A model as a folder: safetensors and JSON, with checksums, written whole or not at all.

    manifest.json      format, version, and the SHA-256 of every file below
    config.json        the recipe, the training, the seed, the data and the versions
    metrics.json       what the evaluation found
    model.safetensors  weights
    items.safetensors  ids of the items and what is attached to them
    users.safetensors  ids of the users and what each of them touched (may be left out)
    README.md          the model card, for people; it may be edited

Nothing is ever unpickled, and no name inside a file decides which file is read.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._progress import over
from fewfold.recommender.errors import ArtifactError

__all__ = ["check_target", "read_artifact", "write_artifact", "writing"]

FORMAT, VERSION = "fewfold recommender", 1
_MANIFEST, _CARD = "manifest.json", "README.md"
_JSON = ("config.json", "metrics.json")
_TENSORS = ("model.safetensors", "items.safetensors", "users.safetensors")
_OPTIONAL = ("users.safetensors",)

Part = Mapping[str, Any] | Mapping[str, Tensor]


def write_artifact(
    folder: str | os.PathLike[str],
    parts: Mapping[str, Part],
    card: str,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the parts, a dict for each file, and the card into a new folder.

    Everything is written beside it under another name first and renamed at the end, so that the
    folder is complete or does not exist. With `overwrite` an earlier artifact is replaced; a folder
    that is something else never is.
    """
    target = Path(folder).absolute()
    if target.is_symlink():
        target = target.resolve()
    check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed here
    try:
        partial.mkdir()
        sums = {}
        for name, part in over("writing the model", list(parts.items())):
            _write(partial / name, part)
            sums[name] = _sha256(partial / name)
        _write(partial / _MANIFEST, {"format": FORMAT, "version": VERSION, "files": sums})
        (partial / _CARD).write_text(card, encoding="utf-8")
        _sync(partial / _CARD)
        _exchange(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def check_target(target: Path, overwrite: bool) -> None:
    """Raise unless an artifact may be written there."""
    if not target.exists():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not (target / _MANIFEST).is_file():
        raise FileExistsError(f"{target} exists and is not a model; choose another folder")
    if not overwrite:
        raise FileExistsError(
            f"{target} holds a model already; choose another folder, or replace it with "
            "overwrite=True (--overwrite)"
        )


def _exchange(partial: Path, target: Path) -> None:
    """Put the finished folder in its place; what was there goes only then."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _write(file: Path, part: Part) -> None:
    if file.suffix == ".json":
        text = json.dumps(part, indent=1, ensure_ascii=False, allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")
    else:
        save_file = _safetensors().save_file
        with writing(file):
            save_file({name: _plain(value) for name, value in part.items()}, file)
        os.chmod(file, 0o666 & ~_umask())
    _sync(file)


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """Libraries have their own words for a disk that is full; here it is an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES):
            if f"os error {number}" in str(error) or os.strerror(number) in str(error):
                raise OSError(number, os.strerror(number), str(file)) from error
        raise


def _plain(value: Tensor | np.ndarray) -> Tensor:
    tensor = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.detach()
    return tensor.contiguous()


def read_artifact(folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The parts of an artifact, each checked against its checksum."""
    root = Path(folder)
    manifest = _manifest(root)
    files: dict[str, str] = manifest["files"]
    if not set(files) <= {*_JSON, *_TENSORS}:
        raise ArtifactError(f"{root / _MANIFEST} lists files that are no part of it; {_DAMAGED}")
    for name in (*_JSON, *_TENSORS):
        if name not in files and name not in _OPTIONAL:
            raise ArtifactError(f"{root / _MANIFEST} does not list {name}; {_DAMAGED}")
        if name in files and not (root / name).is_file():
            raise ArtifactError(f"{root / name} is missing; {_DAMAGED}")
    present = [name for name in (*_JSON, *_TENSORS) if name in files]
    with ThreadPoolExecutor(2) as pool:  # hashing lets other threads run
        sums = list(pool.map(_reading(_sha256), (root / name for name in present)))
    for name, found in zip(present, sums, strict=True):
        if found != files[name]:
            raise ArtifactError(f"{root / name} has changed since it was written; {_DAMAGED}")
    return {name: _reading(_read)(root / name) for name in over("reading the model", present)}


_DAMAGED = "the artifact is damaged: copy it again, or fit the model again"


def _manifest(root: Path) -> dict[str, Any]:
    if not root.exists():
        raise ArtifactError(f"there is no folder {root}; `fewfold fit` writes one")
    if not (root / _MANIFEST).is_file():
        raise ArtifactError(f"{root} is not a model of fewfold: it has no {_MANIFEST}")
    manifest = _reading(_read)(root / _MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ArtifactError(f"{root / _MANIFEST} is not that of a model of fewfold; {_DAMAGED}")
    version = manifest.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ArtifactError(
            f"{root} was written in format {version} by a newer fewfold, and this one reads "
            f"format {VERSION}; upgrade fewfold"
        )
    files = manifest.get("files")
    if version != VERSION or isinstance(version, bool) or not isinstance(files, dict):
        raise ArtifactError(f"{root / _MANIFEST} cannot be read; {_DAMAGED}")
    return manifest


def _read(file: Path) -> Any:
    if file.suffix == ".json":
        return json.loads(file.read_text(encoding="utf-8"))
    return _safetensors().load_file(file)


def _reading(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """The same, with an error that names the file."""

    def checked(file: Path) -> Any:
        try:
            return read(file)
        except (ValueError, RecursionError) as error:  # also JSON and UTF-8
            raise ArtifactError(f"{file} cannot be read ({error}); {_DAMAGED}") from error
        except OSError as error:
            raise ArtifactError(f"{file} cannot be read: {error.strerror or error}") from error
        except _safetensors_error() as error:
            raise ArtifactError(f"{file} cannot be read ({error}); {_DAMAGED}") from error

    return checked


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync(file: Path) -> None:
    """Have the disk hold it before its folder gets its name."""
    with file.open("rb") as stream, contextlib.suppress(OSError):
        os.fsync(stream.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "models are kept as safetensors: pip install 'fewfold[recommender]'"
        ) from error
    return safetensors.torch


def _safetensors_error() -> type[Exception]:
    import safetensors

    error: type[Exception] = safetensors.SafetensorError
    return error
