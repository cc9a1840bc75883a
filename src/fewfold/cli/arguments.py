"""The parser of the command line: commands, positions and options."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import fewfold
from fewfold._options import Option
from fewfold.cli import commands
from fewfold.cli.options import (
    ANSWER,
    COMMON,
    EVALUATE,
    EXPORT,
    FETCH,
    JSON,
    OUT,
    RECOMMEND,
    SHOW,
    compare_options,
    fit_options,
    named,
)

__all__ = ["parser"]


class _Layout(argparse.HelpFormatter):
    """Help with a wider column: argparse does not count the indentation of commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)
        self._action_max_length = 14


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    root = argparse.ArgumentParser(
        prog="fewfold",
        description="From a log of who touched what to recommendations, on one machine.",
        epilog="Data goes to standard output, everything else to standard error. An option may "
        "also be set as FEWFOLD_NAME in the environment or in fewfold.toml, under [command]; the "
        "flag wins.",
        formatter_class=_Layout,
    )
    root.add_argument("--version", action="version", version=f"fewfold {fewfold.__version__}")
    found = root.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    log = ("log", "?", "a file, folder, glob or - for standard input (default: the bundled data)")
    model = ("model", None, "folder that `fewfold fit` wrote")
    held_out = ("log", None, "the held-out interactions")
    items = ("items", "+", "ids of items")
    add = partial(_add, found)
    add(
        "fit",
        "learn from a log, evaluate, write a model",
        commands.fit,
        [log],
        (*fit_options(), JSON),
    )
    add(
        "compare",
        "fastvae beside the simple methods on a log",
        commands.compare,
        [log],
        (*compare_options(), JSON),
    )
    add(
        "evaluate",
        "how well a model finds held-out interactions",
        commands.evaluate,
        [model, held_out],
        (*EVALUATE, JSON),
    )
    add(
        "recommend",
        "the best items for users or for histories",
        commands.recommend,
        [model],
        (*RECOMMEND, JSON),
    )
    add(
        "similar",
        "the items most like an item",
        commands.similar,
        [model, items],
        (*ANSWER, JSON),
    )
    add(
        "inspect",
        "what a model is: data, quality, sizes, speed",
        commands.inspect,
        [model],
        (JSON,),
    )
    add(
        "export",
        "item vectors, a faiss index, or the scorer as ONNX",
        commands.export,
        [model],
        (*EXPORT, JSON),
    )
    _add_data(found)
    add("demo", "the whole job on the bundled data", commands.demo, [], (OUT,))
    add("maps", "see the maps: bars, a picture, a speed table", commands.maps, [], (OUT,))
    add("config", "kernels, instruction set and threads in use", commands.config, [], ())
    shell = add(
        "completion", 'for a shell: eval "$(fewfold completion bash)"', commands.completion, [], ()
    )
    shell.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    shell.set_defaults(whole=root)
    root.set_defaults(commands=tuple(found.choices))
    return root


def _add_data(found: Any) -> None:
    text = "public data sets, and what a log looks like"
    data = found.add_parser(
        "data", help=text, description=text.capitalize() + ".", formatter_class=_Layout
    )
    some = data.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="part")
    name = ("name", None, "such as ml-1m; see `fewfold data list`")
    log = ("log", "?", "the log (default: the bundled data)")
    add = partial(_add, some)
    add("list", "the public data sets that can be fetched", commands.data_list, [], (JSON,))
    add(
        "fetch",
        "download a public data set from its official place",
        commands.data_fetch,
        [name],
        (*FETCH, JSON),
    )
    add("show", "what would be read of a log", commands.data_show, [log], (*SHOW, JSON))


def _add(
    found: Any,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace], int | None],
    positions: Sequence[tuple[str, str | None, str]],
    options: Sequence[Option],
) -> argparse.ArgumentParser:
    written = {None: "{}", "?": "[{}]", "+": "{} ..."}
    shown = [written[count].format(position) for position, count, _ in positions]
    command: argparse.ArgumentParser = found.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=_Layout,
        # All the flags would hide the error below them.
        usage=" ".join([f"{found._prog_prefix} {name} [options]", *shown]),
    )
    for position, count, meaning in positions:
        kind = str if position == "items" else named
        command.add_argument(position, nargs=count, type=kind, help=meaning)
    every = (*options, *COMMON)
    groups: dict[str, Any] = {}
    for option in every:
        if option.group not in groups:
            groups[option.group] = command.add_argument_group(option.group)
        _add_option(groups[option.group], option)
    command.set_defaults(run=run, options={option.dest: option for option in every})
    return command


def _add_option(group: Any, option: Option) -> None:
    long = [] if option.short == option.name else [f"--{option.name}"]
    flags = [f"-{option.short}", *long] if option.short else long
    common: dict[str, Any] = {"dest": option.dest, "default": argparse.SUPPRESS}
    if option.switch:
        shown = argparse.SUPPRESS if option.hidden else option.help
        group.add_argument(*flags, action="store_true", help=shown, **common)
        # Most are for whoever has switched it on in a file.
        off = {"action": "store_false", "help": option.off or argparse.SUPPRESS}
        group.add_argument(f"--no-{option.name}", **off, **common)
        return
    shape = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    action = {"action": "append"} if option.many else {}
    group.add_argument(*flags, type=option.type, help=option.help, **shape, **action, **common)
