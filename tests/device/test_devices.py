"""The public names on devices other than the CPU, and the documented table."""

from pathlib import Path

import pytest

import fewfold

from .rows import BESIDE, CASES, EXCLUDED, MODULES, beside, public
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "column"),
    [
        pytest.param(case, column, id=f"{case.name}-{column}")
        for case in CASES
        for column in CHECKS
        if case.limit(column)
    ],
)
def test_what_is_left_out_does_not_run_there(case: Case, column: str) -> None:
    """Otherwise the reason is out of date: test it instead."""
    with pytest.raises(Exception):  # noqa: B017  (of torch, of fewfold, or of an assertion)
        CHECKS[column](case)


def test_the_documented_table_is_what_these_tests_prove() -> None:
    """Rewrite it with: make tables"""
    assert PAGE.read_text() == written(CASES, lambda case, column: True)


def test_every_public_name_is_in_the_table() -> None:
    """Or among those that have no tensors of their own."""
    named = set().union(*(case.names() for case in CASES))
    assert public() - named == set(EXCLUDED)
    assert all(name in public() or name.startswith("recommender.") for name in named)


def test_every_package_is_looked_at() -> None:
    """Sub-packages with public names, among those that the table and `BESIDE` cover."""
    folder = Path(fewfold.__file__).parent
    packages = {
        one.parent.name for one in folder.glob("*/__init__.py") if one.parent.name[0] != "_"
    }
    of_programs = {"cli", "demo", "serve"}
    assert packages - of_programs == {*MODULES, "recommender", "sklearn", "distributed"} - {
        "structured.structures"
    }


def test_every_name_of_the_recommender_has_a_row_or_a_reason() -> None:
    named = set().union(*(case.names() for case in CASES))
    reasons = [name for names in BESIDE.values() for name in names]
    assert len(reasons) == len(set(reasons))
    assert beside() - named == set(reasons)
