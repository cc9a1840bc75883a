"""Conditions, diversity and recommendations to all users, from the command line."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fewfold as ff
from tests.cli.invoke import fewfold


@pytest.fixture(scope="module")
def shop(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with attributes: of forty items the letter and the number, of one nothing."""
    folder = tmp_path_factory.mktemp("shop")
    rows = [f"{letter}{n},{letter},{1990 + n}" for letter in "abcd" for n in range(10)]
    (folder / "items.csv").write_text("item,letter,year\n" + "\n".join(rows[1:]) + "\n")
    out = folder / "model"
    table = ("--items-table", folder / "items.csv", "--no-use-attributes")
    assert fewfold("fit", log, "--out", out, "--model", "ease", *table).code == 0
    return out


def recommended(*arguments: object) -> list[dict[str, Any]]:
    done = fewfold("recommend", *arguments, "--json")
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)
    return found


def test_conditions(shop) -> None:
    ask = (shop, "--users", "u1", "-k", 40, "--include-seen")
    found = recommended(
        *ask, "--where", "letter=a,b", "--where", "year>=1992", "--where", "year<=1995"
    )
    assert sorted(one["item"] for one in found) == [f"{x}{n}" for x in "ab" for n in range(2, 6)]
    assert all(one["letter"] != "a" for one in recommended(*ask, "--where", "letter!=a"))
    similar = fewfold("similar", shop, "b1", "-k", 40, "--where", "letter=b", "--json")
    assert {one["item"] for one in json.loads(similar.out)} == {f"b{n}" for n in range(10)} - {"b1"}


def test_a_value_that_no_item_has_is_noted(shop) -> None:
    done = fewfold("recommend", shop, "--users", "u1", "--where", "letter=z")
    assert done.code == 0
    assert "no item has letter=z; there are" in done.err
    assert "nothing left to recommend" in done.out
    assert fewfold("recommend", shop, "--users", "u1", "--where", "letter=z", "-q").err == ""


def test_diversity_and_caps(shop) -> None:
    rec = ff.Recommender.load(shop)
    ask = (shop, "--users", "u1", "-k", 8)
    for flags, diversity in (
        (("--diversity", 0.4), 0.4),
        (("--diversity", 0.9, "--diversity-by", "letter"), ff.recommender.Diversity(0.9, "letter")),
        (("--at-most", "letter=1"), ff.recommender.Diversity(at_most={"letter": 1})),
    ):
        found = recommended(*ask, *flags)
        assert [one["item"] for one in found] == rec.recommend("u1", 8, diversity=diversity).items
    counts = Counter(one.get("letter") for one in found)
    assert max(counts[letter] for letter in "abcd") == 1


def test_all_users(shop, here) -> None:
    flags = ("-k", 3, "--where", "letter=a,b,c", "--at-most", "letter=2", "--include-seen")
    for name in ("recs.parquet", "recs.csv", "recs.jsonl"):
        done = fewfold("recommend", shop, "--all-users", "--out", name, *flags)
        assert (done.code, done.out) == (0, f"{name}, 360 recommendations\n")
    found = pl.read_parquet("recs.parquet")
    assert found.rows() == pl.read_csv("recs.csv", schema=found.schema).rows()
    assert found.rows() == pl.read_ndjson("recs.jsonl", schema=found.schema).rows()
    single = recommended(shop, "--users", "u7", *flags)
    assert found.filter(user="u7")["item"].to_list() == [one["item"] for one in single]
    before = Path("recs.csv").read_bytes()
    refused = fewfold("recommend", shop, "--all-users", "--out", "recs.csv")
    assert refused.code == 5
    assert "--overwrite" in refused.message
    assert Path("recs.csv").read_bytes() == before
    more = ("--overwrite", "--json", "-k", 1)
    done = fewfold("recommend", shop, "--all-users", "-o", "recs.csv", *more)
    assert json.loads(done.out) == {"file": "recs.csv", "rows": 120}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--all-users",), "--all-users --out recs.parquet"),
        (("--users", "u1", "--out", "recs.csv"), "--all-users --out recs.parquet"),
        (("--all-users", "--users", "u1", "--out", "recs.csv"), "name the users: one of"),
        (("--all-users", "--out", "recs.xlsx"), ".parquet, .csv, .jsonl"),
        (("--all-users", "--out", "recs.csv", "--explain"), "leave out --explain"),
        (("--users", "u1", "--where", "colour=red"), "there is no column 'colour'"),
        (("--users", "u1", "--where", "letter>=3"), "'letter' has none, as 'a'"),
        (("--users", "u1", "--at-most", "letter"), "--at-most must be as section=3"),
        (("--users", "u1", "--at-most", "letter=0"), "--at-most must be as section=3"),
        (("--users", "u1", "--at-most", "=3"), "--at-most must be as section=3"),
        (("--users", "u1", "--at-most", "colour=3"), "there are letter, year"),
        (("--users", "u1", "--diversity", "2"), "must be from 0 to 1, got '2'"),
        (("--users", "u1", "--diversity-by", "letter"), "add --diversity 0.3"),
    ],
    ids=lambda one: " ".join(map(str, one)) if isinstance(one, tuple) else "",
)
def test_errors(shop, flags, message) -> None:
    done = fewfold("recommend", shop, *flags)
    assert done.code == 2
    assert message in done.message
    assert not list(Path().iterdir())


def test_a_model_without_attributes(simple) -> None:
    done = fewfold("recommend", simple, "--users", "u1", "--where", "letter=a")
    assert done.code == 2
    assert "--items-table" in done.message
