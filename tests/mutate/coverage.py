"""Which test executes which lines, measured once per test file and cached in build."""

import ast
import functools
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.mutate.forks import QUIET, in_fork, left_out
from tests.mutate.mutant import BUILD, PACKAGE, ROOT


class Tracer:
    """A pytest plugin that notes the lines of the package that each test executes."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.tests: dict[str, dict[str, Any]] = {}
        self.now: dict[str, set[int]] = {}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.package):
            return None
        lines = self.now.setdefault(name, set())
        lines.add(frame.f_lineno)
        note = lines.add

        def line(frame: FrameType, event: str, argument: object) -> Any:
            if event == "line":
                note(frame.f_lineno)
            return line

        return line

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leave out what is marked slow and what goes through a compiler."""
        items[:] = [item for item in items if not left_out(item)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        """Trace one test with its fixtures."""
        self.now = {}
        began = time.process_time()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.tests[item.nodeid] = {
                "seconds": round(time.process_time() - began, 4),
                "lines": {
                    str(Path(name).relative_to(ROOT)): sorted(lines)
                    for name, lines in self.now.items()
                },
            }


def _measure(file: str) -> dict[str, Any]:
    tracer = Tracer(str(PACKAGE))
    code = int(pytest.main([file, *QUIET], plugins=[tracer]))
    return {"code": code, "tests": tracer.tests}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def _fresh(kept: dict[str, Any], file: str) -> bool:
    return kept["test"] == _digest(ROOT / file) and all(
        digest == _digest(ROOT / name) for name, digest in kept["sources"].items()
    )


@functools.cache
def coverage(file: str) -> dict[str, dict[str, Any]]:
    """The seconds and lines of each test of a file that passes.

    Measured again only if the file, or a source its tests execute, has changed.
    """
    place = BUILD / "coverage" / (file.replace("/", "+") + ".json")
    if place.exists():
        kept = json.loads(place.read_text())
        if _fresh(kept, file):
            return dict(kept["tests"])
    place.parent.mkdir(parents=True, exist_ok=True)
    log = str(place.with_suffix(".log"))
    print(f"measuring what {file} executes", flush=True)
    how, answer, _ = in_fork(lambda: _measure(file), cpu=900, wall=3600, log=log)
    if how != "done":
        raise SystemExit(f"{file}: the tests end with {how} without any change; see {log}")
    if answer["code"] not in (0, 5):
        raise SystemExit(f"{file}: the tests fail without any change; see {log}")
    sources = {name for test in answer["tests"].values() for name in test["lines"]}
    kept = {
        "test": _digest(ROOT / file),
        "sources": {name: _digest(ROOT / name) for name in sorted(sources)},
        "tests": answer["tests"],
    }
    place.write_text(json.dumps(kept))
    return dict(kept["tests"])


def import_lines(text: str) -> set[int]:
    """The lines that run when a module is imported: all that are in no function."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            first = node.body[0].lineno if isinstance(node.body, list) else node.body.lineno
            inside.update(range(first, (node.end_lineno or first) + 1))
    return set(range(1, text.count("\n") + 2)) - inside
