"""``python -m release.nightly``: what is too slow for every change, and one page of what moved.

Runs each stage to its end even if another failed, with its output in build/nightly/NAME.log, and
writes build/nightly/page.md: stages and tests next to those of the run before, which are in
build/nightly/last.json, and rows of the benchmarks next to the committed results. The page is
written after every stage, so that a run that is killed leaves what it found. An interrupt (Ctrl-C)
ends the stage and the run.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from release.environments import ROOT

__all__ = ["STAGES", "Result", "main", "moved_rows", "page"]

FOLDER = ROOT / "build" / "nightly"
STAGES = {
    "test": "make test",
    "nightly-cases": "make tests-nightly",
    "experiments": "{python} -m pytest -q -n 2 tests/experiments",
    "triton": "make test-triton 'TRITON_TESTS=nightly or not nightly'",
    "fuzz": "make fuzz MINUTES={minutes}",
    "sanitize": "make sanitize",
    "wheel": "make wheel",
    "versions": "make versions",
    "benchmarks": "{python} -m benchmarks --to {folder}/benchmarks",
    "pins": "{python} -m release.pins",
}
"""Commands by name. The smoke runs of the experiments, all of them, are their tests."""
INTERRUPTED = "interrupted"
SHOWN = ("pins",)  # stages whose output is on the page
LINES = 20  # at most, of the output of a stage that failed
TIME_MOVED = 1.25  # factor from which a time or a ratio counts as moved


@dataclass(frozen=True)
class Result:
    """What a stage came to."""

    passed: bool
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)
    """Of pytest's last lines, added: passed, failed, skipped, errors."""
    output: str = ""
    why: str = ""
    """Why it failed, in a few words."""


def counted(text: str) -> dict[str, int]:
    """Add up the last lines of all runs of pytest in an output.

    >>> counted("3 passed, 1 skipped in 2.1s\\n== 1 failed, 4 passed in 3s ==")
    {'failed': 1, 'passed': 7, 'skipped': 1}
    """
    counts: dict[str, int] = {}
    for line in re.findall(r"(?m)^.*\b(?:passed|failed|errors?)\b.* in [\d.]+s.*$", text):
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            counts[word] = counts.get(word, 0) + int(number)
    return dict(sorted(counts.items()))


def run_stage(name: str, minutes: int, limit: float) -> Result:
    """Run a stage with its output in a file; end it and its children after `limit` seconds."""
    command = STAGES[name].format(python=sys.executable, minutes=minutes, folder=FOLDER)
    log, start = FOLDER / f"{name}.log", time.monotonic()
    with log.open("w") as out:
        why = _run(shlex.split(command), out, limit)
    text = log.read_text(errors="replace")
    shown = text.strip() if name in SHOWN else "" if not why else _telling(text)
    return Result(not why, time.monotonic() - start, counted(text), shown, why)


def _run(command: list[str], out: Any, limit: float) -> str:
    """Run a command; return why it failed, or nothing."""
    try:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, process_group=0)
    except OSError as error:
        return f"cannot be started: {error}"
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"ended after {limit / 60:.0f} minutes"
    except KeyboardInterrupt:
        _end(process)
        return INTERRUPTED
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" if code else ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and its children, which are its group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _telling(text: str) -> str:
    """Return the lines of an output that name what failed, or its last ones."""
    lines = text.strip().splitlines()
    named = [line for line in lines if line.startswith(("FAILED ", "ERROR ", "make: ***"))]
    return "\n".join(line[:200] for line in (named[:LINES] or lines[-LINES:]))


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of benchmark results by suite, name, size and threads."""
    return {
        f"{file.stem}: {row['what']}, {row['size']}, {row['threads']} threads": row
        for file in sorted(folder.glob("*.json"))
        for row in _rows_of(file)
    }


def _rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results; none if it was not written to its end."""
    try:
        found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    except (ValueError, KeyError):
        return []
    return found


def moved_rows(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table row for each row whose bar is missed or newly met, or whose ratio moved."""
    found = []
    for name, row in now.items():
        earlier = before.get(name)
        change = row["ratio"] / earlier["ratio"] if earlier and earlier["ratio"] else 1.0
        said = [] if row["passed"] else ["missed"]
        if earlier is None:
            said.append("new")
        elif row["passed"] != earlier["passed"]:
            said.append("was met" if earlier["passed"] else "met, was missed")
        if not 1 / TIME_MOVED < change < TIME_MOVED:
            said.append(f"{change:.2f} times")
        if said:
            was = f"{earlier['ratio']:.3f}" if earlier else ""
            cells = (name, was, f"{row['ratio']:.3f}", f"{row['bar']:.3g}", ", ".join(said))
            found.append(f"| {' | '.join(cells)} |")
    if missing := [name for name in before if name not in now]:
        found.append(f"| {len(missing)} rows, such as {missing[0]} |  |  |  | not measured |")
    return found


def page(
    now: Mapping[str, Result], before: Mapping[str, Result], bench: list[str], when: str
) -> str:
    """Write the page."""
    failed = [name for name, result in now.items() if not result.passed]
    lines = [f"# Nightly run, {when}", ""]
    said = f"**{len(failed)} failed: {', '.join(failed)}.**" if failed else "None failed."
    lines += [f"Stages: {len(now)}. {said}", ""]
    lines += ["| stage | result | minutes | before | tests | moved |", "|---|---|--:|--:|---|---|"]
    for name, result in now.items():
        earlier = before.get(name)
        tests = ", ".join(f"{count} {word}" for word, count in result.counts.items())
        was = f"{earlier.seconds / 60:.1f}" if earlier else ""
        word = "passed" if result.passed else f"**failed**: {result.why}"
        cells = (name, word, f"{result.seconds / 60:.1f}", was, tests, _moved(result, earlier))
        lines.append(f"| {' | '.join(cells)} |")
    if "benchmarks" in now:
        lines += ["", "## Benchmarks next to the committed results", ""]
        head = ["| row | committed | now | bar | |", "|---|--:|--:|--:|---|"]
        lines += [*head, *bench] if bench else ["Every bar is met and no ratio moved."]
    for name, result in now.items():
        if result.output:
            log = "" if result.passed else f", the end of {name}.log"
            lines += ["", f"## {name.capitalize()}{log}", "", "```text", result.output, "```"]
    return "\n".join([*lines, ""])


def _moved(now: Result, before: Result | None) -> str:
    """Say how a stage differs from the run before."""
    if before is None:
        return "first run"
    said = []
    if now.passed != before.passed:
        said.append("passes again" if now.passed else "passed before")
    for word in sorted({*now.counts, *before.counts}):
        change = now.counts.get(word, 0) - before.counts.get(word, 0)
        said += [f"{change:+} {word}"] if change else []
    ratio = now.seconds / max(before.seconds, 1e-9)
    if not 1 / TIME_MOVED < ratio < TIME_MOVED and max(now.seconds, before.seconds) > 60:
        said.append(f"{ratio:.2f} times the time")
    return ", ".join(said)


def main() -> int:
    """Run the stages and write the page; the exit code is 1 if a stage failed."""
    parser = argparse.ArgumentParser(prog="python -m release.nightly", description=__doc__)
    parser.add_argument("stages", nargs="*", help=f"{', '.join(STAGES)}; all when none is named")
    parser.add_argument("--minutes", type=int, default=60, help="of fuzzing the kernels (60)")
    parser.add_argument("--hours", type=float, default=8, help="limit of a stage (8)")
    given = parser.parse_args()
    if unknown := set(given.stages) - set(STAGES):
        parser.error(f"there is no stage {unknown.pop()!r}; choose from {', '.join(STAGES)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(FOLDER / "benchmarks", ignore_errors=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the stage ends with it
    before, now, text = _stored(), dict[str, Result](), ""
    for name in given.stages or STAGES:
        print(f"{datetime.now(UTC):%H:%M} {name}", flush=True)
        now[name] = run_stage(name, given.minutes, 3600 * given.hours)
        text = _write(now, before)
        if now[name].why == INTERRUPTED:
            break
    print(text)
    return 0 if all(result.passed for result in now.values()) else 1


def _stored() -> dict[str, Result]:
    """Return the results of the run before, of stages that it ran."""
    file = FOLDER / "last.json"
    stored = json.loads(file.read_text()) if file.exists() else {}
    return {name: Result(**one) for name, one in stored.items()}


def _write(now: Mapping[str, Result], before: Mapping[str, Result]) -> str:
    """Write the page, and the results for the next run; return the page."""
    bench: list[str] = []
    if "benchmarks" in now:
        bench = moved_rows(rows(ROOT / "benchmarks" / "results"), rows(FOLDER / "benchmarks"))
    text = page(now, before, bench, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    # An interrupted stage says nothing about the next run.
    whole = {name: one for name, one in now.items() if one.why != INTERRUPTED}
    merged = {name: asdict(result) for name, result in {**before, **whole}.items()}
    for name, content in (("page.md", text), ("last.json", json.dumps(merged, indent=1) + "\n")):
        partial = FOLDER / f"{name}.new"
        partial.write_text(content)
        partial.replace(FOLDER / name)
    return text


if __name__ == "__main__":
    raise SystemExit(main())
