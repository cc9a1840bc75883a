"""Mutants run in a fork: detected ones are killed, others survive."""

import os
import sys
import time
from pathlib import Path

import pytest

from tests.mutate import forks, results, trial
from tests.mutate.__main__ import repeated
from tests.mutate.forks import in_fork
from tests.mutate.loading import import_from_text
from tests.mutate.python_mutants import python_mutants
from tests.mutate.trial import Outcome, run_mutant

TOY = '''\
def clipped(x, low=0):
    """At least `low`.

    >>> clipped(0, 1)
    1
    """
    if x < low:
        return low
    return x
'''
TESTS = """\
import sys
sys.path.insert(0, {folder!r})
from toy_module import clipped

def test_below():
    assert clipped(-2) == 0

def test_above():
    assert clipped(3) == 3
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What runs beside this, such as the command itself, has the usual one."""
    place = tmp_path / "build"
    place.mkdir()
    monkeypatch.setattr(forks, "BUILD", place)
    monkeypatch.setattr(trial, "BUILD", place)
    return place


def test_a_toy_module_has_one_survivor(tmp_path: Path, own_folder: Path) -> None:
    source, tests = tmp_path / "toy_module.py", tmp_path / "test_toy.py"
    source.write_text(TOY)
    tests.write_text(TESTS.format(folder=str(tmp_path)))
    before = dict(os.environ), list(sys.meta_path), set(sys.modules)
    found = {}
    for mutant in python_mutants(str(source), TOY):
        if mutant.kind in ("comparison", "guard"):
            status, by, _, ran = run_mutant(mutant, TOY, {str(tests): None}, 0.1, base=tmp_path)
            found[mutant.hunk(TOY)[1]] = (status, by.rsplit("::")[-1], ran)
    assert found == {
        "if x <= low:": ("survived", "", 2),  # at the limit both give the limit
        "if x >= low:": ("killed", "test_below", 1),
        "if True:": ("killed", "test_above", 2),
        "if False:": ("killed", "test_below", 1),
    }
    assert source.read_text() == TOY
    assert [path.name for path in tmp_path.rglob("*.pyc")] == []
    after = dict(os.environ), list(sys.meta_path), set(sys.modules)
    assert after == before
    assert [path.name for path in own_folder.iterdir()] == ["last.log"]


def test_examples_run_on_the_mutant_too(tmp_path: Path) -> None:
    source = tmp_path / "toy_package" / "inside.py"
    source.parent.mkdir()
    source.with_name("__init__.py").touch()
    source.write_text(TOY)
    guard = next(m for m in python_mutants(str(source), TOY) if m.new == "False")
    status, by, _, ran = run_mutant(guard, TOY, {str(source): None}, 0.1, base=tmp_path)
    assert (status, by.rsplit("::")[-1], ran) == ("killed", "toy_package.inside.clipped", 1)


def test_nothing_runs_without_a_test(tmp_path: Path) -> None:
    mutant = python_mutants(str(tmp_path / "toy_module.py"), TOY)[0]
    assert run_mutant(mutant, TOY, {}, 0.0)[0] == "untested"


def test_a_fork_that_does_not_end_or_dies_is_told_from_one_that_answers() -> None:
    def forever() -> None:
        while True:
            time.sleep(60)

    def busy() -> None:
        while True:
            pass

    assert in_fork(lambda: [1], cpu=60, wall=60)[:2] == ("done", [1])
    assert in_fork(forever, cpu=60, wall=0.2)[0] == "timeout"
    assert in_fork(busy, cpu=0, wall=60)[0] == "timeout"
    assert in_fork(os.abort, cpu=60, wall=60)[0] == "crash"
    assert in_fork(lambda: 1 / 0, cpu=60, wall=60)[0] == "crash"


def test_a_module_that_is_imported_already_cannot_be_replaced() -> None:
    with pytest.raises(RuntimeError, match="imported already"):
        import_from_text(Path(__file__).with_name("mutant.py"), Path(__file__).parents[2], "")


def test_the_score_counts_what_could_be_noticed() -> None:
    states = ("killed", "timeout", "survived", "untested", "equivalent", "invalid", "killed")
    outcomes = [
        Outcome("id", f"src/{place % 2}.py", place, "guard", state, "-a\n+b")
        for place, state in enumerate(states)
    ]
    assert results.score(outcomes) == (3, 5)
    assert results.table(outcomes).splitlines()[-1].split() == ["all", "3", "5", "60%", "1"]
    listed = results.survivors(outcomes)
    assert "src/0.py:2  guard, survived\n    -a\n    +b" in listed
    assert "src/1.py:3  guard, untested" in listed
    assert "killed" not in listed


def test_an_earlier_run_is_repeated_on_a_source_that_has_grown(tmp_path: Path) -> None:
    file, grown = str(tmp_path / "toy_module.py"), "LIMIT = 3\n\n" + TOY
    earlier = [
        Outcome(mutant.identity(TOY), file, mutant.line, mutant.kind, "survived", "")
        for mutant in python_mutants(file, TOY)
        if mutant.kind == "guard"
    ]
    every = ((mutant, grown) for mutant in python_mutants(file, grown))
    assert [mutant.new for mutant, _ in repeated(every, earlier)] == ["True", "False"]
