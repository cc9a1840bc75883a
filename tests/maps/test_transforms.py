"""Every map under every torch transform, and the table in the documentation that says so."""

from pathlib import Path

import pytest

from tests.transforms import WARNINGS

from .cases import CASES, every_map
from .transforms import EAGER, FUNCTIONAL, TABLE, TRACED, compiled

# The graph is what may fail; `make tables` makes code of all, which takes minutes.
TO_MACHINE_CODE = ("sparsemax", "entmax(tensor)", "ksubset(2)")
PAGE = Path(__file__).parents[2] / "docs" / "transforms_table.md"


@every_map
@pytest.mark.parametrize("name", EAGER)
def test_eager(case, name, path, request):
    TABLE.known(case, name, request)
    EAGER[name](case)


@every_map
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(case, name, request):
    TABLE.known(case, name, request)
    FUNCTIONAL[name](case)


@WARNINGS
@pytest.mark.parametrize("name", TRACED)  # fastest, as the last two share a program
@every_map
def test_traced(case, name, request):
    if not case.wide and name != "export":
        pytest.skip("one representative per kind of code is compiled")
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
