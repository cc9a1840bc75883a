"""Interpreters and environments in which packages are built and tested."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = [
    *("BUILD", "OLDEST_STABLE", "ROOT", "constraints", "environment", "interpreters"),
    *("project", "python", "run", "succeeds"),
]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "release"
OLDEST_STABLE = (3, 12)  # the first Python that the wheel for the stable ABI is for


@cache
def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run(
    *command: str | Path,
    path: str | None = None,
    more: Mapping[str, str] | None = None,
    **rest: Any,
) -> str:
    """Run a command and return its output; if it fails, show the output and exit.

    Args:
        command: the program and its arguments.
        path: value of PATH; that of this process if None.
        more: other variables of the environment.
        rest: arguments of `subprocess.run`.
    """
    variables = {**os.environ, **(more or {})}
    if path is not None:
        variables["PATH"] = path
    done = subprocess.run(
        [str(word) for word in command],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **rest,
    )
    if done.returncode:
        print(done.stdout)
        raise SystemExit(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return str(done.stdout)


def succeeds(*command: str | Path) -> bool:
    """Return whether a command ends without an error; its output is not shown."""
    return subprocess.run([str(word) for word in command], capture_output=True).returncode == 0


def interpreters() -> dict[str, Path]:
    """Return this interpreter and all later ones that are found, by version such as "3.12"."""
    found = {"{}.{}".format(*sys.version_info): Path(sys.executable)}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(OLDEST_STABLE[1], OLDEST_STABLE[1] + 8):
        name = f"3.{minor}"
        places = sorted(pyenv.glob(f"{name}.*/bin/python{name}"))
        if first := shutil.which(f"python{name}"):
            places.insert(0, Path(first))
        for place in places:
            if name not in found and _works(place, name):
                found[name] = place
    return dict(sorted(found.items(), key=lambda one: int(one[0].split(".")[1])))


def _works(program: Path, name: str) -> bool:
    """Return whether it runs, is this version and can make environments; pyenv's shims may not."""
    code = "import sys, venv, ensurepip; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([program, "-c", code], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == name


def environment(name: str, base: Path, *requirements: str, fresh: bool = False) -> Path:
    """Make an environment below build/release if it is missing, and install these into it."""
    folder = BUILD / name
    if fresh or not python(folder).exists():
        run(base, "-m", "venv", "--clear", folder)
    if requirements:
        run(python(folder), "-m", "pip", "install", "-q", *requirements)
    return folder


def python(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def constraints(folder: Path) -> tuple[str, str]:
    """Return arguments of pip that install the torch of this environment and no other.

    Exactly the same build, such as 2.13.0+cpu, so that where it is missing for an interpreter no
    build for GPUs is fetched in its place.
    """
    file = folder / "constraints.txt"
    others = re.sub(r"(?m)^torch==.*\n", "", (ROOT / "constraints.txt").read_text())
    file.write_text(f"torch=={version('torch')}\n{others}")
    return "-c", str(file)
