"""Attention and Hopfield layers under every torch transform, and the documented table."""

from pathlib import Path

import pytest

from tests.transforms import EAGER, FUNCTIONAL, WARNINGS

from .transforms import CASES, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "transforms_attention.md"
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
@pytest.mark.parametrize("name", EAGER)
def test_eager(case, name, path, request) -> None:
    if path == "torch" and "ontinuous" in case.name:
        pytest.skip("there is no kernel for densities, so both ways are one")
    TABLE.known(case, name, request)
    EAGER[name](case)


@every_case
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(case, name, request) -> None:
    TABLE.known(case, name, request)
    FUNCTIONAL[name](case)


@WARNINGS
@TABLE.traced()
def test_traced(case, name, request) -> None:
    TABLE.known(case, name, request)
    TABLE.checks[name](case)


def test_the_documented_table_is_what_these_tests_prove() -> None:
    """Rewrite it with: make tables"""
    assert PAGE.read_text() == TABLE.promised()
    assert {name for _, name in TABLE.limits} <= set(TABLE.checks)
