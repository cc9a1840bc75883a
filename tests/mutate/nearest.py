"""The tests that execute a changed line, nearest and quickest first."""

from collections.abc import Callable
from pathlib import Path

from tests.mutate.coverage import coverage, import_lines
from tests.mutate.mutant import ROOT, Mutant

Selection = dict[str, list[str] | None]
Choice = Callable[[list[str]], list[str]]


def test_files(source: str) -> list[str]:
    """The files of tests of a source: the mirrored folder, then the examples of the source itself.

    A folder of sources without a mirror has its tests in the nearest one above.

    Example:
        >>> test_files("src/fewfold/sampling/inverted_index.py")[-2:]
        ['tests/sampling/test_proposals.py', 'src/fewfold/sampling/inverted_index.py']
        >>> test_files("src/fewfold/losses/linear/candidates.py")[0]
        'tests/losses/test_anchored.py'
    """
    inside = Path(source).relative_to("src/fewfold").parent
    while inside != Path() and not any((ROOT / "tests" / inside).glob("test_*.py")):
        inside = inside.parent
    folder = ROOT / "tests" / inside
    files = folder.glob("test_*.py")
    if inside == Path():  # a file directly in the package
        files = folder.glob(f"test_{Path(source).stem.strip('_')}.py")
    return [*sorted(str(file.relative_to(ROOT)) for file in files), source]


class Nearest:
    """Selects the tests of a mutant of a Python source.

    Args:
        chosen: from the usual files of tests to those that are used.
        longest: tests that take more seconds of processor time are left out.
    """

    def __init__(self, chosen: Choice, longest: float = 10.0) -> None:
        self.chosen = chosen
        self.longest = longest

    def select(self, mutant: Mutant, text: str) -> tuple[Selection, float]:
        """The tests of each file, in order, and the seconds they take together."""
        lines = set(mutant.lines or (mutant.line,))
        anywhere = bool(lines & import_lines(text))
        chosen: dict[str, list[tuple[float, str]]] = {}
        for file in self.chosen(test_files(mutant.file)):
            for name, test in coverage(file).items():
                ran = test["lines"].get(mutant.file, ())
                met = (ran or file == mutant.file) if anywhere else not lines.isdisjoint(ran)
                if mutant.kind == "default" and "default" in name:
                    met = True  # it may look at the signature without calling
                if met and test["seconds"] <= self.longest:
                    chosen.setdefault(file, []).append((test["seconds"], name))
        stem = Path(mutant.file).stem

        def order(file: str) -> tuple[bool, float]:
            return Path(file).stem not in (f"test_{stem}", stem), sum(s for s, _ in chosen[file])

        selection: Selection = {
            file: [name for _, name in sorted(chosen[file])] for file in sorted(chosen, key=order)
        }
        return selection, sum(s for tests in chosen.values() for s, _ in tests)
