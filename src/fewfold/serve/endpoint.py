"""A table of endpoints: what the router, the documentation and the tests know of each."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from fewfold.serve.api_error import ApiError
from fewfold.serve.service import Service

__all__ = ["Call", "Endpoint", "Endpoints", "Reply", "path_segments"]


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A request that was checked.

    Attributes:
        service: what answers.
        id: the id in the path, if the path has one.
        parameters: of the query, of the type that the endpoint names.
        body: of the type that the endpoint names.
    """

    service: Service
    id: str
    parameters: Any
    body: Any


@dataclass(frozen=True, eq=False, slots=True)
class Reply:
    """An answer that is not a plain 200 with a JSON body.

    Attributes:
        content: bytes of the body, or an object to encode as JSON.
        status: HTTP status.
        media: media type.
    """

    content: Any
    status: int = 200
    media: str = "application/json"


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, eq=False)
class Endpoint:
    """A method and a path, how it is called and what it answers.

    Attributes:
        method: GET or POST.
        path: with {id} where an id stands, percent-encoded.
        summary: one line about it.
        run: answers a call, with an object of the type `answer` or a `Reply`.
        answer: type of the answer; bytes for one that is not JSON.
        parameters: a struct of the parameters of the query, if there are any.
        body: type of the body, if there is one.
        status: of a successful answer.
        public: whether it is answered without the key.
        media: media type of the answer.
        failures: statuses of the errors that depend on the request, beside those of all endpoints.
    """

    method: str
    path: str
    summary: str
    run: Handler
    answer: Any
    parameters: type[msgspec.Struct] | None = None
    body: Any = None
    status: int = 200
    public: bool = False
    media: str = "application/json"
    failures: tuple[int, ...] = ()
    segments: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "segments", tuple(self.path.split("/")[1:]))

    def match(self, segments: list[str]) -> str | None:
        """Return the raw id of a path of this form, "" for one without, None for another.

        An id may contain slashes that are not encoded, as some proxies decode them.
        """
        mine = self.segments
        if "{id}" not in mine:
            return "" if list(mine) == segments else None
        at = mine.index("{id}")
        after = len(mine) - at - 1
        if len(segments) < len(mine) or tuple(segments[:at]) != mine[:at]:
            return None
        if after and tuple(segments[-after:]) != mine[-after:]:
            return None
        return "/".join(segments[at : len(segments) - after]) or None


class Endpoints:
    """A table of endpoints, filled by decorators."""

    def __init__(self) -> None:
        self._table: list[Endpoint] = []

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._table)

    def get(self, path: str, answer: Any, **about: Any) -> Callable[[Handler], Handler]:
        """Decorate the function that answers a GET."""
        return self._add("GET", path, answer, about)

    def post(self, path: str, answer: Any, **about: Any) -> Callable[[Handler], Handler]:
        """Decorate the function that answers a POST."""
        return self._add("POST", path, answer, about)

    def _add(
        self, method: str, path: str, answer: Any, about: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        def add(run: Handler) -> Handler:
            summary = (run.__doc__ or "").strip().splitlines()[0]
            self._table.append(Endpoint(method, path, summary, run, answer, **about))
            return run

        return add


def path_segments(scope: Any) -> list[str]:
    """Return the parts of a path between slashes, still percent-encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1").split("/")[1:]


def decoded(raw: str) -> str:
    """Return an id of a path; 400 if it is no UTF-8."""
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise ApiError(
            400, "invalid_path", f"ids in a path are percent-encoded UTF-8, got {raw!r}", "id"
        ) from None
