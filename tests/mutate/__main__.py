"""The command: `python -m tests.mutate --module losses --sample 50`."""

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.mutate import equivalents, results
from tests.mutate.cpp_mutants import cpp_mutants
from tests.mutate.forks import warm_up
from tests.mutate.kernels import SETS, Build
from tests.mutate.mutant import BUILD, PACKAGE, ROOT, Mutant
from tests.mutate.native import NearestNative, unmeasured
from tests.mutate.nearest import Nearest
from tests.mutate.python_mutants import changes_program, python_mutants
from tests.mutate.trial import Outcome, run_mutant

_CPP = (".cpp", ".h")


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    out = argparse.ArgumentParser(
        prog="python -m tests.mutate",
        description="Change the sources line by line and list the changes that no test notices.",
    )
    out.add_argument("--module", action="append", default=[], help="a folder of src/fewfold")
    out.add_argument("--file", action="append", default=[], help="a single source")
    out.add_argument("--lines", help="only these lines of it, as 10-20")
    out.add_argument("--sample", type=int, help="so many mutants, drawn at random")
    out.add_argument("--seed", type=int, default=0, help="of the drawing (default 0)")
    out.add_argument("--minutes", type=float, help="stop after so long")
    out.add_argument("--tests", action="append", default=[], help="a further file of tests to use")
    out.add_argument("--only", action="append", default=[], help="use this file of tests alone")
    out.add_argument("--without", action="append", default=[], help="do not use this file of tests")
    out.add_argument(
        "--longest",
        type=float,
        default=10.0,
        help="leave out tests that take more seconds (default 10)",
    )
    out.add_argument(
        "--isa",
        action="append",
        choices=SETS,
        help="C++: compile mutants for this instruction set (default: the best that sees them)",
    )
    out.add_argument(
        "--unmeasured",
        action="store_true",
        help="C++: choose tests by nearby.toml instead of measuring what they execute",
    )
    out.add_argument(
        "--again", type=Path, help="run only what survived in these results, and take over the rest"
    )
    out.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    return out


def sources(modules: list[str], files: list[str]) -> list[str]:
    """The paths of the sources asked for, relative to the root."""
    found = [str(Path(file).resolve().relative_to(ROOT)) for file in files]
    for module in modules:
        folder = PACKAGE / module
        if not folder.is_dir():
            raise SystemExit(f"--module {module}: there is no folder {folder.relative_to(ROOT)}")
        suffixes = _CPP if module == "_native" else (".py",)
        inside = sorted(file for file in folder.rglob("*") if file.suffix in suffixes)
        found += [str(file.relative_to(ROOT)) for file in inside]
    if not found:
        raise SystemExit(
            "say what to change: --module losses, or --file src/fewfold/maps/entmax.py"
        )
    return found


def mutants_of(file: str, text: str) -> list[Mutant]:
    """The mutants of a source of either language."""
    return (cpp_mutants if file.endswith(_CPP) else python_mutants)(file, text)


def drawn(
    files: list[str], lines: str | None, sample: int | None, seed: int
) -> Iterator[tuple[Mutant, str]]:
    """The mutants in order or, if only some are wanted, in random order."""
    first, last = (int(part) for part in lines.split("-")) if lines else (0, 10**9)
    pairs = []
    for file in files:
        text = (ROOT / file).read_text()
        pairs += [(m, text) for m in mutants_of(file, text) if first <= m.line <= last]
    if sample is not None:
        random.Random(seed).shuffle(pairs)
    return iter(pairs)


def repeated(
    pairs: Iterator[tuple[Mutant, str]], earlier: list[Outcome]
) -> list[tuple[Mutant, str]]:
    """The mutants of an earlier run, as far as their lines still exist."""
    names = {outcome.identity for outcome in earlier}
    return [(mutant, text) for mutant, text in pairs if mutant.identity(text) in names]


class Run:
    """Tries mutants one after another."""

    def __init__(self, options: argparse.Namespace, native: bool) -> None:
        self.known = equivalents.load()

        def chosen(usual: list[str]) -> list[str]:
            files = options.only or [*usual, *options.tests]
            return [file for file in dict.fromkeys(files) if file not in options.without]

        self.nearest = Nearest(chosen, options.longest)
        if native:
            self.kernels = Build(tuple(options.isa or SETS))
            self.kernels.prepare()
            if options.unmeasured:
                self.select = lambda mutant, text: unmeasured(mutant, chosen)
            else:
                self.select = NearestNative(chosen, options.longest).select

    def outcome(self, mutant: Mutant, text: str) -> Outcome:
        """What comes of one mutant."""
        status, by, seconds, ran = self._tried(mutant, text)
        return Outcome(
            mutant.identity(text),
            *(mutant.file, mutant.line, mutant.kind, status, mutant.diff(text)),
            *(by, round(seconds, 2), ran),
        )

    def _tried(self, mutant: Mutant, text: str) -> tuple[str, str, float, int]:
        known = equivalents.reason(mutant, text, self.known)
        if known:
            return "equivalent", known, 0.0, 0
        if not mutant.file.endswith(_CPP):
            if not changes_program(mutant, text):
                return "invalid", "", 0.0, 0
            selection, expected = self.nearest.select(mutant, text)
            return run_mutant(mutant, text, selection, expected)
        selection, expected = self.select(mutant, text)
        if not selection:
            return "untested", "", 0.0, 0
        how, instructions, library = self.kernels.build(mutant, text)
        if library is None:
            return "invalid", how, 0.0, 0
        return run_mutant(
            mutant, text, selection, expected, library=library, instructions=instructions
        )


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code is 1 if a mutant survives."""
    options = parser().parse_args(arguments)
    files = sources(options.module, options.file)
    pairs = drawn(files, options.lines, options.sample, options.seed)
    if options.list:
        for mutant, text in itertools.islice(pairs, options.sample):
            print(f"{mutant.file}:{mutant.line}  {mutant.kind}\n{mutant.diff(text)}")
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    warm_up()
    run = Run(options, any(file.endswith(_CPP) for file in files))
    name = "-".join([*options.module, *(Path(file).stem for file in options.file)])
    until = time.monotonic() + 60 * (options.minutes or 10**6)
    total = options.sample or len(list(drawn(files, options.lines, None, 0)))
    earlier: list[Outcome] = []
    if options.again:  # the same mutants, whatever a changed source would now draw
        earlier = results.load(options.again)
        same = repeated(drawn(files, options.lines, None, 0), earlier)
        pairs, total = iter(same), len(same)
    over = {o.identity: o for o in earlier if o.status not in results.MISSED}
    settings = {key: str(value) for key, value in vars(options).items()}
    outcomes: list[Outcome] = []
    try:
        for mutant, text in pairs:
            counted = sum(outcome.status != "invalid" for outcome in outcomes)
            if counted >= total or time.monotonic() > until:
                break
            outcomes.append(over.get(mutant.identity(text)) or run.outcome(mutant, text))
            if outcomes[-1].identity not in over:
                print(results.line(outcomes[-1], counted + 1, total), flush=True)
                results.save(f"{name}-{options.seed}", outcomes, settings)
    except KeyboardInterrupt:
        print("stopped")
    place = results.save(f"{name}-{options.seed}", outcomes, settings)
    missed = results.survivors(outcomes)
    print("\n" + (f"survivors\n{missed}\n" if missed else "no survivors\n"))
    print(results.table(outcomes))
    print(f"everything is in {place.relative_to(ROOT)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
