"""Users without a history: what users with the same attributes like."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fewfold as ff
from fewfold.recommender import EASE, ArtifactError, DataError, Interactions, UsersTable
from fewfold.recommender.attributes import Attributes
from fewfold.recommender.user_profiles import (
    ProfileColumn,
    ProfileSettings,
    UserProfiles,
    _counted,
    _Scores,
)
from tests.cli.invoke import fewfold
from tests.recommender.artifact.forging import CONFIG, drop, forged, tensor

USERS = 240


def tastes(seed: int = 0) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Users of one country like even items, those of the other odd ones; age does not matter."""
    draw = np.random.default_rng(seed)
    users, items = [], []
    for user in range(USERS):
        mine = draw.choice(np.arange(user % 2, 40, 2), 6, replace=False)
        users += [f"u{user}"] * 6
        items += [f"i{item:02}" for item in mine]
    table = {
        "id": [f"u{user}" for user in range(USERS + 2)],
        "country": ["NZ" if user % 2 else "AU" for user in range(USERS + 2)],
        "age": [str(20 + user % 45) for user in range(USERS + 2)],
    }
    return {"user": users, "item": items}, table


def odd(found: Any) -> float:
    return float(np.mean([int(item[1:]) % 2 for item in found.items]))


@pytest.fixture(scope="module")
def rec() -> ff.Recommender:
    log, table = tastes()
    return ff.Recommender(EASE(5.0)).fit(log, users_table=table, progress=False)


def test_scores_are_those_of_the_formula() -> None:
    log = Interactions.from_pairs([0, 0, 1, 2, 2], [0, 1, 1, 2, 1], shape=(3, 4))
    columns = (ProfileColumn("a", "category", ("x", "y")), ProfileColumn("b", "number", (), (5.0,)))
    codes = torch.tensor([[0, 1], [0, -1], [1, 0]])
    found = _counted(ProfileSettings(columns, 2.0, 0.5), log, codes)
    asked = torch.tensor([[0, 0], [1, -1], [-1, -1]])
    scores = _Scores(found, asked)(slice(0, 3), slice(0, 4))
    share = (torch.tensor([1.0, 3, 1, 0]) + 1) / 9

    def gain(counts: list[float]) -> torch.Tensor:
        given = torch.tensor(counts)
        return ((given + 2 * share) / ((given.sum() + 2) * share)).log()

    first = share.log() + 0.5 * (gain([1, 2, 0, 0]) + gain([0, 1, 1, 0]))
    second = share.log() + 0.5 * gain([0, 1, 1, 0])
    torch.testing.assert_close(scores, torch.stack([first, second, share.log()]))
    part = _Scores(found, asked)(slice(1, 2), slice(1, 3))
    torch.testing.assert_close(part, second[1:3].unsqueeze(0))


def test_columns_are_categories_or_bins() -> None:
    assert ProfileColumn.of("c", ["x"] * 5 + ["y"] * 4 + [""]).values == ("x",)
    ages = ProfileColumn.of("age", [str(n) for n in range(100)] + [""])
    assert ages.kind == "number"
    assert ages.size == 10
    assert ages.codes(["0", "99", "", "old", "nan", "-5", "1e9"]).tolist() == [
        0,
        9,
        -1,
        -1,
        -1,
        0,
        9,
    ]
    assert ProfileColumn.of("few", ["1", "2", "3"] * 20).kind == "category"
    with pytest.raises(ValueError, match="kind must be one of category, number"):
        ProfileColumn("c", "text")


def test_users_of_the_table_get_what_their_like_like(rec: ff.Recommender) -> None:
    assert rec.report is not None
    assert rec.report.profiles is not None
    assert rec.report.profiles.low > 0
    assert "users without a history: by country, age; NDCG@10 +" in str(rec.report)
    assert odd(rec.recommend(f"u{USERS}", k=10)) == 0  # AU
    assert odd(rec.recommend(f"u{USERS + 1}", k=10)) == 1  # NZ
    both = rec.recommend(["u0", f"u{USERS + 1}"], k=5)
    assert both.of == ["u0", f"u{USERS + 1}"]
    assert both.items[0] == rec.recommend("u0", k=5).items
    assert both.items[1] == rec.recommend(f"u{USERS + 1}", k=5).items
    with pytest.raises(ValueError, match="no user 'nobody' in this model"):
        rec.recommend("nobody")


def test_attributes_alone(rec: ff.Recommender) -> None:
    one = rec.recommend_from_attributes({"country": "NZ"}, k=10, filter_items=["i01"])
    assert odd(one) == 1
    assert "i01" not in one.items
    several = rec.recommend_from_attributes([{"country": "AU", "age": 30}, {}], k=4)
    assert odd(several.first()) == 0
    popular = rec.recommend_from_history([], k=4)
    assert several.items[1] == popular.items  # nothing is known
    with pytest.raises(ValueError, match="no attribute 'sex' of users; there are country, age"):
        rec.recommend_from_attributes({"sex": "f"})
    alone = ff.Recommender(EASE(5.0)).fit(tastes()[0], progress=False)
    with pytest.raises(ValueError, match="knows no attributes of users; fit it with users_table"):
        alone.recommend_from_attributes({"country": "NZ"})


def test_attributes_that_do_not_help_are_not_used() -> None:
    log, table = tastes()
    noise = {"id": table["id"], "shoe": [str(36 + (7 * u // 11) % 7) for u in range(USERS + 2)]}
    rec = ff.Recommender(EASE(5.0)).fit(log, users_table=noise, progress=False)
    assert rec.report is not None
    assert rec.report.profiles is not None
    assert rec.report.profiles.strength is None
    assert "by popularity, not by shoe" in str(rec.report)
    assert rec.recommend(f"u{USERS}", k=5).items == rec.recommend_from_history([], k=5).items


def test_saved_and_loaded(rec: ff.Recommender, tmp_path: Path) -> None:
    again = ff.Recommender.load(rec.save(tmp_path / "model"))
    wanted = rec.recommend(f"u{USERS + 1}", k=10)
    assert again.recommend(f"u{USERS + 1}", k=10).to_dicts() == wanted.to_dicts()
    assert "users without a history: by country, age" in str(
        ff.recommender.inspect(tmp_path / "model")
    )
    bare = ff.Recommender.load(rec.save(tmp_path / "bare", users=False))
    asked = {"country": "NZ", "age": "44"}
    expected = rec.recommend_from_attributes(asked).to_dicts()
    assert bare.recommend_from_attributes(asked).to_dicts() == expected
    found = (tmp_path / "bare" / "profiles.safetensors").read_bytes()
    assert b"u240" not in found


def test_damaged_profiles_are_refused(rec: ff.Recommender, tmp_path: Path) -> None:
    folder = str(rec.save(tmp_path / "model"))
    file = "profiles.safetensors"

    def one_more_value(config: Any) -> None:
        config["profiles"]["columns"][0]["values"].append("XX")

    def larger(raw: bytes) -> bytes:
        return (99).to_bytes(4, "little") + raw[4:]

    def falling(raw: bytes) -> bytes:
        return (7).to_bytes(8, "little") + raw[8:]

    for name, change, message in (
        (CONFIG, one_more_value, "starts must be torch.int64 of shape"),
        (CONFIG, drop("profiles"), "profiles must be there together with profiles.safetensors"),
        (file, tensor("codes", raw=larger), "codes must be below the number of values"),
        (file, tensor("starts", raw=falling), "starts must rise from 0 to"),
    ):
        with pytest.raises(ArtifactError, match=message):
            ff.Recommender.load(forged(folder, tmp_path, name, change))


def test_tables_that_say_nothing(tmp_path: Path) -> None:
    log, table = tastes()
    with pytest.raises(DataError, match=r"about a user of the model: its users.*--users-key"):
        ff.Recommender(EASE(5.0)).fit(log, users_table={"id": ["x"], "c": ["y"]}, progress=False)
    with pytest.raises(ValueError, match="the users table says nothing that users share"):
        ff.Recommender(EASE(5.0)).fit(log, users_table={"id": table["id"]}, progress=False)
    with pytest.raises(DataError, match="there is no column 'who'"):
        given = UsersTable(table, key="who")
        ff.Recommender(EASE(5.0)).fit(log, users_table=given, progress=False)
    few = UserProfiles.fit(
        Interactions.from_pairs(range(10), [0] * 10), Attributes.of({"c": ["x", "y"] * 5}), seed=0
    )
    assert "the log is too small to validate" in str(few.settings)
    for wrong in ({"strength": -1.0}, {"exponent": 2.0}):
        with pytest.raises(ValueError, match="must be above 0"):
            ProfileSettings((), **wrong)  # type: ignore[arg-type]


def test_the_command(tmp_path: Path) -> None:
    log, table = tastes()
    pl.DataFrame(log).write_csv(tmp_path / "log.csv")
    pl.DataFrame(table).write_csv(tmp_path / "users.csv")
    model = str(tmp_path / "model")
    fit = ["fit", str(tmp_path / "log.csv"), "--model", "ease", "--out", model, "--users-table"]
    assert fewfold(*fit, str(tmp_path / "users.csv"), "--users-key", "id").code == 0
    found = fewfold("recommend", model, "--attributes", "country=NZ", "--json")
    assert all(int(one["item"][1:]) % 2 for one in json.loads(found.out))
    assert fewfold("recommend", model, "--users", f"u{USERS + 1}").code == 0
    wrong = fewfold("recommend", model, "--attributes", "NZ")
    assert "--attributes must be as age=25,country=NZ, got 'NZ'" in wrong.err
