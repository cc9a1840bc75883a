"""Logs in object stores, through fsspec's file system in memory."""

import builtins
from collections.abc import Iterator
from typing import Any

import fsspec
import polars as pl
import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading import remote
from fewfold.recommender.reading.log import plan_log, read_log
from tests.recommender.reading.known import known

CSV = b"user,item,time\nann,7,30\nbob,3,20\n"
PAIRS = {("ann", 7): 30, ("bob", 3): 20}


@pytest.fixture
def store() -> Iterator[Any]:
    """An empty store."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


def test_a_file(store: Any) -> None:
    store.pipe("/bucket/log.csv", CSV)
    log = read_log("memory://bucket/log.csv")
    assert known(log) == PAIRS
    assert log.summary.plan.files == ("memory://bucket/log.csv",)
    assert plan_log("memory://bucket/log.csv").first_rows[0] == ("ann", "7", "30")
    store.pipe("/bucket/log.csv", CSV + b"cy,1,1\n")  # a file that changed is read again
    assert ("cy", 1) in known(read_log("memory://bucket/log.csv"))
    store.pipe("/bucket/bad.csv", CSV + b",1,1\n")
    with pytest.raises(DataError, match=r"^memory://bucket/bad.csv, line 4: no user"):
        read_log("memory://bucket/bad.csv")


def test_folders_partitions_and_patterns(store: Any, tmp_path: Any) -> None:
    frame = pl.DataFrame({"user": ["ann"], "item": [7]})
    frame.write_parquet(tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    for day in ("2024-01-01", "2024-01-02"):
        store.pipe(f"/bucket/log/dt={day}/a.parquet", data)
    for hidden in ("_SUCCESS", "_tmp/x.parquet", "below/x.parquet", ".x.csv", "notes.pdf"):
        store.pipe(f"/bucket/log/{hidden}", b"PAR1 is broken")
    for source in (
        "memory://bucket/log",
        "memory://bucket/log/",
        "memory://bucket/log/dt=*/*.parquet",
    ):
        log = read_log(source)
        assert log.summary.rows == 2
        assert log.summary.plan.names == ("user", "item", "dt")
    store.pipe("/bucket/two/a.csv", CSV)
    assert known(read_log(["memory://bucket/two/a.csv", "memory://bucket/two/*.csv"])) == PAIRS


WRONG = {
    "memory://bucket/none.csv": "there is no such file or folder; check the address",
    "memory://bucket/*.parquet": "no file matches this pattern",
    "memory://bucket/pdf": "expected .csv, .tsv, .* files in this folder, got notes.pdf",
    "memory://bucket/delta": "this is a Delta Lake table",
}


@pytest.mark.parametrize("address", WRONG)
def test_wrong_addresses(address: str, store: Any) -> None:
    store.pipe("/bucket/pdf/notes.pdf", b"%PDF")
    store.pipe("/bucket/delta/_delta_log/0.json", b"{}")
    store.pipe("/bucket/delta/a.parquet", b"PAR1")
    with pytest.raises(DataError, match=f"^{address.replace('*', '.')}: {WRONG[address]}"):
        read_log(address)


def test_an_incomplete_copy_is_refused(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.pipe("/bucket/cut.csv", CSV)

    def cut(path: str, target: str) -> None:
        with open(target, "wb") as file:
            file.write(CSV[:25])

    with monkeypatch.context() as patch:
        patch.setattr(store, "get_file", cut)
        with pytest.raises(DataError, match=f"got 25 of {len(CSV)} bytes"):
            read_log("memory://bucket/cut.csv")
    assert known(read_log("memory://bucket/cut.csv")) == PAIRS


def test_other_errors_are_explained(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError("AccessDenied")

    monkeypatch.setattr(store, "isdir", refuse)
    with pytest.raises(DataError, match=r"cannot be read \(AccessDenied\); .*your credentials"):
        read_log("memory://bucket/log.csv")


MISSING = [
    ("s3://bucket/log.parquet", r"needs s3fs: pip .* aws s3 cp s3://bucket/log.parquet \.$"),
    ("s3a://bucket/log.parquet", r"needs s3fs: pip .* aws s3 cp s3://bucket/log.parquet \.$"),
    ("gs://bucket/log.parquet", r"needs gcsfs: pip .* gcloud storage cp gs://bucket"),
    ("abfss://box@account/a.csv", r"needs adlfs: pip .* azcopy copy abfss://box@account"),
]


@pytest.mark.parametrize(("address", "message"), MISSING)
def test_a_missing_package_is_named(
    address: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] in ("s3fs", "gcsfs", "adlfs"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        DataError, match=f"^{address}: this is an address, and reading it {message}"
    ):
        read_log(address)
    assert remote.is_remote(address)
