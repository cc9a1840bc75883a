"""``python -m benchmarks [SUITE ...]``: measure, print the tables and write the results."""

import argparse
import importlib
from pathlib import Path

from benchmarks import harness

SUITES = (
    "maps",
    "losses",
    "optim",
    "embeddings",
    "structured",
    "expectation",
    "distributions",
    "attention",
    "product_keys",
    "fastvae",
    "next_item",
    "als",
    "sparse_linear",
    "serving",
    "reranking",
    "http",
    "update",
    "imports",
    "ingest",
    "prepare",
    "distributed",
    "job",
    "pure",
    "compiled",
    "gpu",
)
RESULTS = Path(__file__).parent / "results"
QUICK = Path("build/benchmarks")


def main() -> int:
    """Run the suites; the exit code is 1 if a target was missed."""
    arguments = _arguments()
    missed = 0
    for suite in arguments.suites or SUITES:
        cases = importlib.import_module(f"benchmarks.{suite}").cases()
        if arguments.only:
            cases = [case for case in cases if arguments.only in f"{case.what} {case.size}"]
        if arguments.list:
            for case in cases:
                print(f"{suite:7} {case.what:36} {case.size:22} <= {case.bar:.3g} of {case.peer}")
            continue
        rows = harness.run(cases, seconds=0.2 if arguments.quick else 1.5)
        if not rows:
            continue
        # A quick or partial look must not replace the committed table.
        partial = arguments.quick or arguments.only
        page = harness.write(suite, rows, arguments.to or (QUICK if partial else RESULTS))
        print(page.read_text())
        missed += sum(not row.passed for row in rows)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; all when none is named")
    add("--quick", action="store_true", help="short and noisy; writes to build/")
    add("--list", action="store_true", help="show the rows and their bars, measure nothing")
    add("--to", metavar="FOLDER", type=Path, help="where to write, instead of benchmarks/results")
    add("--only", metavar="TEXT", help="only rows that contain TEXT; writes to build/")
    arguments = parser.parse_args()
    for suite in arguments.suites:
        if suite not in SUITES:
            parser.error(f"there is no suite {suite!r}; choose from {', '.join(SUITES)}")
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
