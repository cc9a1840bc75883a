"""``python -m benchmarks.http_bare``: Starlette on Granian with a constant answer, and no model."""

import socket
import sys

from granian.constants import Interfaces
from granian.server import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

_ANSWER = {
    "id": "0123456789ab-1",
    "model": "0123456789abcdef",
    "user": None,
    "items": [{"item": f"item-{n}", "score": 1 / (n + 7), "attributes": {}} for n in range(10)],
    "unknown": [],
    "note": None,
}


async def recommend(request: Request) -> JSONResponse:
    """Parse the body, and answer with ten items."""
    await request.json()
    return JSONResponse(_ANSWER)


app = Starlette(routes=[Route("/v1/recommendations", recommend, methods=["POST"])])


def main() -> None:
    """Serve until the process is ended."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    server = Server(
        "benchmarks.http_bare:app", port=port, interface=Interfaces.ASGI, log_enabled=False,
        websockets=False,
    )  # fmt: skip
    server.on_startup(lambda: print(f"http://127.0.0.1:{port}/", file=sys.stderr, flush=True))
    server.serve()


if __name__ == "__main__":
    main()
