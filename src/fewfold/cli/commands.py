"""The function of each command; the modules they need are imported here, when it runs."""

import argparse
import importlib
import warnings
from pathlib import Path
from typing import Any

import fewfold as ff
from fewfold._optional import optional_import
from fewfold._progress import phase
from fewfold._resources import available_processors
from fewfold.cli.console import emit, note

__all__: list[str] = []


def start(arguments: argparse.Namespace) -> None:
    """Import the recommender, and set the number of threads."""
    with phase("starting"):
        importlib.import_module("fewfold.recommender.recommender")
    import torch

    most = available_processors()
    if arguments.threads or torch.get_num_threads() > most:
        torch.set_num_threads(arguments.threads or most)


def print_note(arguments: argparse.Namespace, text: str) -> None:
    """Print a note unless the command is quiet."""
    if not arguments.quiet:
        note(text)


def reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `read_log` that were given."""
    from fewfold.recommender.reading.read_options import ReadOptions

    given = {name: getattr(arguments, name, None) for name in ReadOptions.__annotations__}
    if getattr(arguments, "ignore_times", False):
        given["time"] = False
    return {name: value for name, value in given.items() if value is not None}


def source(arguments: argparse.Namespace) -> Any:
    """Return the log that was named, or the bundled one."""
    if arguments.log is not None:
        return arguments.log
    print_note(arguments, "no log given: reading the bundled build dependencies of Debian packages")
    return ff.recommender.bundled()


def parts(text: str) -> list[str]:
    """Split "a,b,c"."""
    return [part.strip() for part in text.split(",") if part.strip()]


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a model on held-out interactions."""
    start(arguments)
    rec = ff.Recommender.load(arguments.model)
    found = rec.evaluate(
        arguments.log, split=arguments.split, all_users=arguments.all_users, **reading(arguments)
    )
    emit(found, found.as_dict() if arguments.json else None)
    return 0


def inspect(arguments: argparse.Namespace) -> int:
    """Describe a model."""
    start(arguments)
    found = ff.recommender.inspect(arguments.model)
    emit(found, found.as_dict() if arguments.json else None)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Export a model to other formats."""
    start(arguments)
    wanted = {
        name: getattr(arguments, name)
        for name in ("vectors", "faiss", "onnx")
        if getattr(arguments, name)
    }
    if not wanted:
        raise ValueError("name what to export: --vectors FILE, --faiss FILE or --onnx FILE")
    rec = ff.Recommender.load(arguments.model)
    written = ff.recommender.export(rec, overwrite=arguments.overwrite, **wanted)
    emit(
        "\n".join(f"{name}: {what}" for name, what in written.items()),
        written if arguments.json else None,
    )
    return 0


def push(arguments: argparse.Namespace) -> int:
    """Upload a model to the Hugging Face Hub."""
    start(arguments)
    rec = ff.Recommender.load(arguments.model)
    address = rec.push(
        arguments.address,
        users=arguments.users,
        private=not arguments.public,
        message=arguments.message,
    )
    emit(address, {"address": address} if arguments.json else None)
    print_note(arguments, f"\ntry: fewfold recommend {address} --history ITEM,ITEM")
    return 0


def data_list(arguments: argparse.Namespace) -> int:
    """List the public data sets."""
    sets = ff.recommender.PUBLIC
    shown = ("url", "users", "items", "rows", "licence", "citation")
    emit(
        "\n".join(
            f"{name:16} {one.users:9,} users {one.items:9,} items {one.rows:11,} rows   {one.page}"
            for name, one in sets.items()
        ),
        {name: {key: getattr(one, key) for key in shown} for name, one in sets.items()}
        if arguments.json
        else None,
    )
    return 0


def data_fetch(arguments: argparse.Namespace) -> int:
    """Download a public data set."""
    start(arguments)
    sets, name = ff.recommender.PUBLIC, arguments.name
    if name not in sets:
        raise ValueError(f"there is no public set {name!r}; there are {', '.join(sets)}")
    note(sets[name].notice)  # even when quiet: the licence must be shown
    there = ff.recommender.is_fetched(name, arguments.to) and not arguments.force
    with warnings.catch_warnings(record=True) as caught:
        folder = ff.recommender.fetch(
            name, arguments.to, force=arguments.force, progress=not arguments.quiet
        )
    for warning in caught:
        note(str(warning.message))
    if there:
        print_note(arguments, f"{name} exists already; --force fetches it again")
    emit(folder, {"folder": str(folder)} if arguments.json else None)
    return 0


def data_show(arguments: argparse.Namespace) -> int:
    """Show how a log would be read."""
    plan = ff.recommender.plan_log(source(arguments), **reading(arguments))
    emit(plan, plan.as_dict() if arguments.json else None)
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """Run the demonstration on the bundled data."""
    start(arguments)
    importlib.import_module("fewfold.demo.recommender_demo").run(Path(arguments.out))
    return 0


def maps(arguments: argparse.Namespace) -> int:
    """Show the maps: bars, a picture, a speed table."""
    start(arguments)
    importlib.import_module("fewfold.demo.maps_demo").run(Path(arguments.out))
    return 0


def config(arguments: argparse.Namespace) -> int:
    """Show kernels and threads."""
    start(arguments)
    ff.show_config()
    return 0


def completion(arguments: argparse.Namespace) -> int:
    """Print a completion script for the shell."""
    with optional_import("shtab", "recommender", "completion"):
        import shtab
    emit(shtab.complete(arguments.whole, arguments.shell))
    return 0
