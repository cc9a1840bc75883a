"""The tests of a mutant: those that execute its line, nearest and quickest first."""

import tomllib
from typing import Any

import pytest

from tests.mutate import coverage, nearest
from tests.mutate.coverage import import_lines
from tests.mutate.forks import in_fork
from tests.mutate.kernels import NATIVE
from tests.mutate.mutant import BUILD, ROOT, Mutant
from tests.mutate.native import NEARBY, kernel_tests, unmeasured
from tests.mutate.nearest import Nearest

SOURCE = "src/fewfold/sampling/exact.py"
TEXT = "LIMIT = 3\n\ndef f(a=1):\n    b = a\n    return b\n\ndef g():\n    return LIMIT\n"


def test_case(seconds: float, *lines: int) -> dict[str, Any]:
    return {"seconds": seconds, "lines": {SOURCE: list(lines)} if lines else {}}


test_case.__test__ = False  # type: ignore[attr-defined]

MEASURED = {
    "tests/sampling/test_exact.py": {
        "slow": test_case(3.0, 4, 5),
        "quick": test_case(0.1, 4, 5),
        "too long": test_case(11.0, 4, 5),
        "the other": test_case(0.2, 8),
        "of nothing": test_case(0.2),
        "test_defaults": test_case(0.1),
    },
    "tests/sampling/test_cheap.py": {"cheap": test_case(0.01, 4)},
    "tests/sampling/test_dear.py": {"dear": test_case(2.0, 4)},
}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "coverage", MEASURED.__getitem__)


def select(line: int, kind: str = "constant", lines: tuple[int, ...] = ()) -> tuple[Any, float]:
    order = ["tests/sampling/test_dear.py", "tests/sampling/test_cheap.py"]
    chosen = Nearest(lambda usual: [*order, "tests/sampling/test_exact.py"])
    return chosen.select(Mutant(SOURCE, 0, 1, "x", kind, line, lines), TEXT)


@pytest.mark.parametrize("folder", ["losses/linear", "embeddings/table", "structured/sparsemap"])
def test_a_folder_without_a_mirror_has_the_tests_of_the_one_above(folder: str) -> None:
    source = next((ROOT / "src/fewfold" / folder).glob("[!_]*.py")).relative_to(ROOT)
    *tests, examples = nearest.test_files(str(source))
    assert examples == str(source)
    above = ROOT / "tests" / folder.split("/")[0]
    assert tests == sorted(str(file.relative_to(ROOT)) for file in above.glob("test_*.py"))
    assert len(tests) > 5


def test_the_file_of_the_same_name_comes_first_then_the_cheapest() -> None:
    selection, seconds = select(4)
    assert list(selection.items()) == [
        ("tests/sampling/test_exact.py", ["quick", "slow"]),
        ("tests/sampling/test_cheap.py", ["cheap"]),
        ("tests/sampling/test_dear.py", ["dear"]),
    ]
    assert seconds == pytest.approx(5.11)


def test_only_tests_that_execute_the_line() -> None:
    assert select(8)[0] == {"tests/sampling/test_exact.py": ["the other"]}
    assert select(5)[0] == {"tests/sampling/test_exact.py": ["quick", "slow"]}
    assert select(99, lines=(5,))[0] == select(5)[0]


def test_what_runs_on_import_meets_every_test_of_the_file() -> None:
    assert import_lines(TEXT) == {1, 2, 3, 6, 7, 9}
    chosen = select(1)[0]["tests/sampling/test_exact.py"]
    assert set(chosen) == {"quick", "slow", "the other"}


def test_a_default_meets_tests_that_look_at_defaults() -> None:
    chosen = select(3, "default", (4, 5))[0]["tests/sampling/test_exact.py"]
    assert set(chosen) == {"quick", "slow", "test_defaults"}


def test_lines_are_measured() -> None:
    """On the examples of a small source, in a fork."""
    BUILD.mkdir(parents=True, exist_ok=True)
    file = "src/fewfold/losses/language_metrics.py"
    how, answer, _ = in_fork(lambda: coverage._measure(file), cpu=120, wall=600)
    assert how == "done"
    assert answer["code"] == 0
    lines = (ROOT / file).read_text().splitlines()
    for name, test in answer["tests"].items():
        ran = {lines[number - 1].strip() for number in test["lines"][file]}
        assert ("low, high = 0.0, 1.0" in ran) == name.endswith("optimal_epsilon")
        assert not any(line.startswith("raise") for line in ran)
        assert test["seconds"] > 0


def test_every_c_file_has_tests_by_name() -> None:
    files = [file for file in NATIVE.rglob("*") if file.suffix in (".h", ".cpp")]
    sources = {file.name for file in files}
    listed = set().union(*tomllib.loads(NEARBY.read_text()).values())
    assert listed <= sources | {"*"}
    for file in files:
        mutant = Mutant(str(file.relative_to(ROOT)), 0, 1, "x", "constant", 1)
        selection, _ = unmeasured(mutant, lambda usual: usual)
        assert selection
        assert all((ROOT / file).exists() for file in selection)
    assert "tests/maps/test_map_properties.py" in kernel_tests()
    assert not any("experiments" in file for file in kernel_tests())
