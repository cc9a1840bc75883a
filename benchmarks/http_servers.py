"""Servers for the suite `http`, each in a process of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fewfold.serve.measurements import memory

_SERVE = "import sys; from fewfold.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Server:
    """A server that is ready.

    Attributes:
        url: its address.
        pid: its process.
        start: seconds until it was ready.
    """

    url: str
    pid: int
    start: float

    def workers(self) -> list[int]:
        """Return the processes that answer: its children, or itself."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in found] or [self.pid]

    def memory(self) -> int:
        """Bytes of the process and its workers; what they share counts once."""
        return sum(map(memory, {self.pid, *self.workers()}))

    def batches(self) -> tuple[float, float]:
        """Return the number of batches so far, and of their entries."""
        with urllib.request.urlopen(f"{self.url}metrics") as answer:
            text = answer.read().decode()
        count, total = (
            float(re.findall(rf"^fewfold_batch_size_{name} (\S+)", text, re.MULTILINE)[0])
            for name in ("count", "sum")
        )
        return count, total


@contextlib.contextmanager
def fewfold_server(folder: Path, *arguments: str, threads: int = 2) -> Iterator[Server]:
    """Serve a model folder by `fewfold serve`; without feedback unless a journal is named."""
    command = [sys.executable, "-c", _SERVE, "serve", str(folder), "--port", "0", *arguments]
    command += ["--watch", "0", "--threads", str(threads)]
    if "--journal" not in arguments:
        command.append("--no-feedback")
    with _running(command, r"(http://\S+/)") as server:
        yield server


@contextlib.contextmanager
def peer_server(module: str, *arguments: str) -> Iterator[Server]:
    """Run a module of this package that serves and prints its address."""
    with _running([sys.executable, "-m", module, *arguments], r"(http://\S+/)") as server:
        yield server


@contextlib.contextmanager
def _running(command: list[str], address: str) -> Iterator[Server]:
    began = time.perf_counter()
    settings = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=settings)
    try:
        found = _address(process, address)
        ready = time.perf_counter() - began
        assert process.stderr is not None
        # A server that logs would stop when nobody reads.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Server(found, process.pid, ready)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: "subprocess.Popen[str]", pattern: str) -> str:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        found = re.search(pattern, line)
        if found:
            return found.group(1)
    raise RuntimeError(f"the server ended: {''.join(seen)}")
