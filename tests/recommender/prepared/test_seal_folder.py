"""Folders that another program wrote: completed if they are right, refused if they are not."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from fewfold.recommender import DataError, prepare, read_log, seal
from fewfold.recommender.prepared.part_files import read_part
from fewfold.recommender.prepared.prepared_manifest import PreparedManifest, part_name

ROOT = Path(__file__).parents[3]


def log(*, text: bool, rows: int = 3000) -> pl.DataFrame:
    draws = np.random.default_rng(1)
    users, items = draws.integers(-50, 300, rows), draws.integers(0, 90, rows)
    return pl.DataFrame(
        {
            "user": [f"ü{n}" for n in users] if text else users * 10**11,
            "item": [f"i{n}" for n in items] if text else items,
            "time": draws.integers(0, 10**9, rows),
        }
    )


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_a_sealed_folder_is_like_the_prepared_one(text: bool, tmp_path: Path) -> None:
    rows, folder = log(text=text, rows=40), tmp_path / "prepared"
    found = prepare(rows, folder, parts=60, progress=False)  # some of them without users
    expected = read_log(rows)
    (folder / "prepared.json").unlink()
    for name, facts in found.manifest.files.items():
        if facts["rows"] == 0:
            (folder / name).unlink()
    sealed = seal(folder, parts=60, rows=40)
    same = [field for field in PreparedManifest.__dataclass_fields__ if field != "log"]
    for field in same:
        assert getattr(sealed.manifest, field) == getattr(found.manifest, field), field
    again = read_log(folder)
    assert again.users.tolist() == expected.users.tolist()
    assert torch.equal(again.interactions.ids, expected.interactions.ids)
    assert again.summary.duplicates == expected.summary.duplicates


def _rewrite(folder: Path, name: str, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    change(pl.read_parquet(folder / name)).write_parquet(folder / name)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (part_name(0), lambda t: t.reverse(), "ids must be in order"),
        (part_name(0), lambda t: t.with_columns(user=pl.col("user") + 1), "another part"),
        (part_name(0), lambda t: t.with_columns(pl.col("items").list.reverse()), "must increase"),
        (part_name(0), lambda t: t.head(-1), "users must be the number of users of each item"),
        (part_name(1), lambda t: t.drop("times"), "times must be of one type"),
        ("items.parquet", lambda t: t.head(5), "ids must be between 0 and 4"),
        ("items.parquet", lambda t: t.reverse(), "ids must be in order"),
    ],
)
def test_wrong_files_are_refused(name: str, change: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    prepare(log(text=False), folder, parts=2, progress=False)
    (folder / "prepared.json").unlink()
    _rewrite(folder, name, change)
    with pytest.raises(DataError, match=message):
        seal(folder, parts=2)
    assert not (folder / "prepared.json").exists()


def _moved(column: str) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return a change that moves the last entry of the first user's list to the second user."""

    def change(table: pl.DataFrame) -> pl.DataFrame:
        lists = table[column].to_list()
        lists[1].insert(0, lists[0].pop())
        return table.with_columns(pl.Series(column, lists, table.schema[column]))

    return change


def _set(column: str, row: int, value: Any) -> Callable[[pl.DataFrame], pl.DataFrame]:
    def change(table: pl.DataFrame) -> pl.DataFrame:
        values = table[column].to_list()
        values[row] = value
        return table.with_columns(pl.Series(column, values, table.schema[column]))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_moved("times"), r"0.parquet: times must have a value for each of items.* row 0"),
        (_moved("weights"), r"0.parquet: weights must have a value for each of items.* row 0"),
        (_moved("dislike_times"), r"0.parquet: dislike_times must .* of dislikes.* row 0"),
        (_set("user", 2, None), r"0.parquet: user must not be null, got null in row 2"),
        (_set("items", 2, None), r"0.parquet: items must not be null, got null in row 2"),
        (_set("weights", 1, [None]), r"0.parquet: weights must not contain null.* row 1"),
    ],
)
def test_lists_match_and_have_no_nulls(change: Any, message: str, tmp_path: Path) -> None:
    part, folder = tmp_path / part_name(0), tmp_path
    pl.DataFrame(
        {
            "user": [1, 2, 3],
            "items": [[0, 1], [1], [0]],
            "times": [[5, 6], [7], [8]],
            "weights": [[1.0, 2.0], [3.0], [4.0]],
            "dislikes": [[2], [0], []],
            "dislike_times": [[9], [9], []],
        },
        schema_overrides={"weights": pl.List(pl.Float32)},
    ).write_parquet(part)
    assert read_part(part, 3).interactions.pairs == 4
    _rewrite(folder, part.name, change)
    with pytest.raises(DataError, match=message):
        read_part(part, 3)


def _folder(path: Path, users: list[list[int]], counts: list[int | None]) -> Path:
    pl.DataFrame(
        {"user": range(len(users)), "items": users}, schema_overrides={"items": pl.List(pl.Int32)}
    ).write_parquet(path / part_name(0))
    pl.DataFrame({"item": range(len(counts)), "users": counts}).write_parquet(
        path / "items.parquet"
    )
    return path


@pytest.mark.parametrize(
    ("users", "counts", "rows", "message"),
    [
        ([[0, 1], [], [0]], [2, 1], None, r"every user must have an item, got none in row 1"),
        ([[0, 2], [0]], [2, 0, 1], None, r"every item must have a user, got none in row 1"),
        ([[0, 1], [0]], [2, None], None, r"users must not be null, got null in row 1"),
        ([[0, 1], [0]], [2, 1], 2, r"rows must be at least the number of pairs, 3, got 2"),
    ],
)
def test_empty_users_and_items_are_refused(
    users: Any, counts: Any, rows: int | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises((DataError, ValueError), match=message):
        seal(_folder(tmp_path, users, counts), parts=1, rows=rows)
    assert not (tmp_path / "prepared.json").exists()


def test_the_number_of_parts_is_limited_as_by_prepare(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="parts must be at most 4,096, got 4,097"):
        seal(_folder(tmp_path, [[0]], [1]), parts=4097)


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_spark_writes_the_same_content(text: bool, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    log(text=text).write_parquet(tmp_path / "log.parquet")
    prepare(tmp_path / "log.parquet", tmp_path / "ours", parts=5, progress=False)
    recipe = ROOT / "docs" / "recipes" / "prepare_with_spark.py"
    subprocess.run(
        [sys.executable, recipe, tmp_path / "log.parquet", tmp_path / "theirs", "5"],
        check=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path]),
             "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"},
    )  # fmt: skip
    names = sorted(path.name for path in (tmp_path / "ours").glob("*.parquet"))
    assert len(names) == 6
    for name in names:
        mine, other = (pl.from_arrow(pq.read_table(tmp_path / way / name, partitioning=None))
                       for way in ("ours", "theirs"))  # fmt: skip
        assert mine.equals(other), name
