"""Checkpoint folders: a training of several processes, read by any number of them.

shard-00001-model-00001-of-00001.safetensors   tensors, a file of each process
checkpoint.json                                facts, sharded tables, and checksums of the files
"""

import errno
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fewfold._files import partial_of, remove, replace_folder, sync
from fewfold._tensors import Found
from fewfold.distributed.group import Group, PeerError
from fewfold.recommender.artifact.schema import Source, check
from fewfold.recommender.errors import ArtifactError
from fewfold.recommender.training.checkpoint_file import RESTART, Saved, read

__all__ = ["Sharding", "is_checkpoint", "load_writer", "read_part", "write_folder"]

_FORMAT = 1
_FACTS = "checkpoint.json"
_ALONE = Group()
_CHUNK = 1 << 24  # bytes read at once for a checksum

Validate = Callable[[Source, Found, Any], None]


@dataclass(frozen=True)
class Sharding:
    """Tensors of a training that are divided by row among processes; the others are replicated.

    Attributes:
        group: the processes.
        count: number of rows of each sharded tensor, in all processes.
        names: of sharded tensors; a name that ends with a dot stands for all that begin with it.
    """

    group: Group = _ALONE
    count: int = 0
    names: tuple[str, ...] = ()

    def rows(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of all rows of each of these tensors that is sharded."""
        prefixes = tuple(name for name in self.names if name.endswith("."))
        return {n: self.count for n in names if n in self.names or n.startswith(prefixes)}


@dataclass(frozen=True)
class _Document:
    """The file of facts."""

    format: int
    world: int
    rows: Mapping[str, int]
    files: Mapping[str, int]
    facts: Mapping[str, Any]
    checksum: int = 0

    def total(self) -> int:
        """Return the checksum of all else."""
        fields = {name: value for name, value in vars(self).items() if name != "checksum"}
        return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is the checkpoint of several processes."""
    return (folder / _FACTS).is_file()


def load_writer() -> Any:
    """Import and return the module of torch's distributed checkpoints.

    It takes a second, for which one process need not wait.
    """
    from fewfold.distributed import sharded_checkpoint

    return sharded_checkpoint


def write_folder(path: Path, saved: Saved, sharding: Sharding) -> None:
    """Write a checkpoint by all processes; an existing one stays until all have finished.

    Raises:
        OSError: in all processes, if any could not write.
    """
    group, partial, rows = sharding.group, partial_of(path), sharding.rows(saved.tensors)

    def begin() -> None:
        remove(partial)  # left by a killed process
        partial.mkdir()

    def end(files: dict[str, int]) -> None:
        for name in files:
            if not (partial / name).exists():
                raise OSError(
                    errno.ENOENT, "it must be on a file system that all processes share", str(path)
                )
        document = _Document(_FORMAT, group.world, rows, files, saved.facts)
        document = replace(document, checksum=document.total())
        file = partial / _FACTS
        file.write_text(json.dumps(vars(document), sort_keys=True))
        sync(file)
        replace_folder(partial, path)

    try:
        _on_all(group, begin if group.leads else lambda: None)
        load_writer().save(partial, saved.tensors, rows, group)
        sums: list[int] = []
        _on_all(group, lambda: sums.append(_checksum(_shard(partial, group.rank))))
        every = group.gather(torch.tensor(sums), [1] * group.world, "checkpoint").tolist()
        files = {_shard(partial, rank).name: total for rank, total in enumerate(every)}
        _on_all(group, (lambda: end(files)) if group.leads else lambda: None)
    except OSError:
        if group.leads:
            remove(partial)
        raise


def read_part(path: Path, sharding: Sharding, validate: Validate) -> Saved:
    """Return the tensors of this process, from a checkpoint of one or of several processes.

    Args:
        path: a file that `checkpoint_file.write` wrote, or a folder that `write_folder` wrote.
        sharding: of the training that goes on.
        validate: called with dtypes and shapes of this process's tensors, and facts, before any
            tensor is read.
    """
    group = sharding.group
    if path.is_dir():
        return _read_folder(path, group, validate)

    def own(found: Found) -> Found:
        rows = sharding.rows(found)
        return {
            name: (dtype, (group.owned(shape[0]), *shape[1:]) if name in rows else shape)
            for name, (dtype, shape) in found.items()
        }

    saved = read(path, lambda source, found, facts: validate(source, own(found), facts))
    if group.world == 1:
        return saved
    rows = sharding.rows(saved.tensors)
    tensors = {
        name: value[group.rank :: group.world].clone() if name in rows else value
        for name, value in saved.tensors.items()
    }
    return Saved(tensors, saved.facts, saved.source)


def _read_folder(path: Path, group: Group, validate: Validate) -> Saved:
    writer, source = load_writer(), Source(path, RESTART)
    document = _document(path, source)
    _check_files(path, document, group, source)
    try:
        found = {}
        for name, (dtype, shape) in writer.stored(path).items():
            if name in document.rows and shape[:1] != (document.rows[name],):
                raise source.damaged(name, f"must have {document.rows[name]} rows, got {shape}")
            size = (group.owned(shape[0]), *shape[1:]) if name in document.rows else shape
            found[name] = dtype, size
        validate(source, found, document.facts)
        tensors = writer.load(path, document.rows, document.world, group)
    except (KeyError, RuntimeError) as error:  # another file than the planner expects
        raise source.damaged("", f"is damaged ({error})") from error
    return Saved(tensors, dict(document.facts), source)


def _document(path: Path, source: Source) -> _Document:
    try:
        text = (path / _FACTS).read_bytes()
    except FileNotFoundError:
        raise ArtifactError(f"{path} is not a checkpoint of fewfold; name another path") from None
    value = source.document(text, finite=False)
    version = value.get("format") if isinstance(value, dict) else None
    if type(version) is int and version > _FORMAT:
        raise ArtifactError(
            f"the checkpoint {path} is of format {version}, this fewfold reads {_FORMAT}; "
            f"update fewfold, or {RESTART}"
        )
    document = check(_Document, value, source, exact=True)
    if document.world != len(document.files):
        raise source.damaged("files", f"must be {document.world}, got {len(document.files)}")
    if document.checksum != document.total():
        raise source.damaged(_FACTS, "is damaged: it has changed since it was written")
    return document


def _check_files(path: Path, document: _Document, group: Group, source: Source) -> None:
    """Raise if a file has changed; each process checks some of them."""
    changed = ""
    present = {file.name for file in path.iterdir()} - {_FACTS}
    if present != set(document.files):
        changed = ", ".join(sorted(present ^ set(document.files)))
    for index, (name, total) in enumerate(sorted(document.files.items())):
        if not changed and index % group.world == group.rank and _checksum(path / name) != total:
            changed = name
    if not group.every(not changed):
        if changed:
            raise source.damaged(changed, "is damaged: it has changed since it was written")
        raise PeerError("another process found the checkpoint damaged; see its message")


def _on_all(group: Group, call: Callable[[], None]) -> None:
    """Call a function; raise in all processes if it raises an OSError in any."""
    error = None
    try:
        call()
    except OSError as found:
        error = found
    if group.every(error is None):
        return
    raise error or OSError(errno.EIO, "another process could not write it")


def _shard(folder: Path, rank: int) -> Path:
    """Return the file of a process, as torch names it."""
    return folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"


def _checksum(file: Path) -> int:
    total = 0
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            total = zlib.crc32(chunk, total)
    return total
