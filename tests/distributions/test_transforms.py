"""Distributions under every torch transform, and the documented table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributions import Distribution

from fewfold import distributions
from tests.transforms import EAGER, FUNCTIONAL, WARNINGS

from .transforms import CASES, DISTRIBUTIONS, TABLE

PAGE = Path(__file__).parents[2] / "docs" / "transforms_distributions.md"
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    """As the table is: without checks of arguments, which look at numbers."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(before)


@every_case
@pytest.mark.parametrize("name", EAGER | FUNCTIONAL)
def test_eager(case, name, request) -> None:
    TABLE.known(case, name, request)
    TABLE.checks[name](case)


@WARNINGS
@TABLE.traced()
def test_traced(case, name, request) -> None:
    TABLE.known(case, name, request)
    TABLE.checks[name](case)


def test_the_documented_table_is_what_these_tests_prove() -> None:
    """Rewrite it with: make tables"""
    assert PAGE.read_text() == TABLE.promised()
    rows, columns = {case.name for case in CASES}, set(TABLE.checks)
    assert all(row in rows and column in columns for row, column in TABLE.limits)


def test_every_law_is_in_the_table() -> None:
    dists = {
        name
        for name in distributions.__all__
        if isinstance(found := getattr(distributions, name), type)
        and issubclass(found, Distribution)
    }
    named = {name.partition(",")[0] for name in DISTRIBUTIONS}
    # the base class, one that is tested within FaceMixture, one without parameters
    assert dists - named == {"FaceDistribution", "ListedFaces", "MaxEntropyMixed"}
