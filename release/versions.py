"""``python -m release.versions``: test the lowest and the newest versions of all dependencies.

For each of the two, a new environment below build/release: the lower bounds of pyproject.toml
exactly, or whatever is newest; the kernels are compiled with that nanobind and scikit-build-core.
torch is always the one of this environment (constraints.txt). Prints both sets of versions next to
each other and the result of the tests.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from release.environments import BUILD, ROOT, constraints, environment, project, python, run
from release.pins import table
from release.wheels import build_sdist, build_wheel, builder_for, unpack

__all__ = ["EXTRAS", "lowest", "main"]

EXTRAS = ("recommender", "serve", "sklearn", "duckdb", "hub", "s3", "transformers", "onnx")
TOOLS = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "mpmath",
    "pandas",
    "httpx",
    "ir-measures",
    "schemathesis",
)
TESTS = (
    "@tests/quick.txt",
    "tests/recommender/prepared",
    "tests/recommender/reading",
    "tests/recommender/artifact",
    "tests/sklearn",
    "tests/serve/test_endpoints.py",
)


def requirements() -> list[str]:
    """Return what is needed to build and to run, with the extras that are tested."""
    extras = project()["project"]["optional-dependencies"]
    every = [
        *project()["build-system"]["requires"],
        *project()["project"]["dependencies"],
        *(one for extra in EXTRAS for one in extras[extra]),
    ]
    return [one for one in every if not one.startswith(("fewfold", "torch>"))]


def lowest(some: list[str]) -> list[str]:
    """Return the lower bounds as pins.

    >>> lowest(["polars>=1.30", "numpy>=1.26"])
    ['polars==1.30', 'numpy==1.26']
    """
    without = [one for one in some if not re.fullmatch(r"[\w-]+>=[\w.]+", one)]
    if without:
        raise ValueError(f"every requirement needs a lower bound and nothing else, got {without}")
    return [one.replace(">=", "==") for one in some]


def prepare(which: str, wanted: list[str], source: Path) -> Path:
    """Make an environment with these, build fewfold with them, and install it."""
    base = Path(sys.executable)
    if which == "lowest":
        requires = [one for one in wanted if one.startswith(("scikit-build-core", "nanobind"))]
        builder = environment("build-lowest", base, *requires, "cmake", "ninja")
    else:
        builder = builder_for("{}.{}".format(*sys.version_info), base)
    folder = environment(f"versions-{which}", base, fresh=True)
    wheel = build_wheel(builder, source, folder)
    pip = (python(folder), "-m", "pip", "install", "-q", *constraints(folder))
    run(*pip, "torch", *wanted, *TOOLS)
    run(*pip, "--no-deps", wheel)
    return folder


def versions(folder: Path) -> dict[str, str]:
    """Return the versions that are installed in an environment."""
    frozen = run(python(folder), "-m", "pip", "list", "--format", "freeze")
    pairs = [line.split("==") for line in frozen.splitlines() if "==" in line]
    return {_normal(name): version for name, version in pairs}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test(folder: Path, paths: list[str]) -> tuple[bool, str]:
    """Run the tests in an environment; return whether they pass, and pytest's last line."""
    command = [str(python(folder)), "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    selected = ["-m", "not slow and not nightly", "-W", "default", *paths]
    log = BUILD / f"{folder.name}.log"
    with log.open("w") as out:
        done = subprocess.run([*command, *selected], cwd=ROOT, stdout=out, stderr=out)
    said = log.read_text().splitlines()
    failed = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, "\n".join([*failed[:20], said[-1] if said else "no output"])


def main() -> int:
    """Prepare both environments, test, and print the table; the exit code is 1 if a test fails."""
    parser = argparse.ArgumentParser(prog="python -m release.versions", description=__doc__)
    parser.add_argument("which", nargs="*", default=[], help="lowest, newest (default: both)")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="arguments of pytest")
    parser.add_argument("--jobs", default="1", help="processes that compile (default: 1)")
    given = parser.parse_args()
    os.environ["CMAKE_BUILD_PARALLEL_LEVEL"] = given.jobs
    source = BUILD / "source"
    here = "{}.{}".format(*sys.version_info)
    unpack(build_sdist(builder_for(here, Path(sys.executable))), source)
    wanted = {
        "lowest": lowest(requirements()),
        "newest": [re.split(">=", one)[0] for one in requirements()],
    }
    results = {}
    for which in given.which or wanted:
        folder = prepare(which, wanted[which], source)
        results[which] = (versions(folder), *test(folder, given.tests))
    rows = [("", *results)]
    for name in ["torch", *(re.split("[>=]", one)[0] for one in requirements())]:
        rows.append((name, *(found.get(_normal(name), "-") for found, *_ in results.values())))
    print(table(rows))
    for which, (_, passed, said) in results.items():
        print(f"{which}: {'passed' if passed else 'FAILED'}: {said}")
    return 0 if all(passed for _, passed, _ in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
