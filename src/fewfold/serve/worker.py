"""A worker process: loads the model, answers requests, watches the folder."""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfold.serve.settings import ServeSettings

__all__ = ["WorkerStart", "load_worker"]


@dataclass(frozen=True)
class WorkerStart:
    """What a worker is told.

    Attributes:
        settings: of the server.
        folder: of the files that workers share.
        parent: process id of the server.
        quiet: whether events are not logged.
    """

    settings: ServeSettings
    folder: Path
    parent: int
    quiet: bool = False


def load_worker(start: WorkerStart) -> Any:
    """Return the ASGI application of a worker; torch is imported here, in its process."""
    # The handlers of the parent would ignore a signal that comes before those of the worker are
    # set. An interrupt of the terminal goes to the parent too, which then ends the workers.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(start.parent)
    import torch

    from fewfold._resources import available_processors
    from fewfold.serve.app import ROUTES, create_app
    from fewfold.serve.board import Board
    from fewfold.serve.request_log import RequestLog
    from fewfold.serve.service import Service

    settings = start.settings
    threads = settings.threads or max(1, available_processors() // settings.network.workers)
    torch.set_num_threads(threads)
    board = Board(start.folder, settings.network.workers, ROUTES)
    board.claim()
    service = Service(settings, board, RequestLog(settings.log, quiet=start.quiet))
    worker = _Worker(start, service)
    return create_app(service, worker.start, worker.stop)


class _Worker:
    """Loads the model of a service and follows changes of its folder."""

    def __init__(self, start: WorkerStart, service: Any) -> None:
        self._start, self._service = start, service
        self._ended = threading.Event()

    async def start(self) -> None:
        """Load the model, before the worker begins to listen, and watch its folder."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._load)
        except BaseException as error:
            _report(self._start.folder, error)
            raise
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    async def stop(self) -> None:
        """End the threads."""
        self._ended.set()
        await asyncio.get_running_loop().run_in_executor(None, self._service.close)

    def _watch(self) -> None:
        watch = self._start.settings.watch
        while watch and not self._ended.wait(watch):
            self._follow()

    def _load(self) -> None:
        from fewfold.recommender.journal import Journal
        from fewfold.serve.live_model import LiveModel

        settings = self._start.settings
        journal = None if settings.journal is None else Journal(settings.journal)
        live = LiveModel(
            settings.model, journal=journal, recall=settings.recall,
            shared=settings.network.workers > 1,
        )  # fmt: skip
        self._service.use(live)
        self._tell_not_shared()
        (self._start.folder / f"ready-{os.getpid()}").touch()

    def _tell_not_shared(self) -> None:
        reason = self._service.live.not_shared
        if reason is not None:
            self._service.log.event("each worker has its own copy of the model", reason=reason)

    def _follow(self) -> None:
        service = self._service
        if not service.live.changed():
            return
        try:
            service.reload()
        except Exception as error:
            service.board.failed_reload()
            service.log.event(
                "reload failed", reason=str(error), model=service.live.current.version
            )


def _report(folder: Path, error: BaseException) -> None:
    """Tell the parent why this worker cannot start."""
    kinds = [kind.__name__ for kind in type(error).__mro__]
    with contextlib.suppress(OSError):
        (folder / "error").write_text(json.dumps({"kinds": kinds, "message": str(error)}))


def _end_with(parent: int) -> None:
    """End this process when its parent does, even if that was killed."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGTERM)
