"""Model folders: safetensors and JSON files with checksums, written atomically.

    manifest.json      format, version, and the SHA-256 and size of every file below
    config.json        recipe, training, seed, data and versions
    metrics.json       results of the evaluation
    model.safetensors  weights
    tables.json        rows in the files of large tables (optional)
    table-NNNNN.safetensors  some rows of a large table (optional)
    items.safetensors  item ids and attributes
    users.safetensors  user ids and histories (optional)
    profiles.safetensors  what users with certain attributes like (optional)
    README.md          the model card; may be edited

Nothing is unpickled, and file names are fixed. Sizes and headers are validated before the content
is read.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from torch import Tensor

from fewfold._files import recovered
from fewfold._tensors import Found, Header, Spec, check_names, extremes, read_header
from fewfold.recommender.artifact.file_reading import (
    read_file,
    read_small,
    safetensors_library,
)
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.artifact.table_files import (
    INDEX,
    SplitTable,
    is_table_file,
    open_tables,
)
from fewfold.recommender.errors import ArtifactError

__all__ = [
    "CARD",
    "FORMAT",
    "MANIFEST",
    "VERSION",
    "VERSION_WITH_TABLES",
    "Folder",
    "Part",
    "is_hub_address",
    "listed_files",
    "open_artifact",
    "read_consistently",
    "sha256",
]

FORMAT = "fewfold recommender"
VERSION, VERSION_WITH_TABLES = 1, 2  # without and with tables in several files
MANIFEST, CARD = "manifest.json", "README.md"
_JSON = ("config.json", "metrics.json")
_OPTIONAL = ("users.safetensors", "profiles.safetensors")
WEIGHTS = "model.safetensors"
_TENSORS = (WEIGHTS, "items.safetensors", *_OPTIONAL)
_TRIES = 50  # attempts to read a folder that is being replaced
_MISSING = 4  # checks before a folder is reported as missing
_RETRY_PAUSE = 0.005  # seconds between the checks

T = TypeVar("T")


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
        tables: tensors that are in files of their own.
        ranges: minimum and maximum of each tensor, after `read`.
    """

    file: Path
    header: Header
    _sum: str
    tables: Mapping[str, SplitTable] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    _layout: dict[str, Spec] = field(default_factory=dict)

    @property
    def found(self) -> Found:
        tables = {name: (table.dtype, table.shape) for name, table in self.tables.items()}
        return {**self.header.tensors, **tables}

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
        return read_file(lambda _: self.header.numbers(name, np.dtype(dtype), last=last), self.file)

    def verify(self) -> None:
        """Raise unless the checksum matches."""
        if read_file(sha256, self.file) != self._sum:
            raise Source(self.file).damaged("", "has changed since it was written")

    def verifiers(self) -> Iterator[Callable[[], None]]:
        """Yield functions that verify this file, and those of its tables."""
        yield self.verify
        for table in self.tables.values():
            yield from (each.verify for each in table.files)

    def read(self) -> dict[str, Tensor]:
        """Read the tensors and validate their values; call `verifiers` first."""
        tensors: dict[str, Tensor] = read_file(safetensors_library().load_file, self.file)
        found = {name: (it.dtype, tuple(it.shape)) for name, it in tensors.items()}
        if found != self.header.tensors:
            raise Source(self.file).damaged("", "has changed while it was read")
        for name, table in self.tables.items():
            tensors[name] = table.read()
        for name, spec in self._layout.items():
            if name in self.tables:
                self.ranges[name] = self.tables[name].check(spec)
                continue
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
            checks = [check for part in self.parts.values() for check in part.verifiers()]
            list(pool.map(lambda check: check(), checks))


def is_hub_address(folder: str | os.PathLike[str]) -> bool:
    """Return whether this is an address of the Hugging Face Hub, as ``hf://owner/name``."""
    return os.fspath(folder).startswith("hf:/")


def listed_files(root: Path) -> list[str]:
    """Return the files that the manifest in a folder lists; raise if one is no part of a model."""
    manifest = _manifest(root)
    _check_names(root, manifest)
    return list(manifest.files)


def open_artifact(root: Path) -> Folder:
    """Read the documents of an artifact and the headers of its tensors, checked by the manifest."""
    manifest = _manifest(root)
    sizes = {file.name: file.stat().st_size for file in sorted(root.iterdir()) if file.is_file()}
    listed = manifest.files
    _check_files(root, manifest, sizes)
    documents = {}
    for name in (*_JSON, INDEX) if INDEX in listed else _JSON:
        data = read_small(root / name)
        if hashlib.sha256(data).hexdigest() != listed[name]:
            raise Source(root / name).damaged("", "has changed since it was written")
        documents[name] = Source(root / name).document(data)
    parts = {
        name: Part(root / name, read_file(read_header, root / name), listed[name])
        for name in _TENSORS
        if name in listed
    }
    if INDEX in listed:
        sums = {name: found for name, found in listed.items() if is_table_file(name)}
        weights, tables = parts[WEIGHTS], open_tables(root, documents[INDEX], sums)
        for name in weights.found.keys() & tables:
            raise Source(root / INDEX).damaged(f"tables.{name}", f"is in {WEIGHTS} already")
        weights.tables = tables
    return Folder(root, documents["config.json"], documents["metrics.json"], parts, sizes)


def _check_files(root: Path, manifest: _Manifest, sizes: Mapping[str, int]) -> None:
    """Raise unless the files of the manifest are there with their sizes, and no others of ours."""
    _check_names(root, manifest)
    listed, split = manifest.files, manifest.version == VERSION_WITH_TABLES
    tables = sorted(name for name in {*listed, *sizes} if is_table_file(name))
    optional = _OPTIONAL if split else (*_OPTIONAL, INDEX)
    for name in (*_JSON, *_TENSORS, INDEX, *tables):
        if name not in listed and (name not in optional or name in sizes):
            raise Source(root / MANIFEST).damaged(f"files.{name}", "is missing")
        if name in listed and name not in sizes:
            raise Source(root / name).damaged("", "is missing")
        if name in listed and manifest.bytes.get(name, sizes[name]) != sizes[name]:
            expected = manifest.bytes[name]
            raise Source(root / name).damaged(
                "", f"has {sizes[name]} bytes, and was written with {expected}"
            )


def _check_names(root: Path, manifest: _Manifest) -> None:
    """Raise if the manifest lists a file that is not part of a model, judged by its name."""
    split = manifest.version == VERSION_WITH_TABLES
    for name in manifest.files:
        table = name == INDEX or is_table_file(name)
        if name not in (*_JSON, *_TENSORS) and not (split and table):
            raise Source(root / MANIFEST).damaged(f"files.{name}", "is no part of a model")


def _manifest(root: Path) -> _Manifest:
    if not root.exists():
        raise ArtifactError(f"there is no folder {root}; `fewfold fit` writes one")
    file = root / MANIFEST
    if not file.is_file():
        raise ArtifactError(f"{root} is not a model of fewfold: it has no {MANIFEST}")
    found = Source(file).document(read_small(file))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Source(file).damaged("format", f"must be {FORMAT!r}")
    version = found.get("version")
    if type(version) is int and version > VERSION_WITH_TABLES:
        raise ArtifactError(
            f"{file}: version: {root} was written in format {version} by a newer fewfold, and this "
            f"one reads formats up to {VERSION_WITH_TABLES}; upgrade fewfold"
        )
    manifest = check(_Manifest, found, Source(file), exact=True)
    if manifest.version < VERSION:
        known = f"{VERSION} or {VERSION_WITH_TABLES}"
        raise Source(file).damaged("version", f"must be {known}, got {manifest.version}")
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


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
