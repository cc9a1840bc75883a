"""Jobs that save a model whose tables are several files, written by all processes."""

import contextlib
import hashlib
import os
import resource
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fewfold as ff
from fewfold.distributed import Group, RowShards
from fewfold.distributed.entries import request
from fewfold.recommender.artifact import table_writing
from fewfold.recommender.models.fastvae.fitted import FittedVAE
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables
from tests.distributed.jobs import log
from tests.distributed.processes import job, place

ITEMS, HIDDEN, LATENT = 60, 12, 7
FILE_BYTES = 500  # 6 files of the inputs, 4 of the outputs


@contextlib.contextmanager
def _several_files() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWFOLD_FILE_BYTES", str(FILE_BYTES))
        patch.setattr(table_writing, "_BLOCK", 3 * 4 * HIDDEN)  # three rows of the inputs
        yield patch


def _recommender() -> ff.Recommender:
    """Return a recommender whose weights are the same bytes in any world."""
    pairs = log(80, ITEMS)
    frame = {"user": [f"u{u}" for u in pairs.row.tolist()], "item": pairs.ids.tolist()}
    training = ff.recommender.Training(epochs=1, batch=64)
    recipe = VAE(HIDDEN, LATENT, shortcut=0)
    rec = ff.Recommender(recipe, training=training).fit(frame, progress=False)
    model = ff.recommender.FastVAE(ShardedTables(len(rec.items), HIDDEN, LATENT), seed=4)
    state = replace(rec.state, fitted=FittedVAE(recipe, model), curve=())
    return ff.Recommender._of(state)


def _answers(rec: ff.Recommender) -> Any:
    assert rec.users is not None
    return rec.recommend(rec.users.take(range(20)), 7).to_dicts()


@job
def table_files() -> dict[str, Any]:
    """A folder of several files, one of a single file, and what was in memory meanwhile."""
    group, rec, fetched = Group.current(), _recommender(), []
    fetch, collect = RowShards.fetch, RowShards.collect

    def counted(table: RowShards, ranges: Any) -> Tensor:
        fetched.append(fetch(table, ranges))
        return fetched[-1]

    def collected(table: RowShards) -> Tensor | None:
        fetched.append(torch.zeros(table.shape))
        return collect(table)

    folder = place() / "several"
    with _several_files() as patch:
        patch.setattr(RowShards, "fetch", counted)
        patch.setattr(RowShards, "collect", collected)
        rec.save(folder)
    largest = max(rows.nbytes for rows in fetched)
    with _several_files():
        rec.save(folder, overwrite=True)
    rec.save(place() / "single")
    found = {"largest": largest, "together": _answers(rec)}
    group.agree(0.0)  # the folder is there when rank 0 has renamed it
    found["files"] = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()
    }
    # One process reads either of them.
    found["several"] = _answers(ff.Recommender.load(folder))
    found["single"] = _answers(ff.Recommender.load(place() / "single"))
    return found


@contextlib.contextmanager
def _full_disk(full: bool) -> Iterator[None]:
    """Let this process write no file of more than 2000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def _error(rec: ff.Recommender, folder: Path, **options: Any) -> str:
    try:
        rec.save(folder, **options)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@job
def failed_table_files() -> dict[str, Any]:
    """Errors of saves that fail on one process, and what they left."""
    group, rec, found = Group.current(), _recommender(), {}
    parent = place() / "failed"
    group.lead(lambda: parent.mkdir())
    with _several_files() as patch:
        rec.save(parent / "model")
        group.agree(0.0)
        before = {file.name: file.read_bytes() for file in (parent / "model").iterdir()}
        for rank in range(group.world):
            with _full_disk(group.rank == rank):
                found[f"full {rank}"] = _error(rec, parent / "new")
                found[f"full, replaced {rank}"] = _error(rec, parent / "model", overwrite=True)
        found["exists"] = _error(rec, parent / "model")
        if group.world > 1:
            mine = parent / "elsewhere" if group.leads else Path(os.devnull) / "elsewhere"
            found["not shared"] = _error(rec, mine)
        patch.setenv("FEWFOLD_FILE_BYTES", "none")
        with pytest.raises(ValueError, match="FEWFOLD_FILE_BYTES must be a number of bytes"):
            rec.save(parent / "new")
    group.agree(0.0)
    after = {file.name: file.read_bytes() for file in (parent / "model").iterdir()}
    return found | {"left": os.listdir(parent), "unchanged": before == after}


@job
def requested() -> dict[str, Any]:
    """Queries of all rows in either precision, and the ids that arrived at their owners."""
    group, found = Group.current(), dict[str, Any]()
    if group.world == 1:
        return found
    rows, none = 5, (torch.empty(0, dtype=torch.int64), torch.zeros(6, dtype=torch.int64))
    own, ids = group.share(rows), torch.arange(15).view(rows, 3)
    more = none[0], none[1][: own.stop - own.start + 1]
    for dtype in (torch.float32, torch.float64):
        queries = torch.arange(20, dtype=dtype).view(rows, 4) / 3
        entries, every = request(group, rows, queries[own], ids[own], more)
        found[str(dtype)] = torch.equal(every, queries)
        found["ids"] = sorted((entries.ids * group.world + group.rank).tolist())
    return found
