"""Counts of lines and branches that gcov has written, and the report of those at zero."""

import collections
import gzip
import json
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "fewfold" / "_native"
EXPLAINED = Path(__file__).with_name("explained.toml")
NEVER, ONE_WAY = "never runs", "one way only"
CONDITION = re.compile(r"\b(if|for|while|switch|case|catch)\b|[?]|&&|[|][|]")
Key = tuple[str, str]


@dataclass
class Line:
    """How often a line ran, and how often each of its branches was taken."""

    ran: int = 0
    branches: dict[int, list[int]] = field(default_factory=dict)
    """Counts by how many branches an instance of the line has."""

    def add(self, found: dict[str, Any]) -> None:
        """Count one instance of the line."""
        self.ran += found["count"]
        counts = _conditions(found["branches"])
        if counts:
            so_far = self.branches.setdefault(len(counts), [0] * len(counts))
            self.branches[len(counts)] = [a + b for a, b in zip(so_far, counts, strict=True)]

    def taken(self, text: str) -> list[int]:
        """How often each branch was taken, in the instances that took most of them.

        gcov may list the branches of several instances in a row; these are added up if there are
        as many in each as the text of the line has conditions.
        """
        unit = 2 * len(CONDITION.findall(text))
        folded = []
        for counts in self.branches.values():
            whole = unit > 0 and len(counts) % unit == 0
            folded.append([sum(counts[i::unit]) for i in range(unit)] if whole else counts)
        return min(folded, key=lambda counts: counts.count(0), default=[])


def _conditions(branches: list[dict[str, Any]]) -> list[int]:
    """Counts of branches without those of calls, which return or throw."""
    counts, i = [], 0
    while i < len(branches):
        if any(one["throw"] for one in branches[i : i + 2]):
            i += 2
            continue
        counts.append(branches[i]["count"])
        i += 1
    return counts


Lines = dict[Path, dict[int, Line]]


@dataclass(frozen=True)
class Place:
    """A line of the sources that never ran, or of which a branch was never taken."""

    file: str
    number: int
    what: str
    text: str
    taken: tuple[int, ...]

    @property
    def key(self) -> Key:
        """File and stripped line: what identifies a place in `explained.toml`."""
        return self.file, self.text


def counted(build: Path) -> Lines:
    """The counts of every line of our own sources, from the counters under `build`."""
    out = build / "gcov"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    objects = sorted(str(file) for file in (build / "cmake").rglob("*.gcda"))
    command = ["gcov", "--json-format", "--branch-probabilities", "--hash-filenames", *objects]
    subprocess.run(command, cwd=out, check=True, stdout=subprocess.DEVNULL)
    lines: Lines = collections.defaultdict(lambda: collections.defaultdict(Line))
    for file in out.glob("*.gcov.json.gz"):
        for source in json.loads(gzip.decompress(file.read_bytes()))["files"]:
            path = (build / "cmake" / source["file"]).resolve()
            if SOURCES in path.parents:
                for line in source["lines"]:
                    lines[path][line["line_number"]].add(line)
    return lines


def places(lines: Lines) -> list[Place]:
    """Every line that never ran and every line with a branch that was never taken."""
    found = []
    for path, counts in sorted(lines.items()):
        text = path.read_text().splitlines()
        for number, line in sorted(counts.items()):
            own = text[number - 1].strip()
            # Elsewhere the compiler alone has branches: destructors, memory that is freed.
            taken = tuple(line.taken(own)) if CONDITION.search(own) else ()
            if 0 in taken if line.ran else re.search(r"\w", own):
                what = ONE_WAY if line.ran else NEVER
                found.append(Place(path.name, number, what, own, taken))
    return found


def explained(file: Path = EXPLAINED) -> dict[Key, str]:
    """`(file, stripped line)` to the reason why no test reaches it."""
    rows = tomllib.loads(file.read_text())["place"]
    return {(row["file"], row["line"]): row["reason"] for row in rows}


def report(lines: Lines, reasons: dict[Key, str]) -> int:
    """Print the unexplained places, file by file; returns how many there are."""
    found = places(lines)
    rest = [place for place in found if place.key not in reasons]
    print(f"\n{'file':<24} {'lines':>6} {NEVER:>11} {ONE_WAY:>13} {'explained':>10}")
    total = [0, 0, 0, 0]
    for path, counts in sorted(lines.items()):
        here = [place.what for place in rest if place.file == path.name]
        all_here = sum(place.file == path.name for place in found)
        row = [len(counts), here.count(NEVER), here.count(ONE_WAY), all_here - len(here)]
        print(f"{path.name:<24} {row[0]:>6} {row[1]:>11} {row[2]:>13} {row[3]:>10}")
        total = [a + b for a, b in zip(total, row, strict=True)]
    print(f"{'total':<24} {total[0]:>6} {total[1]:>11} {total[2]:>13} {total[3]:>10}\n")
    for place in rest:
        what = f"{place.what} {list(place.taken)}" if place.what == ONE_WAY else place.what
        print(f"{place.file}:{place.number}: {what}: {place.text[:110]}")
    for file, text in sorted(reasons.keys() - {place.key for place in found}):
        print(f"{file}: explained, but reached by this run: {text[:100]}")
    return len(rest)
