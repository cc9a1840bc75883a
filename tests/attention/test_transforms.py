"""Attention and memories under every torch transform, and the table that says so."""

from pathlib import Path

import pytest

from .transforms import CASES, CHECKS, EAGER, FUNCTIONAL, LIMITS, TRACED, promised

TABLE = Path(__file__).parents[2] / "docs" / "transforms_attention.md"

WARNINGS = pytest.mark.filterwarnings("ignore:.*:Warning")  # of the compilers, about themselves
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def known(case, name, request) -> None:
    if (case.name, name) in LIMITS:
        request.applymarker(pytest.mark.xfail(reason=LIMITS[case.name, name], strict=True))


@every_case
@pytest.mark.parametrize("name", EAGER)
def test_eager(case, name, path, request) -> None:
    known(case, name, request)
    EAGER[name](case)


@every_case
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(case, name, request) -> None:
    known(case, name, request)
    FUNCTIONAL[name](case)


@WARNINGS
@pytest.mark.parametrize("name", TRACED)
@every_case
def test_traced(case, name, request) -> None:
    if not case.wide and name != "export":
        pytest.skip("one representative per kind of code is compiled; `make tables` does all")
    known(case, name, request)
    TRACED[name](case)


def test_the_documented_table_is_what_these_tests_prove() -> None:
    """Rewrite it with: python -m tests.attention.transforms docs/transforms_attention.md"""
    assert TABLE.read_text() == promised()
    assert {name for _, name in LIMITS} <= set(CHECKS)
