"""The server process: starts the workers, prints the address, ends in order."""

import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fewfold._optional import optional_import
from fewfold.recommender.errors import ArtifactError, DataError
from fewfold.serve.request_log import RequestLog
from fewfold.serve.settings import Network, ServeSettings
from fewfold.serve.worker import WorkerStart, load_worker

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

with optional_import("granian", "serve", "fewfold serve"):
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.server.mp import MPServer

__all__ = ["run"]

_CONNECTIONS = 16_384  # of a worker; an idle one takes a few kilobytes
_OTHER_FILES = 256  # files that a worker may open beside its connections
_PATIENCE = 30  # seconds in which workers finish what is under way
_KINDS: dict[str, type[Exception]] = {
    "ArtifactError": ArtifactError,
    "DataError": DataError,
    "ImportError": ImportError,
    "MemoryError": MemoryError,
    "OSError": OSError,
    "ValueError": ValueError,
}


def run(settings: ServeSettings, *, quiet: bool = False) -> None:
    """Serve until SIGTERM or SIGINT; what is under way is finished first.

    Args:
        settings: of the server; port 0 means any free one.
        quiet: print nothing but errors.
    """
    network = replace(settings.network, port=_checked_port(settings.network))
    settings = replace(settings, network=network)
    with tempfile.TemporaryDirectory(prefix="fewfold-serve-") as name:
        folder = Path(name)
        start = WorkerStart(settings, folder, os.getpid(), quiet)
        server = _Server(settings, folder)
        watch = threading.Thread(
            target=_announce, args=(server, settings, folder, quiet), name="start", daemon=True
        )
        watch.start()
        # The server exits if its workers do, also after the reason was reported.
        with contextlib.suppress(SystemExit):
            server.serve(target_loader=partial(load_worker, start), wrap_loader=False)
        if (folder / "error").exists():
            raise _reported(folder / "error")
        if server.interrupt_children and not server.interrupt_signal:
            raise RuntimeError("a worker ended again and again; its log says why")


class _Server(MPServer):
    """Granian with the settings of a server."""

    def __init__(self, settings: ServeSettings, folder: Path) -> None:
        self._folder = folder
        network, limits = settings.network, settings.limits
        super().__init__(
            "fewfold.serve.worker",
            address=network.host,
            port=network.port,
            interface=Interfaces.ASGI,
            workers=network.workers,
            http=HTTPModes.http1,
            websockets=False,
            # This limits connections, also idle ones. They must not keep others from connecting;
            # requests beyond their limit are answered with 429.
            backpressure=_most_connections(),
            backlog=2048,
            http1_settings=HTTP1Settings(header_read_timeout=int(1000 * limits.idle)),
            log_enabled=False,
            respawn_failed_workers=True,
            workers_kill_timeout=_PATIENCE,
        )

    def signal_handler_interrupt(self, *arguments: Any, **more: Any) -> None:
        """Tell the workers that the server is about to end, and end it."""
        with contextlib.suppress(OSError):
            (self._folder / "stopping").touch()
        super().signal_handler_interrupt(*arguments, **more)

    def signal_handler_reload(self, *arguments: Any, **more: Any) -> None:
        """Ignore SIGHUP: workers follow the model folder by themselves."""


def _most_connections() -> int:
    """Return how many connections a worker may have; raises the limit of open files for them."""
    if resource is None:
        return _CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(64, soft - _OTHER_FILES)
    return _CONNECTIONS


def _checked_port(network: Network) -> int:
    """Return the port, or a free one for 0; an error says if it is taken.

    Workers share their port, so that a second server on it would not fail, but get a part of the
    requests.
    """
    family = socket.AF_INET6 if ":" in network.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((network.host, network.port))
        except OSError as error:
            where = f"{network.host} port {network.port}"
            if error.errno == errno.EADDRINUSE:
                raise ValueError(f"{where} is taken; choose another one with --port") from None
            raise ValueError(f"cannot listen on {where}: {error.strerror or error}") from None
        port: int = trial.getsockname()[1]
        return port


def _announce(server: _Server, settings: ServeSettings, folder: Path, quiet: bool) -> None:
    """Print the address when all workers are ready; end the server if one cannot start.

    A worker listens a moment after it is ready, and a first request must not be refused.
    """
    network = settings.network
    while len(list(folder.glob("ready-*"))) < network.workers or not _accepts(network):
        if (folder / "error").exists():
            server.signal_handler_interrupt()
            return
        if not folder.exists():
            return
        time.sleep(0.02)
    if quiet:
        return
    address = settings.network.address
    if settings.log.json:
        RequestLog(settings.log).event("ready", page=address)
    else:
        print(f"serving {settings.model}: {address}", file=sys.stderr, flush=True)


def _accepts(network: Network) -> bool:
    """Say whether a connection to the port is accepted."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(network.host, network.host)
    with contextlib.suppress(OSError), socket.create_connection((host, network.port), timeout=1):
        return True
    return False


def _reported(file: Path) -> Exception:
    """Return the error that a worker reported."""
    found = json.loads(file.read_text())
    for kind in found["kinds"]:
        if kind in _KINDS:
            return _KINDS[kind](found["message"])
    return RuntimeError(f"{found['kinds'][0]}: {found['message']}")
