"""A model as a folder: safetensors and JSON, with checksums, written whole or not at all.

    manifest.json      format, version, and the SHA-256 and the size of every file below
    config.json        the recipe, the training, the seed, the data and the versions
    metrics.json       what the evaluation found
    model.safetensors  weights
    items.safetensors  ids of the items and what is attached to them
    users.safetensors  ids of the users and what each of them touched (may be left out)
    README.md          the model card, for people; it may be edited

Nothing is ever unpickled, and no name inside a file decides which file is read. What a file must
hold is compared with its size and its header before it is read.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewfold._files import new_folder, recovered, settled
from fewfold._optional import optional_import
from fewfold._progress import over
from fewfold._tensors import Found, Header, Spec, check_names, extremes, read_header
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.errors import ArtifactError

__all__ = ["Folder", "Part", "check_target", "open_artifact", "steadily", "write_artifact"]

FORMAT, VERSION = "fewfold recommender", 1
_MANIFEST, _CARD = "manifest.json", "README.md"
_JSON = ("config.json", "metrics.json")
_TENSORS = ("model.safetensors", "items.safetensors", "users.safetensors")
_OPTIONAL = ("users.safetensors",)
_MOST_JSON = 1 << 24  # bytes of a JSON file
_TRIES = 50  # to read a folder that is replaced again and again meanwhile
_MISSING = 4  # looks at a folder that is not there before it is said to be missing
_MOMENT = 0.005  # seconds between them

T = TypeVar("T")


def write_artifact(
    folder: str | os.PathLike[str],
    parts: Mapping[str, Mapping[str, Any]],
    card: str,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the parts, a dict for each file, and the card into a new folder.

    The folder is complete or does not exist. With `overwrite` an earlier artifact is replaced, in
    one step where the system can; a folder that is something else never is.
    """
    target = Path(folder).absolute()
    if target.is_symlink():
        target = target.resolve()
    check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(target) as partial:
        sums, sizes = {}, {}
        for name, part in over("writing the model", list(parts.items())):
            _write(partial / name, part)
            sums[name] = _sha256(partial / name)
            sizes[name] = (partial / name).stat().st_size
        manifest = {"format": FORMAT, "version": VERSION, "files": sums, "bytes": sizes}
        _write(partial / _MANIFEST, manifest)
        (partial / _CARD).write_text(card, encoding="utf-8")
    return target


def check_target(target: Path, overwrite: bool) -> None:
    """Raise unless an artifact may be written there; one that a killed process left is put back."""
    settled(target)
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


def _write(file: Path, part: Mapping[str, Any]) -> None:
    if file.suffix == ".json":
        text = json.dumps(part, indent=1, ensure_ascii=False, allow_nan=False)
        file.write_text(text + "\n", encoding="utf-8")
    else:
        _safetensors().save_file({name: _plain(value) for name, value in part.items()}, file)


def _plain(value: Tensor | np.ndarray) -> Tensor:
    tensor = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.detach()
    return tensor.contiguous()


@dataclass(frozen=True)
class _Manifest:
    format: str
    version: int
    files: dict[str, str]
    bytes: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Part:
    """A file of tensors whose header is known; `expect` says what it must hold, `read` reads it.

    Attributes:
        file: which.
        found: dtype and shape of each tensor.
        ranges: the smallest and the largest number of each tensor, once they have been read.
    """

    file: Path
    header: Header
    _sum: str
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    _layout: dict[str, Spec] = field(default_factory=dict)

    @property
    def found(self) -> Found:
        return self.header.tensors

    def fail(self, name: str, what: str) -> NoReturn:
        """Raise for one of the tensors."""
        raise Source(self.file).damaged(name, what)

    def expect(self, layout: Iterable[tuple[str, Spec]]) -> None:
        """Raise unless the tensors have these names, dtypes and shapes; their values come later."""
        self._layout = check_names(self.found, layout, self.fail)
        for name, spec in self._layout.items():
            fault = spec.fault(*self.found[name])
            if fault is not None:
                self.fail(name, fault)

    def numbers(self, name: str, dtype: str, *, last: bool = False) -> np.ndarray:
        """The numbers of one tensor, or its last one, read alone and not verified."""
        return _reading(lambda _: self.header.numbers(name, np.dtype(dtype), last=last), self.file)

    def verify(self) -> None:
        """Raise unless the file has its checksum."""
        if _reading(_sha256, self.file) != self._sum:
            raise Source(self.file).damaged("", "has changed since it was written")

    def read(self) -> dict[str, Tensor]:
        """The tensors, compared with what was expected of their values; call `verify` first."""
        tensors: dict[str, Tensor] = _reading(_safetensors().load_file, self.file)
        found = {name: (it.dtype, tuple(it.shape)) for name, it in tensors.items()}
        if found != self.found:
            raise Source(self.file).damaged("", "has changed while it was read")
        for name, spec in self._layout.items():
            self.ranges[name] = extremes(tensors[name])
            fault = spec.value_fault(*self.ranges[name])
            if fault is not None:
                self.fail(name, fault)
        return tensors


@dataclass(frozen=True, eq=False)
class Folder:
    """An artifact that has been opened: its documents, and its tensors yet to be read.

    Attributes:
        config: the document of `config.json`.
        metrics: the document of `metrics.json`.
        parts: the files of tensors, by name.
        sizes: bytes of every file in the folder.
    """

    root: Path
    config: Any
    metrics: Any
    parts: Mapping[str, Part]
    sizes: Mapping[str, int]

    def verify(self) -> None:
        """Compare the files of tensors with their checksums."""
        with ThreadPoolExecutor(2) as pool:  # hashing lets other threads run
            list(pool.map(Part.verify, self.parts.values()))


def open_artifact(root: Path) -> Folder:
    """The documents of an artifact and the headers of its tensors, compared with the manifest."""
    manifest = _manifest(root)
    sizes = {file.name: file.stat().st_size for file in sorted(root.iterdir()) if file.is_file()}
    listed = manifest.files
    for name in listed:
        if name not in (*_JSON, *_TENSORS):
            raise Source(root / _MANIFEST).damaged(f"files.{name}", "is no part of a model")
    for name in (*_JSON, *_TENSORS):
        if name not in listed and (name not in _OPTIONAL or name in sizes):
            raise Source(root / _MANIFEST).damaged(f"files.{name}", "is missing")
        if name in listed and name not in sizes:
            raise Source(root / name).damaged("", "is missing")
        if name in listed and manifest.bytes.get(name, sizes[name]) != sizes[name]:
            said = manifest.bytes[name]
            raise Source(root / name).damaged(
                "", f"has {sizes[name]} bytes, and was written with {said}"
            )
    documents = {}
    for name in _JSON:
        data = _small(root / name)
        if hashlib.sha256(data).hexdigest() != listed[name]:
            raise Source(root / name).damaged("", "has changed since it was written")
        documents[name] = Source(root / name).document(data)
    parts = {
        name: Part(root / name, _reading(read_header, root / name), listed[name])
        for name in _TENSORS
        if name in listed
    }
    return Folder(root, documents["config.json"], documents["metrics.json"], parts, sizes)


def _manifest(root: Path) -> _Manifest:
    if not root.exists():
        raise ArtifactError(f"there is no folder {root}; `fewfold fit` writes one")
    file = root / _MANIFEST
    if not file.is_file():
        raise ArtifactError(f"{root} is not a model of fewfold: it has no {_MANIFEST}")
    found = Source(file).document(_small(file))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Source(file).damaged("format", f"must be {FORMAT!r}")
    version = found.get("version")
    if type(version) is int and version > VERSION:
        raise ArtifactError(
            f"{file}: version: {root} was written in format {version} by a newer fewfold, and this "
            f"one reads format {VERSION}; upgrade fewfold"
        )
    manifest = check(_Manifest, found, Source(file), exact=True)
    if manifest.version != VERSION:
        raise Source(file).damaged("version", f"must be {VERSION}, got {manifest.version}")
    return manifest


def steadily(folder: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """What `read` makes of the folder, all of it from one and the same folder.

    If the folder is replaced meanwhile, it is read again. One that a killed process has left under
    another name is read there.
    """
    root, missing = Path(folder), 0
    for _ in range(_TRIES):
        place = recovered(root)
        before = _identity(place)
        try:
            found = read(place)
        except (ArtifactError, OSError):
            now = recovered(root)
            # Renamed from under the reader, the same folder is at another place.
            if before is not None and now == place and _identity(now) == before:
                raise
            if before is None:  # nothing there, or a moment between two renames
                missing += 1
                if missing == _MISSING:
                    raise
                time.sleep(_MOMENT)
        else:
            if _identity(recovered(root)) == before:
                return found
    raise ArtifactError(f"{root} was replaced {_TRIES} times while it was read; try again")


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    # Numbers of files that are gone are given again; then the times differ.
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _small(file: Path) -> bytes:
    """The bytes of a file that has few."""
    if file.stat().st_size > _MOST_JSON:
        raise Source(file).damaged("", f"has more than {_MOST_JSON:,} bytes")
    return _reading(Path.read_bytes, file)


def _reading(read: Callable[[Path], T], file: Path) -> T:
    """What `read` makes of the file; an error names it."""
    try:
        return read(file)
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, _safetensors_error()) as error:
        raise Source(file).damaged("", f"cannot be read ({error})") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _safetensors() -> Any:
    with optional_import("safetensors", "recommender", "a saved model"):
        import safetensors.torch
    return safetensors.torch


def _safetensors_error() -> type[Exception]:
    import safetensors

    error: type[Exception] = safetensors.SafetensorError
    return error
