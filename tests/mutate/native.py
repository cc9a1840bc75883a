"""Which test file executes which lines of the C++ kernels, measured by gcov."""

import ctypes
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutate.forks import QUIET, in_fork, left_out
from tests.mutate.kernels import Build
from tests.mutate.loading import import_compiled
from tests.mutate.mutant import BUILD, ROOT, Mutant
from tests.mutate.nearest import Choice, Selection
from tests.mutate.trial import KERNELS

NEARBY = Path(__file__).with_name("nearby.toml")
_KERNELS = re.compile(r'native|usefixtures\("path"|def test\w*\([^)]*\bpath\b')


class _Calls:
    """A pytest plugin that notes which tests call a kernel, and how long they take."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.called: set[str] = set()
        self.wrapped = False

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            self.called.add(name)
            return function(*arguments, **named)

        return call

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Leave out slow tests and those of the path in pure torch; then watch the kernels."""
        items[:] = [
            item
            for item in items
            if not left_out(item)
            and getattr(getattr(item, "callspec", None), "params", {}).get("path") != "torch"
        ]
        from fewfold._native import kernels

        if not self.wrapped and kernels is not None:
            self.wrapped = True
            for name, function in list(vars(kernels).items()):
                if callable(function) and not name.startswith("_"):
                    setattr(kernels, name, self._noting(name, function))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> Iterator[None]:
        """Watch one test."""
        self.called.clear()
        began = time.process_time()
        try:
            return (yield)
        finally:
            seconds = round(time.process_time() - began, 4)
            self.tests[item.nodeid] = {"seconds": seconds, "calls": sorted(self.called)}


def _measure(file: str, library: Path, counts: Path) -> dict[str, Any]:
    os.environ["GCOV_PREFIX"] = str(counts)
    import_compiled(KERNELS, library)
    plugin = _Calls()
    code = int(pytest.main([file, *QUIET], plugins=[plugin]))
    ctypes.CDLL(str(library)).__gcov_dump()
    return {"code": code, "tests": plugin.tests}


def _lines(counts: Path, objects: Path) -> dict[str, list[int]]:
    """The lines of the kernels that were executed, from what gcov wrote."""
    found: dict[str, set[int]] = {}
    for data in sorted(counts.rglob("*.gcda")):
        note = Path("/") / data.relative_to(counts).with_suffix(".gcno")
        shutil.copyfile(note, data.with_suffix(".gcno"))
        told = subprocess.run(
            ["gcov", "--json-format", "--stdout", data.name],
            cwd=data.parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for part in filter(None, told.splitlines()):
            for row in json.loads(part)["files"]:
                if "_native/" in row["file"]:
                    ran = {item["line_number"] for item in row["lines"] if item["count"]}
                    found.setdefault(Path(row["file"]).name, set()).update(ran)
    return {name: sorted(lines) for name, lines in found.items()}


def kernel_tests() -> list[str]:
    """The files of tests that speak of kernels or of the two paths."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    modules = ("experiments", "mutate", "cli")
    return [
        str(file.relative_to(ROOT))
        for file in files
        if file.parent.name not in modules and _KERNELS.search(file.read_text())
    ]


def unmeasured(mutant: Mutant, chosen: Choice) -> tuple[Selection, float]:
    """The tests of a mutant by the table of names in nearby.toml, and a guess of their seconds."""
    near: dict[str, list[str]] = tomllib.loads(NEARBY.read_text())
    name = Path(mutant.file).name
    files = [test for test, sources in near.items() if name in sources]
    files = files or [test for test, sources in near.items() if "*" in sources]
    return {file: None for file in chosen(files) if (ROOT / file).exists()}, 60.0


class NearestNative:
    """Selects the tests of a mutant of a C++ source.

    Args:
        chosen: from the files of tests that speak of kernels to those that are used.
        longest: tests that take more seconds of processor time are left out.
    """

    def __init__(self, chosen: Choice, longest: float = 10.0) -> None:
        self.files = chosen(kernel_tests())
        self.longest = longest
        self.build = Build(flags="-O1 --coverage", name="gcov", link="--coverage")
        self.build.prepare()
        texts = sorted(self.build.texts.items())
        self.sources = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    @functools.cache  # noqa: B019 - there is one for the whole run
    def coverage(self, file: str) -> dict[str, Any]:
        """The lines of C++ a file of tests executes, and the seconds of each test."""
        place = BUILD / "coverage" / ("native+" + file.replace("/", "+") + ".json")
        test = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()[:16]
        if place.exists():
            kept: dict[str, Any] = json.loads(place.read_text())
            if (kept["test"], kept["sources"]) == (test, self.sources):
                return kept
        place.parent.mkdir(parents=True, exist_ok=True)
        counts = BUILD / "counts"
        shutil.rmtree(counts, ignore_errors=True)
        counts.mkdir(parents=True)
        print(f"measuring which kernels {file} executes", flush=True)
        work = functools.partial(_measure, file, self.build.library, counts)
        log = str(place.with_suffix(".log"))
        how, answer, _ = in_fork(work, cpu=900, wall=3600, log=log)
        if how != "done" or answer["code"] not in (0, 5):
            raise SystemExit(f"{file}: the tests fail without any change ({how}); see {log}")
        kept = {
            "test": test,
            "sources": self.sources,
            "lines": _lines(counts, self.build.place),
            "tests": answer["tests"],
        }
        place.write_text(json.dumps(kept))
        return kept

    def select(self, mutant: Mutant, text: str) -> tuple[Selection, float]:
        """The tests of each file, in order, and the seconds they take together."""
        name = Path(mutant.file).name
        statement = _around(text, mutant)
        chosen: dict[str, list[tuple[float, str]]] = {}
        for file in self.files:
            measured = self.coverage(file)
            if statement.isdisjoint(measured["lines"].get(name, ())):
                continue
            tests = [
                (test["seconds"], node)
                for node, test in measured["tests"].items()
                if test["calls"] and test["seconds"] <= self.longest
            ]
            if tests:
                chosen[file] = sorted(tests)
        total = {file: sum(seconds for seconds, _ in tests) for file, tests in chosen.items()}
        selection: Selection = {
            file: [node for _, node in chosen[file]]
            for file in sorted(chosen, key=total.__getitem__)
        }
        return selection, sum(total.values())


def _around(text: str, mutant: Mutant) -> set[int]:
    """The lines of the statement a mutant changes; of a constant outside, of what follows it.

    gcov counts statements at their first line, which may be above the change.
    """
    lines = text.splitlines()
    first = mutant.line
    while first > 1 and not lines[first - 2].rstrip().endswith((";", "{", "}", ":")):
        first -= 1
    last = text.count("\n", 0, mutant.end) + 1
    found = set(range(first, last + 1))
    if "constexpr" in lines[mutant.line - 1]:
        return set(range(1, len(lines) + 1))
    return found
