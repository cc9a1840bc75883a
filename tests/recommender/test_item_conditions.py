"""Conditions on item attributes, against a loop over items."""

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fewfold as ff
from fewfold.recommender import EASE, Attributes
from fewfold.recommender.item_conditions import matching_items, parse_where, unmatched_values

WORDS = ["tea", "nut", "Tea", "a,b", "4", "4.0", "007", "-1.5", "1e3", "true", "True", "naïve"]
BLANKS = ["", " ", "nan", "NaT", None]


def number_of(text: str) -> float | None:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return None
    try:
        found = float(text)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def equals(text: str, wanted: Any) -> bool:
    wanted = str(wanted).strip()
    flags = {"true", "false"}
    if wanted.lower() in flags and text.lower() == wanted.lower():
        return True
    mine, yours = number_of(text), number_of(wanted)
    return text == wanted or (mine is not None and mine == yours)


def holds(value: Any, condition: Any) -> bool:
    text = "" if value is None else str(value).strip()
    if text.lower() in ("", "nan", "nat"):
        return False
    if isinstance(condition, dict):
        if "not" in condition and any(equals(text, one) for one in condition["not"]):
            return False
        if "min" in condition or "max" in condition:
            mine = number_of(text)
            low, high = condition.get("min", -math.inf), condition.get("max", math.inf)
            return mine is not None and low <= mine <= high
        return True
    several = condition if isinstance(condition, list) else [condition]
    return any(equals(text, one) for one in several)


values = st.sampled_from(WORDS + BLANKS) | st.integers(-3, 9) | st.floats(-3, 9, width=16)
wanted = st.sampled_from(WORDS) | st.integers(-3, 9) | st.booleans()
numbers = st.floats(-4, 1100, allow_nan=False) | st.integers(-4, 10)


@st.composite
def ranges(draw: st.DrawFn) -> dict[str, Any]:
    low, high = sorted([draw(numbers), draw(numbers)])
    found: dict[str, Any] = {"min": low, "max": high}
    for key in draw(st.sampled_from([[], ["min"], ["max"]])):
        del found[key]
    if draw(st.booleans()):
        found["not"] = draw(st.lists(wanted, max_size=2))
    return found


conditions = wanted | st.lists(wanted, max_size=3) | ranges()


@given(
    st.lists(st.tuples(values, values), min_size=1, max_size=30),
    st.fixed_dictionaries({}, optional={"kind": conditions, "size": conditions}),
)
def test_equals_a_loop_over_items(rows, where) -> None:
    columns = {"kind": [row[0] for row in rows], "size": [row[1] for row in rows]}
    columns = {name: [*column, "4"] for name, column in columns.items()}  # ranges need a number
    if not where:
        return
    found = matching_items(Attributes.of(columns), where)
    assert found.tolist() == [
        all(holds(columns[name][item], condition) for name, condition in where.items())
        for item in range(len(rows) + 1)
    ]


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ({"min": "2024-02"}, [1, 2, 3, 4]),
        ({"max": "2024-02"}, [0, 1, 2, 3]),  # all of the month
        ({"min": "2024-02-29", "max": "2024-02-29"}, [2, 3]),  # all of the day
        ({"min": date(2024, 2, 29), "max": date(2024, 2, 29)}, [2, 3]),
        ({"max": "2024-02-29 12:00"}, [0, 1, 2]),
        ({"max": "2024-02-29T12:30+00:30"}, [0, 1, 2]),
        ({"min": datetime(2024, 2, 29, 13, tzinfo=UTC)}, [3, 4]),
        ("2024-02-01", [1]),
    ],
    ids=str,
)
def test_dates(condition, matches) -> None:
    written = ["2024-01-31", "2024-02-01", "2024-02-29T12:00:00", "2024-02-29 13:00:00"]
    attributes = Attributes.of({"day": [*written, "2024-03-01", None, "soon"]})
    assert matching_items(attributes, {"day": condition}).nonzero().squeeze(1).tolist() == matches


def test_the_last_day_of_the_calendar() -> None:
    attributes = Attributes.of({"day": ["9999-12-31", "2024-01-01"]})
    assert matching_items(attributes, {"day": {"max": "9999-12-31"}}).all()


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ({"colour": "red"}, ValueError, "no item attribute 'colour'; there are kind, year, day"),
        ({"kind": {"min": 3}}, ValueError, "'kind' has none, as 'nut'; name values"),
        ({"day": {"min": 2024}}, ValueError, "compare it with dates"),
        ({"year": {"min": "2024-01-01"}}, ValueError, "compare it with numbers"),
        ({"year": {"least": 3}}, ValueError, "keys min, max and not.*'least'"),
        ({"year": {}}, ValueError, "keys min, max and not.*none"),
        ({"year": {"min": None}}, ValueError, "a min or a max"),
        ({"year": {"min": "soon"}}, ValueError, "finite numbers, or of dates"),
        ({"year": {"min": math.nan}}, ValueError, "finite numbers"),
        ({"year": {"min": math.inf}}, ValueError, "finite numbers"),
        ({"year": {"min": True}}, ValueError, "finite numbers"),
        ({"year": {"min": 3, "max": "2024-01-01"}}, ValueError, "finite numbers"),
        ({"year": {"min": 3, "max": 2}}, ValueError, "min of at most its max, got 3 to 2"),
        ({"kind": ""}, ValueError, "missing value"),
        ({"kind": ["tea", None]}, ValueError, "missing value"),
        ({"kind": [["tea"]]}, TypeError, "a value, a list of values or a range"),
        ({"kind": {"not": {"tea": 1}}}, TypeError, "a value, a list of values or a range"),
        ({"year": {"min": {"a": 1}}}, ValueError, "finite numbers"),
        ({}, ValueError, "at least one condition"),
        ("kind=tea", TypeError, "mapping from columns"),
    ],
    ids=str,
)
def test_errors_teach(where, error, message) -> None:
    table = {"kind": ["tea", "nut"], "year": [1990, 2000], "day": ["2024-01-01", "2024-01-02"]}
    with pytest.raises(error, match=message):
        matching_items(Attributes.of(table), where)


def test_large_whole_numbers_are_told_apart() -> None:
    attributes = Attributes.of({"code": [2**53, 2**53 + 1]})
    assert matching_items(attributes, {"code": 2**53 + 1}).tolist() == [False, True]


def test_columns_are_encoded_once() -> None:
    attributes = Attributes.of({"kind": ["tea", "", " nut ", "tea"], "none": [None] * 4})
    column = attributes.encoded("kind")
    assert attributes.encoded("kind") is column
    assert column.values == ["nut", "tea"]
    assert column.codes.tolist() == [1, 2, 0, 1]
    assert column.missing.tolist() == [False, True, False, False]
    assert not matching_items(attributes, {"none": "tea"}).any()
    assert not matching_items(attributes, {"none": {"min": 3}}).any()
    assert Attributes.of({"kind": []}).encoded("kind").codes.tolist() == []


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        (["kind=tea"], {"kind": ["tea"]}),
        (["kind = tea, nut"], {"kind": ["tea", "nut"]}),
        (['kind="a,b",nut'], {"kind": ["a,b", "nut"]}),
        (["year>=1990", "year<=2000.5"], {"year": {"min": "1990", "max": "2000.5"}}),
        (["year>=1990", "year!=1995"], {"year": {"min": "1990", "not": ["1995"]}}),
        (["a=b=c"], {"a=b": ["c"]}),
    ],
    ids=str,
)
def test_conditions_of_the_command(texts, where) -> None:
    attributes = Attributes.of({"kind": ["tea"], "year": [1990], "a": [1], "a=b": [1]})
    assert parse_where(texts, attributes) == where
    matching_items(attributes, where)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["kind"], "COLUMN=VALUE"),
        (["colour=red"], "no column 'colour'.*'kind', 'year'"),
        (["kind=tea", "kind=nut"], "kind=a,b"),
        (["year>=1", "year>=2"], "another such condition"),
        (["kind=tea", "kind!=nut"], "another such condition"),
        (["year>1990"], "write >= for a range"),
        (["year>=old"], "a number or a date"),
    ],
    ids=str,
)
def test_errors_of_the_command(texts, message) -> None:
    with pytest.raises(ValueError, match=message):
        parse_where(texts, Attributes.of({"kind": ["tea"], "year": [1990]}))


def test_values_that_no_item_has() -> None:
    attributes = Attributes.of({"kind": ["tea", "nut", "tea"], "year": [1, 2, 3]})
    found = unmatched_values(attributes, {"kind": ["tea", "tee"], "year": {"min": 9}})
    assert found == ["no item has kind=tee; there are tea, nut"]
    assert unmatched_values(attributes, {"kind": "tea"}) == []


@pytest.fixture(scope="module")
def rec() -> ff.Recommender:
    """Ten items of two kinds and five years, some of neither."""
    generator = torch.Generator().manual_seed(0)
    users, items = (torch.rand(60, 10, generator=generator) < 0.4).nonzero().unbind(1)
    log = {"user": users.tolist(), "item": [f"i{item}" for item in items.tolist()]}
    found = ff.Recommender(EASE(l2=5.0)).fit(log, progress=False)
    numbers = [int(item[1:]) for item in found.items.tolist()]
    found.attributes = Attributes.of(
        {
            "kind": ["" if number % 5 == 0 else "ab"[number % 2] for number in numbers],
            "year": [1990 + number // 2 for number in numbers],
        }
    )
    return found


def test_recommendations_meet_the_conditions(rec) -> None:
    named = [f"i{number}" for number in range(9)]
    where = {"kind": "a", "year": {"max": 1993}}
    found = rec.recommend([0, 1], 10, where=where, items=named, filter_items=["i2"])
    everything = rec.recommend([0, 1], 10)
    for some, both in zip(found, everything, strict=True):
        assert some.items == [
            item
            for item, more in zip(both.items, both.attributes, strict=True)
            if more.get("kind") == "a" and int(more["year"]) <= 1993 and item in named[3:]
        ]
    assert rec.recommend_from_history(["i1"], where={"kind": "neither"}).items == []


def test_similar_items_meet_the_conditions(rec) -> None:
    found = rec.similar_items("i1", 10, where={"kind": "a"}, filter_items=["i2"])
    assert set(found.items) <= {"i4", "i6", "i8"}
    everything = rec.similar_items("i1", 10).items
    assert found.items == [item for item in everything if item in ("i4", "i6", "i8")]


def test_a_model_without_attributes_says_so() -> None:
    rec = ff.Recommender(EASE(l2=1.0)).fit(
        {"user": [1, 1, 2], "item": ["a", "b", "a"]}, progress=False
    )
    with pytest.raises(ValueError, match=r"where needs attributes.*attach.*--items-table"):
        rec.recommend(1, where={"kind": "tea"})
