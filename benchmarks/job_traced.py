"""``python -m benchmarks.job_traced LOG OUT ...``: `fewfold fit`, with time and memory by phase.

Prints a JSON object as the last line. The phases are those of the progress display.
"""

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.resources import Stopwatch
from fewfold import _progress


class Trace:
    """Time of the phases, by name; the time of a phase inside another counts for both."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}
        self.began: dict[int, float] = {}

    def push(self, phase: Any) -> None:
        """A phase begins."""
        self.mark()
        self.began[id(phase)] = time.perf_counter()

    def pop(self, phase: Any) -> None:
        """A phase ends."""
        self.mark()
        began = self.began.pop(id(phase), None)
        if began is not None:
            self.seconds[phase.what] = self.seconds.get(phase.what, 0) + time.perf_counter() - began

    def mark(self) -> None:
        """Note the peak memory since the last mark for all phases that are running."""
        peak = self.watch.peak_since()
        for phase in _progress._phases.stack:
            self.peaks[phase.what] = max(self.peaks.get(phase.what, 0), peak)


def traced(trace: Trace) -> None:
    """Report every phase to the trace."""
    phases: Any = _progress._phases
    phases.push = _both(trace.push, phases.push)
    phases.pop = _both(trace.pop, phases.pop)


def _both(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(phase: Any) -> None:
        first(phase)
        second(phase)

    return call


def main(log: str, out: str, *arguments: str) -> None:
    """Fit, and print what it took."""
    watch = Stopwatch()
    for left in Path(out).parent.glob(f"{Path(out).name}.checkpoint*"):  # of an interrupted run
        left.unlink()
    from fewfold.cli import main as command

    trace = Trace(watch)
    traced(trace)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command(["fit", log, "--out", out, "--overwrite", "--json", *arguments])
    if code:
        raise SystemExit(code)
    report = json.loads(printed.getvalue())
    scores = report["evaluation"]["overall"]
    choice = report["choice"] or {"tried": [], "why": "", "not tried": {}}
    print(
        json.dumps(
            {
                **watch.stop(),
                "ndcg@10": scores["scores"]["NDCG@10"]["mean"],
                "interval": [scores["scores"]["NDCG@10"][end] for end in ("low", "high")],
                "users": scores["users"],
                "users ranked": report["evaluation"]["users ranked"],
                "model": report["recipe"],
                "bytes": sum(file.stat().st_size for file in Path(out).iterdir()),
                "tried": [
                    {key: one[key] for key in ("model", "settings", "ndcg", "seconds", "effort")}
                    for one in choice["tried"]
                ],
                "not tried": choice["not tried"],
                "phases": [
                    (name, round(seconds, 3), trace.peaks.get(name, 0))
                    for name, seconds in trace.seconds.items()
                    if seconds >= 0.05
                ],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
