"""``python -m release.pins``: newer versions of what is pinned or installed.

Looks at the pins of constraints.txt and all requirements of pyproject.toml. `--all` also lists
those that have nothing newer. Changes nothing.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from release.environments import ROOT, project

__all__ = ["Bound", "bounds", "main", "number", "table"]


@dataclass(frozen=True)
class Bound:
    """A requirement: its name, and the version by which it is pinned (==) or bounded (>=)."""

    name: str
    sign: str
    version: str
    source: str


def bounds() -> list[Bound]:
    """Return all pins, and the lower bounds of what is not pinned."""
    found: dict[str, Bound] = {}
    for source, text in _requirements():
        match = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^]]*\])?\s*(==|>=)\s*([\w.]+)", text)
        if match and match[1].lower() != "fewfold":
            found.setdefault(match[1].lower(), Bound(match[1], match[2], match[3], source))
    return list(found.values())


def _requirements() -> Iterator[tuple[str, str]]:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            yield "constraints", line
    yield from (("build", one) for one in project()["build-system"]["requires"])
    yield from (("core", one) for one in project()["project"]["dependencies"])
    for extra, some in project()["project"]["optional-dependencies"].items():
        yield from ((extra, one) for one in some)


def number(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without a suffix such as +cpu.

    >>> number("2.13.0+cpu") == number("2.13"), number("2.9") < number("2.13.0")
    (True, True)
    """
    found = re.match(r"\d+(?:\.\d+)*", text)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def newest(name: str) -> str:
    """Return the newest version of a package in the configured index, or "?"."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", name], capture_output=True, text=True
    )
    found = re.search(r"\(([^)]+)\)", done.stdout)
    return found[1] if found and done.returncode == 0 else "?"


def installed(name: str) -> str:
    """Return the installed version of a package, or "-"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Lay out rows in columns.

    >>> print(table([("a", "bc"), ("def", "g")]))
    a    bc
    def  g
    """
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(size) for cell, size in zip(row, wide, strict=True)).rstrip()
        for row in rows
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m release.pins", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also what has nothing newer")
    every = parser.parse_args().all
    rows = [("name", "required", "of", "installed", "newest", "")]
    known = bounds()
    with ThreadPoolExecutor(4) as threads:  # each asks the index once
        latest = list(threads.map(lambda bound: newest(bound.name), known))
    for bound, last in zip(known, latest, strict=True):
        here = installed(bound.name)
        used = bound.version if bound.sign == "==" else here
        news = "newer" if used != "-" and number(last) > number(used) else ""
        if news or every:
            rows.append((bound.name, bound.sign + bound.version, bound.source, here, last, news))
    print(table(rows) if len(rows) > 1 else "nothing is newer than what is pinned or installed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
