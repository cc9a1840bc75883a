"""Commands under torchrun, whose processes the tests kill and interrupt."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.distributed.jobs import log
from tests.distributed.processes import ROOT, free_port

PATIENCE = 200.0  # seconds; other work may stop the processes for a minute


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), **more}


def write_log(file: Path, users: int = 200, items: int = 40) -> Path:
    """Write a small log."""
    pairs = log(users, items)
    rows = [f"u{u},i{i}" for u, i in zip(pairs.row.tolist(), pairs.ids.tolist(), strict=True)]
    file.write_text("\n".join(["user,item", *rows]))
    return file


class Torchrun:
    """A running torchrun; `lines` grows with its standard error."""

    def __init__(self, *arguments: Any, processes: int = 2, options: Sequence[str] = ()) -> None:
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        place = [*options, "--master-port", str(free_port()), "-m", "fewfold"]
        self.process = subprocess.Popen(
            [*run, *place, *map(str, arguments)], env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.out: list[str] = []
        self._readers = []
        for stream, lines in ((self.process.stderr, self.lines), (self.process.stdout, self.out)):
            reader = threading.Thread(target=_read, args=(stream, lines), daemon=True)
            reader.start()
            self._readers.append(reader)

    def __enter__(self) -> "Torchrun":
        return self

    def __exit__(self, *_: Any) -> None:
        for rank in self.workers():
            os.kill(rank, signal.SIGKILL)
        self.process.kill()
        self.wait()

    @property
    def error(self) -> str:
        """What was written to standard error so far."""
        return "".join(self.lines)

    def workers(self) -> list[int]:
        """Return the processes of all ranks, in their order."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent != self.process.pid:
                    continue
                rank = re.search(rb"\0RANK=(\d+)\0", (folder / "environ").read_bytes())
            except (OSError, IndexError):  # it has ended
                continue
            if rank:
                found[int(rank[1])] = int(folder.name)
        return [found[rank] for rank in sorted(found)]

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal to a rank; return whether it was there."""
        workers = self.workers()
        if rank < len(workers):
            os.kill(workers[rank], number)
        return rank < len(workers)

    def until(self, text: str, times: int = 1) -> None:
        """Wait until a text has been written so many times."""
        end = time.monotonic() + PATIENCE
        while self.error.count(text) < times:
            assert self.process.poll() is None, self.error
            assert time.monotonic() < end, self.error
            time.sleep(0.02)

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code


def _read(stream: Any, lines: list[str]) -> None:
    with stream:
        lines.extend(stream)


def model_bytes(folder: Path) -> dict[str, bytes]:
    """Return the tensors of a model, file by file."""
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}
