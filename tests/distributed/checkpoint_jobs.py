"""Trainings of several processes that are interrupted, and resumed by as many, fewer and more."""

import contextlib
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fewfold as ff
from fewfold.distributed.group import Group
from fewfold.recommender import Checkpoint
from fewfold.recommender.models.fastvae.sharded_tables import ShardedTables
from fewfold.recommender.training import checkpoint_folder
from tests.distributed import processes
from tests.distributed.jobs import HIDDEN, ITEMS, LATENT, log
from tests.distributed.processes import job

ALONE = Group()
_last: list[ShardedTables] = []  # of the last training


def _shared(name: str) -> Path:
    """Return a path that is the same in all processes of this world."""
    folder = processes.FOLDER / f"checkpoints-{Group.current().world}"
    folder.mkdir(exist_ok=True)
    return folder / name


def _wait() -> None:
    Group.current().every(True)


def _train(checkpoint: Checkpoint | None, group: Group | None = None) -> dict[str, Any]:
    """Train as `jobs.trained`, with early stopping, so that best weights are saved, too."""
    tables = ShardedTables(ITEMS, HIDDEN, LATENT, group)
    model = ff.recommender.FastVAE(tables, seed=1)
    _last[:] = [tables]
    split = ff.recommender.random_split(log(), test=0.3)
    epochs = ff.recommender.train(
        model, log(), epochs=3, batch=20, lr=2e-2, progress=False, checkpoint=checkpoint,
        validation=split, patience=3,
    )  # fmt: skip
    return {
        "losses": [epoch.loss for epoch in epochs],
        "inputs": tables.input_vectors(),
        "items": tables.output_vectors(),
        "posterior": model.posterior.weight.detach().clone(),
    }


@contextlib.contextmanager
def _stopped(step: int, rank: int) -> Iterator[list[str]]:
    """Send a signal to one process in this step; yield a list that gets the message."""
    loss, found, count = ff.recommender.FastVAE.loss, list[str](), iter(range(1, 1000))

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(count) == step and Group.current().rank == rank:
            signal.raise_signal(signal.SIGTERM)
        return loss(*arguments, **options)

    with mock.patch.object(ff.recommender.FastVAE, "loss", counted):
        try:
            yield found
        except KeyboardInterrupt as error:
            found.append(str(error))


@job
def unbroken() -> dict[str, Any]:
    """The training without an interruption, nor checkpoints."""
    return _train(None)


@job
def resumed() -> dict[str, Any]:
    """The training, stopped by a signal to one process, and resumed; what was left on the way."""
    group, path = Group.current(), _shared("run")
    with _stopped(5, rank=group.world - 1) as message:
        _train(Checkpoint(path))
    stopped = _last[0].input_vectors(), _last[0].output_vectors()
    files = sorted(each.name for each in path.iterdir()) if group.world > 1 else []
    _wait()
    if group.leads:
        (shutil.copytree if path.is_dir() else shutil.copy)(path, _shared("copy"))
    _wait()
    found = _train(Checkpoint(path, resume=True))
    again = _train(Checkpoint(path, resume=True))  # it is finished
    _wait()
    if group.leads:
        Checkpoint(path).discard()
    _wait()
    left = [each.name for each in path.parent.iterdir() if "run" in each.name]
    return {
        "result": found, "again": again, "message": message, "files": files, "left": left,
        "tables at the stop": stopped,
    }  # fmt: skip


@job
def resumed_by_others() -> dict[str, Any]:
    """The training of this world by one process, of one process and of two by this world."""
    group, found, path = Group.current(), {}, _shared("other")
    if group.leads:
        copy = _shared("copy-for-one")
        source = _shared("copy")
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
        found["by one"] = _train(Checkpoint(copy, resume=True), ALONE)
        found["kind"] = copy.is_file()
        with _stopped(5, rank=0):
            _train(Checkpoint(path), ALONE)
    _wait()
    found["of one"] = _train(Checkpoint(path, resume=True))
    found["kind after"] = path.is_dir()
    if group.world == 3:
        copied = _shared("of-two")
        if group.leads:
            shutil.copytree(processes.FOLDER / "checkpoints-2" / "copy", copied)
        _wait()
        found["of two"] = _train(Checkpoint(copied, resume=True))
    return found


@job
def failed_writes() -> dict[str, Any]:
    """Trainings in which one process cannot write, and how a damaged checkpoint is refused."""
    group, path = Group.current(), _shared("failing")
    if group.world == 1:
        return {}
    with _stopped(3, rank=0):
        _train(Checkpoint(path))
    before = sorted((each.name, each.read_bytes()) for each in path.iterdir())
    _wait()
    found: dict[str, Any] = {}
    for place in ("_checksum", "sync"):
        real = getattr(checkpoint_folder, place)

        def fails(file: Path, real: Any = real) -> Any:
            mine = group.rank == (group.world - 1 if place == "_checksum" else 0)  # noqa: B023
            if mine and ".partial" in str(file):
                raise OSError(28, "No space left on device", str(file))
            return real(file)

        with mock.patch.object(checkpoint_folder, place, fails), _stopped(2, rank=1) as message:
            _train(Checkpoint(path, resume=True))
        _wait()
        after = sorted((each.name, each.read_bytes()) for each in path.iterdir())
        found[place] = message, before == after
        _wait()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if group.rank == group.world - 1:  # whose disk is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    with _stopped(2, rank=0) as message:
        _train(Checkpoint(path, resume=True))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    _wait()
    after = sorted((each.name, each.read_bytes()) for each in path.iterdir())
    found["full disk"] = message, before == after
    _wait()
    if group.leads:
        shard = sorted(path.iterdir())[-1]
        content = bytearray(shard.read_bytes())
        content[-3] ^= 1
        shard.write_bytes(content)
    _wait()
    try:
        _train(Checkpoint(path, resume=True))
    except (ValueError, RuntimeError) as error:
        found["damaged"] = f"{type(error).__name__}: {error}"
    return found


@job
def few_users() -> dict[str, Any]:
    """Fits and trainings of fewer users than processes, so that some have no data."""
    frame = {"user": ["a", "a", "a", "b", "b"], "item": [1, 2, 3, 3, 4]}
    training = ff.recommender.Training(epochs=3)
    path = _shared("few")
    with _stopped(2, rank=0) as message:
        ff.Recommender(ff.recommender.VAE(8, 3, shortcut=0), training=training).fit(
            frame, test=0, progress=False, checkpoint=Checkpoint(path)
        )
    _wait()
    rec = ff.Recommender(ff.recommender.VAE(8, 3, shortcut=0), training=training).fit(
        frame, test=0, progress=False, checkpoint=Checkpoint(path, resume=True)
    )
    assert rec.report is not None
    return {
        "message": message,
        "losses": [epoch.loss for epoch in rec.report.epochs],
        "recommended": rec.recommend(["a", "b"], 2).items,
    }
