"""The ASGI application: the API, the page, and what happens when a worker starts and ends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fewfold._optional import optional_import
from fewfold.serve.api import OTHER, Api
from fewfold.serve.api_error import ApiError
from fewfold.serve.endpoint import Endpoint
from fewfold.serve.endpoints import (
    documentation_endpoints,
    feedback_endpoints,
    health_endpoints,
    item_endpoints,
    model_endpoints,
    recommend_endpoints,
    user_endpoints,
)
from fewfold.serve.openapi import openapi
from fewfold.serve.service import Service

with optional_import("starlette", "serve", "fewfold serve"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware.cors import CORSMiddleware
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ENDPOINTS", "ROUTES", "create_app"]

ENDPOINTS: tuple[Endpoint, ...] = (
    *recommend_endpoints.ENDPOINTS,
    *item_endpoints.ENDPOINTS,
    *user_endpoints.ENDPOINTS,
    *feedback_endpoints.ENDPOINTS,
    *model_endpoints.ENDPOINTS,
    *health_endpoints.ENDPOINTS,
    *documentation_endpoints.ENDPOINTS,
)
ROUTES = (*(f"{one.method} {one.path}" for one in ENDPOINTS), OTHER)

_PAGE, _DOCS = (Path(__file__).parent / name for name in ("page", "docs_page"))
_SECURITY = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


def create_app(
    service: Service,
    start: Callable[[], Awaitable[None]] | None = None,
    stop: Callable[[], Awaitable[None]] | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        service: what the endpoints work with.
        start: called when the event loop runs.
        stop: called when all requests are answered.
    """

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if start is not None:
            await start()
        yield
        if stop is not None:
            await stop()

    service.description = openapi(ENDPOINTS, service.settings)
    page, docs = (_Page(StaticFiles(directory=folder)) for folder in (_PAGE, _DOCS))
    site = Starlette(
        routes=[
            Mount("/page", page),
            Mount("/docs", docs),
            Route("/docs", _Index(docs)),
            Route("/", _Index(page)),
        ],
        exception_handlers={HTTPException: _http_error, 404: _http_error},
        lifespan=lifespan,
    )
    api = Api(service, ENDPOINTS, site)
    if not service.settings.access.cors:
        return api
    return CORSMiddleware(
        api,
        allow_origins=service.settings.access.cors,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-api-key"],
    )


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer a path that has no route, or a method that it does not have, in JSON."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    codes = {404: "unknown_route", 405: "method_not_allowed"}
    message = f"there is no {request.method} {request.url.path}; /docs lists what there is"
    found = ApiError(status, codes.get(status, "failure"), message)
    headers = dict(getattr(error, "headers", None) or {})
    return Response(found.body(), status, headers, "application/json")


class _Page:
    """Adds the security headers to the files of the page."""

    def __init__(self, files: ASGIApp) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secure(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [one for one in message["headers"] if one[0] != b"cache-control"]
                message["headers"] = [*kept, *_SECURITY]
            await send(message)

        await self._files(scope, receive, secure)


class _Index:
    """Serves the first file of a folder."""

    def __init__(self, files: ASGIApp) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._files({**scope, "path": "/index.html", "root_path": ""}, receive, send)
