"""Model folders: safetensors and JSON files with checksums, written atomically.

    manifest.json      format, version, and the SHA-256 and size of every file below
    config.json        recipe, training, seed, data and versions
    metrics.json       results of the evaluation
    model.safetensors  weights
    items.safetensors  item ids and attributes
    users.safetensors  user ids and histories (optional)
    profiles.safetensors  what users with certain attributes like (optional)
    README.md          the model card; may be edited

Nothing is unpickled, and file names are fixed. Sizes and headers are validated before the content
is read.
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

from fewfold._files import new_folder, recovered, restore_interrupted
from fewfold._optional import optional_import
from fewfold._progress import over
from fewfold._tensors import Found, Header, Spec, check_names, extremes, read_header
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.errors import ArtifactError

__all__ = [
    "CARD",
    "MANIFEST",
    "Folder",
    "Part",
    "check_target",
    "open_artifact",
    "read_consistently",
    "write_artifact",
]

FORMAT, VERSION = "fewfold recommender", 1
MANIFEST, CARD = "manifest.json", "README.md"
_JSON = ("config.json", "metrics.json")
_OPTIONAL = ("users.safetensors", "profiles.safetensors")
_TENSORS = ("model.safetensors", "items.safetensors", *_OPTIONAL)
_MAX_JSON = 1 << 24  # maximum bytes of a JSON file
_TRIES = 50  # attempts to read a folder that is being replaced
_MISSING = 4  # checks before a folder is reported as missing
_RETRY_PAUSE = 0.005  # seconds between the checks

T = TypeVar("T")


def write_artifact(
    folder: str | os.PathLike[str],
    parts: Mapping[str, Mapping[str, Any]],
    card: str,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the parts (a dict for each file) and the model card into a new folder.

    The folder is complete or does not exist. With `overwrite` an existing artifact is replaced,
    atomically where the system supports it; a folder that is not an artifact never is.
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
        _write(partial / MANIFEST, manifest)
        (partial / CARD).write_text(card, encoding="utf-8")
    return target


def check_target(target: Path, overwrite: bool) -> None:
    """Raise unless an artifact may be written there; restores one left by a killed process."""
    restore_interrupted(target)
    if not target.exists():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
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
        _safetensors().save_file({name: _to_tensor(value) for name, value in part.items()}, file)


def _to_tensor(value: Tensor | np.ndarray) -> Tensor:
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
    """A safetensors file with a known header: `expect` validates the layout, `read` the values.

    Attributes:
        file: path of the file.
        found: dtype and shape of each tensor.
        ranges: minimum and maximum of each tensor, after `read`.
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
        """Raise an error for one of the tensors."""
        raise Source(self.file).damaged(name, what)

    def expect(self, layout: Iterable[tuple[str, Spec]]) -> None:
        """Raise unless the tensors have these names, dtypes and shapes; `read` checks values."""
        self._layout = check_names(self.found, layout, self.fail)
        for name, spec in self._layout.items():
            fault = spec.fault(*self.found[name])
            if fault is not None:
                self.fail(name, fault)

    def numbers(self, name: str, dtype: str, *, last: bool = False) -> np.ndarray:
        """Read one tensor, or its last entry, without verification."""
        return _read_file(
            lambda _: self.header.numbers(name, np.dtype(dtype), last=last), self.file
        )

    def verify(self) -> None:
        """Raise unless the checksum matches."""
        if _read_file(_sha256, self.file) != self._sum:
            raise Source(self.file).damaged("", "has changed since it was written")

    def read(self) -> dict[str, Tensor]:
        """Read the tensors and validate their values; call `verify` first."""
        tensors: dict[str, Tensor] = _read_file(_safetensors().load_file, self.file)
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
    """An opened artifact: parsed documents, and tensor files not read yet.

    Attributes:
        config: parsed `config.json`.
        metrics: parsed `metrics.json`.
        parts: the tensor files, by name.
        sizes: size in bytes of every file in the folder.
    """

    root: Path
    config: Any
    metrics: Any
    parts: Mapping[str, Part]
    sizes: Mapping[str, int]

    def verify(self) -> None:
        """Verify the checksums of the tensor files."""
        with ThreadPoolExecutor(2) as pool:  # hashing releases the GIL
            list(pool.map(Part.verify, self.parts.values()))


def open_artifact(root: Path) -> Folder:
    """Read the documents of an artifact and the headers of its tensors, checked by the manifest."""
    manifest = _manifest(root)
    sizes = {file.name: file.stat().st_size for file in sorted(root.iterdir()) if file.is_file()}
    listed = manifest.files
    for name in listed:
        if name not in (*_JSON, *_TENSORS):
            raise Source(root / MANIFEST).damaged(f"files.{name}", "is no part of a model")
    for name in (*_JSON, *_TENSORS):
        if name not in listed and (name not in _OPTIONAL or name in sizes):
            raise Source(root / MANIFEST).damaged(f"files.{name}", "is missing")
        if name in listed and name not in sizes:
            raise Source(root / name).damaged("", "is missing")
        if name in listed and manifest.bytes.get(name, sizes[name]) != sizes[name]:
            expected = manifest.bytes[name]
            raise Source(root / name).damaged(
                "", f"has {sizes[name]} bytes, and was written with {expected}"
            )
    documents = {}
    for name in _JSON:
        data = _read_small(root / name)
        if hashlib.sha256(data).hexdigest() != listed[name]:
            raise Source(root / name).damaged("", "has changed since it was written")
        documents[name] = Source(root / name).document(data)
    parts = {
        name: Part(root / name, _read_file(read_header, root / name), listed[name])
        for name in _TENSORS
        if name in listed
    }
    return Folder(root, documents["config.json"], documents["metrics.json"], parts, sizes)


def _manifest(root: Path) -> _Manifest:
    if not root.exists():
        raise ArtifactError(f"there is no folder {root}; `fewfold fit` writes one")
    file = root / MANIFEST
    if not file.is_file():
        raise ArtifactError(f"{root} is not a model of fewfold: it has no {MANIFEST}")
    found = Source(file).document(_read_small(file))
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


def read_consistently(folder: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """Return the result of `read` on the folder, retrying if the folder is replaced meanwhile.

    A folder that a killed process left under a temporary name is read there.
    """
    root, missing = Path(folder), 0
    for _ in range(_TRIES):
        place = recovered(root)
        before = _identity(place)
        try:
            found = read(place)
        except (ArtifactError, OSError):
            now = recovered(root)
            # The folder was renamed during the read, so retry at the new place.
            if before is not None and now == place and _identity(now) == before:
                raise
            if before is None:  # missing, or between the two renames of a replacement
                missing += 1
                if missing == _MISSING:
                    raise
                time.sleep(_RETRY_PAUSE)
        else:
            if _identity(recovered(root)) == before:
                return found
    raise ArtifactError(f"{root} was replaced {_TRIES} times while it was read; try again")


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    # Inode numbers are reused; then the times differ.
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _read_small(file: Path) -> bytes:
    """Return the content of a file; raise if it exceeds the size limit of JSON files."""
    if file.stat().st_size > _MAX_JSON:
        raise Source(file).damaged("", f"has more than {_MAX_JSON:,} bytes")
    return _read_file(Path.read_bytes, file)


def _read_file(read: Callable[[Path], T], file: Path) -> T:
    """Call `read` on the file; errors name the file."""
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
