"""Whatever a file holds, a log is what a simple reader finds in it, or there is a `DataError`."""

import csv
import gzip
import io
import json
import random
import re

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading import delimited, jsonlines
from fewfold.recommender.reading.log import read_log
from tests.fuzz import reading
from tests.nightly import first

HEADER = ["user", "item", "rating", "time"]
IDS = [
    "1", "22", "-3", "007", "ann", "Zoë", "日本", "a,b", 'say "hi"', "two\nlines", "two\r\nlines",
    "::", "semi;colon", "tab\tbed", " padded ", "#1", "\U0001f600", "NA", "x" * 3000, "'", "0",
]  # fmt: skip
NUMBERS = ["1", "2.5", "-7", "1e3", " 4 ", "1262304000"]
GAPS = ["", "nan", "na", "-"]  # for a time
JUNK = ["", "nan", "soon", "inf", "12x", "--1"]
INSERTS = [
    b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"\xe9", b"\xff\xfe", b" ", b"a",
    b"::", b"\xef\xbb\xbf", b"\t", b";", b'",', b',"', b'"\n', b"\xc3\xa9",
]  # fmt: skip


def table(rng):
    """The bytes of a file of up to thirty rows, some of them wrong."""
    tame = rng.random() < 0.4
    ids = IDS[:3] if rng.random() < 0.3 else IDS
    users, items = rng.sample(ids, rng.randint(1, len(ids))), rng.sample(ids, rng.randint(1, 3))
    rows = []
    for _ in range(rng.randint(0, 30)):
        row = [rng.choice(users), rng.choice(items), rng.choice(NUMBERS), rng.choice(NUMBERS)]
        if not tame and rng.random() < 0.1:
            row[rng.randrange(4)] = rng.choice(JUNK)
        if not tame and rng.random() < 0.05:
            row = row[: rng.randint(0, 3)] if rng.random() < 0.5 else [*row, "more"]
        rows.append(row)
    text = io.StringIO()
    writer = csv.writer(
        text,
        quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        lineterminator=rng.choice(["\n", "\n", "\r\n"]),
    )
    writer.writerows([HEADER, *rows])
    return (b"\xef\xbb\xbf" if rng.random() < 0.1 else b"") + text.getvalue().encode()


def spoiled(data, rng):
    """The same with some bytes put in, taken out or cut off; most often behind the header."""
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        first = data.find(b"\n") + 1 if rng.random() < 0.9 else 0
        at = rng.randint(min(first, len(data)), len(data))
        way = rng.random()
        if way < 0.6:
            data = data[:at] + rng.choice(INSERTS) + data[at:]
        elif way < 0.9:
            data = data[:at] + data[at + rng.randint(1, 3) :]
        else:
            data = data[:at]
    return data


def simple(data):
    """The pairs of good rows and the lines of bad ones; None where the file means nothing clear."""
    if re.search(rb"\r(?!\n)|\0", data):
        return None
    try:
        text = data.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline="\n"), strict=True)
        rows, line = [], 1
        for row in reader:
            rows.append((line, row))
            line = reader.line_num + 1
    except (UnicodeDecodeError, csv.Error):
        return None
    rows = [(line, row) for line, row in rows if len(row) > 1 or "".join(row).strip()]
    if not rows or rows[0][1] != HEADER:
        return None
    good = {
        line: row
        for line, row in rows[1:]
        if len(row) == 4 and all(id.strip() for id in row[:2]) and fine(row[2:])
    }
    pairs = {(row[0].strip(), row[1].strip()) for row in good.values()}
    return pairs, {line for line, _ in rows[1:]} - set(good)


def fine(values):
    """Whether the rating is a number, and the time one or nothing."""
    rating, time = values
    try:
        number = float(rating), 0.0 if time.strip().lower() in GAPS else float(time)
    except ValueError:
        return False
    return all(abs(one) < float("inf") for one in number)


def pairs(log):
    users, items = log.users.take(log.interactions.row), log.items.take(log.interactions.ids)
    return {(str(user), str(item)) for user, item in zip(users, items, strict=True)}


def attempt(path, **options):
    """The log and nothing, or nothing and what is wrong."""
    try:
        log = read_log(path, **options)
    except DataError as error:
        assert len(str(error)) > 20  # noqa: PT017
        return None, str(error)
    assert log.interactions.pairs > 0
    return log, ""


def check(path, expected):
    """Read it in both ways and compare; what is not clear only has to be a log or an error."""
    strict, error = attempt(path, min_rating=-1e9)
    lenient, reason = attempt(path, min_rating=-1e9, skip_bad_rows=True)
    if expected is None:
        return
    good, bad = expected
    assert (strict is not None) == bool(good and not bad), error
    assert (lenient is not None) == bool(good), reason
    if strict:
        assert pairs(strict) == good
    if lenient:
        assert pairs(lenient) == good
        assert sum(lenient.summary.bad_rows.values()) == len(bad)
    if bad:
        assert int(re.search(r", line (\d+): ", error)[1]) in bad


@pytest.mark.parametrize("seed", first(6, range(16)))
def test_text(seed, tmp_path, monkeypatch):
    rng = random.Random(seed)
    for number in range(10):
        monkeypatch.setattr(delimited, "_BLOCK", rng.choice([300, 1000, 1 << 24, 1 << 24]))
        data = spoiled(table(rng), rng)
        path = tmp_path / f"{number}.csv"
        path.write_bytes(data)
        check(path, simple(data))


@pytest.mark.parametrize("seed", first(3, range(5)))
def test_compressed_text(seed, tmp_path):
    rng = random.Random(1000 + seed)
    for number in range(10):
        data = table(rng)
        packed = gzip.compress(data)
        path = tmp_path / f"{number}.csv.gz"
        path.write_bytes(packed)
        check(path, simple(data))
        path.write_bytes(packed[: rng.randint(1, len(packed) - 1)])
        with pytest.raises(DataError):
            read_log(path, skip_bad_rows=True)


def objects(rng):
    """Lines of JSON objects, most of them in order."""
    odd = ["", "[]", "{", "null", '{"user": "a"}', '{"user": 1, "item": [1]}', '{"item": 7}']
    lines = []
    for number in range(rng.randint(1, 30)):
        one = {"user": rng.choice(IDS), "item": rng.choice([1, 2, -3]), "time": rng.randrange(9)}
        lines.append(json.dumps(one, ensure_ascii=rng.random() < 0.5))
        if number and rng.random() < 0.1:
            lines.append(rng.choice(odd))
    return lines


def simple_objects(data):
    """The pairs of good lines and the numbers of bad ones."""
    good, bad = {}, set()
    for line, text in enumerate(data.decode().split("\n"), 1):
        try:
            one = json.loads(text) if text.strip() else None
            user, item = (one["user"], one["item"]) if one is not None else ("", "")
        except (ValueError, KeyError, TypeError):
            bad.add(line)
            continue
        if not text.strip():
            continue
        if isinstance(item, int) and str(user).strip():
            good[line] = (str(user).strip(), str(item))
        else:
            bad.add(line)
    return set(good.values()), bad


@pytest.mark.parametrize("seed", first(2, range(4)))
def test_json_lines(seed, tmp_path, monkeypatch):
    rng = random.Random(3000 + seed)
    for number in range(10):
        monkeypatch.setattr(jsonlines, "_BLOCK", rng.choice([1, 100, 1000, 1 << 24]))
        data = "\n".join(objects(rng)).encode()
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(data)
        good, bad = simple_objects(data)
        strict, error = attempt(path)
        lenient, _ = attempt(path, skip_bad_rows=True)
        assert (strict is not None) == bool(good and not bad), error
        assert (lenient is not None) == bool(good)
        if lenient:
            assert pairs(lenient) == good
            assert sum(lenient.summary.bad_rows.values()) == len(bad)
        if bad:
            assert int(re.search(r", line (\d+): ", error)[1]) in bad
        path.write_bytes(spoiled(data, rng))
        attempt(path)
        attempt(path, skip_bad_rows=True)


def as_parquet(frame, rng):
    sink = io.BytesIO()
    pq.write_table(frame, sink, compression=rng.choice(["none", "snappy", "zstd", "gzip"]))
    return sink.getvalue()


def as_arrow(frame, rng):
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, "lz4", "zstd"]))
    make = rng.choice([pa.ipc.new_file, pa.ipc.new_stream])
    with make(sink, frame.schema, options=options) as file:
        file.write_table(frame, max_chunksize=rng.choice([1, 7, 100]))
    return sink.getvalue()


@pytest.mark.parametrize("packed", [as_parquet, as_arrow])
@pytest.mark.parametrize("seed", first(6, range(15)))
def test_typed_columns(seed, packed, tmp_path):
    rng = random.Random(2000 + seed)
    rows = rng.randint(1, 50)
    frame = pa.table(
        {
            "user": rng.choices(IDS, k=rows) if seed % 2 else rng.choices(range(-9, 9), k=rows),
            "item": pa.array(rng.choices([1, 2, None], k=rows), pa.int64()),
            "time": pa.array(rng.choices([*range(5), 2**40, None], k=rows), pa.timestamp("us")),
        }
    )
    whole = packed(frame, rng)
    path = tmp_path / "log"
    for _ in range(10):
        data = bytearray(whole)
        for _ in range(rng.randint(0, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data))])
        attempt(path)
        attempt(path, skip_bad_rows=True)
    users, items = frame["user"].to_pylist(), frame["item"].to_pylist()
    good = {(str(u).strip(), str(i)) for u, i in zip(users, items, strict=True) if i is not None}
    path.write_bytes(whole)
    if good:
        assert pairs(read_log(path, skip_bad_rows=True)) == good


@pytest.mark.parametrize("seed", first(3, range(5)))
def test_every_format(seed, tmp_path):
    """Some of what ``python -m tests.fuzz.reading`` does for longer."""
    outcomes = set()
    for number in range(20 * seed, 20 * seed + 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        _, path, options = reading.case(number, folder)
        outcomes.add(reading.attempt(path, options))
    assert outcomes <= {"read", "DataError", "ValueError"}


def test_a_user_with_a_million_items(tmp_path):
    items = np.random.default_rng(0).permutation(1_000_000)
    frame = pl.DataFrame({"user": np.ones(1_000_000, dtype=np.int64), "item": items})
    frame.write_csv(tmp_path / "log.csv")
    log = read_log(tmp_path / "log.csv")
    assert (log.interactions.users, log.interactions.pairs) == (1, 1_000_000)
    assert np.array_equal(log.items.values, np.arange(1_000_000))


def test_a_huge_field(tmp_path):
    huge = "x" * 3_000_000
    for row in (f"{huge},1,1,1\n", f'"{huge}",1,1,1\n', f'{huge},1,1,1\n"a"b,1,1,1\n'):
        (tmp_path / "log.csv").write_text(f"{','.join(HEADER)}\n{row}")
        log = read_log(tmp_path / "log.csv", skip_bad_rows=True)
        assert log.users.tolist() == [huge]
