"""Fuzz the kernels: ``python -m tests.fuzz --minutes 5 --module maps``.

Each finding is printed with the command that repeats it; the exit code is 1 if there is any.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import MODULES

ISAS = ("avx512", "avx2", "generic")
MOST = 10  # findings of a module and instruction set before it is left


@dataclass
class Tally:
    """What one module on one instruction set came to."""

    trials: int = 0
    inputs: int = 0
    findings: list[dict[str, object]] = field(default_factory=list)


def fuzz(module: str, isa: str, trial: str, seed: int, seconds: float) -> Tally:
    """Run a worker until its time is up, starting another one after a crash."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        while seconds >= 0 and len(tally.findings) < MOST:
            command = [sys.executable, "-m", "tests.fuzz.worker", module, trial, str(seed)]
            done = subprocess.run(
                [*command, str(seconds), str(note)],
                # Threads that spin while they wait would take the processor from one another.
                env={"OMP_WAIT_POLICY": "passive", **os.environ, "FEWFOLD_ISA": isa},
                capture_output=True,
                text=True,
            )
            lines = [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]
            tally.findings += [line for line in lines if "error" in line]
            if done.returncode == 0:
                tally.trials += lines[-1]["trials"]
                tally.inputs += lines[-1]["inputs"]
                return tally
            at = note.read_text().split() if note.exists() else []
            if len(at) != 2:
                raise SystemExit(f"the worker did not start:\n{done.stderr[-2000:]}")
            said = f"died with {done.returncode}: {done.stderr.strip()[-400:]}"
            tally.findings.append({"trial": at[0], "seed": int(at[1]), "error": said})
            seed, seconds = int(at[1]) + 1, seconds / 2  # how long it ran is not known
    return tally


def show(module: str, isa: str, tally: Tally) -> None:
    """Print a line of counts, and the findings with the commands that repeat them."""
    print(
        f"{module:<14} {isa:<8} {tally.trials:>8,} trials {tally.inputs:>12,} inputs "
        f"{len(tally.findings):>4} findings",
        flush=True,
    )
    for found in tally.findings:
        print(f"  {found['error']}")
        print(
            f"  repeat: python -m tests.fuzz --module {module} --isa {isa} "
            f"--trial {found['trial']} --seed {found['seed']} --minutes 0",
            flush=True,
        )


def main() -> int:
    """Divide the time among modules and instruction sets, and report."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all; 0: one trial of each")
    parser.add_argument("--module", action="append", choices=MODULES, help="default: every module")
    parser.add_argument("--isa", action="append", choices=ISAS, help="default: every one")
    parser.add_argument("--trial", default="", help="only the trial of this name")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    given = parser.parse_args()
    modules, isas = given.module or list(MODULES), given.isa or list(ISAS)
    seconds = 60 * given.minutes / (len(modules) * len(isas))
    found = 0
    for module in modules:
        for isa in isas:
            tally = fuzz(module, isa, given.trial, given.seed, seconds)
            show(module, isa, tally)
            found += len(tally.findings)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
