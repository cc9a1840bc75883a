"""Measured rows in a JSON file, one per line, so that an experiment can be stopped and resumed."""

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
    """The rows of one file; each row has its origin and its running time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self, **key: Any) -> list[Row]:
        """Return the rows with these fields; none without a file."""
        every = json.loads(self.path.read_text()) if self.path.exists() else []
        return [row for row in every if key.items() <= row.items()]

    def once(self, make: Callable[[], Row], **key: Any) -> Row:
        """Return the row with these fields, computing and storing it if it is missing."""
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
        """Append rows under a file lock."""
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            lines = ",\n".join(json.dumps(row) for row in [*self.rows(), *rows])
            with new_file(self.path) as partial:
                partial.write_text(f"[\n{lines}\n]\n")
        finally:
            os.close(folder)


def origin() -> Row:
    """Return the commit, the number of threads, the processor and the version of torch."""
    found = machine()
    return {
        "commit": _COMMIT,
        "threads": torch.get_num_threads(),
        "machine": found["processor"],
        "cores": found["cores"],
        "torch": found["torch"],
    }


def _commit() -> str:
    """Return the commit of the code, marked if there are changes; `unknown` outside of git."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        return "unknown"
    code = ["src", ":(glob)experiments/**/*.py", ":(glob)experiments/**/*.cpp"]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


_COMMIT = _commit()  # that of the code which is running: later there may be another
