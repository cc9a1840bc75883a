"""Events of a journal: one interaction of a user with an item, as one line of JSON."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["Event", "as_instant", "decode", "encode", "microseconds"]

Id = str | int  # as in `ids`, which needs torch

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, init=False)
class Event:
    """An interaction of a user with an item.

    Attributes:
        user: id of the user, text or a whole number of 64 bits.
        item: id of the item, likewise.
        time: when it happened, in UTC. Given as a datetime (UTC if it has no time zone), ISO 8601
            text or seconds since 1970; now by default.
        recommendation: id of the answer that led to it, if one did.

    Example:
        >>> from fewfold.recommender.journal import Event
        >>> Event("ann", 7, "2024-05-01T12:30:00+02:00")
        Event(user='ann', item=7, time=datetime.datetime(2024, 5, 1, 10, 30,
              tzinfo=datetime.timezone.utc), recommendation=None)
    """

    user: Id
    item: Id
    time: datetime
    recommendation: str | None

    def __init__(
        self,
        user: Id,
        item: Id,
        time: datetime | str | float | None = None,
        recommendation: str | None = None,
    ) -> None:
        _check_id(user, "user")
        _check_id(item, "item")
        if recommendation is not None:
            _check_text(recommendation, "recommendation")
        assign = object.__setattr__  # the event is frozen
        assign(self, "user", user)
        assign(self, "item", item)
        assign(self, "time", as_instant(time))
        assign(self, "recommendation", recommendation)


def _check_id(value: Any, name: str) -> None:
    if isinstance(value, str):
        _check_text(value, name)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be text or a whole number, got {type(value).__name__}")
    elif not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be a whole number of 64 bits, or text, got a larger number")


def _check_text(value: Any, name: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {type(value).__name__}")
    if not value or value.isspace():
        raise ValueError(f"{name} must not be empty")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} must be valid Unicode, got a lone surrogate") from None


def as_instant(given: Any) -> datetime:
    """Return a time in UTC: that of a datetime, ISO 8601 text or seconds since 1970; None is now.

    Example:
        >>> from fewfold.recommender.journal_events import as_instant
        >>> as_instant(1714559400.25).isoformat()
        '2024-05-01T10:30:00.250000+00:00'
    """
    wanted = "time must be ISO 8601 text such as '2024-05-01T10:30:00Z', or seconds since 1970"
    if given is None:
        return datetime.now(UTC)
    try:
        if isinstance(given, str):
            given = datetime.fromisoformat(given)
        if isinstance(given, datetime):
            return (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            if not math.isfinite(given):
                raise ValueError
            return _EPOCH + timedelta(seconds=given)
    except (ValueError, OverflowError):
        raise ValueError(f"{wanted}, got {str(given)[:60]!r}") from None
    raise TypeError(f"{wanted}, got {type(given).__name__}")


def microseconds(time: datetime) -> int:
    """Return the microseconds since 1970 of a time with a time zone."""
    return (time - _EPOCH) // _MICROSECOND


def encode(event: Event) -> bytes:
    """Return the line of an event, with its newline."""
    values = {"user": event.user, "item": event.item, "time": _iso(event.time)}
    if event.recommendation is not None:
        values["recommendation"] = event.recommendation
    return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def _iso(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def decode(line: bytes) -> Event | None:
    """Return the event of a line, without its newline; None if the line is not one."""
    try:
        found = json.loads(line)
        return Event(found["user"], found["item"], found["time"], found.get("recommendation"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
