"""`fewfold fit`, `update` and `compare`; the modules they need are imported when they run."""

import argparse
import contextlib
import glob
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fewfold as ff
from fewfold.cli.commands import data_show, parts, print_note, reading, source, start
from fewfold.cli.console import emit
from fewfold.cli.torchrun import joined_processes

__all__ = ["compare", "fit", "update"]


def fit(arguments: argparse.Namespace) -> int:
    """Fit a model, evaluate it, write it; under torchrun by all processes together."""
    if arguments.dry_run:
        return data_show(arguments)
    began = time.monotonic()
    start(arguments)
    with joined_processes() as leads:
        if not leads:
            arguments.quiet = True
        return _fit(arguments, began, leads)


def _fit(arguments: argparse.Namespace, began: float, leads: bool) -> int:
    from fewfold.cli.attempts import Attempt, earlier_attempt, note_attempt
    from fewfold.distributed.group import Group
    from fewfold.recommender.artifact.folder_writing import check_target

    out, before = Path(arguments.out), earlier_attempt()
    if before is Attempt.DONE:
        return 0
    if before is not Attempt.NONE:  # torchrun started the processes again
        arguments.resume = True
        arguments.overwrite |= before is Attempt.STARTED
    # By one process: it renames what a killed one has left.
    Group.current().lead(lambda: check_target(out, arguments.overwrite))
    model = _model(arguments)
    checkpoint = _checkpoint(arguments, model, out)
    training = ff.recommender.Training(epochs=arguments.epochs)
    rec = ff.Recommender(model, training=training, seed=arguments.seed, device=arguments.device)
    note_attempt(Attempt.STARTED)
    log = _log(arguments)
    table = _items_table(arguments)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _resumable(out):
        rec.fit(
            log, test=_held_out(arguments), refit=arguments.refit, items_table=table,
            half_life=arguments.half_life, users_table=_users_table(arguments),
            checkpoint=checkpoint, time_budget=_time_left(arguments, began),
            progress=not arguments.quiet, **(reading(arguments) if arguments.stream else {}),
        )  # fmt: skip
        users = rec.users is not None and not arguments.without_users
        rec.save(out, users=users, overwrite=arguments.overwrite)
        if checkpoint is not None and leads:
            checkpoint.discard()
    if leads:
        _report(arguments, rec, out)
    note_attempt(Attempt.DONE)
    return 0


def _report(arguments: argparse.Namespace, rec: Any, out: Path) -> None:
    """Print the report of a fit."""
    emit(rec.report, {**rec.report.as_dict(), "model": str(out)} if arguments.json else None)
    if rec.evaluation is not None and not arguments.refit:
        print_note(
            arguments,
            "\nthe model was not fitted to the held-out part; --refit fits it again, to the whole "
            "log",
        )
    print_note(
        arguments, f"\nmodel written to {out}; try: fewfold recommend {out} --history ITEM,ITEM"
    )


def _log(arguments: argparse.Namespace) -> Any:
    """The log in memory, or with --stream the prepared folder."""
    if arguments.stream:
        if arguments.log is None:
            raise ValueError("--stream needs a folder that `fewfold prepare` wrote; name it")
        return ff.recommender.StreamedLog(arguments.log)
    log = ff.read_log(source(arguments), **reading(arguments))
    print_note(arguments, str(log.summary))
    return log


def update(arguments: argparse.Namespace) -> int:
    """Add the users, events and items of a later log to a model."""
    from fewfold.recommender.artifact.folder_writing import check_target

    start(arguments)
    if arguments.out is None and not arguments.overwrite:
        raise ValueError(
            "say where the updated model goes: --out DIR, or --overwrite to replace "
            f"{arguments.model}"
        )
    if arguments.log is None and arguments.journal is None:
        raise ValueError("name what to add: a log, or --journal FILE")
    out = Path(arguments.out or arguments.model)
    check_target(out, arguments.overwrite)
    rec = ff.Recommender.load(arguments.model)
    options = reading(arguments)
    if arguments.log is None:
        options = {"journal": arguments.journal}
    rec = rec.update(arguments.log, **options)
    if arguments.items_table is not None:
        rec.attach(arguments.items_table, key=arguments.items_key)
    rec.save(out, users=rec.users is not None, overwrite=arguments.overwrite)
    report = rec.update_report
    assert report is not None
    emit(report, {**report.as_dict(), "folder": str(out)} if arguments.json else None)
    print_note(arguments, f"\nmodel written to {out}")
    return 0


def _held_out(arguments: argparse.Namespace) -> Any:
    """The part of the log to evaluate on."""
    return ff.recommender.HoldOut(arguments.test, arguments.split, arguments.all_users)


def _items_table(arguments: argparse.Namespace) -> Any:
    """The table of item attributes: that of --items-table, or of the bundled log; or None."""
    table = arguments.items_table
    if table is None and arguments.log is None:
        table = ff.recommender.bundled_items()
    if table is None and arguments.use_attributes:
        raise ValueError("--use-attributes needs a table of attributes; write --items-table FILE")
    if table is None:
        return None
    return ff.recommender.ItemsTable(table, arguments.items_key, arguments.use_attributes)


def _users_table(arguments: argparse.Namespace) -> Any:
    """The table of user attributes: that of --users-table, or None."""
    if arguments.users_table is None:
        return None
    return ff.recommender.UsersTable(arguments.users_table, arguments.users_key)


def _time_left(arguments: argparse.Namespace, began: float) -> float | None:
    """Seconds of --time-budget that are left for the fit, a twentieth kept for writing it."""
    if arguments.time_budget is None:
        return None
    left: float = 0.95 * arguments.time_budget - (time.monotonic() - began)
    return max(1.0, left)


def _implied_model(values: dict[str, Any], by_model: dict[str, Any]) -> str:
    """The first model that has all options that were given, or auto if none were."""
    given = {
        option.name: {owner for owner, options in by_model.items() if option in options}
        for options in by_model.values()
        for option in options
        if values[option.dest] != option.default
    }
    if not given:
        return "auto"
    shared = set.intersection(*given.values())
    if shared:
        return next(name for name in by_model if name in shared)
    names = " and ".join(f"--{name}" for name in given)
    owners = ", ".join(sorted(set.union(*given.values())))
    raise ValueError(f"{names}: say for which model, --model with one of {owners}")


def _model(arguments: argparse.Namespace) -> Any:
    """The model of --model with its options; ValueError for options that do not go together."""
    from fewfold.recommender.models.registry import model_options, models

    name, values = arguments.model, vars(arguments)
    by_model = model_options([] if name is None else [name])
    if name is None:
        name = _implied_model(values, by_model)
        if name == "auto" and arguments.stream:
            name = "fastvae"  # the one model that is trained on a streamed log
    for option in (option for options in by_model.values() for option in options):
        if option.requires is not None and values[option.dest] != option.default:
            required, hint = option.requires
            if values[required.replace("-", "_")] is None:
                raise ValueError(f"--{option.name} is for --{required}; {hint}")
    for owner, options in by_model.items():
        for option in options:
            if option.exclusive and owner != name and values[option.dest] != option.default:
                raise ValueError(f"--{option.name} is for {owner}; {name} {option.exclusive}")
    return models()[name].from_options(values)


def _checkpoint(arguments: argparse.Namespace, model: Any, out: Path) -> Any:
    """Checkpoint next to the model, if it saves any; an existing one requires --resume."""
    if not model.resumable:
        return None
    existing = _checkpoints(out)
    if existing and not arguments.resume:
        raise FileExistsError(
            f"{existing[0]} is of an interrupted run; resume it with --resume, or "
            "delete it to start again"
        )
    path = out.with_name(f"{out.name}.checkpoint")
    return ff.recommender.Checkpoint(
        path, every=arguments.checkpoint_every, resume=arguments.resume
    )


def _checkpoints(out: Path) -> list[Path]:
    """Existing checkpoints of a run that writes to this folder."""
    found = out.parent.glob(f"{glob.escape(out.name)}.checkpoint.*")
    return sorted(path for path in found if path.suffix != ".partial")


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Add how to resume to the message of an interrupted training."""
    try:
        yield
    except KeyboardInterrupt as error:
        message = str(error) or "interrupted"
        if _checkpoints(out):
            message += ": run the same command with --resume"
        raise KeyboardInterrupt(message) from None


def compare(arguments: argparse.Namespace) -> int:
    """Compare models on a log."""
    from fewfold.recommender.artifact.folder_writing import check_path

    if arguments.dry_run:
        return data_show(arguments)
    start(arguments)
    if arguments.into is not None:
        check_path(arguments.into)
        ff.Recommender.load(arguments.into)  # a folder that is no model fails before the work
    log = ff.read_log(source(arguments), **reading(arguments))
    print_note(arguments, str(log.summary))
    chosen: dict[str, Any] = {} if arguments.models is None else {"models": parts(arguments.models)}
    training = ff.recommender.Training(epochs=arguments.epochs, time_budget=arguments.time_budget)
    found = ff.compare(
        log, test=_held_out(arguments), training=training, seed=arguments.seed,
        progress=not arguments.quiet, **chosen,
    )  # fmt: skip
    if arguments.into is not None:
        rec = ff.Recommender.load(arguments.into)  # again: it may have been replaced meanwhile
        rec.comparison = found
        rec.save(arguments.into, overwrite=True)
        print_note(arguments, f"results added to {arguments.into}")
    emit(found, found.as_dict() if arguments.json else None)
    return 0
