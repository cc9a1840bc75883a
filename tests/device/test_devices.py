"""The public names on devices other than the CPU, and the documented table."""

from pathlib import Path

import pytest

from .rows import CASES, EXCLUDED, public
from .table import CHECKS, Case, daily, written

PAGE = Path(__file__).parents[2] / "docs" / "devices_table.md"
DAILY = daily(CASES)


@pytest.mark.parametrize(
    ("case", "column"),
    [
        pytest.param(
            case, column, id=f"{case.name}-{column}",
            marks=() if case.name in DAILY else pytest.mark.nightly,
        )
        for case in CASES
        for column in CHECKS
        if not case.limit(column)
    ],
)  # fmt: skip
def test_it_runs_there(case: Case, column: str) -> None:
    CHECKS[column](case)


def test_the_documented_table_is_what_these_tests_prove() -> None:
    """Rewrite it with: make tables"""
    assert PAGE.read_text() == written(CASES, lambda case, column: True)


def test_every_public_name_is_in_the_table() -> None:
    """Or among those that have no tensors of their own."""
    named = set().union(*(case.names() for case in CASES))
    assert public() - named == set(EXCLUDED)
    assert all(name in public() or name.startswith("recommender.") for name in named)
