"""Every map under every torch transform, and the documented table."""

from collections.abc import Container, Iterable
from pathlib import Path

import pytest

from tests.transforms import WARNINGS

from .cases import CASES, Case
from .transforms import EAGER, FUNCTIONAL, TABLE, TRACED, compiled

# The graph is what may fail; `make tables` makes code of all, which takes minutes.
TO_MACHINE_CODE = ("sparsemax", "entmax(tensor)", "ksubset(2)")
# Only at night. Another map has the same operations: bisection, groups, bounds.
AT_NIGHT = {
    *(("entmax(tensor)", "export"), ("entmax(tensor)", "ONNX")),
    *(("constrained_softmax", "ONNX"), ("constrained_softmax", "compile, dynamic")),
    ("oscarmax(0.1)", "ONNX"),
}
PAGE = Path(__file__).parents[2] / "docs" / "transforms_table.md"


def checks(names: Iterable[str], others: Container[str] = ()) -> pytest.MarkDecorator:
    """All of these for one map per kind of code, and for the other maps the few that are named."""
    pairs = [(case, name) for case in CASES for name in names if case.wide or name in others]
    rows = [
        pytest.param(*pair, marks=pytest.mark.nightly if at_night(*pair) else (), id=made)
        for pair in pairs
        for made in (f"{pair[0].name}-{pair[1]}",)
    ]
    return pytest.mark.parametrize(("case", "name"), rows)


def at_night(case: Case, name: str) -> bool:
    """Whether another check or map in `make test` goes the same way.

    Compilation for any number of rows traces what compilation for one traces.
    """
    if name == "compile":
        return case.name not in TO_MACHINE_CODE and (case.name, "compile, dynamic") not in AT_NIGHT
    return (case.name, name) in AT_NIGHT


@checks(EAGER, others=("backward", "double backward"))
def test_eager(case, name, path, request):
    TABLE.known(case, name, request)
    EAGER[name](case)


@checks(FUNCTIONAL, others=("forward mode", "hessian"))
def test_functional(case, name, request):
    TABLE.known(case, name, request)
    FUNCTIONAL[name](case)


@WARNINGS
@checks(TRACED)  # map by map, as the last two share a program
def test_traced(case, name, request):
    TABLE.known(case, name, request)
    if name == "compile" and case.name not in TO_MACHINE_CODE:
        compiled(case, "aot_eager")
    else:
        TRACED[name](case)


def test_the_documented_table_is_what_these_tests_prove():
    """Rewrite it with: make tables"""
    assert PAGE.read_text() == TABLE.promised()


def test_every_public_map_is_in_the_table():
    import fewfold.maps

    functions = {case.function.__name__ for case in CASES if case.wide}
    maps = {
        name
        for name in fewfold.maps.__all__
        if name.endswith(("max", "ksubset")) and name.islower()
    }
    assert maps <= functions
    assert {case.name for case in CASES if case.wide} >= set(TO_MACHINE_CODE)
    assert {name for _, name in TABLE.limits} <= set(TABLE.checks)
