"""Branches of the C++ kernels that no test takes: ``python -m tests.branches``.

Builds the kernels for gcov in `build/branches`, runs the tests made for them, and the fuzzer for
so many `--minutes`, on every instruction set, and lists, file by file, lines that never ran and
branches of lines that ran but never went one way. That is five minutes of work for a processor.
Instances of a template count together: a branch is taken if any of them takes it. Places listed in
`explained.toml` are left out. ``--no-build --add --isa avx2 TEST`` runs one more test and adds its
counts to those of earlier runs; ``--report-only`` prints the report again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.branches.counts import ROOT, counted, explained, report
from tests.fuzz import MODULES

BUILD = ROOT / "build" / "branches"
ISAS = ("avx512", "avx2", "generic")
# Every instruction set runs what is made for the kernels, the first one also what uses them.
EVERY = (
    "tests/_native",
    "tests/fuzz/test_selection.py",
    "tests/recommender/ranking/test_topk.py",
    "tests/structured/test_assignments.py",
)
FIRST = (
    "tests/distributions",
    "tests/embeddings",
    "tests/losses/test_anchored.py",
    "tests/losses/test_sampled.py",
    "tests/maps/test_long_rows.py",
    "tests/maps/test_parameters.py",
    "tests/optim/test_surface.py",
    "tests/recommender/models/test_bag.py",
    "tests/sampling/test_limits.py",
    "tests/sampling/test_proposals.py",
)
# These use the kernels without the marker; the property tests are many and reach no further branch.
UNMARKED = ("tests/structured", "--ignore=tests/structured/test_structure_properties.py")


def build() -> None:
    """Compile the kernels with counters and lay out a copy of the package that uses them."""
    path = os.pathsep.join([*tools(), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path}
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
    options = [
        *generator,
        "-DFEWFOLD_COVERAGE=ON",
        "-DCMAKE_BUILD_TYPE=Debug",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_INSTALL_PREFIX={BUILD / 'site'}",
    ]
    run(["cmake", "-S", str(ROOT), "-B", str(BUILD / "cmake"), *options], env)
    run(["cmake", "--build", str(BUILD / "cmake"), "-j", "2"], env)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "fewfold", BUILD / "site" / "fewfold", ignore=ignored)
    run(["cmake", "--install", str(BUILD / "cmake")], env)


def exercise(isas: list[str], minutes: float, chosen: list[str] | None) -> None:
    """Run tests and the fuzzer on the counting kernels; the default tests if none are chosen."""
    path = os.pathsep.join([str(BUILD / "site"), str(ROOT), *packages()])
    # -S keeps an editable install out of the way, so that the counting copy is imported.
    python = [sys.executable, "-S", "-m"]
    for isa in isas:
        env = {**os.environ, "PYTHONPATH": path, "FEWFOLD_ISA": isa}
        for mark, files in runs(isa == isas[0], chosen):
            options = ["-q", "-m", mark, "-p", "no:cacheprovider"]
            run([*python, "pytest", *options, *files], env, check=False)
        if minutes > 0:
            seconds = str(60 * minutes / len(isas) / len(MODULES))
            for module in MODULES:
                more = [module, "", "1000", seconds, str(BUILD / "note")]
                run([*python, "tests.fuzz.worker", *more], env, check=False)


def runs(first: bool, chosen: list[str] | None) -> list[tuple[str, list[str]]]:
    """A mark and files for each run of pytest on an instruction set, the first one or another."""
    if chosen is not None:
        return [("not slow", chosen)] if chosen else []
    marked = ("native and not slow", [*EVERY, *(FIRST if first else ())])
    return [marked, ("not slow", list(UNMARKED))] if first else [marked]


def packages() -> list[str]:
    """Where third-party packages are: this environment's folder and others on the path."""
    own = sysconfig.get_path("purelib")
    return [own, *(one for one in sys.path if "site-packages" in one and one != own)]


def tools() -> list[str]:
    """Folders of the programs (cmake, ninja) that come with those packages."""
    own = str(Path(sys.executable).parent)
    return [own, *(str(Path(one).parents[2] / "bin") for one in packages())]


def run(command: list[str], env: dict[str, str], check: bool = True) -> None:
    """Run a command with its output on screen."""
    print("$", " ".join(command), flush=True)
    subprocess.run(command, env=env, check=check, cwd=ROOT)


def main() -> None:
    """Build, exercise, report."""
    parser = argparse.ArgumentParser(prog="python -m tests.branches", description=__doc__)
    parser.add_argument("tests", nargs="*", help="default: those made for the kernels")
    parser.add_argument(
        "--isa", action="append", choices=ISAS, help="may be repeated; default: all three"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="of fuzzing, in all; default: 0")
    parser.add_argument("--no-tests", action="store_true", help="only fuzz")
    parser.add_argument("--no-build", action="store_true", help="use the kernels built before")
    parser.add_argument("--add", action="store_true", help="add to the counts of earlier runs")
    parser.add_argument("--report-only", action="store_true", help="report what was run before")
    given = parser.parse_args()
    if not given.report_only:
        if not given.no_build:
            build()
        if not given.add:
            for file in (BUILD / "cmake").rglob("*.gcda"):
                file.unlink()
        chosen = [] if given.no_tests else given.tests or None
        exercise(given.isa or list(ISAS), given.minutes, chosen)
    print(f"{report(counted(BUILD), explained())} unexplained places")


if __name__ == "__main__":
    main()
