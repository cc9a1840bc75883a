"""A server that can be stopped and started again at its address, and the installed browser."""

import contextlib
import os
import shutil
from pathlib import Path

from tests.serve.running import serving

__all__ = ["FLAGS", "Restartable", "browser_path"]

# Without the flags about the background, the browser looks for hosts that tests do not need.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str | None:
    """Return the installed browser, or None; FEWFOLD_BROWSER names another."""
    named = os.environ.get("FEWFOLD_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Restartable:
    """A server of a model folder; after `stop`, `start` uses the same port."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder, self.options, self.address, self._port = folder, options, "", 0
        self._open = contextlib.ExitStack()

    def start(self) -> "Restartable":
        """Start it and wait until it is ready."""
        running = self._open.enter_context(
            serving(self.folder, *self.options, folder=self.folder.parent, port=self._port)
        )
        self.address = running.url.rstrip("/")
        self._port = int(self.address.rpartition(":")[2])
        self._open.callback(running.stop)
        return self

    def stop(self) -> None:
        """End it and wait for its end."""
        self._open.close()
