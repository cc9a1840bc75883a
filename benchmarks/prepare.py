"""Preparing a log out of core: rows a second, peak memory, and reading the folder again.

``python -m benchmarks.prepare FILE MEMORY``: peak memory of preparing FILE within so many bytes.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.harness import Case, Pair, Peak
from benchmarks.ingest import IDS, clear, write_csv, write_parquet
from fewfold._resources import peak_memory
from fewfold.recommender.prepared.prepare_log import prepare
from fewfold.recommender.reading.log import read_log

FOLDER = Path("build/benchmarks/prepare")
Writer = Callable[[int], Path]


def cases() -> list[Case]:
    """Yield all rows of the suite, in the order of the claims."""
    return [*_speed(), *_memory(), *_race()]


def _speed() -> Iterator[Case]:
    numbers, text = IDS
    for what, rows, allowed, write in (
        (f"Parquet, timed, ids are {numbers}", 20_000_000, 0.5, partial(write_parquet, numbers,
                                                                        True)),
        (f"Parquet, timed, ids are {text}", 10_000_000, 2.0, partial(write_parquet, text, True)),
        (f"CSV, timed, ids are {numbers}", 10_000_000, 1.0, partial(write_csv, numbers)),
    ):  # fmt: skip
        yield Case(
            what=f"prepare, {what}",
            size=f"{rows} rows",
            peer=f"{allowed:g} us a row",
            bar=1.0,
            build=partial(_seconds, write, rows, allowed * 1e-6),
            threads=2,
        )


def _memory() -> Iterator[Case]:
    yield Case(
        what=f"prepare --memory 1G, Parquet, timed, ids are {IDS[0]}",
        size="50000000 rows",
        peer="1 GB",
        bar=1.0,
        build=partial(_peak, 50_000_000, 10**9),
        threads=2,
    )


def _race() -> Iterator[Case]:
    yield Case(
        what="prepare, Parquet, timed, 16 parts",
        size="5000000 rows",
        peer="parts and group_by of polars, streamed, no checks",
        bar=1.25,
        build=partial(_against_polars, 5_000_000),
        threads=2,
    )
    yield Case(
        what="read_log of the prepared folder",
        size="5000000 rows",
        peer="read_log of the Parquet file",
        bar=1.0,
        build=partial(_against_read_log, 5_000_000),
        threads=2,
    )


def _seconds(write: Writer, rows: int, each: float) -> Peak:
    path = write(rows)
    try:
        _prepared({"user": [1], "item": [1]})  # what is loaded on first use is not the work
        began = time.perf_counter()
        _prepared(path)
        return Peak(time.perf_counter() - began, rows * each, unit="seconds")
    finally:
        clear()


def _prepared(source: object, parts: int | None = None) -> Path:
    shutil.rmtree(FOLDER, ignore_errors=True)
    prepare(source, FOLDER, parts=parts, progress=False)
    return FOLDER


def _peak(rows: int, memory: int) -> Peak:
    path = write_parquet(IDS[0], True, rows)
    command = [sys.executable, "-m", "benchmarks.prepare", str(path), str(memory)]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return Peak(float(done.stdout), memory)
    finally:
        clear()


def _against_polars(rows: int) -> Pair:
    path = write_parquet(IDS[0], True, rows)
    return Pair(lambda: _prepared(path, parts=16), lambda: _with_polars(path, 16))


def _with_polars(path: Path, parts: int) -> None:
    """The same parts, sorted and merged, by the streaming engine of polars."""
    import polars as pl

    folder = FOLDER.with_name("polars")
    shutil.rmtree(folder, ignore_errors=True)
    hashed = (pl.col("user") & 0x7FFF_FFFF) * 2_654_435_761 // 2**30 % parts
    rows = pl.scan_parquet(path).with_columns(part=hashed.cast(pl.UInt8))
    target = pl.PartitionBy(str(folder), key="part", include_key=False)
    rows.sink_parquet(target, mkdir=True, compression="lz4")
    for part in range(parts):
        mine = pl.scan_parquet(folder / f"part={part}" / "*.parquet")
        merged = mine.group_by("user", "item").agg(pl.col("timestamp").max())
        merged.sort("user", "item").sink_parquet(folder / f"{part}.parquet", compression="zstd",
                                                 compression_level=1)  # fmt: skip


def _against_read_log(rows: int) -> Pair:
    path = write_parquet(IDS[0], True, rows)
    folder = _prepared(path)
    return Pair(lambda: read_log(folder), lambda: read_log(path))


if __name__ == "__main__":
    prepare(sys.argv[1], FOLDER, memory=int(sys.argv[2]), overwrite=True, progress=False)
    print(peak_memory())
