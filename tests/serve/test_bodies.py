"""Bodies drawn by hypothesis: answers as in process, and refusals that name what is wrong."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest
from hypothesis import strategies as st

import fewfold as ff
from tests.nightly import first
from tests.serve.running import Running, serving

TASTES, PER_TASTE, MOST = "abcdef", 50, 100
ITEMS = [f"{taste}{number}" for taste in TASTES for number in range(PER_TASTE)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with more items than are compared for diversity."""
    draw = random.Random(3)
    rows = [
        (f"u{user}", item)
        for user in range(150)
        for item in {*draw.sample(ITEMS[user % 6 * 50 :][:50], 9), *draw.sample(ITEMS, 3)}
    ]
    table = {
        "item": ITEMS,
        "taste": [item[0] for item in ITEMS],
        "year": [1900 + number * 7 % 100 for number in range(len(ITEMS))],
    }
    log = {"user": [user for user, _ in rows], "item": [item for _, item in rows]}
    rec = ff.Recommender(ff.recommender.EASE(l2=1.0))
    rec.fit(log, progress=False, items_table=ff.recommender.ItemsTable(table))
    return rec.save(tmp_path_factory.mktemp("wide") / "model")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> ff.Recommender:
    """The model in this process."""
    return ff.Recommender.load(folder)


@pytest.fixture(scope="module")
def wide(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of it."""
    options = ("--max-k", MOST, "--max-history", 20)
    with serving(folder, *options, folder=tmp_path_factory.mktemp("wide-served")) as running:
        yield running


items = st.sampled_from(ITEMS)
some_items = st.lists(items | st.sampled_from(["unheard", "", "\0", 7]), max_size=12)
conditions: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "taste": st.sampled_from([*TASTES, ["a", "b"], {"not": "a"}, {"not": ["b", "c"]}]),
        "year": st.sampled_from([{"min": 1950}, {"min": 1920, "max": 1930}, 1907, [1900, 1907.0]]),
    },
).filter(bool)
diversities = (
    st.floats(0, 1)
    | st.fixed_dictionaries({"amount": st.floats(0, 1)}, optional={"by": st.just("taste")})
    | st.none()
)
options = st.fixed_dictionaries(
    {"k": st.integers(1, MOST)},
    optional={
        "items": st.none() | some_items,
        "exclude": some_items,
        "exclude_seen": st.booleans(),
        "where": st.none() | conditions,
        "diversity": diversities,
        "at_most": st.none() | st.fixed_dictionaries({"taste": st.integers(1, 3)}),
        "explain": st.booleans(),
        "fallback": st.sampled_from(["none", "popular"]),
    },
)
whom = st.one_of(
    st.fixed_dictionaries({"history": some_items}),
    st.fixed_dictionaries({"user": st.integers(0, 149).map("u{}".format)}),
    st.fixed_dictionaries({"user": st.just("nobody")}),
)
queries = st.tuples(whom, options).map(lambda parts: {**parts[0], **parts[1]})


def known(ids: list[Any] | None) -> list[Any] | None:
    return None if ids is None else [one for one in ids if one in ITEMS]


def expected(query: dict[str, Any], oracle: ff.Recommender) -> Any:
    """The recommendations of a query in process; None for an unknown user."""
    asked, at_most = query.get("diversity"), query.get("at_most") or {}
    diversity = None
    if asked is not None or at_most:
        amount = asked if isinstance(asked, dict) else {"amount": asked or 0.0}
        diversity = ff.recommender.Diversity(**amount, at_most=at_most)
    more = {
        "k": query["k"],
        "exclude_seen": query.get("exclude_seen", True),
        "filter_items": known(query.get("exclude", [])),
        "items": known(query.get("items")),
        "where": query.get("where"),
        "diversity": diversity,
        "explain": query.get("explain", False),
    }
    if "history" in query:
        return oracle.recommend_from_history(known(query["history"]), **more)
    if query["user"] != "nobody":
        return oracle.recommend(query["user"], **more)
    return oracle.recommend_from_history([], **more) if query.get("fallback") == "popular" else None


def compare(answer: dict[str, Any], query: dict[str, Any], ours: Any) -> None:
    told = answer["items"]
    if query.get("items") is not None and not known(query["items"]):
        assert told == []
        return
    assert [one["item"] for one in told] == ours.items
    assert [one["score"] for one in told] == pytest.approx(ours.scores, rel=1e-5, abs=1e-6)
    assert [one["attributes"] for one in told] == ours.attributes
    if query.get("explain"):
        because = [[reason["item"] for reason in one["because"]] for one in told]
        assert because == [[item for item, _ in reasons] for reasons in ours.because]
    sent = [*query.get("history", []), *(query.get("items") or []), *query.get("exclude", [])]
    assert sorted(map(str, answer["unknown"])) == sorted(str(x) for x in sent if x not in ITEMS)
    assert (answer["note"] is None) or not told or "most popular" in answer["note"]


@pytest.mark.parametrize("examples", first(1, [60, 2000]))
def test_answers_as_in_process(examples: int, wide: Running, oracle: ff.Recommender) -> None:
    """Whatever other queries a query is ranked with."""

    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(st.lists(queries, min_size=1, max_size=6))
    def check(asked: list[dict[str, Any]]) -> None:
        ours = [expected(query, oracle) for query in asked]
        response = wide.post("/v1/recommendations", asked if len(asked) > 1 else asked[0])
        if None in ours:
            unknown = [f"{n}.user" if len(asked) > 1 else "user" for n, one in enumerate(ours)
                       if one is None]  # fmt: skip
            assert response.status_code == 404
            assert response.json()["error"]["field"] in unknown
            return
        assert response.status_code == 200, response.text
        answers = response.json() if len(asked) > 1 else [response.json()]
        for answer, query, one in zip(answers, asked, ours, strict=True):
            compare(answer, query, one)

    check()


def test_the_company_of_a_query_changes_nothing(wide: Running, oracle: ff.Recommender) -> None:
    """How many candidates are compared depends on k, and they are scaled together."""
    base = {"history": ["a1", "a2", "b3"], "diversity": 0.6}
    asked = [{**base, "k": k} for k in (5, MOST, 20)]
    asked += [{**base, "k": k, "at_most": {"taste": 2}} for k in (MOST, 8)]
    answers = wide.post("/v1/recommendations", asked).json()
    for answer, query in zip(answers, asked, strict=True):
        compare(answer, query, expected(query, oracle))


WRONG: dict[str, list[Any]] = {
    "user": [1.5, True, [], {}, ["u1"]],
    "history": ["a1", [None], [1.5], [True], [["a1"]], {}, 7, ["a1"] * 21],
    "k": [0, -1, 1.0, "3", None, True, [], MOST + 1, 1 << 70],
    "items": ["a1", [None], {}, 3],
    "exclude": [None, "a1", [{}], False],
    "exclude_seen": [None, 1, "true", []],
    "where": [[], "a", {}, {"taste": None}, {"nothing": 1}, {"year": {"min": []}}, {"year": {}},
              {"year": {"least": 3}}, {"taste": {"min": "a"}}, {"taste": [[]]}],
    "diversity": [-0.1, 1.1, "0.5", True, [], {}, {"by": "taste"}, {"amount": 0.5, "by": "nothing"},
                  {"amount": 2}, {"amount": 0.5, "by": 1}, {"amount": 0.5, "more": 1}],
    "at_most": [{"taste": 0}, {"taste": 1.5}, {"taste": None}, {"nothing": 2}, 3, []],
    "explain": [None, "yes", 1],
    "fallback": [None, "all", 1, ""],
    "fall_back": ["none"],
}  # fmt: skip
wrong = st.sampled_from([(name, value) for name, values in WRONG.items() for value in values])


@pytest.mark.parametrize("examples", first(1, [60, 1000]))
def test_wrong_fields_are_named(examples: int, wide: Running) -> None:
    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(
        st.fixed_dictionaries({"history": st.just(["a1", "b2"])}, optional={"k": st.just(3)}),
        wrong,
        st.integers(0, 2),
    )
    def check(good: dict[str, Any], bad: tuple[str, Any], before: int) -> None:
        name, value = bad
        query = {**good, name: value}
        body = [good] * before + [query] if before else query
        response = wide.post("/v1/recommendations", body)
        assert response.status_code == 400, (body, response.text)
        found = response.json()["error"]
        parts = (found["field"] or "").split(".")
        assert parts[0 if not before else 1] == name
        assert not before or parts[0] == str(before)
        assert found["message"]

    check()


names = st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
times = st.integers(0, 3).map(float) | st.sampled_from(["1970-01-01T00:00:02Z", "1970-01-01"])
numbers = itertools.count()


def seconds(time: Any) -> float:
    return time if isinstance(time, float) else 2.0 if time.endswith("Z") else 0.0


@pytest.mark.parametrize("examples", first(1, [40, 1000]))
def test_feedback_is_the_history_in_order_of_time(examples: int, wide: Running) -> None:
    @hypothesis.settings(max_examples=examples)
    @hypothesis.given(names, st.lists(st.tuples(items | names, times), min_size=1, max_size=8))
    def check(name: str, told: list[tuple[str, Any]]) -> None:
        user = f"{next(numbers)} {name}"
        events = [{"user": user, "item": item, "time": time} for item, time in told]
        answer = wide.post("/v1/feedback", events)
        assert answer.status_code == 201, answer.text
        assert answer.json()["stored"] == len(events)
        unknown = [item for item in dict.fromkeys(item for item, _ in told) if item not in ITEMS]
        assert answer.json()["unknown_items"] == unknown
        ordered = sorted(told, key=lambda event: seconds(event[1]))
        expected = list(dict.fromkeys(item for item, _ in ordered))
        path = quote(user, safe="")
        found = wide.get(f"/v1/users/{path}").json()
        assert found["user"] == user
        assert [one["item"] for one in found["history"]] == expected
        response = wide.get(f"/v1/users/{path}/recommendations?k=5")
        same = wide.post("/v1/recommendations", {"history": expected, "k": 5}).json()
        assert response.status_code == 200
        assert response.json()["items"] == same["items"]

    check()


WRONG_EVENTS: list[dict[str, Any]] = [
    {"user": ""}, {"user": " \n"}, {"user": None}, {"user": 1.5}, {"user": True}, {"user": 1 << 64},
    {"item": ""}, {"item": []}, {"item": -(1 << 64)}, {"time": "yesterday"}, {"time": ""},
    {"time": 1e300}, {"time": -1e12}, {"time": True}, {"time": {}}, {"time": "2024-02-30"},
    {"time": "9999-12-31T23:59:59-23:59"}, {"recommendation": ""}, {"recommendation": 7},
    {"recommendation": "r" * 201}, {"rating": 5},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_EVENTS, ids=str)
def test_wrong_events_are_named_and_none_is_stored(wrong: dict[str, Any], wide: Running) -> None:
    (field,) = wrong
    good = {"user": f"careful {field}", "item": "a1"}
    response = wide.post("/v1/feedback", [good, {**good, **wrong}])
    assert response.status_code == 400
    assert response.json()["error"]["field"] == f"1.{field}"
    assert wide.get(f"/v1/users/careful%20{field}").status_code == 404
