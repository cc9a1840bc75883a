"""Resolve option values from flags, environment variables, a TOML file and defaults."""

import argparse
import os
from pathlib import Path
from typing import Any

from fewfold._options import Option

__all__ = ["FILE", "resolved"]

FILE = "fewfold.toml"  # read from the working directory if it exists
_SWITCH = {"1": True, "true": True, "yes": True, "on": True}
_SWITCH |= {"0": False, "false": False, "no": False, "off": False}


def resolved(given: argparse.Namespace) -> argparse.Namespace:
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


def _from_file(given: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Return the options of this command in the file, by name, and the path of the file."""
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
    command = [given.command, *([given.part] if hasattr(given, "part") else [])]
    for name in command:
        section = section.get(name, {})
        if not isinstance(section, dict):
            raise ValueError(f"{path}: [{'.'.join(command)}] must be a table, got {section!r}")
    options = {name.replace("-", "_"): value for name, value in section.items()}
    known = sorted(option.name for option in given.options.values() if option.name != "config")
    for name in section:
        if name.replace("_", "-") not in known:
            raise ValueError(
                f"{path}: [{'.'.join(command)}] has no option {name!r}; it has {', '.join(known)}"
            )
    return options, path


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
