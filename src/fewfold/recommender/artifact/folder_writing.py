"""Write model folders: by one process, or each large table by all processes that have its rows."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._files import new_folder, partial_of, restore_interrupted
from fewfold._progress import over
from fewfold.distributed.group import Group
from fewfold.distributed.row_shards import RowShards
from fewfold.recommender.artifact.file_reading import safetensors_library
from fewfold.recommender.artifact.folder import (
    CARD,
    FORMAT,
    MANIFEST,
    VERSION,
    VERSION_WITH_TABLES,
    is_hub_address,
    sha256,
)
from fewfold.recommender.artifact.table_files import INDEX
from fewfold.recommender.artifact.table_writing import (
    Table,
    WrittenTables,
    write_tables,
)

__all__ = ["check_target", "write_artifact"]

Parts = Mapping[str, Mapping[str, Any]]


def write_artifact(
    folder: str | os.PathLike[str],
    parts: Callable[[], Parts],
    card: str,
    *,
    tables: Mapping[str, Table],
    largest: int,
    group: Group | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the parts (a dict for each file), tables and the model card into a new folder.

    The folder is complete or does not exist. With `overwrite` an existing artifact is replaced,
    atomically where the system supports it; a folder that is not an artifact never is.

    Args:
        folder: its path; the same in all processes if there are tables of them.
        parts: returns the content of the files; called by rank 0.
        card: the model card.
        tables: tensors of the model that are several files each.
        largest: bytes of each of these files, at most.
        group: processes that call this together; an error on one is raised on all.
        overwrite: replace an existing artifact.
    """
    check_path(folder)
    target = Path(folder).absolute()
    if target.is_symlink():
        target = target.resolve()
    group = group or Group()

    def write(by: Group) -> None:
        with _new_folder(target, overwrite, by) as partial:
            written = write_tables(partial, tables, largest, by)
            by.lead(lambda: _write_parts(partial, parts(), card, written))

    if any(isinstance(table, RowShards) for table in tables.values()):
        write(group)
    else:
        group.lead(lambda: write(Group()))
    return target


@contextlib.contextmanager
def _new_folder(target: Path, overwrite: bool, group: Group) -> Iterator[Path]:
    """Yield the temporary folder of `new_folder` to all processes; rank 0 creates and renames it.

    What a block raises must be raised on all processes, as operations of the group do.
    """
    partial = partial_of(target)
    with contextlib.ExitStack() as stack:

        def create() -> None:
            check_target(target, overwrite)
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(new_folder(target))

        group.lead(create)
        with group.together():
            if not partial.is_dir():
                raise _not_shared(partial)
        yield partial
        group.lead(stack.pop_all().close)


def _not_shared(path: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{path} was written by another process and is not here; several processes write large "
        "tables together, so that the model folder must be on a file system that all machines share"
    )


def _write_parts(partial: Path, parts: Parts, card: str, tables: WrittenTables) -> None:
    """Write all files but those of the tables, after checking that these are there."""
    for name, size in tables.sizes.items():
        if not (partial / name).is_file() or (partial / name).stat().st_size != size:
            raise _not_shared(partial / name)
    sums, sizes = dict(tables.sums), dict(tables.sizes)
    if tables.sums:
        parts = {**parts, INDEX: tables.index}
    for name, part in over("writing the model", list(parts.items())):
        _write(partial / name, part)
        sums[name] = sha256(partial / name)
        sizes[name] = (partial / name).stat().st_size
    version = VERSION_WITH_TABLES if tables.sums else VERSION
    manifest = {"format": FORMAT, "version": version, "files": sums, "bytes": sizes}
    _write(partial / MANIFEST, manifest)
    (partial / CARD).write_text(card, encoding="utf-8")


def check_path(folder: str | os.PathLike[str]) -> None:
    """Raise if a model is to be written to an address instead of a folder."""
    if is_hub_address(folder):
        raise ValueError(
            f"{folder} is an address; write the model to a folder, or upload it with push(address) "
            "(fewfold push MODEL ADDRESS)"
        )


def check_target(target: Path, overwrite: bool) -> None:
    """Raise unless an artifact may be written there; restores one left by a killed process."""
    check_path(target)
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
        tensors = {name: _to_tensor(value) for name, value in part.items()}
        safetensors_library().save_file(tensors, file)


def _to_tensor(value: Tensor | np.ndarray) -> Tensor:
    tensor = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value.detach()
    return tensor.contiguous()
