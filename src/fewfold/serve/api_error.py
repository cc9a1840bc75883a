"""Errors of the API: a status, a code for programs and a message for people."""

import dataclasses
import re
from typing import Any

import msgspec

__all__ = ["ApiError", "validation_error"]

_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")
_PLACE = re.compile(r" - at `(.*)`$")
_BEGINNING, _END = 400, 200  # characters of a long message that are kept


@dataclasses.dataclass(eq=False)
class ApiError(Exception):
    """An error answer.

    Attributes:
        status: HTTP status.
        code: short name, such as unknown_item.
        message: what was expected, what came, and what to send.
        field: the field of the request it is about, if it is about one.
        headers: further headers of the answer.
    """

    status: int
    code: str
    message: str
    field: str | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON body of the answer; what a client sent is not sent back at any length."""
        field = None if self.field is None else _shortened(self.field)
        about = {"code": self.code, "message": _shortened(self.message), "field": field}
        return msgspec.json.encode({"error": about})


def validation_error(error: msgspec.DecodeError, expected: Any = None) -> ApiError:
    """Return the answer to a body, or to parameters, that do not have the expected form.

    Args:
        error: what msgspec says.
        expected: the schema, whose fields are listed if there is an unknown one.
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, "malformed_json", f"the body must be JSON in UTF-8: {text}")
    place = _PLACE.search(text)
    where = _field(place.group(1)) if place else None
    said = _PLACE.sub("", text)
    unknown, missing = _UNKNOWN.search(said), _MISSING.search(said)
    if unknown:
        name = unknown.group(1)
        top = where is None or where.isdigit()
        known = ", ".join(_names(expected)) if top else ""
        message = f"there is no field {name!r}; there are {known}" if known else said
        return ApiError(400, "unknown_field", message, _joined(where, name))
    if missing:
        name = missing.group(1)
        return ApiError(400, "missing_field", f"{name!r} must be given", _joined(where, name))
    about = f"{where!r} " if where else "the body "
    return ApiError(400, "invalid_value", f"{about}is not valid: {said}", where)


def _shortened(text: str) -> str:
    """Leave out the middle of a long text; what to send instead is said at the end."""
    if len(text) <= _BEGINNING + _END:
        return text
    return f"{text[:_BEGINNING]} ... {text[-_END:]}"


def _field(path: str) -> str | None:
    """Turn $[0].where[...] into 0.where."""
    parts = re.findall(r"[^.\[\]$]+", path.replace("[...]", ""))
    return ".".join(parts) or None


def _joined(where: str | None, name: str) -> str:
    return f"{where}.{name}" if where else name


def _names(schema: Any) -> list[str]:
    """Names of the fields of a schema: of a struct, or the first struct of a union."""
    kinds = [schema, *getattr(schema, "__args__", ())]
    for kind in kinds:
        names = getattr(kind, "__struct_encode_fields__", None)
        if names:
            return list(names)
    return []
