"""A prepared log holds what `read_log` reads, and refuses what it refuses."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import fewfold as ff
from fewfold._lock import locked
from fewfold.recommender import DataError, Log, PreparedLog, prepare, read_log
from fewfold.recommender.prepared import item_codes, prepare_log, sorted_part
from fewfold.recommender.reading import delimited


def frame(seed: int, *, rows: int, text: bool, span: int = 40) -> pl.DataFrame:
    """Rows with duplicates, ratings, weights of which some are 0, and times with gaps."""
    draws = np.random.default_rng(seed)
    users, items = draws.integers(-5, span, rows), draws.integers(0, span // 2, rows)
    names = [f"ü{n}" if n % 3 else f" {n} " for n in users]
    times = [None if draws.random() < 0.1 else int(t) for t in draws.integers(1e9, 2e9, rows)]
    return pl.DataFrame(
        {
            "user": names if text else users,
            "item": [f"i{n}" for n in items] if text else items * 10**10,
            "rating": draws.integers(1, 6, rows),
            "plays": draws.integers(0, 4, rows) + draws.random(rows).round(3),
            "time": times,
        }
    )


def assert_same(one: Log, other: Log) -> None:
    assert one.users.tolist() == other.users.tolist()
    assert one.items.tolist() == other.items.tolist()
    pairs: list[tuple[Any, Any]] = [(one.interactions, other.interactions)]
    if one.interactions.dislikes is not None:
        pairs.append((one.interactions.dislikes, other.interactions.dislikes))
    for mine, theirs in pairs:
        for name in ("offsets", "ids", "times", "weights"):
            expected, found = getattr(mine, name), getattr(theirs, name)
            assert (expected is None) == (found is None), name
            if expected is not None:
                assert expected.dtype == found.dtype
                assert torch.equal(expected, found), name
    mine, theirs = one.summary.as_dict(), other.summary.as_dict()
    for facts in (mine, theirs):
        del facts["plan"]
    assert mine == theirs


WAYS = [
    {"time": False},
    {},
    {"min_rating": 3.0},
    {"min_rating": 3.0, "weight": "plays"},
    {"weight": "plays", "where": "rating>=2"},
]


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("way", range(len(WAYS)))
def test_it_holds_what_read_log_reads(way: int, ending: str, text: bool, tmp_path: Path) -> None:
    folder, reading = tmp_path / "log", WAYS[way]
    folder.mkdir()
    for number in range(3):
        part = frame(number, rows=150, text=text)
        path = folder / f"{number}.{ending}"
        part.write_csv(path) if ending == "csv" else part.write_parquet(path)
    for parts in (1, 7, *([200] if way == 2 else [])):  # more than there are users
        found = prepare(folder, tmp_path / f"{parts}", parts=parts, progress=False, **reading)
        assert found.manifest.parts == parts
        again = read_log(tmp_path / f"{parts}")
        assert_same(read_log(folder, **reading), again)
        assert again.summary.plan.columns is not None
        assert again.summary.plan.columns.user.guessed
    PreparedLog.open(tmp_path / "7", hashes=True)
    assert_same(read_log(folder, core=3, **reading), read_log(tmp_path / "7", core=3))


def test_numbers_that_turn_out_to_be_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "_BLOCK", 1 << 10)  # several batches
    rows = [f"{n % 90},{n % 31},{n}" for n in range(900)]
    rows[700] = "x7,5,3"
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["user,item,time", *rows]))
    prepare(path, tmp_path / "prepared", parts=3, progress=False)
    log = read_log(tmp_path / "prepared")
    assert log.users.textual
    assert not log.items.textual
    assert_same(read_log(path), log)
    rows[800] = "1,2,0.5"  # so are times that turn out to be fractions
    path.write_text("\n".join(["user,item,time", *rows]))
    prepare(path, tmp_path / "prepared", parts=3, overwrite=True, progress=False)
    assert_same(read_log(path), read_log(tmp_path / "prepared"))


def test_users_and_items_without_a_like_are_left_out(tmp_path: Path) -> None:
    log = {
        "user": [1, 1, 1, 2, 2, 3, 4, 4],
        "item": [5, 7, 9, 7, 8, 9, 5, 5],
        "rating": [5, 1, 1, 4, 1, 1, 1, 4],  # nobody likes 8 or 9; 3 likes nothing; 4 changed
        "time": [1, 2, 3, 4, 5, 6, 8, 7],
    }
    found = prepare(log, tmp_path / "prepared", parts=2, min_rating=3, progress=False)
    assert found.manifest.dislikes == 1
    assert found.items.tolist() == [5, 7]
    assert_same(read_log(log, min_rating=3), read_log(tmp_path / "prepared"))
    names = {path.name for path in (tmp_path / "prepared").iterdir()}
    parts = {"part-00000.parquet", "part-00001.parquet"}
    assert names == {"prepared.json", "items.parquet", *parts}


def test_ids_too_far_apart_for_tables_and_packed_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_codes, "_WAITING", 3)
    log = {
        "user": [-(2**63), 2**63 - 1, 5, -(2**63), 5],
        "item": [2**62, -(2**62), 2**62, 7, 2**62],
        "time": [5, 4, 3, 2, 1],
    }
    prepare(log, tmp_path / "prepared", parts=2, progress=False)
    assert_same(read_log(log), read_log(tmp_path / "prepared"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item\n1,2\n,3\n", "log.csv, line 3: no user"),
        ("user,item\n1,2\n2,3,4\n", "log.csv, line 3: wrong number of fields"),
        ("user,item,time\n1,2,5\n1,3,soon\n", "log.csv, line 3: time cannot be read"),
        ("user,item\n", "there are columns and no rows"),
        ("", "the file is empty"),
        ("a,b,c\n1,2,3\n", "it is not clear which column is the user"),
    ],
)
def test_bad_logs_are_refused_like_by_read_log(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message) as expected:
        read_log(path)
    with pytest.raises(DataError) as found:
        prepare(path, tmp_path / "prepared", progress=False)
    assert str(found.value) == str(expected.value)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log.csv"]


def test_bad_rows_are_skipped_and_counted_like_by_read_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,item,time\n1,2,5\n,3,4\n1,3,soon\n2,2,7,9\n2,4,9\n")
    prepare(path, tmp_path / "prepared", skip_bad_rows=True, progress=False)
    assert_same(read_log(path, skip_bad_rows=True), read_log(tmp_path / "prepared"))


def test_files_with_other_types_or_columns_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"user": [1], "item": [2]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"user": ["a"], "item": [2]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(DataError, match="the user ids are text here and numbers before"):
        prepare(tmp_path, tmp_path / "prepared", progress=False)
    pl.DataFrame({"who": [1], "item": [2]}).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(DataError, match=r"2.parquet: there is no column 'user'"):
        prepare(tmp_path, tmp_path / "prepared", progress=False)


def test_options_and_targets_are_checked(tmp_path: Path) -> None:
    log = {"user": [1, 2], "item": [1, 1]}
    for wrong, message in (
        ({"parts": 0}, "parts must be"),
        ({"parts": 10**6}, "parts must be at most 4,096"),
        ({"memory": 1000}, "memory must be at least 500M"),
        ({"core": 3}, "core is an option of the fit"),
        ({"colour": 3}, "colour"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            prepare(log, tmp_path / "prepared", progress=False, **wrong)  # type: ignore[arg-type]
    prepare(log, tmp_path / "prepared", progress=False)
    with pytest.raises(FileExistsError, match="holds a prepared log already"):
        prepare(log, tmp_path / "prepared", progress=False)
    prepare(log, tmp_path / "prepared", parts=2, overwrite=True, progress=False)
    assert PreparedLog.open(tmp_path / "prepared").manifest.parts == 2
    with pytest.raises(ValueError, match="drop user, or prepare the log again"):
        read_log(tmp_path / "prepared", user="user")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(FileExistsError, match="is not a prepared log"):
        prepare(log, tmp_path / "other", overwrite=True, progress=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "part-00001.parquet").unlink(), "expected a file of"),
        (lambda folder: (folder / "part-00000.parquet").write_bytes(b"PAR1"), "it has 4"),
        (lambda folder: (folder / "prepared.json").write_text("{}"), "does not describe"),
        (lambda folder: _change(folder, version=2), "expected version 1, got 2"),
        (lambda folder: _change(folder, parts=5), "expected 5 parts"),
    ],
)
def test_damaged_folders_are_refused(damage: Any, message: str, tmp_path: Path) -> None:
    prepare(frame(0, rows=99, text=False), tmp_path / "prepared", parts=2, progress=False)
    damage(tmp_path / "prepared")
    with pytest.raises(DataError, match=message):
        read_log(tmp_path / "prepared")


def _change(folder: Path, **values: Any) -> None:
    found = json.loads((folder / "prepared.json").read_text())
    (folder / "prepared.json").write_text(json.dumps(found | values))


def test_a_flipped_byte_is_found_by_its_hash(tmp_path: Path) -> None:
    prepare(frame(0, rows=99, text=False), tmp_path / "prepared", progress=False)
    path = tmp_path / "prepared" / "part-00000.parquet"
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="it has changed since it was written"):
        PreparedLog.open(tmp_path / "prepared", hashes=True)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.parquet"
    frame(3, rows=4000, text=True, span=900).write_parquet(path)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_finished_parts_are_not_sorted_again(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(log, tmp_path / "whole", parts=6, progress=False)
    monkeypatch.setattr(prepare_log, "available_processors", lambda: 1)
    done: list[int] = []

    def broken(rows: Any, *arguments: Any) -> Any:
        done.append(len(rows["item"]))
        if len(done) == 4:
            raise OSError(28, "No space left on device")
        return sorted_part.sorted_part(rows, *arguments)

    monkeypatch.setattr(prepare_log, "sorted_part", broken)
    with pytest.raises(OSError, match="No space left"):
        prepare(log, tmp_path / "prepared", parts=6, progress=False)
    assert not (tmp_path / "prepared").exists()
    monkeypatch.setattr(prepare_log, "scatter", None)  # is not called again
    prepare(log, tmp_path / "prepared", parts=6, progress=False)
    assert len(done) == 7  # three before it broke, the fourth twice, two after it
    assert contents(tmp_path / "prepared") == contents(tmp_path / "whole")


def test_another_log_or_number_of_parts_starts_again(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(prepare_log, "sorted_part", None)
        with pytest.raises(TypeError):
            prepare(log, tmp_path / "prepared", parts=6, progress=False)
    assert (tmp_path / ".prepared.partial" / "scattered.json").exists()
    prepare(log, tmp_path / "prepared", parts=5, progress=False)
    assert PreparedLog.open(tmp_path / "prepared").manifest.parts == 5
    assert_same(read_log(log), read_log(tmp_path / "prepared"))


def test_a_full_disk_is_named_as_such(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "rows.bin")

    monkeypatch.setattr("fewfold.recommender.prepared.spill.SpillWriter.add", full)
    with pytest.raises(OSError, match="No space left"):
        prepare(log, tmp_path / "prepared", progress=False)
    assert [one.name for one in tmp_path.iterdir()] == [log.name]


def test_two_commands_do_not_prepare_one_folder(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "prepared"
    with locked(target), pytest.raises(FileExistsError, match="another command is writing"):
        prepare(log, target, progress=False)


def test_a_log_that_another_command_has_just_finished_is_kept(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def late(target: Path) -> Iterator[None]:
        monkeypatch.setattr(prepare_log, "locked", locked)
        prepare({"user": [1], "item": [2]}, target, progress=False)
        with locked(target):
            yield

    monkeypatch.setattr(prepare_log, "locked", late)
    with pytest.raises(FileExistsError, match="holds a prepared log already"):
        prepare(log, tmp_path / "prepared", progress=False)
    assert PreparedLog.open(tmp_path / "prepared").manifest.pairs == 1
    assert {one.name for one in tmp_path.iterdir()} == {log.name, "prepared"}


def test_a_model_is_the_same_from_the_file_and_from_the_folder(log: Path, tmp_path: Path) -> None:
    prepare(log, tmp_path / "prepared", parts=3, progress=False)
    models = [
        ff.Recommender(ff.recommender.EASE()).fit(source, progress=False)
        for source in (log, tmp_path / "prepared")
    ]
    user = models[0].users[0]  # type: ignore[index]
    ids = [one.recommend(user, 5).items for one in models]
    assert ids[0] == ids[1]


def test_rules_of_the_model_are_those_of_the_folder(tmp_path: Path) -> None:
    rows = frame(5, rows=900, text=False, span=120)
    prepare(rows, tmp_path / "prepared", min_rating=3, weight="plays", progress=False)
    rec = ff.Recommender(ff.recommender.EASE())
    other = frame(6, rows=900, text=False, span=120)
    rec.fit(other, min_rating=3, weight="plays", progress=False)
    kept = rec.evaluate(tmp_path / "prepared", split="all").overall
    assert kept.users > 50
    # A log that was read keeps its confidences.
    for scale in ("linear", "log"):
        log = read_log(tmp_path / "prepared", weight_scale=scale)
        assert_same(read_log(rows, min_rating=3, weight="plays", weight_scale=scale), log)
        assert read_log(log).interactions.weights is log.interactions.weights
