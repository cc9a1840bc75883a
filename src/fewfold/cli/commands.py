"""The function of each command; the modules they need are imported here, when it runs."""

import argparse
import contextlib
import importlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fewfold as ff
from fewfold._optional import optional_import
from fewfold._progress import phase
from fewfold.cli.console import emit, note

__all__: list[str] = []

_COLUMNS = ("user", "item", "rating", "time", "min_rating", "where", "header")
_READING = (*_COLUMNS, "skip_bad_rows", "time_format", "strip_ids", "core")


def _start(arguments: argparse.Namespace) -> None:
    """Import the recommender, and set the number of threads."""
    with phase("starting"):
        importlib.import_module("fewfold.recommender.recommender")
    if arguments.threads is not None:
        import torch

        torch.set_num_threads(arguments.threads)


def _tell(arguments: argparse.Namespace, text: str) -> None:
    if not arguments.quiet:
        note(text)


def _reading(arguments: argparse.Namespace, names: Sequence[str] = _READING) -> dict[str, Any]:
    given = {name: getattr(arguments, name, None) for name in names}
    if getattr(arguments, "ignore_times", False):
        given["time"] = False
    return {name: value for name, value in given.items() if value is not None}


def _source(arguments: argparse.Namespace) -> Any:
    if arguments.log is not None:
        return arguments.log
    _tell(arguments, "no log was named: the bundled one, build dependencies of Debian packages")
    return ff.recommender.bundled()


def _listed(text: str | None, ids: Any) -> list[str] | None:
    """Split "a,b,c" into ids; text that is an id itself is not split."""
    if text is None:
        return None
    if int(ids.find([text])[0]) >= 0:
        return [text]
    return _parts(text)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def fit(arguments: argparse.Namespace) -> int:
    """Fit a model, evaluate it, write it."""
    if arguments.dry_run:
        return data_show(arguments)
    from fewfold.recommender.artifact.folder import check_target

    _start(arguments)
    out = Path(arguments.out)
    check_target(out, arguments.overwrite)
    checkpoint = _checkpoint(arguments, out)
    training = ff.recommender.Training(epochs=arguments.epochs, time_budget=arguments.time_budget)
    rec = ff.Recommender(_model(arguments), training=training, seed=arguments.seed)
    log = ff.read_log(_source(arguments), **_reading(arguments))
    _tell(arguments, str(log.summary))
    table = arguments.items_table or (
        ff.recommender.bundled_items() if arguments.log is None else None
    )
    # Read before the training, so that errors in it come early.
    named = None if table is None else _attributes(table, log.items, arguments.items_key)
    out.parent.mkdir(parents=True, exist_ok=True)
    with _resumable(out):
        rec.fit(
            log, test=arguments.test, split=arguments.split, refit=arguments.refit,
            checkpoint=checkpoint, all_users=arguments.all_users,
            progress=not arguments.quiet,
        )  # fmt: skip
        rec.attributes = named
        rec.save(out, users=not arguments.without_users, overwrite=arguments.overwrite)
        if checkpoint is not None:
            checkpoint.discard()
    assert rec.report is not None
    emit(rec.report, {**rec.report.as_dict(), "model": str(out)} if arguments.json else None)
    if rec.evaluation is not None and not arguments.refit:
        _tell(
            arguments,
            "\nthe model has not learned from what was held out; with --refit it learns once more, "
            "from everything",
        )
    _tell(arguments, f"\nmodel written to {out}; try: fewfold recommend {out} --history ITEM,ITEM")
    return 0


def _model(arguments: argparse.Namespace) -> Any:
    """The model of --model with its options; ValueError for options that do not go together."""
    from fewfold.recommender.models.registry import model_options, models

    name, values = arguments.model, vars(arguments)
    by_model = model_options()
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


def _attributes(table: Any, items: Any, key: str | None) -> Any:
    from fewfold.recommender.attributes import read_attributes

    with phase("reading the items table"):
        return read_attributes(table, items, key)


def _checkpoint(arguments: argparse.Namespace, out: Path) -> Any:
    """Checkpoint next to the model, if it saves any; an existing one requires --resume."""
    from fewfold.recommender.models.registry import models

    if not models()[arguments.model].resumable:
        return None
    existing = _checkpoints(out)
    if existing and not arguments.resume:
        raise FileExistsError(
            f"{existing[0]} is of a run that was interrupted; go on from it with --resume, or "
            "delete it to begin anew"
        )
    path = out.with_name(f"{out.name}.checkpoint")
    return ff.recommender.Checkpoint(
        path, every=arguments.checkpoint_every, resume=arguments.resume
    )


def _checkpoints(out: Path) -> list[Path]:
    """Existing checkpoints of a run that writes to this folder."""
    stages = (out.with_name(f"{out.name}.checkpoint.{stage}") for stage in ("fit", "refit"))
    return [path for path in stages if path.exists()]


@contextlib.contextmanager
def _resumable(out: Path) -> Iterator[None]:
    """Add how to resume to the message of an interrupted training."""
    try:
        yield
    except KeyboardInterrupt as error:
        told = str(error) or "interrupted"
        if _checkpoints(out):
            told += ": run the same command with --resume"
        raise KeyboardInterrupt(told) from None


def compare(arguments: argparse.Namespace) -> int:
    """Compare models on a log."""
    if arguments.dry_run:
        return data_show(arguments)
    _start(arguments)
    log = ff.read_log(_source(arguments), **_reading(arguments))
    _tell(arguments, str(log.summary))
    chosen = {} if arguments.models is None else {"models": _parts(arguments.models)}
    training = ff.recommender.Training(epochs=arguments.epochs, time_budget=arguments.time_budget)
    found = ff.compare(
        log, test=arguments.test, split=arguments.split, training=training, seed=arguments.seed,
        all_users=arguments.all_users, progress=not arguments.quiet, **chosen,
    )  # fmt: skip
    emit(found, found.as_dict() if arguments.json else None)
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a model on held-out interactions."""
    _start(arguments)
    rec = ff.Recommender.load(arguments.model)
    found = rec.evaluate(
        arguments.log, split=arguments.split, all_users=arguments.all_users, **_reading(arguments)
    )
    emit(found, found.as_dict() if arguments.json else None)
    return 0


def recommend(arguments: argparse.Namespace) -> int:
    """Recommend to users, histories, or a file of histories."""
    _start(arguments)
    ways = (arguments.users, arguments.history, arguments.histories)
    if sum(way is not None for way in ways) != 1:
        raise ValueError("say for whom: one of --users a,b  --history a,b,c  --histories FILE")
    rec = ff.Recommender.load(arguments.model)
    k = min(arguments.k, len(rec.items))
    options: dict[str, Any] = {
        "exclude_seen": not arguments.include_seen,
        "filter_items": _listed(arguments.filter_items, rec.items),
        "items": _listed(arguments.items, rec.items),
    }
    if arguments.recall is not None:
        options["search"] = search = rec.index(recall=arguments.recall, k=k)
        _tell(arguments, f"approximate: {search}")
    if arguments.users is not None:
        found = rec.recommend(_users(arguments, rec), k, **options)
    elif arguments.history is not None:
        lists = [_listed(text, rec.items) for text in arguments.history]
        found = rec.recommend_from_history(lists, k, **options)
        for row, unknown in zip(lists, found.unknown or [], strict=True):
            if row and row == unknown:  # the most popular items would look like an answer
                raise ValueError(f"the model knows no item of the history {', '.join(row)}")
    else:
        log = ff.read_log(arguments.histories)
        for remark in log.summary.remarks():
            _tell(arguments, f"{arguments.histories}: {remark}")
        items = log.items.tolist()
        histories = {
            user: [items[i] for i in row.tolist()]
            for user, row in zip(log.users.tolist(), _rows(log.interactions), strict=True)
        }
        found = rec.recommend_from_history(histories, k, **options)
    unknown = list(dict.fromkeys(str(one) for row in found.unknown or [] for one in row))
    if unknown:
        few = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10:,} more" * (len(unknown) > 10))
        _tell(arguments, f"not known to the model and passed over: {few}")
    _answer(arguments, found)
    return 0


def _users(arguments: argparse.Namespace, rec: Any) -> list[str]:
    if rec.users is None:
        raise ValueError(f"{arguments.model} was written without users; use --history")
    who = [one for text in arguments.users for one in _listed(text, rec.users) or []]
    if not who:
        raise ValueError("--users must name at least one user, got none")
    return who


def _rows(interactions: Any) -> Any:
    return interactions.ids.split(interactions.jagged.lengths.tolist())


def _answer(arguments: argparse.Namespace, found: Any) -> None:
    one = found.first() if len(found) == 1 else found
    emit(one, found.to_dicts() if arguments.json else None)


def similar(arguments: argparse.Namespace) -> int:
    """List similar items."""
    _start(arguments)
    rec = ff.Recommender.load(arguments.model)
    dropped, k = _listed(arguments.filter_items, rec.items), min(arguments.k, len(rec.items))
    _answer(arguments, rec.similar_items(arguments.items, k, filter_items=dropped))
    return 0


def inspect(arguments: argparse.Namespace) -> int:
    """Describe a model."""
    _start(arguments)
    found = ff.recommender.inspect(arguments.model)
    emit(found, found.as_dict() if arguments.json else None)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Export a model to other formats."""
    _start(arguments)
    wanted = {
        name: getattr(arguments, name)
        for name in ("vectors", "faiss", "onnx")
        if getattr(arguments, name)
    }
    if not wanted:
        raise ValueError("say what to export: --vectors FILE, --faiss FILE or --onnx FILE")
    rec = ff.Recommender.load(arguments.model)
    written = ff.recommender.export(rec, overwrite=arguments.overwrite, **wanted)
    emit(
        "\n".join(f"{name}: {what}" for name, what in written.items()),
        written if arguments.json else None,
    )
    return 0


def data_list(arguments: argparse.Namespace) -> int:
    """List the public data sets."""
    sets = ff.recommender.PUBLIC
    told = ("url", "users", "items", "rows", "licence", "citation")
    emit(
        "\n".join(
            f"{name:16} {one.users:9,} users {one.items:9,} items {one.rows:11,} rows   {one.page}"
            for name, one in sets.items()
        ),
        {name: {key: getattr(one, key) for key in told} for name, one in sets.items()}
        if arguments.json
        else None,
    )
    return 0


def data_fetch(arguments: argparse.Namespace) -> int:
    """Download a public data set."""
    _start(arguments)
    sets, name = ff.recommender.PUBLIC, arguments.name
    if name not in sets:
        raise ValueError(f"there is no public set {name!r}; there are {', '.join(sets)}")
    note(sets[name].notice)  # even when quiet: the licence must be shown
    there = ff.recommender.is_fetched(name, arguments.to) and not arguments.force
    with warnings.catch_warnings(record=True) as told:
        folder = ff.recommender.fetch(
            name, arguments.to, force=arguments.force, progress=not arguments.quiet
        )
    for warning in told:
        note(str(warning.message))
    if there:
        _tell(arguments, f"{name} is there already; --force fetches it again")
    emit(folder, {"folder": str(folder)} if arguments.json else None)
    return 0


def data_show(arguments: argparse.Namespace) -> int:
    """Show how a log would be read."""
    plan = ff.recommender.plan_log(_source(arguments), **_reading(arguments, _COLUMNS))
    emit(plan, plan.as_dict() if arguments.json else None)
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Run the demonstration on the bundled data."""
    _start(arguments)
    importlib.import_module("fewfold.demo.job").run(Path(arguments.out))
    return 0


def maps(arguments: argparse.Namespace) -> int:
    """Show the maps: bars, a picture, a speed table."""
    _start(arguments)
    importlib.import_module("fewfold.demo.maps").run(Path(arguments.out))
    return 0


def config(arguments: argparse.Namespace) -> int:
    """Show kernels and threads."""
    _start(arguments)
    ff.show_config()
    return 0


def completion(arguments: argparse.Namespace) -> int:
    """Print a completion script for the shell."""
    with optional_import("shtab", "recommender", "completion"):
        import shtab
    emit(shtab.complete(arguments.whole, arguments.shell))
    return 0
