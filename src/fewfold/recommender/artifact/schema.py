"""Validate JSON documents against dataclasses."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fewfold._tensors import strict_json
from fewfold.recommender.errors import ArtifactError

__all__ = ["Source", "check", "check_tagged", "key", "plain", "tagged"]

T = TypeVar("T")
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def key(name: str) -> dict[str, Any]:
    """Return metadata for a field with this name in JSON."""
    return {"key": name}


Kinds = Mapping[str, type[Any]]


def tagged(kinds: Kinds | Callable[[], Kinds]) -> dict[str, Any]:
    """Return metadata for a field that is one of these dataclasses, selected by `kind` in JSON.

    Args:
        kinds: the dataclasses by kind, or a function that returns them when they are needed.
    """
    return {"kinds": kinds}


@dataclasses.dataclass(frozen=True)
class Source:
    """A file being read, with advice for the case that it is damaged."""

    file: Path
    advice: str = "copy the folder again, or fit the model again"

    def damaged(self, field: str, what: str) -> ArtifactError:
        """Return the error for an invalid field; "" is the whole file."""
        place = f"{self.file}: {field}" if field else str(self.file)
        return ArtifactError(f"{place} {what}; {self.advice}")

    def document(self, data: bytes, *, finite: bool = True) -> Any:
        """Parse the JSON of the file."""
        try:
            return strict_json(data, finite=finite)
        except ValueError as error:
            raise self.damaged("", f"cannot be read ({error})") from error


def check(kind: type[T], value: Any, source: Source, field: str = "", *, exact: bool) -> T:
    """Construct a dataclass from a JSON object; raise an ArtifactError naming an invalid field.

    Fields with a default may be missing. Values are compared with the annotations: numbers, texts,
    booleans, None, lists, mappings from texts, other dataclasses, and unions of these.

    Args:
        kind: a dataclass.
        value: the parsed JSON value.
        source: the file, for errors.
        field: path of the value within the file, for errors.
        exact: reject unknown keys instead of ignoring them.
    """
    if not isinstance(value, Mapping):
        raise source.damaged(field, f"must be an object, got {_shown(value)}")
    hints: dict[str, Any] = _hints(kind)  # type: ignore[arg-type]
    known, found = set(), {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        if not _is_saved(each):
            continue
        name = each.metadata.get("key", each.name)
        known.add(name)
        inside = f"{field}.{name}" if field else name
        if name in value and "kinds" in each.metadata:
            found[each.name] = check_tagged(each.metadata["kinds"], value[name], source, inside)
        elif name in value:
            found[each.name] = _check_value(hints[each.name], value[name], source, inside, exact)
        elif each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise source.damaged(inside, "is missing")
    if exact and not known.issuperset(value):
        odd = min(set(value) - known)
        raise source.damaged(f"{field}.{odd}" if field else odd, "does not belong there")
    try:
        return kind(**found)
    except (TypeError, ValueError) as error:
        raise source.damaged(field, f"cannot be used: {error}") from error


def check_tagged(
    kinds: Kinds | Callable[[], Kinds], value: Any, source: Source, field: str = ""
) -> Any:
    """Construct the dataclass named by `kind` of a JSON object from its other keys."""
    kinds = kinds() if callable(kinds) else kinds
    if not isinstance(value, Mapping):
        raise source.damaged(field, f"must be an object, got {_shown(value)}")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(kinds)
        raise source.damaged(f"{field}.kind", f"must be one of {known}, got {_shown(kind)}")
    rest = {name: entry for name, entry in value.items() if name != "kind"}
    return check(kinds[kind], rest, source, field, exact=True)


def plain(value: Any, kinds: Kinds | Callable[[], Kinds] | None = None) -> Any:
    """Convert a dataclass to a JSON value readable by `check` and `check_tagged`.

    Other values are returned unchanged. Raises a ValueError if `kinds` does not have its class.
    """
    if not dataclasses.is_dataclass(value):
        return value
    found: dict[str, Any] = {}
    if kinds is not None:
        kinds = kinds() if callable(kinds) else kinds
        # The name of a registered class is looked up first: others may be costly to import.
        names = [str(getattr(value, "name", "")), *kinds]
        kind = next((name for name in names if kinds.get(name) is type(value)), None)
        if kind is None:
            known = ", ".join(cls.__name__ for cls in kinds.values())
            raise ValueError(
                f"a {type(value).__name__} cannot be written down; those that can are {known}"
            )
        found["kind"] = kind
    for each in dataclasses.fields(value):
        if _is_saved(each):
            name = each.metadata.get("key", each.name)
            found[name] = plain(getattr(value, each.name), each.metadata.get("kinds"))
    return found


def _is_saved(field: dataclasses.Field[Any]) -> bool:
    """Whether a field is part of the document; metadata {"saved": False} excludes one."""
    return field.init and field.metadata.get("saved", True) is not False


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check_value(hint: Any, value: Any, source: Source, field: str, exact: bool) -> Any:
    """Convert and validate a value against its annotation."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _check_union(inside, value, source, field, exact)
    if dataclasses.is_dataclass(hint):
        return check(hint, value, source, field, exact=exact)  # type: ignore[arg-type]
    if origin in (tuple, list) and isinstance(value, list):
        each = [inside[0]] * len(value) if origin is list or inside[-1] is ... else list(inside)
        if len(each) != len(value):
            _raise_mismatch(hint, value, source, field)
        return origin(
            _check_value(one, entry, source, f"{field}[{number}]", exact)
            for number, (one, entry) in enumerate(zip(each, value, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, dict):
        return {
            name: _check_value(inside[1], entry, source, f"{field}.{name}", exact)
            for name, entry in value.items()
        }
    if hint is float and type(value) is int:
        return value
    if hint is type(None) and value is None:
        return None
    if not isinstance(hint, type) or type(value) is not hint:
        _raise_mismatch(hint, value, source, field)
    return value


def _check_union(
    kinds: tuple[Any, ...], value: Any, source: Source, field: str, exact: bool
) -> Any:
    if value is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:
        return _check_value(others[0], value, source, field, exact)
    for kind in others:
        if type(value) is kind:
            return value
    if float in others and type(value) is int:
        return value
    return _raise_mismatch(others[0], value, source, field)


def _raise_mismatch(hint: Any, value: Any, source: Source, field: str) -> NoReturn:
    origin = typing.get_origin(hint)
    wanted = _NAMES.get(hint, "a list" if origin in (tuple, list) else "an object")
    raise source.damaged(field, f"must be {wanted}, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
