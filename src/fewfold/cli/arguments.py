"""Arguments of a command: from flags, then the environment, then a TOML file, then defaults."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fewfold._options import Option
from fewfold.cli import (
    commands,
    fit_commands,
    prepare_command,
    recommend_commands,
    serve_command,
)
from fewfold.cli.options import (
    ANSWER,
    COMMON,
    EVALUATE,
    EXPORT,
    FETCH,
    JSON,
    OUT,
    PUSH,
    RECOMMEND,
    SHOW,
    UPDATE,
    compare_options,
    fit_options,
    named,
)
from fewfold.cli.prepare_command import PREPARE
from fewfold.cli.serve_command import SERVE
from fewfold.recommender.models.registry import model_options, models

__all__ = ["FILE", "parse", "parser"]

FILE = "fewfold.toml"  # read from the working directory if it exists
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}


class _Layout(argparse.HelpFormatter):
    """Help with a wider column: argparse does not count the indentation of commands."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)
        self._action_max_length = 14


class _Version(argparse.Action):
    """`--version`: print version and build, which are collected only when they are asked for."""

    def __init__(self, option_strings: list[str], dest: str, **rest: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, **rest)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print and exit."""
        from fewfold.cli.version import build_facts

        print(build_facts())
        parser.exit()


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line and return the values of all options of its command.

    The entry point of a model is loaded only if `fewfold fit` fits it, or describes its options.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    fits = words[:1] == ["fit"]
    if fits and not {"-h", "--help"}.isdisjoint(words):
        parser(models(), skip_failing=True).parse_args(words)
    root = parser()
    given, unknown = root.parse_known_args(words)
    name = _model_name(given) if fits else ""
    if name in models() and name not in model_options():
        given = parser([name]).parse_args(words)
    elif unknown:
        root.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _resolved(given)


def _model_name(given: argparse.Namespace) -> str:
    """Return the model that is named by a flag, the environment or the file; "" if none is."""
    name = getattr(given, "model", None) or os.environ.get("FEWFOLD_MODEL")
    return str(name or _section(given)[0].get("model", ""))


def parser(plugins: Iterable[str] = (), *, skip_failing: bool = False) -> argparse.ArgumentParser:
    """Build the parser of all commands, with the options of these models of entry points."""
    root = argparse.ArgumentParser(
        prog="fewfold",
        description="Recommendations from a log of users and items.",
        epilog="Data goes to standard output, everything else to standard error. An option may "
        "also be set as FEWFOLD_NAME in the environment or in fewfold.toml, under [command]; the "
        "flag wins.",
        formatter_class=_Layout,
    )
    root.add_argument("--version", action=_Version, help="show version and build, and exit")
    found = root.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    log = ("log", "?", "a file, folder, glob or - for standard input (default: the bundled data)")
    model = ("model", None, "folder that `fewfold fit` wrote, or hf://owner/name")
    held_out = ("log", None, "the held-out interactions")
    items = ("items", "+", "ids of items")
    add = partial(_add, found)
    add(
        "fit",
        "fit a model to a log, evaluate it, save it",
        fit_commands.fit,
        [log],
        (*fit_options(plugins, skip_failing=skip_failing), JSON),
    )
    add(
        "prepare",
        "write a log larger than memory as a folder that fit reads",
        prepare_command.prepare,
        [("log", None, "a file, folder, glob or - for standard input")],
        (*PREPARE, JSON),
    )
    add(
        "compare",
        "compare models on one split of a log",
        fit_commands.compare,
        [log],
        (*compare_options(), JSON),
    )
    add(
        "evaluate",
        "evaluate a model on held-out interactions",
        commands.evaluate,
        [model, held_out],
        (*EVALUATE, JSON),
    )
    later = ("log", "?", "the later interactions (default: those of --journal)")
    add(
        "update",
        "add users, events and items of a later log to a model, without training",
        fit_commands.update,
        [model, later],
        (*UPDATE, JSON),
    )
    add(
        "recommend",
        "recommend items to users, for histories, or to all users",
        recommend_commands.recommend,
        [model],
        (*RECOMMEND, JSON),
    )
    add(
        "similar",
        "list the items most similar to an item",
        recommend_commands.similar,
        [model, items],
        (*ANSWER, JSON),
    )
    add(
        "inspect",
        "describe a model: data, quality, sizes, speed",
        commands.inspect,
        [model],
        (JSON,),
    )
    add(
        "export",
        "export item vectors, a faiss index, or the scorer as ONNX",
        commands.export,
        [model],
        (*EXPORT, JSON),
    )
    add(
        "push",
        "upload a model to the Hugging Face Hub",
        commands.push,
        [model, ("address", None, "hf://owner/name, perhaps with @branch")],
        (*PUSH, JSON),
    )
    add(
        "serve",
        "serve a model over HTTP, with a page to look at it",
        serve_command.serve,
        [("model", "?", "folder that `fewfold fit` wrote (default: a model of the bundled data)")],
        SERVE,
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
    text = "download public data sets, and show how a log is read"
    data = found.add_parser(
        "data", help=text, description=text.capitalize() + ".", formatter_class=_Layout
    )
    some = data.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="part")
    name = ("name", None, "such as ml-1m; see `fewfold data list`")
    log = ("log", "?", "the log (default: the bundled data)")
    add = partial(_add, some)
    add("list", "list the public data sets that can be fetched", commands.data_list, [], (JSON,))
    add(
        "fetch",
        "download a public data set from its official site",
        commands.data_fetch,
        [name],
        (*FETCH, JSON),
    )
    add("show", "show how a log would be read", commands.data_show, [log], (*SHOW, JSON))


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
        # Most serve to override a switch that a file turns on.
        off = {"action": "store_false", "help": option.off or argparse.SUPPRESS}
        group.add_argument(f"--no-{option.name}", **off, **common)
        return
    shape = {"choices": option.choices} if option.choices else {"metavar": option.metavar}
    action = {"action": "append"} if option.many else {}
    group.add_argument(*flags, type=option.type, help=option.help, **shape, **action, **common)


def _resolved(given: argparse.Namespace) -> argparse.Namespace:
    """Return all options with their values; flags take precedence over FEWFOLD_NAME, then the file.

    The file has a table for each command, with options named as their flags:

        [fit]
        epochs = 30
        time-budget = "10m"

        [data.fetch]
        to = "downloads"
    """
    file, path = _from_file(given)
    values = argparse.Namespace(**vars(given))
    for name, option in given.options.items():
        variable = f"FEWFOLD_{name.upper()}"
        if hasattr(given, name):
            continue
        if os.environ.get(variable):  # an empty variable counts as unset
            value = _convert(os.environ[variable], option, variable)
        elif name in file:
            value = _convert(file[name], option, f"{path}: {option.name}")
        else:
            value = option.default
        setattr(values, name, value)
    return values


def _section(given: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Return the table of this command in the file, and the path of the file."""
    explicit = getattr(given, "config", None) or os.environ.get("FEWFOLD_CONFIG")
    path = Path(explicit or FILE)
    if not path.exists():
        if explicit:
            raise ValueError(f"there is no file {path} with settings")
        return {}, path
    import tomllib

    try:
        section: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    for name, value in section.items():
        if not isinstance(value, dict):
            raise ValueError(f"{path}: write {name} below the command it is for, as [fit]")
        if name not in given.commands:
            raise ValueError(
                f"{path}: there is no command {name!r}; there are {', '.join(given.commands)}"
            )
    command = _command(given)
    for name in command:
        section = section.get(name, {})
        if not isinstance(section, dict):
            raise ValueError(f"{path}: [{'.'.join(command)}] must be a table, got {section!r}")
    return section, path


def _from_file(given: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Return the options of this command in the file, by name, and the path of the file."""
    section, path = _section(given)
    known = sorted(option.name for option in given.options.values() if option.name != "config")
    for name in section:
        if name.replace("_", "-") not in known:
            command = ".".join(_command(given))
            raise ValueError(
                f"{path}: [{command}] has no option {name!r}; it has {', '.join(known)}"
            )
    return {name.replace("-", "_"): value for name, value in section.items()}, path


def _command(given: argparse.Namespace) -> list[str]:
    return [given.command, *([given.part] if hasattr(given, "part") else [])]


def _convert(value: Any, option: Option, name: str) -> Any:
    """Convert a value of the environment or of a file to the type of the option."""
    if option.switch:
        found = _SWITCH.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(found, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return found
    many = value if option.many and isinstance(value, list) else [value]
    typed = [_convert_one(one, option, name) for one in many]
    return typed if option.many else typed[0]


def _convert_one(value: Any, option: Option, name: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{name} must be one text or number, got {value!r}")
    try:
        typed = option.type(str(value))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{name} {error}") from None
    if option.choices and typed not in option.choices:
        raise ValueError(f"{name} must be one of {', '.join(option.choices)}, got {value!r}")
    return typed
