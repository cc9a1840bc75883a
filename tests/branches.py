"""Branches of the C++ kernels that no test takes: ``python -m tests.branches``.

Builds the kernels for gcov in `build/branches`, runs the tests marked `native` and a few minutes
of fuzzing on every instruction set, and lists, file by file, lines that never ran and branches of
lines that ran but never went one way. Instances of a template count together: a branch is taken
if any of them takes it.
"""

import argparse
import collections
import gzip
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "fewfold" / "_native"
BUILD = ROOT / "build" / "branches"
ISAS = ("avx512", "avx2", "generic")


@dataclass
class Line:
    """How often a line ran, and how often each of its branches was taken."""

    ran: int = 0
    branches: dict[int, list[int]] = field(default_factory=dict)
    """Counts by how many branches an instance of the line has."""

    def add(self, found: dict[str, Any]) -> None:
        """Count one instance of the line."""
        self.ran += found["count"]
        counts = [one["count"] for one in found["branches"] if not one["throw"]]
        if counts:
            so_far = self.branches.setdefault(len(counts), [0] * len(counts))
            self.branches[len(counts)] = [a + b for a, b in zip(so_far, counts, strict=True)]

    @property
    def missed(self) -> int:
        """How many branches were never taken, in the instances that took most."""
        return min((counts.count(0) for counts in self.branches.values()), default=0)


def build() -> None:
    """Compile the kernels with counters and lay out a copy of the package that uses them."""
    BUILD.mkdir(parents=True, exist_ok=True)
    options = ["-DFEWFOLD_COVERAGE=ON", "-DCMAKE_BUILD_TYPE=Debug"]
    python = f"-DPython_EXECUTABLE={sys.executable}"
    prefix = f"-DCMAKE_INSTALL_PREFIX={BUILD / 'site'}"
    run(["cmake", "-S", str(ROOT), "-B", str(BUILD / "cmake"), *options, python, prefix])
    run(["cmake", "--build", str(BUILD / "cmake"), "-j", "2"])
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "fewfold", BUILD / "site" / "fewfold", ignore=ignored)
    run(["cmake", "--install", str(BUILD / "cmake")])


def exercise(minutes: float, chosen: list[str]) -> None:
    """Run the tests and the fuzzer on the counting kernels, on every instruction set."""
    for file in (BUILD / "cmake").rglob("*.gcda"):
        file.unlink()
    path = os.pathsep.join([str(BUILD / "site"), str(ROOT), *packages()])
    for isa in ISAS:
        env = {**os.environ, "PYTHONPATH": path, "FEWFOLD_ISA": isa}
        # -S keeps an editable install out of the way, so that the counting copy is imported.
        python = [sys.executable, "-S", "-m"]
        run(
            [*python, "pytest", "-q", "-m", "native", "-p", "no:cacheprovider", *chosen], env, False
        )
        seconds = str(60 * minutes / len(ISAS) / len(rooms()))
        for room in rooms():
            worker = [*python, "tests.fuzz.worker", room, "", "1000", seconds, str(BUILD / "note")]
            run(worker, env, False)


def packages() -> list[str]:
    """Where third-party packages are, besides this environment's own folder."""
    own = sysconfig.get_path("purelib")
    return [own, *(one for one in sys.path if "site-packages" in one and one != own)]


def rooms() -> tuple[str, ...]:
    """The rooms of the fuzzer."""
    from tests.fuzz import ROOMS

    return ROOMS


def run(command: list[str], env: dict[str, str] | None = None, check: bool = True) -> None:
    """Run a command with its output on screen."""
    print("$", " ".join(command), flush=True)
    subprocess.run(command, env=env, check=check, cwd=ROOT)


def counted() -> dict[Path, dict[int, Line]]:
    """The counts of every line of our own sources."""
    out = BUILD / "gcov"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    objects = sorted(str(file) for file in (BUILD / "cmake").rglob("*.gcda"))
    command = ["gcov", "--json-format", "--branch-probabilities", "--hash-filenames", *objects]
    subprocess.run(command, cwd=out, check=True, stdout=subprocess.DEVNULL)
    lines: dict[Path, dict[int, Line]] = collections.defaultdict(
        lambda: collections.defaultdict(Line)
    )
    for file in out.glob("*.gcov.json.gz"):
        for source in json.loads(gzip.decompress(file.read_bytes()))["files"]:
            path = (BUILD / "cmake" / source["file"]).resolve()
            if SOURCES in path.parents:
                for line in source["lines"]:
                    lines[path][line["line_number"]].add(line)
    return lines


def report(lines: dict[Path, dict[int, Line]]) -> int:
    """Print what is missed; returns how many places that is."""
    places = 0
    print(f"\n{'file':<28} {'lines':>6} {'never ran':>10} {'one way only':>13}")
    details: list[str] = []
    for path, found in sorted(lines.items()):
        silent = sorted(number for number, line in found.items() if not line.ran)
        partly = sorted(number for number, line in found.items() if line.ran and line.missed)
        print(f"{path.name:<28} {len(found):>6} {len(silent):>10} {len(partly):>13}")
        details += list(shown(path, silent, "never runs"))
        details += list(shown(path, partly, "one way only"))
        places += len(silent) + len(partly)
    print()
    print("\n".join(details))
    return places


def shown(path: Path, numbers: Iterable[int], what: str) -> Iterable[str]:
    """One line of the report for each line of the source."""
    text = path.read_text().splitlines()
    for number in numbers:
        yield f"{path.name}:{number}: {what}: {text[number - 1].strip()[:110]}"


def main() -> None:
    """Build, exercise, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.branches", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="of fuzzing, in all")
    parser.add_argument(
        "--report", action="store_true", help="only count again what was run before"
    )
    parser.add_argument("tests", nargs="*", default=["tests"], help="which tests; default: all")
    given = parser.parse_args()
    if not given.report:
        build()
        exercise(given.minutes, given.tests)
    print(f"{report(counted())} places")


if __name__ == "__main__":
    main()
