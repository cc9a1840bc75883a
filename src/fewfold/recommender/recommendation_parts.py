"""Recommendations to all users, written to a folder of parts by one process or several."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfold._files import new_file, partial_of, replace_folder, restore_interrupted
from fewfold._lock import locked
from fewfold._progress import phase
from fewfold.distributed.group import Group
from fewfold.recommender.artifact.card import versions
from fewfold.recommender.artifact.packing import pack_items, pack_users
from fewfold.recommender.artifact.profile_packing import pack_profiles
from fewfold.recommender.group_agreement import check_same
from fewfold.recommender.reading.table_source import library
from fewfold.recommender.recommendation_files import AllUsers, UserRange
from fewfold.recommender.recommendations import RankOptions
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["MANIFEST", "is_folder", "write_recommendation_parts"]

MANIFEST = "_manifest.json"  # readers of a folder of Parquet files pass over names with _
_FORMAT, _VERSION = "fewfold recommendations", 1
_PART_ROWS = 1 << 18  # at most, unless one block of users has more; an interruption loses one part
_PARTS = 64  # at least, if there are as many blocks of users, so that all processes get some
_OF_A_MACHINE = ("search", "versions")  # settings that may differ between processes


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is that of a folder: it ends with a slash, or a folder is there."""
    text = os.fspath(path)
    return text.endswith(("/", os.sep)) or Path(text).is_dir()


def write_recommendation_parts(
    state: RecommenderState,
    folder: str | os.PathLike[str],
    options: RankOptions,
    *,
    overwrite: bool = False,
) -> int:
    """Rank the items for all users, and write them to a folder; return the number of rows.

    The folder has Parquet files, which in the order of their names have the rows of
    `write_recommendations`, and `_manifest.json` with their counts. It appears when it is complete.
    Until then finished parts are in `.NAME.partial` beside it. A later call with the same model
    and options, by any number of processes, computes only those that are missing.

    In a process group all processes call this, and each writes a share of the parts; they must see
    the same file system. Meanwhile rank 0 holds a lock, and another call for this folder raises
    FileExistsError.

    Args:
        folder: to write; it may be empty.
        options: of the ranking.
        overwrite: replace an existing folder of recommendations.
    """
    if state.fitted.group.world > 1:
        raise ValueError(
            f"the tables of this model are in {state.fitted.group.world} processes; save it, and "
            "load it in each of them"
        )
    group, ranked = Group.current(), AllUsers(state, options)
    work = _Work(Path(folder).absolute(), ranked)
    with contextlib.ExitStack() as held:
        group.lead(lambda: held.enter_context(work.locked(overwrite)))
        with phase("comparing with an interrupted run"):
            work.settings = _settings(state, options, ranked, work.parts)
        facts = {n: json.dumps(v) for n, v in work.settings.items() if n not in _OF_A_MACHINE}
        check_same(group, facts, "start all processes with the same model and options")
        group.lead(work.keep_finished)
        _write_missing(work, ranked, group)
        group.gather(torch.ones(1), [1] * group.world, "parts")  # all have written theirs
        group.lead(work.complete)
        return work.rows()


def _write_missing(work: "_Work", ranked: AllUsers, group: Group) -> None:
    """Write the share of this process of the parts that are missing."""
    # Rank 0 says which are missing: others might see files of processes that have begun.
    done = group.agree(*(float(work.finished(n)) for n in range(len(work.parts))))
    missing = [n for n, found in enumerate(done) if not found]
    mine = missing[group.rank :: group.world]
    with ranked.progress([work.parts[n] for n in mine]) as progress:
        for n in mine:
            with new_file(work.file(n)) as temporary:
                ranked.write(temporary, ".parquet", [work.parts[n]], progress)


class _Work:
    """The folder in which parts are written until all are there.

    Attributes:
        parts: users of each.
        settings: what their rows depend on.
    """

    def __init__(self, target: Path, ranked: AllUsers) -> None:
        self._target = target.resolve() if target.is_symlink() else target
        self._folder = partial_of(self._target)
        self.settings: dict[str, Any] = {}
        most = _PART_ROWS // max(ranked.at_once * ranked.count, 1)
        self.parts = ranked.parts(max(1, min(most, len(ranked.parts(1)) // _PARTS)))

    def file(self, part: int) -> Path:
        """Return the path of a part."""
        return self._folder / f"part-{part:06}.parquet"

    def finished(self, part: int) -> bool:
        """Whether a part is there: a file appears under its name when it is complete."""
        return self.file(part).is_file()

    @contextlib.contextmanager
    def locked(self, overwrite: bool) -> Iterator[None]:
        """Hold the lock of the folder in the block; raise unless it may be written."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._target):
            _check_target(self._target, overwrite)
            yield

    def keep_finished(self) -> None:
        """Keep parts of an interrupted run with the same settings; remove all else."""
        if self._has_settings():
            names = {MANIFEST, *(self.file(n).name for n in range(len(self.parts)))}
            for file in self._folder.iterdir():
                if file.name not in names:
                    file.unlink()
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        _write(self._folder / MANIFEST, {"format": _FORMAT, "settings": self.settings})

    def _has_settings(self) -> bool:
        """Whether the parts in the folder are of this model and these options."""
        return bool(_read(self._folder / MANIFEST).get("settings") == self.settings)

    def complete(self) -> None:
        """Write the manifest, and rename the folder into place."""
        if not self._has_settings():  # where there are no locks, or a process outlived its group
            raise FileExistsError(
                f"another command has written other recommendations to {self._folder} meanwhile; "
                "run this one again"
            )
        lost = [n for n in range(len(self.parts)) if not self.finished(n)]
        if lost:
            raise FileNotFoundError(
                f"{self.file(lost[0])} was written by another process and is not here; all "
                "machines must have the folder on a file system that they share"
            )
        rows = [_rows(self.file(n)) for n in range(len(self.parts))]
        files = [
            {"file": self.file(n).name, "users": len(part.numbers), "rows": rows[n]}
            for n, part in enumerate(self.parts)
        ]
        manifest = {
            "format": _FORMAT,
            "version": _VERSION,
            "users": sum(len(part.numbers) for part in self.parts),
            "rows": sum(rows),
            "settings": self.settings,
            "parts": files,
        }
        _write(self._folder / MANIFEST, manifest)
        replace_folder(self._folder, self._target)

    def rows(self) -> int:
        """Return the number of rows of the complete folder."""
        return int(_read(self._target / MANIFEST)["rows"])


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise unless recommendations may be written there."""
    restore_interrupted(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir() or _read(target / MANIFEST).get("format") != _FORMAT:
        raise FileExistsError(
            f"{target} exists and is not a folder of recommendations; choose another name"
        )
    if not overwrite:
        raise FileExistsError(
            f"{target} exists; choose another name or pass overwrite=True (--overwrite)"
        )


def _settings(
    state: RecommenderState, options: RankOptions, ranked: AllUsers, parts: Sequence[UserRange]
) -> dict[str, Any]:
    """Return what the rows of the parts depend on, as a JSON object."""
    allowed = {} if ranked.allowed is None else {"candidates": ranked.allowed}
    return {
        "k": ranked.count,
        "exclude seen": bool(options.exclude_seen),
        "diversity": repr(options.diversity),
        "search": repr(options.search),
        "users in a part": len(parts[0].numbers) if parts else 0,
        "candidates": _digest([allowed]),
        "model": _digest(_model_tensors(state)),
        "versions": versions(),
    }


def _model_tensors(state: RecommenderState) -> Iterator[Mapping[str, Any]]:
    """Yield all that a saved model has in files of tensors."""
    yield state.fitted.state()
    yield pack_items(state.items, state.attributes)
    if state.users is not None and state.history is not None:
        yield pack_users(state.users, state.history)
    if state.profiles is not None:
        yield pack_profiles(state.profiles, users=True)


def _digest(files: Iterator[Mapping[str, Any]] | Sequence[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of named tensors and arrays."""
    found = hashlib.sha256()
    for tensors in files:
        for name, value in sorted(tensors.items()):
            tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(value)
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
            numbers: np.ndarray = tensor.contiguous().flatten().view(torch.uint8).numpy()
            found.update(numbers.data)
    return found.hexdigest()


def _rows(file: Path) -> int:
    """Return the number of rows of a Parquet file, from its footer."""
    return int(library("pyarrow.parquet").read_metadata(file).num_rows)


def _read(file: Path) -> dict[str, Any]:
    """Return a JSON object of this module; an empty one if there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, document: Mapping[str, Any]) -> None:
    with new_file(file) as temporary:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")
