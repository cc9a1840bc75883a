"""Harness of all suites: measures rows with a peer and a target; writes JSON and Markdown tables.

A row is ours next to its peer: both are built from the same inputs, each allocates its own output,
the calls are interleaved in one process, and the ratio of the medians is compared with the bar.
Everything is said as ``ours / peer <= bar``: "2.5 times faster" is a bar of 0.4.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import torch

import fewfold
from fewfold import _native
from fewfold._files import new_file
from fewfold._timing import Call, race


@dataclass(frozen=True)
class Pair:
    """The two calls of a row; ``before_*`` runs untimed before each of them.

    ``copy`` joins the race where ours must read and write as much as a plain copy does: memory has
    faster and slower minutes, and only the same minute tells what is possible.
    """

    ours: Call
    peer: Call
    copy: Call | None = None
    before_ours: Call | None = None
    before_peer: Call | None = None
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Peak:
    """Values of both sides of a row that is not timed: memory, or a fixed limit.

    ``details`` are written to the JSON file only.
    """

    ours: float
    peer: float
    unit: str = "bytes"
    details: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row to measure. ``build`` makes the inputs, so that they live only while the row runs."""

    what: str
    size: str
    peer: str
    bar: float
    build: Callable[[], Pair | Peak]
    threads: int = 1


@dataclass(frozen=True)
class Row:
    """A measured row: seconds (or bytes) of fewfold and the peer, and whether the target is met."""

    what: str
    size: str
    peer: str
    threads: int
    unit: str
    ours_value: float
    peer_value: float
    ratio: float
    bar: float
    passed: bool
    copies: float | None = None  # ours in plain copies of the input
    spread: dict[str, float] = field(default_factory=dict)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch, and with it the kernels, on ``count`` threads."""
    earlier = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(earlier)


def run(cases: Iterable[Case], *, seconds: float) -> list[Row]:
    """Measure the cases one after the other and report each on stderr."""
    todo = list(cases)
    rows = []
    for number, case in enumerate(todo, 1):
        say(f"[{number:3}/{len(todo)}] {case.what:<34} {case.size:<22} ", end="")
        row = _measure(case, seconds)
        say(f"{row.ratio:7.3f} of {row.peer} (bar {row.bar:g}) {'ok' if row.passed else 'FAIL'}")
        rows.append(row)
    return rows


def _measure(case: Case, seconds: float) -> Row:
    spread: dict[str, float] = {}
    with threads(case.threads):
        built = case.build()
        if isinstance(built, Peak):
            unit, ours, peer, spread = built.unit, built.ours, built.peer, built.details
        else:
            unit = "seconds"
            ours, peer, spread = _time(built, seconds)
    return Row(
        what=case.what,
        size=case.size,
        peer=case.peer,
        threads=case.threads,
        unit=unit,
        ours_value=ours,
        peer_value=peer,
        ratio=ours / peer,
        bar=case.bar,
        passed=ours / peer <= case.bar,
        copies=spread["ours_median"] / spread["copy_median"] if "copy_median" in spread else None,
        spread=spread,
    )


def _time(pair: Pair, seconds: float) -> tuple[float, float, dict[str, float]]:
    calls = {"ours": pair.ours, "peer": pair.peer}
    if pair.copy is not None:
        calls["copy"] = pair.copy
    before = {"ours": pair.before_ours, "peer": pair.before_peer}
    waiting = {name: call for name, call in before.items() if call is not None}
    timing = race(calls, seconds=seconds, before=waiting, clock=pair.clock)
    spread = {
        f"{name}_{end}": getattr(timing[name], end)
        for name in calls
        for end in ("median", "low", "high", "rounds")
    }
    return timing["ours"].median, timing["peer"].median, spread


def machine() -> dict[str, str]:
    """Return what the numbers depend on: processor, instruction sets, versions, date."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch instruction set": torch.backends.cpu.get_cpu_capability(),
        "fewfold": fewfold.__version__,
        "fewfold instruction set": _native.instruction_set() or "none, pure torch",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def write(suite: str, rows: list[Row], folder: Path) -> Path:
    """Write ``suite``.json and ``suite``.md below ``folder``; return the Markdown file."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = machine()
    record = {"suite": suite, "machine": facts, "rows": [asdict(row) for row in rows]}
    with new_file(folder / f"{suite}.json") as partial:
        partial.write_text(json.dumps(record, indent=1) + "\n")
    page = folder / f"{suite}.md"
    with new_file(page) as partial:
        partial.write_text(markdown(rows, facts))
    return page


def markdown(rows: list[Row], facts: dict[str, str]) -> str:
    """Render the rows as a table below one line about the machine."""
    lines = [", ".join(f"{name}: {value}" for name, value in facts.items()) + ".", ""]
    head = ("what", "size", "threads", "ours", "peer", "peer takes", "ratio", "bar", "", "copies")
    lines += [f"| {' | '.join(head)} |", "|---|---|--:|--:|---|--:|--:|--:|---|--:|"]
    for row in rows:
        mark = "✓" if row.passed else "✗ missed"
        copies = "" if row.copies is None else f"{row.copies:.2f}"
        ours, peer = (quantity(value, row.unit) for value in (row.ours_value, row.peer_value))
        cells = (row.what, row.size, str(row.threads), ours, row.peer, peer)
        numbers = (f"{row.ratio:.2f}", f"{row.bar:.3g}", mark, copies)
        lines.append(f"| {' | '.join((*cells, *numbers))} |")
    met = sum(row.passed for row in rows)
    return "\n".join([*lines, "", f"{met} of {len(rows)} bars met.", ""])


def quantity(value: float, unit: str) -> str:
    """Format seconds or bytes in a readable unit; other numbers have none.

    >>> quantity(0.00123, "seconds"), quantity(3.2e8, "bytes"), quantity(0.25, "")
    ('1.23 ms', '305 MiB', '0.2500')
    """
    if not unit:
        return f"{value:.4f}"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    for name, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.2f} {name}"
    return f"{value / 1e-6:.1f} us"


def say(text: str, end: str = "\n") -> None:
    """Print progress to stderr; stdout is for the tables."""
    print(text, end=end, file=sys.stderr, flush=True)
