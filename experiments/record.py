"""Measured rows in a JSON file, one per line, so that an experiment may be stopped and resumed."""

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import machine
from fewfold._files import new_file

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
        row = {**key, "seconds": seconds, **made, **origin()}
        print(", ".join(f"{name} {value}" for name, value in key.items()), f"{seconds} s")
        self.add([row])
        return row

    def add(self, rows: list[Row]) -> None:
        """Keep these rows beside those there are; two processes wait for each other."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            lines = ",\n".join(json.dumps(row) for row in [*self.rows(), *rows])
            with new_file(self.path) as partial:
                partial.write_text(f"[\n{lines}\n]\n")
        finally:
            os.close(folder)


def origin() -> Row:
    """The commit, the threads, the processor and torch."""
    found = machine()
    return {
        "commit": _COMMIT,
        "threads": torch.get_num_threads(),
        "machine": found["processor"],
        "cores": found["cores"],
        "torch": found["torch"],
    }


def _commit() -> str:
    """Of the code; with a mark if it has been changed since, and `unknown` outside of git."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        return "unknown"
    code = ["src", ":(glob)experiments/**/*.py", ":(glob)experiments/**/*.cpp"]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


_COMMIT = _commit()  # that of the code which is running: later there may be another
