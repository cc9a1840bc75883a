"""A real server in a process of its own, and the browser that is installed."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["FLAGS", "Serving", "browser_path"]

# Without the flags about the background, the browser looks for hosts that tests do not need.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_COMMAND = "import sys; from fewfold.cli import main; sys.exit(main())"


def browser_path() -> str | None:
    """Return the installed browser, or None; FEWFOLD_BROWSER names another."""
    named = os.environ.get("FEWFOLD_BROWSER")
    return named or next(filter(None, map(shutil.which, _NAMES)), None)


class Serving:
    """`fewfold serve` of a model folder on a port of its own; `stop` and `start` use it again."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[Any] | None = None

    def start(self, *options: str) -> "Serving":
        """Start it and wait until it is ready."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "serve", str(self.folder), "--port", str(self.port),
             *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", **self.environment},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(300):
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}")
            try:
                with urllib.request.urlopen(f"{self.address}/v1/health/ready", timeout=2):
                    return self
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server was not ready after 30 seconds")

    def stop(self) -> None:
        """End it and wait for its end."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)
            self.process = None

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
