"""Measured rows in a JSON file, one per line, so that an experiment may be stopped and resumed."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import machine

Row = dict[str, Any]


class Record:
    """The rows of one file; a row says where it comes from and how long it took."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, **key: Any) -> list[Row]:
        """Those with these fields; without a file there are none."""
        every = json.loads(self.path.read_text()) if self.path.exists() else []
        return [row for row in every if key.items() <= row.items()]

    def once(self, make: Callable[[], Row], **key: Any) -> Row:
        """The row with these fields, made and kept unless it is there."""
        found = self.rows(**key)
        if found:
            return found[0]
        start = time.perf_counter()
        made = make()
        seconds = round(time.perf_counter() - start, 1)
        row = {**key, **made, "seconds": seconds, **origin()}
        print(", ".join(f"{name} {value}" for name, value in key.items()), f"{seconds} s")
        self.add([row])
        return row

    def add(self, rows: list[Row]) -> None:
        """Keep these rows beside those there are."""
        lines = ",\n".join(json.dumps(row) for row in [*self.rows(), *rows])
        partial = self.path.with_suffix(".tmp")  # a file that is half written is never read
        partial.write_text(f"[\n{lines}\n]\n")
        os.replace(partial, self.path)


def origin() -> Row:
    """The commit, the threads and the processor."""
    processor = machine()["processor"]
    return {"commit": _COMMIT, "threads": torch.get_num_threads(), "machine": processor}


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


_COMMIT = _commit()  # that of the code which is running: later there may be another
