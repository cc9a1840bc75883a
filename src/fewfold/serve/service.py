"""What the endpoints work with: the settings, the model, the batches and the counters."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fewfold.serve.api_error import ApiError
from fewfold.serve.board import Board
from fewfold.serve.live_model import LiveModel, Snapshot
from fewfold.serve.model_view import ModelView
from fewfold.serve.rank_batch import Ranker
from fewfold.serve.request_log import RequestLog
from fewfold.serve.settings import ServeSettings

__all__ = ["Service"]


class Service:
    """A model that is served.

    Attributes:
        settings: of the server.
        board: counters of all workers.
        log: where requests and events are logged.
        description: of the API, as OpenAPI.
        pool: threads for what may take a while, such as reading, searching and waiting for a disk.
    """

    def __init__(self, settings: ServeSettings, board: Board, log: RequestLog) -> None:
        self.settings, self.board, self.log = settings, board, log
        self.pool = ThreadPoolExecutor(4, thread_name_prefix="serve")
        self.description: dict[str, Any] = {}
        self._live: LiveModel | None = None
        self._ranker: Ranker | None = None
        self._views: dict[str, ModelView] = {}
        self._reloading = threading.Lock()

    def use(self, live: LiveModel) -> None:
        """Answer with this model from now on."""
        self._ranker = Ranker(live, self.board, self.log)
        self._live = live
        self.board.loaded(live.current.loaded.timestamp(), first=True)

    @property
    def ready(self) -> bool:
        """Whether there is a model, and the server is not about to end."""
        return self._live is not None and not self.board.stopping

    @property
    def live(self) -> LiveModel:
        """The model; 503 if it is not loaded yet."""
        if self._live is None:
            raise _not_ready()
        return self._live

    @property
    def ranker(self) -> Ranker:
        """What ranks in batches; 503 if the model is not loaded yet."""
        if self._ranker is None:
            raise _not_ready()
        return self._ranker

    def view(self, snapshot: Snapshot) -> ModelView:
        """Return descriptions and searches of a snapshot, which are built when first needed."""
        view = self._views.get(snapshot.version)
        if view is None:
            view = ModelView(snapshot)
            self._views = {snapshot.version: view}
        return view

    async def in_thread(self, function: Any, *arguments: Any) -> Any:
        """Return the result of a function that runs in another thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, function, *arguments)

    def reload(self) -> tuple[str, str]:
        """Load a new model, if there is one; return the versions before and after."""
        live = self.live
        with self._reloading:  # the watch and a request may find the same new model
            before = live.current.version
            after = live.reload().version
            if after != before:
                self.board.loaded(live.current.loaded.timestamp(), first=False)
                self.log.event("reloaded", model=after, previous=before)
        return before, after

    def close(self) -> None:
        """Finish what is computed and end the threads."""
        if self._ranker is not None:
            self._ranker.close()
        self.pool.shutdown(cancel_futures=True)


def _not_ready() -> ApiError:
    return ApiError(
        503, "not_ready", "the model is being loaded; ask again in a moment",
        headers={"retry-after": "1"},
    )  # fmt: skip
