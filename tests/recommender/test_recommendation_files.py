"""Recommendations to all users, written to files in blocks."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import fewfold as ff
from fewfold.recommender import EASE, Attributes, Diversity
from fewfold.recommender import recommendation_files as module

READERS = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}


def recommender(*, text: bool, table: bool = False) -> ff.Recommender:
    """Nine users, of whom one has all items; two more in a table of users if there is one."""
    rows = [(u, i) for u in range(9) for i in range(12) if (u * 5 + i * 7) % 4 == 0 or u == 4]
    spell = (lambda n: f"ü, {n}\n") if text else (lambda n: 10 * n)
    log = {"user": [spell(u) for u, _ in rows], "item": [spell(i) for _, i in rows]}
    users = None
    if table:
        users = {"user": [spell(u) for u in range(11)], "group": ["ab"[u % 2] for u in range(11)]}
    rec = ff.Recommender(EASE(l2=2.0)).fit(log, users_table=users, progress=False)
    rec.attributes = Attributes.of({"kind": [f"k{n % 3}" for n in range(len(rec.items))]})
    return rec


def slowly(rec: ff.Recommender, users: list[Any], k: int, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of the file, user by user."""
    return [
        (user, rank, item, score)
        for user in users
        for rank, (item, score) in enumerate(rec.recommend(user, k, **options), 1)
    ]


@pytest.mark.parametrize("users_at_once", [1, 4, 9, 100])
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("suffix", READERS)
def test_equals_a_loop_over_users(tmp_path, monkeypatch, suffix, text, users_at_once) -> None:
    monkeypatch.setattr(module, "_USERS", users_at_once)
    rec = recommender(text=text)
    file = tmp_path / f"recs{suffix}"
    rows = rec.recommend_all(file, 3, progress=False)
    found = READERS[suffix](file)
    assert found.columns == ["user", "rank", "item", "score"]
    wanted = slowly(rec, rec.users.tolist(), 3)
    assert rows == len(found) == len(wanted) == 24  # none for the user who has all items
    assert [row[:3] for row in found.rows()] == [row[:3] for row in wanted]
    assert found["score"].to_list() == pytest.approx([row[3] for row in wanted], rel=1e-5)


def test_types_of_the_columns(tmp_path) -> None:
    recommender(text=True).recommend_all(tmp_path / "recs.PARQUET", 2)
    found = pl.read_parquet(tmp_path / "recs.PARQUET")
    assert found.dtypes == [pl.String, pl.Int32, pl.String, pl.Float32]


def test_options_of_the_ranking(tmp_path) -> None:
    rec = recommender(text=True)
    options: dict[str, Any] = {
        "exclude_seen": False,
        "filter_items": rec.items.tolist()[:1],
        "where": {"kind": ["k0", "k1"]},
        "diversity": Diversity(0.4, at_most={"kind": 2}, pool=3),
    }
    rec.recommend_all(tmp_path / "recs.parquet", 5, **options)
    wanted = slowly(rec, rec.users.tolist(), 5, **options)
    assert [row[:3] for row in pl.read_parquet(tmp_path / "recs.parquet").rows()] == [
        row[:3] for row in wanted
    ]
    assert {rank for _, rank, _, _ in wanted} == {1, 2, 3, 4}


def test_users_of_the_table_follow(tmp_path) -> None:
    rec = recommender(text=False, table=True)
    rec.recommend_all(tmp_path / "recs.csv", 2)
    found = pl.read_csv(tmp_path / "recs.csv")
    assert found["user"].unique(maintain_order=True).to_list()[-2:] == [90, 100]
    wanted = slowly(rec, [*rec.users.tolist(), 90, 100], 2)
    assert [row[:3] for row in found.rows()] == [row[:3] for row in wanted]


def test_a_file_with_few_rows_at_once_for_many_items(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 5)
    rec = recommender(text=False)
    rec.recommend_all(tmp_path / "recs.jsonl", 50)
    lines = (tmp_path / "recs.jsonl").read_text().splitlines()
    wanted = slowly(rec, rec.users.tolist(), 50)
    assert [json.loads(line)["item"] for line in lines] == [item for _, _, item, _ in wanted]


def test_nobody_gets_anything(tmp_path) -> None:
    rec = recommender(text=True)
    for suffix, read in READERS.items():
        assert rec.recommend_all(tmp_path / f"recs{suffix}", where={"kind": "none"}) == 0
        if suffix != ".jsonl":
            assert read(tmp_path / f"recs{suffix}").shape == (0, 4)


def test_an_existing_file_stays(tmp_path, monkeypatch) -> None:
    rec, file = recommender(text=True), tmp_path / "recs.csv"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        rec.recommend_all(file)
    monkeypatch.setattr(module, "_USERS", 2)
    calls = []

    def rank(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return before(*arguments)

    before = module.rank_queries
    monkeypatch.setattr(module, "rank_queries", rank)
    with pytest.raises(KeyboardInterrupt):
        rec.recommend_all(file, overwrite=True)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]
    rec.recommend_all(file, 1, overwrite=True)
    assert len(pl.read_csv(file)) == 8


def test_errors_come_before_any_work(tmp_path) -> None:
    rec = recommender(text=True)
    with pytest.raises(ValueError, match=r"\.parquet, \.csv, \.jsonl, got 'recs.xlsx'"):
        rec.recommend_all(tmp_path / "recs.xlsx")
    with pytest.raises(TypeError, match=r"no option 'explain'.*exclude_seen"):
        rec.recommend_all(tmp_path / "recs.csv", explain=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="k must be an int"):
        rec.recommend_all(tmp_path / "recs.csv", "5")  # type: ignore[arg-type]
    rec.save(tmp_path / "model", users=False)
    with pytest.raises(ValueError, match="saved without users"):
        ff.Recommender.load(tmp_path / "model").recommend_all(tmp_path / "recs.csv")
    assert not Path(tmp_path / "recs.csv").exists()


def test_a_new_folder_is_made(tmp_path) -> None:
    recommender(text=False).recommend_all(tmp_path / "new" / "recs.csv", 1)
    assert (tmp_path / "new" / "recs.csv").exists()
