"""Trainings on a prepared log of which each process reads some parts, in several windows."""

from pathlib import Path
from typing import Any

import torch

import fewfold as ff
from fewfold.distributed.group import Group
from fewfold.recommender import Checkpoint, StreamedLog
from fewfold.recommender.models.fastvae.recipe import VAE
from fewfold.recommender.prepared.streamed_interactions import StreamedInteractions
from tests.distributed.checkpoint_jobs import _stopped
from tests.distributed.jobs import log as small_log
from tests.distributed.jobs import whole
from tests.distributed.processes import job, place

PARTS, PAIRS = 5, 330  # windows of two, two and one part


def _folder() -> Path:
    """Return the folder of a prepared log, the same in all processes of this world."""
    group, folder = Group.current(), place() / "streamed"
    if group.leads and not folder.exists():
        pairs = small_log(120, 40)
        frame = {"user": pairs.row.tolist(), "item": pairs.ids.tolist()}
        frame["time"] = [(7 * n) % 900 for n in range(pairs.pairs)]
        ff.recommender.prepare(frame, folder, parts=PARTS, progress=False)
    group.every(True)
    return folder


@job
def streamed_histories() -> dict[str, Any]:
    """Histories that all processes get of windows, with pairs left out, and who reads them."""
    group = Group.current()
    opened = StreamedInteractions.open(StreamedLog(_folder(), PAIRS), group)
    users = torch.tensor([30, 2, 17, 5])
    timed = opened.sample(0, users, timed=True)
    gone = opened.sample(1, users).keep(torch.arange(int(opened.sample(1, users).pairs)) % 2 == 0)
    less = opened.without(1, gone, users)
    read = [len(opened._windows[n].parts_of(group.rank)) for n in range(opened.windows)]
    return {
        "sizes": (opened.users, opened.pairs, opened.windows, less.pairs),
        "sample": (timed.offsets, timed.ids, timed.times),
        "lengths": [opened.lengths(n) for n in (2, 0, 1)],
        "all": [(block.offsets, block.ids) for block in opened.blocks(13)],
        "without": [(block.offsets, block.ids) for block in less.blocks(50)],
        "counts": less.counts(),
        "read": read,
    }


def _fit(path: Path | None, resume: bool = False) -> dict[str, Any]:
    training = ff.recommender.Training(epochs=2, batch=16)
    rec = ff.Recommender(VAE(12, 7, shortcut=6), training=training, seed=2)
    checkpoint = None if path is None else Checkpoint(path, resume=resume)
    log = StreamedLog(_folder(), PAIRS)
    rec.fit(log, test=0.2, progress=False, checkpoint=checkpoint)
    assert rec.report is not None
    assert rec.evaluation is not None
    state, group = rec.fitted.stored(), Group.current()
    tables = {
        name: whole(group, value if torch.is_tensor(value) else value.part, len(rec.items))
        for name, value in state.items()
        if name in ("vae.inputs", "vae.items")
    }
    return {
        "losses": [epoch.loss for epoch in rec.report.epochs],
        "scores": {m: s["mean"] for m, s in rec.evaluation.as_dict()["overall"]["scores"].items()},
        "tables": tables,
    }


@job
def streamed() -> dict[str, Any]:
    """A fit, and one that a signal to one process stops in its second window and that goes on."""
    group, path = Group.current(), place() / "streamed-run"
    found = {"unbroken": _fit(None)}
    with _stopped(6, rank=group.world - 1) as message:
        _fit(path)
    group.every(True)
    return found | {"message": message, "resumed": _fit(path, resume=True)}
