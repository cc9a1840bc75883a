"""The endpoints as an ASGI application: checks requests, calls endpoints, encodes answers."""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from fewfold._optional import optional_import
from fewfold.serve.api_error import ApiError, validation_error
from fewfold.serve.caller_check import CallerCheck
from fewfold.serve.endpoint import Call, Endpoint, Reply, decoded, path_segments
from fewfold.serve.service import Service

with optional_import("starlette", "serve", "fewfold serve"):
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["OTHER", "Api", "Table"]

OTHER = "other"  # route of requests that have no endpoint
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"
_READING = "fewfold.reading"  # key of a scope whose body is being read


class Table:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: list[tuple[Endpoint, dict[str, Endpoint]]] = []
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in endpoints:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        for path, methods in by_path.items():
            if "{id}" in path:
                self._patterns.append((next(iter(methods.values())), methods))
            else:
                self._exact[path] = methods
        # /v1/items/{id}/similar is tried before /v1/items/{id}, whose id may contain slashes.
        self._patterns.sort(key=lambda pattern: -len(pattern[0].segments))

    def find(self, scope: Scope) -> tuple[Endpoint, str]:
        """Return the endpoint of a request and the raw id in its path; ApiError if none fits."""
        raw_id, methods = "", self._exact.get(scope["path"])
        if methods is None:
            segments = path_segments(scope)
            for pattern, candidates in self._patterns:
                match = pattern.match(segments)
                if match is not None:
                    raw_id, methods = match, candidates
                    break
            else:
                raise ApiError(
                    404, "unknown_route", f"there is no {scope['path']}; /docs lists what there is"
                )
        endpoint = methods.get(scope["method"])
        if endpoint is None:
            allowed = ", ".join(methods)
            raise ApiError(
                405, "method_not_allowed",
                f"{next(iter(methods.values())).path} is called with {allowed}, got "
                f"{scope['method']}", headers={"allow": allowed},
            )  # fmt: skip
        return endpoint, raw_id


class Api:
    """The ASGI application of the endpoints, in front of another one.

    It stands before Starlette's own layers, which take a third of the time of a request.

    Args:
        service: what the endpoints work with.
        endpoints: all of them.
        others: answers the requests that are not below the first part of an endpoint's path.
    """

    def __init__(self, service: Service, endpoints: Sequence[Endpoint], others: ASGIApp) -> None:
        self._service, self._table, self._others = service, Table(endpoints), others
        self._roots = tuple({f"/{endpoint.segments[0]}" for endpoint in endpoints})
        self._decoders = {
            endpoint: msgspec.json.Decoder(endpoint.body) for endpoint in endpoints if endpoint.body
        }
        key = service.settings.access.key
        self._key = None if key is None else _digest(key.encode())
        self._check_caller = CallerCheck(service.settings)
        self._active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one that is not of the API is passed on."""
        if scope["type"] != "http" or not scope["path"].startswith(self._roots):
            await self._others(scope, receive, send)
        else:
            await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        route, failed = OTHER, None
        self._active += 1
        try:
            endpoint, raw_id = self._table.find(scope)
            route = f"{endpoint.method} {endpoint.path}"
            async with asyncio.timeout(self._service.settings.limits.seconds):
                reply = await self._answer(endpoint, raw_id, scope, receive)
            content, status, media = reply.content, reply.status, reply.media
            headers: dict[str, str] = {}
        except Exception as error:
            failed = self._failure(error, scope)
            content, status, media = failed.body(), failed.status, _JSON
            headers = failed.headers
        finally:
            self._active -= 1
        await _send(send, status, content, media, headers)
        seconds = time.perf_counter() - began
        board, log = self._service.board, self._service.log
        board.request(board.routes[route], status, seconds)
        if log.requests:
            code = None if failed is None else failed.code
            log.request(scope["method"], route, scope["path"], status, seconds, code)

    async def _answer(
        self, endpoint: Endpoint, raw_id: str, scope: Scope, receive: Receive
    ) -> Reply:
        headers = dict(scope["headers"])
        if not endpoint.public:
            self._check_caller(headers)
            self._check_key(headers)
        limits = self._service.settings.limits
        if self._active > limits.concurrent and not endpoint.public:
            raise ApiError(
                429, "too_many_requests",
                f"at most {limits.concurrent} requests are answered at the same time; ask again "
                "later", headers={"retry-after": "1"},
            )  # fmt: skip
        body = None
        if endpoint.body is not None:
            scope[_READING] = True
            body = await self._read(endpoint, headers, receive)
            scope[_READING] = False
        parameters = None
        if endpoint.parameters is not None or scope["query_string"]:
            parameters = _parameters(endpoint, scope["query_string"])
        call = Call(self._service, decoded(raw_id) if raw_id else "", parameters, body)
        found = await endpoint.run(call)
        return found if isinstance(found, Reply) else Reply(found)

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        if self._key is None:
            return
        given = headers.get(b"x-api-key", b"")
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given = token.strip()
        if not hmac.compare_digest(_digest(given), self._key):
            came = "another one" if given else "none"
            raise ApiError(
                401, "wrong_key",
                f"this server needs its API key, got {came}; send the header Authorization: Bearer "
                "KEY", headers={"www-authenticate": "Bearer"},
            )  # fmt: skip

    async def _read(self, endpoint: Endpoint, headers: dict[bytes, bytes], receive: Receive) -> Any:
        """Read, check and decode the body."""
        media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media != b"application/json":
            raise ApiError(
                415, "not_json",
                "the body must be JSON, with the header Content-Type: application/json, got "
                f"{media.decode('latin-1')!r}",
            )  # fmt: skip
        most = self._service.settings.limits.body
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > most:
            raise _too_large(most)
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "disconnected", "the connection ended before the body did")
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise _too_large(most)
            parts.append(part)
            more = message.get("more_body", False)
        try:
            return self._decoders[endpoint].decode(b"".join(parts))
        except msgspec.DecodeError as error:
            raise validation_error(error, endpoint.body) from None
        except (RecursionError, UnicodeDecodeError, ValueError) as error:
            raise ApiError(400, "malformed_json", f"the body must be JSON: {error}") from None

    def _failure(self, error: Exception, scope: Scope) -> ApiError:
        """Return the answer to a request that failed."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, TimeoutError):
            limit = self._service.settings.limits.seconds
            if scope.get(_READING):
                return ApiError(
                    408, "body_too_slow",
                    f"the body did not arrive within {limit:g} seconds; send it again",
                )  # fmt: skip
            return ApiError(
                504, "took_too_long",
                f"the answer took longer than {limit:g} seconds; ask for less, or again later",
            )  # fmt: skip
        number = secrets.token_hex(6)
        self._service.log.failure(number, error)
        return ApiError(
            500, "failure", f"this is a bug of the server; its log describes it as {number}"
        )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _too_large(most: int) -> ApiError:
    return ApiError(
        413, "body_too_large", f"the body may have {most:,} bytes; send several smaller requests"
    )


def _parameters(endpoint: Endpoint, query: bytes) -> Any:
    """Return the parameters of a query as the struct of the endpoint."""
    try:
        pairs = parse_qsl(
            query.decode(), keep_blank_values=True, errors="strict", max_num_fields=100
        )
    except ValueError:
        raise ApiError(400, "malformed_query", "parameters must be percent-encoded UTF-8") from None
    given = dict(pairs)
    expected = endpoint.parameters
    if expected is None:
        if given:
            raise ApiError(
                400, "unknown_field", f"{endpoint.path} has no parameters, got {min(given)!r}",
                min(given),
            )  # fmt: skip
        return None
    if len(given) < len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ApiError(400, "invalid_value", f"{twice!r} must be given once", twice)
    try:
        return msgspec.convert(given, expected, strict=False)
    except msgspec.ValidationError as error:
        raise validation_error(error, expected) from None


async def _send(send: Send, status: int, content: Any, media: str, more: dict[str, str]) -> None:
    body = content if isinstance(content, bytes) else _encode(content)
    headers = [
        (b"content-type", media.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
        *((name.encode(), value.encode()) for name, value in more.items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
