"""A server in a process of its own, as a stranger would start it, and requests to it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.serve import contract

_COMMAND = "import sys; from fewfold.cli import main; sys.exit(main())"


@dataclass
class Running:
    """A server that is ready."""

    process: subprocess.Popen[str]
    url: str
    errors: Path

    def __post_init__(self) -> None:
        # Every answer that a test receives is compared with the description of the API.
        hooks: Any = {"response": [contract.check]}
        self.client = httpx.Client(base_url=self.url, timeout=30, event_hooks=hooks)

    def get(self, path: str, **more: Any) -> httpx.Response:
        """Answer of a GET."""
        return self.client.get(path, **more)

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        """Answer of a POST of JSON."""
        return self.client.post(path, json=body, **more)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it, and return its exit code."""
        self.process.send_signal(how)
        return self.process.wait(timeout=30)

    def log(self) -> str:
        """Everything it wrote to standard error."""
        return self.errors.read_text()

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


@contextlib.contextmanager
def serving(
    *arguments: object,
    folder: Path,
    port: int = 0,
    wait: float = 300,
    environment: dict[str, str] | None = None,
) -> Iterator[Running]:
    """Start `fewfold serve` on a free port, or on this one, and yield when it is ready."""
    errors = folder / f"errors-{time.monotonic_ns()}.txt"
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
    command = [sys.executable, "-c", _COMMAND, "serve", *map(str, arguments), "--port", str(port)]
    with errors.open("w") as stream:
        process = subprocess.Popen(command, stderr=stream, env=settings, text=True)
    try:
        running = Running(process, _address(process, errors, wait), errors)
        with running.client:
            yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _address(process: subprocess.Popen[str], errors: Path, wait: float) -> str:
    until = time.monotonic() + wait
    while time.monotonic() < until:
        found = re.search(r"http://\S+?/(?=[\s\"])", errors.read_text())
        if found:
            return found.group()
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"the server did not start: {errors.read_text()}")


def lines(text: str) -> list[dict[str, Any]]:
    """A log of JSON lines."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
