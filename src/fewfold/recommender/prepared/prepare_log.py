"""Prepare a log of any size out of core: scatter its rows to parts of users, sort each part."""

import json
import os
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from fewfold._check import whole_number
from fewfold._files import new_file, partial_of, replace_folder, restore_interrupted
from fewfold._lock import locked
from fewfold._progress import notes, phase, silence
from fewfold._resources import available_processors, release_freed_memory
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.prepared.item_codes import ItemNumbers
from fewfold.recommender.prepared.log_size import estimated_rows
from fewfold.recommender.prepared.part_files import (
    arrow_column,
    ids_of,
    read_part,
    write_part,
    write_table,
)
from fewfold.recommender.prepared.prepared_log import PreparedLog
from fewfold.recommender.prepared.prepared_manifest import (
    ITEMS,
    MOST_PARTS,
    PREPARED,
    PreparedManifest,
    file_facts,
    part_name,
)
from fewfold.recommender.prepared.scatter import Scattered, scatter
from fewfold.recommender.prepared.sorted_part import sorted_part
from fewfold.recommender.prepared.spill import SpillReader
from fewfold.recommender.reading.opened import OpenedLog, open_log
from fewfold.recommender.reading.read_options import ReadOptions, complete_options
from fewfold.recommender.reading.table_source import library

__all__ = ["MEMORY", "check_prepared_target", "prepare"]

MEMORY = 4_000_000_000  # bytes, by default
_LEAST_MEMORY = 500_000_000
_BASE = 400_000_000  # bytes of the process itself
_ROW_BYTES = {False: 110, True: 220}  # of a part while it is sorted; true where users are text
_SPILL_BYTES = 64  # of a row that waits to be written
_FACTS, _CODES = "scattered.json", "codes.parquet"


def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    parts: int | None = None,
    memory: int = MEMORY,
    overwrite: bool = False,
    progress: bool = True,
    **reading: Unpack[ReadOptions],
) -> PreparedLog:
    """Write a log of any size as a prepared folder, from which `Recommender.fit` reads.

    Rows are validated, merged and numbered as by `read_log`. An interrupted call leaves nothing at
    `folder`; the same call then goes on after the last finished step.

    Args:
        source: as for `read_log`.
        folder: to write to.
        parts: number of parts into which users are hashed; by default as many as `memory` needs.
        memory: bytes that may be used, about. Item ids are held in memory, users are not.
        overwrite: replace an existing prepared folder.
        progress: show progress on standard error.
        reading: columns, conditions and formats; see `ReadOptions`. `core` and `weight_scale`
            are options of the fit instead, and a journal is added by `fewfold update`.

    Returns:
        The prepared log.

    Example:
        >>> import tempfile
        >>> from fewfold.recommender import prepare
        >>> log = {"user": [5, 9, 5], "item": ["tea", "milk", "milk"]}
        >>> print(prepare(log, tempfile.mkdtemp() + "/prepared", progress=False).summary.before)
        2 users, 2 items, 3 pairs
    """
    options = complete_options(reading, "prepare")
    if "journal" in reading:
        raise ValueError(
            "prepare takes no journal; add its events to a fitted model with fewfold update"
        )
    for name in ("core", "weight_scale"):
        if name in reading:
            raise ValueError(f"{name} is an option of the fit, not of prepare; give it there")
    if parts is not None:
        whole_number(parts, "parts")
        if parts > MOST_PARTS:
            raise ValueError(f"parts must be at most {MOST_PARTS:,}, got {parts:,}")
    if memory < _LEAST_MEMORY:
        raise ValueError(f"memory must be at least 500M ({_LEAST_MEMORY:,} bytes), got {memory:,}")
    target = Path(folder).expanduser().absolute()
    target = target.resolve() if target.is_symlink() else target
    target.parent.mkdir(parents=True, exist_ok=True)
    with silence(not progress), notes(progress), locked(target):
        check_prepared_target(target, overwrite)
        opened = open_log(source, options)
        count = parts or _needed_parts(opened, memory)
        _Job(opened, target, count, memory).run(_identity(opened, options, count))
    return PreparedLog.open(target)


def check_prepared_target(target: Path, overwrite: bool) -> None:
    """Raise unless a prepared log may be written there; restores one left by a killed process."""
    restore_interrupted(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / PREPARED).is_file():
        raise FileExistsError(f"{target} exists and is not a prepared log; choose another folder")
    if not overwrite:
        raise FileExistsError(
            f"{target} holds a prepared log already; choose another folder, or replace it with "
            "overwrite=True (--overwrite)"
        )


def _needed_parts(opened: OpenedLog, memory: int) -> int:
    """Return the number of parts of which one per processor fits into memory while sorted."""
    rows = estimated_rows(opened.source)
    most = (memory - _BASE) / 2 / available_processors() / _ROW_BYTES[not opened.typed]
    return int(min(MOST_PARTS, max(1, np.ceil(rows / most))))


def _identity(opened: OpenedLog, options: ReadOptions, parts: int) -> dict[str, Any]:
    """Return what must be equal for an interrupted run to be continued."""
    files: list[Any] = []
    for name in opened.source.files:
        try:
            facts = os.stat(name)
        except (OSError, ValueError):  # in memory, or a pipe: never the same
            files.append(uuid.uuid4().hex)
        else:
            files.append([os.path.abspath(name), facts.st_size, facts.st_mtime_ns])
    given = {name: str(value) for name, value in sorted(options.items())}
    return {"files": files, "options": given, "parts": parts, "version": 1}


@dataclass(frozen=True)
class _Job:
    """One run of `prepare`: its log, target, number of parts and memory."""

    opened: OpenedLog
    target: Path
    parts: int
    memory: int

    @property
    def work(self) -> Path:
        """The folder that is written, next to the target; kept when the run is interrupted."""
        return partial_of(self.target)

    def run(self, identity: dict[str, Any]) -> None:
        """Do the steps that are not finished yet, and put the folder into place."""
        found = self._resumed(identity)
        if found is None:
            found = self._scatter(identity)
        facts, items = found
        totals = self._sort_parts(facts, items)
        self._finish(facts, items, totals)
        replace_folder(self.work, self.target)

    def _resumed(self, identity: dict[str, Any]) -> tuple[Scattered, ItemNumbers] | None:
        """Return the result of the first step of an interrupted run, if there is one like this."""
        try:
            saved = json.loads((self.work / _FACTS).read_text("utf-8"))
            if saved["identity"] != identity:
                return None
            table = library("pyarrow.parquet").read_table(self.work / _CODES)
        except (OSError, ValueError, KeyError, library("pyarrow").ArrowException):
            return None
        ids = ids_of(table.column("item").combine_chunks())
        return Scattered.from_dict(saved["facts"]), ItemNumbers(
            ids, table.column("code").to_numpy()
        )

    def _scatter(self, identity: dict[str, Any]) -> tuple[Scattered, ItemNumbers]:
        """First step: validate all rows, and write each to the part of its user."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        buffer = max(1 << 16, min(1 << 22, (self.memory - _BASE) // 4 // _SPILL_BYTES))
        try:
            facts, items = scatter(self.opened, self.work, parts=self.parts, buffer=buffer)
            write_table(
                self.work / _CODES,
                {"item": arrow_column(items.ids.values), "code": arrow_column(items.codes)},
            )
            with new_file(self.work / _FACTS) as partial:
                saved = {"identity": identity, "facts": facts.as_dict()}
                partial.write_text(json.dumps(saved, allow_nan=False), "utf-8")
        except BaseException:
            shutil.rmtree(self.work, ignore_errors=True)
            raise
        release_freed_memory()
        return facts, items

    def _sort_parts(self, facts: Scattered, items: ItemNumbers) -> "_Totals":
        """Second step: sort and write each part; return the numbers of its pairs."""
        largest = max(max(facts.counts), 1) * _ROW_BYTES[facts.textual]
        workers = int((self.memory - _BASE) // largest)
        workers = max(1, min(workers, available_processors(), self.parts))
        totals = _Totals(len(items))
        pool = ThreadPoolExecutor(workers)
        try:
            with phase("sorting the parts", total=self.parts) as sorting:
                jobs = [
                    pool.submit(self._sort_part, number, facts, items, totals)
                    for number in range(self.parts)
                ]
                for done, job in enumerate(as_completed(jobs), 1):
                    job.result()
                    sorting.advance(done)
        finally:
            pool.shutdown(cancel_futures=True)
        return totals

    def _sort_part(
        self, number: int, facts: Scattered, items: ItemNumbers, totals: "_Totals"
    ) -> None:
        """Write a part, unless an interrupted run has written it, and count its pairs."""
        path, spill = self.work / part_name(number), SpillReader(self.work, facts.columns)
        if path.exists():
            part = read_part(path, len(items), ("dislikes",) if facts.rated else ())
        else:
            part = sorted_part(spill.read(number), items, facts)
            write_part(path, part)
        spill.delete(number)
        totals.add(path.name, part.interactions)
        del part
        release_freed_memory()

    def _finish(self, facts: Scattered, items: ItemNumbers, totals: "_Totals") -> None:
        """Last step: the items and the manifest."""
        with phase("writing checksums", total=self.parts) as writing:
            write_table(
                self.work / ITEMS,
                {"item": arrow_column(items.ids.values), "users": arrow_column(totals.items)},
            )
            files = {ITEMS: file_facts(self.work / ITEMS)}
            for number in writing.each(range(self.parts)):
                name = part_name(number)
                files[name] = file_facts(self.work / name, pairs=totals.pairs[name])
        users = sum(files[name]["rows"] for name in totals.pairs)
        pairs = sum(totals.pairs.values())
        log = dict(facts.summary)
        size = {"users": users, "items": len(items), "pairs": pairs}
        log |= {"before": size, "after": size, "disliked": totals.dislikes}
        log["duplicates"] = log.pop("selected") - pairs
        PreparedManifest(
            users, len(items), pairs, self.parts, "text" if facts.textual else "int64",
            "text" if items.ids.textual else "int64", facts.timed, "weight" in facts.columns,
            totals.dislikes, files, log,
        ).write(self.work)  # fmt: skip
        for name in (_FACTS, _CODES):
            (self.work / name).unlink()


class _Totals:
    """Numbers of pairs, by part and by item; several threads add to it.

    Attributes:
        items: (items,) int64.
        pairs: by name of the part's file.
        dislikes: in all parts.
    """

    def __init__(self, items: int) -> None:
        self.items = np.zeros(items, dtype=np.int64)
        self.pairs: dict[str, int] = {}
        self.dislikes = 0
        self._lock = threading.Lock()

    def add(self, name: str, log: Interactions) -> None:
        """Count the pairs of a part."""
        counts = log.counts().numpy()
        with self._lock:
            self.items += counts
            self.pairs[name] = log.pairs
            self.dislikes += 0 if log.dislikes is None else log.dislikes.pairs
