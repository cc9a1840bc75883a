"""Malformed logs in every format: each is read, or raises an error that says what to do.

``python -m tests.fuzz.reading --minutes 5`` makes files from seeds, reads them with random options,
and counts what came of it. A worker process reads them, so that a crash of a library is found too.
Violations are saved in the folder named by ``--keep``, with their seeds.

The invariant: the result is a log, or a `ValueError`, `TypeError` or `OSError` of this library
whose message names the source and is more than a few words. Never another error, a panic on
standard error, more than a minute, or more than 1 GB of memory.
"""

import argparse
import bz2
import collections
import datetime
import decimal
import functools
import gzip
import io
import json
import lzma
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

from fewfold.recommender.attributes import read_attributes
from fewfold.recommender.ids import Ids
from fewfold.recommender.reading.log import plan_log, read_log

__all__ = ["CASES", "attempt", "case"]

SECONDS = 60
MEMORY = 1 << 30
CHUNK = 400  # seeds of one worker

NAMES = [
    ["user", "item", "rating", "time"],
    ["user_id", "item_id", "event_type", "timestamp"],
    ["who", "what", "x", "y"],
    ["u0", "i0", "5", "2020-01-31"],
    ["user", "item", "user", "time"],
    ["", "item", "*", "^.*$"],
    ["user:token", "item:token", "rating:float", "time:float"],
    ["a=b", "a", "a>=b", "time"],
    ["1", "2", "3", "4"],
    ["Benutzer", "Artikel", "Wertung", "Datum"],
]
IDS = [
    "1", "22", "-3", "007", "ann", "Zoë", "日本", "a,b", 'say "hi"', "two\nlines", "::",
    "semi;colon", "tab\tbed", " padded ", "#1", "\U0001f600", "NA", "x" * 3000, "'", "0", "", " ",
    "u1", "u2", "18446744073709551616", "1e400", "\u202e\u0301", "=cmd()", "{", "[1]", "null",
    "\u00a0a",
]  # fmt: skip
TIMES = [
    "1", "1262304000", "1262304000.5", "-1", "1e300", "inf", "nan", "", "NULL", "2020-01-31",
    "2020-01-31T10:00:00Z", "2020-01-31 10:00:00.123456789", "31/01/2020", "01/31/2020",
    "01/02/2020", "31.01.2020 10:00", "1/2/2020 10:05 PM", "31 Jan 2020", "Jan 31, 2020",
    "0000-00-00", "9999-12-31T23:59:59.999999", "99999-01-01", "2020-02-30", "soon", "24:00",
    "20200131", "Fri, 31 Jan 2020 23:05:00 +0100", "2020-01-31T10:00:00+99:99",
    "-2020-01-01", "٢٠٢٠-٠١-٠١",
]  # fmt: skip
RATINGS = ["1", "5", "4.5", "", "nan", "five", "-1e308", "view", "cart", "purchase", "  3 ", "1,5"]
INSERTS = [
    b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"\xe9", b"\xff\xfe", b" ", b"a",
    b"::", b"\xef\xbb\xbf", b"\t", b";", b'",', b',"', b'"\n', b"\xc3\xa9", b"{", b"}", b"]", b":",
    b"\\", b"\\u", b"\\ud800", b"\x1f", b"\xff\xff\xff\xff", b"PAR1", b"9" * 400,
]  # fmt: skip
OPTIONS: dict[str, list[Any]] = {
    "min_rating": [None, None, None, 3, -1e308],
    "time": [None, None, None, False, "time", "timestamp", "y", "4"],
    "user": [None, None, None, None, "user", "u0", "1", "who", "a=b", "*"],
    "item": [None, None, None, None, "item", "i0", "2", "what", "a"],
    "header": [None, None, None, True, False],
    "strip_ids": [True, True, False],
    "core": [1, 1, 1, 2],
    "time_format": [None, None, None, None, "%d/%m/%Y", "%Y-%m-%d %H", "%Q", "%c", "%Y%m%d", "%s"],
    "where": [
        (), (), (), (), "event_type=purchase", "rating>=3", "time!=", "user=ann,1",
        "item<2020-01-01", "a=b=1", "x", "=", ["user!=", "item!="], 'user="a,b"', "time>2020-01-01",
        "item>=1",
    ],
}  # fmt: skip


def rows_of(rng: random.Random) -> tuple[list[str], list[list[str]]]:
    """A header and up to forty rows; sometimes of one kind of time, sometimes of all."""
    names = rng.choice(NAMES[:2]) if rng.random() < 0.7 else rng.choice(NAMES)
    ids = rng.sample(IDS, rng.randint(1, 8)) if rng.random() < 0.8 else IDS
    times = rng.sample(TIMES, rng.choice([1, 1, 2, 3, len(TIMES)]))
    ratings = rng.sample(RATINGS, rng.randint(1, 4))
    rows = [
        [rng.choice(ids), rng.choice(ids), rng.choice(ratings), rng.choice(times)]
        for _ in range(rng.randint(0, 40))
    ]
    for row in rows:
        if rng.random() < 0.02:
            row[rng.randrange(4) :] = ["more"] * rng.randint(0, 5)
    return names, rows


def text(rng: random.Random) -> bytes:
    """A text table with some separator and some quotes."""
    names, rows = rows_of(rng)
    sign = rng.choice([",", ",", ",", "\t", ";", "|", "::"])
    end = rng.choice(["\n", "\n", "\r\n", "\r", "\n\n"])
    quote = rng.choice([0.0, 0.1, 1.0])

    def field(value: str) -> str:
        needs = sign in value or "\n" in value or '"' in value
        if rng.random() < quote or (needs and rng.random() < 0.9):
            return '"' + value.replace('"', '""') + '"'
        return value

    head = [] if rng.random() < 0.2 else [names]
    lines = end.join(sign.join(map(field, row)) for row in [*head, *rows])
    mark = b"\xef\xbb\xbf" if rng.random() < 0.05 else b""
    codec = rng.choice(["utf-8"] * 8 + ["utf-16", "latin-1"])
    return mark + (lines + rng.choice([end, ""])).encode(codec, "replace")


def json_lines(rng: random.Random) -> bytes:
    """Objects with values of any JSON type; now and then something else on a line."""
    names, rows = rows_of(rng)
    odd = [None, True, 1, -1.5, 2**70, 1e308, [1], {"a": [{}]}, "\ud800", "", "a\u0000b"]
    lines = []
    for row in rows:
        one: dict[str, Any] = dict(zip(names, row, strict=False))
        for name in list(one):
            if rng.random() < 0.05:
                one[name] = rng.choice(odd)
            elif rng.random() < 0.5 and one[name].isdecimal():
                one[name] = int(one[name][:300])
            elif rng.random() < 0.03:
                del one[name]
        lines.append(json.dumps(one, ensure_ascii=rng.random() < 0.5, indent=None))
        if rng.random() < 0.02:
            lines.append(rng.choice(["", "[]", "{}", "x", "NaN", lines[-1] * 2, "[" * 50_000]))
    whole = "\n".join(lines)
    if rng.random() < 0.1:
        whole = rng.choice(["[" + ",\n".join(lines) + "]", json.dumps({"rows": lines}, indent=1)])
    return whole.encode("utf-8", "replace")


def column(rng: random.Random, rows: int) -> Any:
    """A pyarrow array of any type, with extreme values and gaps."""
    kind = rng.choice(
        [
            pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.int64(), pa.int8(),
            pa.uint64(), pa.float64(), pa.float32(), pa.float16(), pa.bool_(), pa.null(),
            pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"),
            pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Nowhere/Land"),
            pa.timestamp("us", "+02:00"), pa.time32("s"), pa.time64("us"), pa.duration("ms"),
            pa.decimal128(20, 3), pa.list_(pa.int64()), pa.struct([("a", pa.date32())]),
            pa.dictionary(pa.int8(), pa.string()), pa.list_(pa.date32()),
        ]
    )  # fmt: skip
    gaps = [rng.random() < 0.1 for _ in range(rows)]
    width = {"date32": 32, "time32": 32}.get(str(kind).split("[")[0], 64)
    if pa.types.is_temporal(kind):
        most = 2 ** (width - 1) - 1
        values = [rng.choice([0, 1, -1, most, -most, 10**6, 1_600_000_000]) for _ in range(rows)]
        array = pa.array([min(v, most) for v in values], pa.int32() if width == 32 else pa.int64())
        gap = pa.scalar(None, array.type)
        return pa.compute.if_else(pa.array(gaps, pa.bool_()), gap, array).view(kind)
    return pa.array([None if g else _value(kind, rng) for g in gaps], kind)


def _value(kind: Any, rng: random.Random) -> Any:
    choices: list[tuple[Callable[[Any], bool], list[Any]]] = [
        (pa.types.is_boolean, [True, False]),
        (pa.types.is_null, [None]),
        (pa.types.is_decimal, [decimal.Decimal("1.5"), decimal.Decimal(-7)]),
        (pa.types.is_unsigned_integer, [0, 7, 2**64 - 1]),
        (lambda k: k == pa.int8(), [-128, 0, 127]),
        (pa.types.is_integer, [0, 7, -(2**63), 2**63 - 1]),
        (pa.types.is_float16, [np.float16(x) for x in (0.0, 7.0, 0.5, np.nan, np.inf)]),
        (pa.types.is_floating, [0.0, 7.0, 0.5, float("nan"), float("inf")]),
        (pa.types.is_struct, [{"a": datetime.date(2020, 1, 1)}]),
        (lambda k: k == pa.list_(pa.int64()), [[], [1]]),
        (pa.types.is_list, [[datetime.date(2020, 1, 1)]]),
        (pa.types.is_binary, [b"\xff", b"ann", b""]),
    ]
    return rng.choice(next((values for is_it, values in choices if is_it(kind)), IDS + TIMES))


def table(rng: random.Random) -> Any:
    """A pyarrow table; half of them with ids that can be ids."""
    rows = rng.randint(0, 40)
    names = rng.choice(NAMES[:2]) if rng.random() < 0.7 else rng.choice(NAMES)
    columns = [column(rng, rows) for _ in names]
    if rng.random() < 0.6:
        columns[0] = pa.array(rng.choices(IDS, k=rows), pa.string())
        columns[1] = pa.array(rng.choices([1, 2, 3], k=rows), pa.int64())
        if rng.random() < 0.5:
            columns[3] = pa.array(rng.choices([1, 2, None], k=rows), pa.int64())
    return pa.Table.from_arrays(columns, names=names)


def parquet(rng: random.Random) -> bytes:
    """A Parquet file; a plain one where a type cannot be written."""
    sink = io.BytesIO()
    try:
        pq.write_table(table(rng), sink, compression=rng.choice(["none", "snappy", "zstd", "gzip"]))
    except (pa.ArrowException, ValueError):
        sink = io.BytesIO()
        pq.write_table(pa.table({"user": [1], "item": [2]}), sink)
    return sink.getvalue()


def arrow(rng: random.Random) -> bytes:
    """An Arrow file or stream."""
    made, sink = table(rng), io.BytesIO()
    if rng.random() < 0.3:
        with pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_table(made, max_chunksize=rng.choice([1, 10, 100]))
    else:
        options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "lz4", "zstd"]))
        with pa.ipc.new_file(sink, made.schema, options=options) as file:
            file.write_table(made, max_chunksize=rng.choice([1, 10, 100]))
    return sink.getvalue()


@functools.cache
def bomb() -> bytes:
    """A small file that unpacks to a line longer than any row may be."""
    return gzip.compress(bytes(1 << 27))


def foreign(rng: random.Random) -> bytes:
    """What is no log: archives, databases, noise."""
    if rng.random() < 0.02:
        return bomb()
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name in rng.sample(
            ["xl/workbook.xml", "log.csv", "README", "a.npy"], rng.randint(0, 3)
        ):
            archive.writestr(name, "x")
    return rng.choice(
        [
            sink.getvalue(), pickle.dumps(IDS, protocol=rng.randint(0, 5)), b"\x89HDF\r\n\x1a\n",
            b"SQLite format 3\0" + bytes(84), bytes(8) + b"DUCK" + bytes(99), bytes(1000), b"\n",
            rng.randbytes(rng.randint(1, 3000)), b"<html>", b"%PDF-1.4", b"ORC", b"Obj\x01",
            b"{", b"[", b"user,item\n" + b"x," * 100_000, b",".join([b"c"] * 20_000),
        ]
    )  # fmt: skip


CASES: dict[str, tuple[Callable[[random.Random], bytes], list[str]]] = {
    "text": (text, ["log.csv", "log.tsv", "log.txt", "log.dat", "log.inter", "log", "log.parquet"]),
    "JSON lines": (json_lines, ["log.jsonl", "log.ndjson", "log.json", "log.txt"]),
    "Parquet": (parquet, ["log.parquet", "log.pq", "log.csv"]),
    "Arrow": (arrow, ["log.feather", "log.arrow", "log.ipc", "log"]),
    "foreign": (foreign, ["log.csv", "log.parquet", "log.jsonl", "log.feather", "log.xlsx"]),
}
PACKS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress),
    (".bz2", bz2.compress),
    (".xz", lzma.compress),
    (".zst", lambda data: pa.compress(data, "zstd", asbytes=True)),
]


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """The same with bytes put in, taken out, changed or cut off; half the time as it was."""
    if rng.random() < 0.5:
        return data
    for _ in range(rng.choice([1, 1, 2, 5])):
        at, way = rng.randint(0, len(data)), rng.random()
        if way < 0.4:
            data = data[:at] + rng.choice(INSERTS) + data[at:]
        elif way < 0.6:
            data = data[:at] + data[at + rng.randint(1, 3) :]
        elif way < 0.9 and data:
            at %= len(data)
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        else:
            data = data[:at]
    return data


def case(seed: int, folder: Path) -> tuple[str, Path, dict[str, Any]]:
    """The kind of file that a seed stands for, the file or folder, and options to read it with."""
    rng = random.Random(seed)
    kind = list(CASES)[seed % len(CASES)]
    make, names = CASES[kind]
    data, name = make(rng), rng.choice(names)
    if rng.random() < 0.15:
        ending, pack = rng.choice(PACKS)
        data, name = pack(data), name + rng.choice([ending, ending, ""])
    target = folder
    if rng.random() < 0.1:  # as partitions, of which one is whole
        for day in ("dt=2024-01-01", rng.choice(["dt=2024-01-02", "dt=", "x=%ff", "dt=a=b"])):
            (folder / day).mkdir(exist_ok=True)
            (folder / day / name).write_bytes(data)
            data = spoiled(data, rng)
    else:
        target = folder / name
        target.write_bytes(spoiled(data, rng))
    # Most files meet at most one option that does not suit them.
    options = {name: rng.choice(values) for name, values in OPTIONS.items() if rng.random() < 0.2}
    options["skip_bad_rows"] = rng.random() < 0.7
    return kind, target, options


def attempt(path: Path, options: dict[str, Any]) -> str:
    """Read a file as a log, as a plan and as a table of items: "read", or the name of the error.

    What is not an error of this library, or says too little, is raised.
    """
    named = {n: options[n] for n in ("user", "item", "time", "header", "where") if n in options}
    outcome = _lawful(lambda: read_log(path, **options), path)
    _lawful(lambda: plan_log(path, **named), path)
    _lawful(lambda: read_attributes(path, Ids.of(["ann", "1", "22"])), path)
    return outcome


def _lawful(read: Callable[[], Any], path: Path) -> str:
    try:
        read()
    except (ValueError, OSError) as error:
        ours = type(error).__name__ == "DataError" or "time_format" in str(error)
        ours = ours or "where" in str(error)
        about = any(word in str(error) for word in (str(path), "the table", "time_format", "where"))
        if not (ours and about and len(str(error)) > 30 and len(str(error)) < 4000):
            raise
        return type(error).__name__
    return "read"


def work(start: int, stop: int) -> None:
    """Read the files of some seeds and print what came of each; dies of the first unlawful one."""
    signal.signal(signal.SIGALRM, _too_long)
    for seed in range(start, stop):
        with tempfile.TemporaryDirectory() as folder:
            kind, path, options = case(seed, Path(folder))
            print("seed", seed, flush=True)
            print("seed", seed, file=sys.stderr, flush=True)  # whose panic it is
            signal.alarm(SECONDS)
            outcome = attempt(path, options)
            signal.alarm(0)
            print("done", kind, outcome, sep="\t", flush=True)
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def main() -> int:
    """Run workers until the time is over; the exit code tells whether there were violations."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz/reading"))
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(*given.work)
        return 0
    end, seed = time.monotonic() + 60 * given.minutes, given.first
    counts: collections.Counter[str] = collections.Counter()
    peak, broken = 0, []
    while time.monotonic() < end:
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.reading",
            "--work",
            str(seed),
            str(seed + CHUNK),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        last = seed
        for line in done.stdout.splitlines():
            what, *rest = line.split("\t") if "\t" in line else line.split(" ")
            if what == "seed":
                last = int(rest[0])
            elif what == "done":
                counts[": ".join(rest)] += 1
            elif what == "peak":
                peak = max(peak, int(rest[0]))
        before, panicked, _ = done.stderr.partition("panicked")
        if panicked:
            last = int(before.rpartition("seed ")[2].split()[0])
        if done.returncode or panicked or peak > MEMORY:
            why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            broken.append((last, why))
            _keep(given.keep, last, done.stderr)
            print(f"seed {last}: {why}", flush=True)
        seed = last + 1 if done.returncode else seed + CHUNK
    for name, number in sorted(counts.items()):
        print(f"{number:8,}  {name}")
    print(f"{sum(counts.values()):,} files, {len(broken)} violations, {peak / 1e6:,.0f} MB at most")
    return int(bool(broken))


def _keep(folder: Path, seed: int, said: str) -> None:
    target = folder / str(seed)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    _, path, options = case(seed, target)
    (target / "why.txt").write_text(f"{path.name}\n{options!r}\n{said}")


if __name__ == "__main__":
    sys.exit(main())
