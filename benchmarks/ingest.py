"""Reading a log: CSV compared with pandas and scipy, and the peak memory of a large one.

``python -m benchmarks.ingest FILE``: peak memory of reading FILE, in bytes. The rows that were read
stay in memory: this is what a training begins with.
"""

import importlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Case, Pair, Peak
from fewfold._resources import peak_memory
from fewfold.recommender.reading.log import read_log

FOLDER = Path("build/benchmarks/ingest")
IDS = ("whole numbers", "text")
PIECE = 1_000_000  # rows that are drawn and written at a time


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_speed(), *_race(), *_memory()]


def _speed() -> Iterator[Case]:
    for ids in IDS:
        yield Case(
            what=f"read_log, CSV, timed, ids are {ids}",
            size="10000000 rows",
            peer="1 us a row",
            bar=1.0,
            build=partial(_seconds, ids, 10_000_000),
            threads=2,
        )


def _race() -> Iterator[Case]:
    for ids in IDS:
        yield Case(
            what=f"read_log, CSV, ids are {ids}",
            size="2000000 rows",
            peer="pandas and scipy",
            bar=1.0,
            build=partial(_against_pandas, ids, 2_000_000),
            threads=2,
        )


def _memory() -> Iterator[Case]:
    for ids, timed in ((IDS[0], False), (IDS[0], True), (IDS[1], False)):
        yield Case(
            what=f"read_log, Parquet, {'timed, ' if timed else ''}ids are {ids}",
            size="100000000 rows",
            peer="6 GB",
            bar=1.0,
            build=partial(_peak, ids, timed, 100_000_000),
            threads=2,
        )


def _seconds(ids: str, rows: int) -> Peak:
    path = write_csv(ids, rows)
    try:
        read_log(write_csv(ids, 1000))  # what is loaded on first use is not the reading
        began = time.perf_counter()
        read_log(path)
        return Peak(time.perf_counter() - began, rows * 1e-6, unit="seconds")
    finally:
        clear()


def _against_pandas(ids: str, rows: int) -> Pair:
    # The file stays until the next row is measured, which writes its own.
    path = write_csv(ids, rows)
    return Pair(lambda: read_log(path, time=False), lambda: _with_pandas(path))


def _with_pandas(path: Path) -> Any:
    import pandas as pd
    from scipy.sparse import csr_array

    table = pd.read_csv(path, usecols=["user", "item"])
    users, user_ids = pd.factorize(table["user"], sort=True)
    items, item_ids = pd.factorize(table["item"], sort=True)
    ones = np.ones(len(users), dtype=np.float32)
    matrix = csr_array((ones, (users, items)), shape=(len(user_ids), len(item_ids)))
    matrix.sum_duplicates()
    return matrix


def _peak(ids: str, timed: bool, rows: int) -> Peak:
    path = write_parquet(ids, timed, rows)
    command = [sys.executable, "-m", "benchmarks.ingest", str(path)]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return Peak(float(done.stdout), 6e9)
    finally:
        clear()


def _pieces(ids: str, rows: int) -> Iterator[Any]:
    """Yield frames of rows: uniform users, popular items, half-star ratings, timestamps."""
    import polars as pl

    draws = np.random.default_rng(0)
    users, items = rows // 50, rows // 200
    for _ in range(0, rows, PIECE):
        size = min(PIECE, rows)
        frame = pl.DataFrame(
            {
                "user": draws.integers(users, size=size),
                "item": (items * draws.random(size) ** 3).astype(np.int64),
                "rating": draws.integers(1, 11, size=size) / 2,
                "timestamp": draws.integers(1_200_000_000, 1_500_000_000, size=size),
            }
        )
        if ids == "text":
            frame = frame.with_columns(
                pl.format("customer-{}", "user").alias("user"),
                pl.format("sku/{}/x", "item").alias("item"),
            )
        yield frame


def write_csv(ids: str, rows: int) -> Path:
    """Write a log as CSV, and return its path."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{rows}.csv"
    with path.open("wb") as file:
        for number, frame in enumerate(_pieces(ids, rows)):
            frame.write_csv(file, include_header=number == 0)
    return path


def write_parquet(ids: str, timed: bool, rows: int) -> Path:
    """Write a log as Parquet, and return its path."""
    import polars as pl

    writer_of: Any = importlib.import_module("pyarrow.parquet").ParquetWriter
    FOLDER.mkdir(parents=True, exist_ok=True)
    path, writer = FOLDER / f"{rows}.parquet", None
    for frame in _pieces(ids, rows):
        chosen = frame.select("user", "item", *(["timestamp"] if timed else []))
        table = chosen.to_arrow(compat_level=pl.CompatLevel.oldest())
        writer = writer or writer_of(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return path


def clear() -> None:
    """Delete the logs that were written."""
    for path in FOLDER.glob("*"):
        path.unlink()


if __name__ == "__main__":
    log = read_log(sys.argv[1])
    print(peak_memory())
