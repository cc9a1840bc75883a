"""Run the tests of one mutant in a fork that imports the mutated source; return the outcome."""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutate.forks import in_fork, run_tests
from tests.mutate.loading import import_compiled, import_from_text
from tests.mutate.mutant import BUILD, ROOT, Mutant
from tests.mutate.nearest import Selection

KERNELS = "fewfold._native.kernels"


@dataclass(frozen=True)
class Outcome:
    """What came of a mutant.

    `status` is "killed", "timeout" (which counts as killed), "survived", "untested" (no test
    executes the line), "equivalent" (listed as such) or "invalid" (does not compile, or to the same
    program).
    """

    identity: str
    file: str
    line: int
    kind: str
    status: str
    diff: str
    by: str = ""
    seconds: float = 0.0
    tests: int = 0

    def record(self) -> dict[str, Any]:
        """As a row of the results."""
        return asdict(self)


def run_mutant(
    mutant: Mutant,
    text: str,
    selection: Selection,
    expected: float,
    *,
    library: Path | None = None,
    instructions: str = "",
    base: Path = ROOT / "src",
) -> tuple[str, str, float, int]:
    """Run the selected tests on a mutant.

    Args:
        mutant: the change.
        text: the source it changes.
        selection: the tests.
        expected: seconds of processor time they take on the original.
        library: for C++, the kernels built with the mutant.
        instructions: for C++, the instruction set to choose.
        base: the folder that modules are imported from.

    Returns:
        `(status, what killed it, seconds, tests run)`.
    """
    if not selection:
        return "untested", "", 0.0, 0

    def work() -> dict[str, Any]:
        try:
            if library is None:
                sys.path.insert(0, str(base))
                import_from_text(ROOT / mutant.file, base, mutant.apply(text))
            else:
                os.environ["FEWFOLD_ISA"] = instructions
                import_compiled(KERNELS, library)
        except Exception as error:
            return {"failed": f"import: {type(error).__name__}", "ran": 0}
        return run_tests(selection)

    cpu = 15.0 + 3.0 * expected
    how, answer, seconds = in_fork(work, cpu=cpu, wall=20.0 * cpu, log=str(BUILD / "last.log"))
    if how == "timeout":
        return "timeout", f"{cpu:.0f} s of processor time", seconds, 0
    if how == "crash":
        return "killed", "crash", seconds, 0
    if answer["failed"]:
        return "killed", answer["failed"], seconds, answer["ran"]
    return "survived", "", seconds, answer["ran"]
