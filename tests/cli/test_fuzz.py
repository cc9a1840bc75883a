"""Hundreds of odd logs: a model that answers, or one sentence and nothing left behind."""

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path

import polars
import pytest

import fewfold as ff
from tests.cli.invoke import Done, fewfold

Rows = list[list[str]]


def rows_of(draw: random.Random) -> Rows:
    """A small log that is in order, its header first."""
    users, items = draw.randint(1, 12), draw.randint(1, 12)
    rows = [
        [f"u{draw.randrange(users)}", f"i{draw.randrange(items)}", str(draw.randrange(9))]
        for _ in range(draw.randint(1, 60))
    ]
    return [["user", "item", "rating"], *rows]


def text(rows: Rows, separator: str = ",", end: str = "\n") -> bytes:
    return "".join(separator.join(row) + end for row in rows).encode()


def with_field(field: str) -> Callable[[random.Random], bytes]:
    """A log in which a few fields are this one."""

    def made(draw: random.Random) -> bytes:
        rows = rows_of(draw)
        for _ in range(draw.randint(1, 4)):
            draw.choice(rows)[draw.randrange(3)] = field
        return text(rows)

    return made


def parquet(draw: random.Random) -> bytes:
    rows = rows_of(draw)
    columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
    file = io.BytesIO()
    polars.DataFrame({name: list(values) for name, values in columns.items()}).write_parquet(file)
    return file.getvalue()


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flipped(data: bytes, draw: random.Random, times: int = 3) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, times)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def shuffled_cells(draw: random.Random) -> bytes:
    rows = rows_of(draw)
    for _ in range(draw.randint(1, 5)):
        row = draw.choice(rows)
        row[draw.randrange(len(row)) :] = [] if draw.random() < 0.5 else ["x"] * draw.randint(1, 5)
        row[:] = row or [""]
    return text(rows)


def numbers(draw: random.Random) -> bytes:
    odd = ["nan", "inf", "-0", "1e5", "007", "1.0", "99999999999999999999", "-9223372036854775808"]
    rows = rows_of(draw)
    for row in rows[1:]:
        row[draw.randrange(3)] = draw.choice([*odd, "7", "8", "9"])
    return text(rows)


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "in order": lambda draw: text(rows_of(draw)),
    "empty": lambda draw: b"\n" * draw.randrange(3),
    "header alone": lambda draw: text(rows_of(draw)[:1]),
    "no header": lambda draw: text(rows_of(draw)[1:]),
    "one row": lambda draw: text(rows_of(draw)[:2]),
    "one user": lambda draw: text([[*rows_of(draw)[0]], *(["u", f"i{n}", "1"] for n in range(9))]),
    "one item": lambda draw: text([[*rows_of(draw)[0]], *([f"u{n}", "i", "1"] for n in range(9))]),
    "cells missing and too many": shuffled_cells,
    "numbers": numbers,
    "empty field": with_field(""),
    "space": with_field("  "),
    "not a number": with_field("NaN"),
    "null": with_field("null"),
    "comma in quotes": with_field('"a,b"'),
    "quotes in quotes": with_field('"a ""b"" c"'),
    "quote that never ends": with_field('"a'),
    "quote inside": with_field('a"b'),
    "newline in quotes": with_field('"a\nb"'),
    "unicode": with_field("ä漢字🙂\u202e\u0301"),
    "zero byte": with_field("a\0b"),
    "control letters": with_field("a\x1b[31m\x07\x0bb"),
    "long field": with_field("x" * 200_000),
    "the same row often": lambda draw: text([rows_of(draw)[0], *[["u", "i", "1"]] * 50]),
    "byte order mark": lambda draw: b"\xef\xbb\xbf" + text(rows_of(draw)),
    "lines of Windows": lambda draw: text(rows_of(draw), end="\r\n"),
    "lines of an old Macintosh": lambda draw: text(rows_of(draw), end="\r"),
    "tabs": lambda draw: text(rows_of(draw), "\t"),
    "semicolons": lambda draw: text(rows_of(draw), ";"),
    "columns of one name": lambda draw: text([["user"] * 3, *rows_of(draw)[1:]]),
    "columns without names": lambda draw: text([[""] * 3, *rows_of(draw)[1:]]),
    "gzip": lambda draw: gzip.compress(text(rows_of(draw))),
    "gzip that ends early": lambda draw: cut(gzip.compress(text(rows_of(draw))), draw),
    "gzip with flips": lambda draw: flipped(gzip.compress(text(rows_of(draw))), draw),
    "Latin-1": lambda draw: text(rows_of(draw)).replace(b"i1", b"\xe9\xe8"),
    "UTF-16": lambda draw: text(rows_of(draw)).decode().encode("utf-16"),
    "text with flips": lambda draw: flipped(text(rows_of(draw)), draw),
    "text that ends early": lambda draw: cut(text(rows_of(draw)), draw),
    "Parquet": parquet,
    "Parquet that ends early": lambda draw: cut(parquet(draw), draw),
    "Parquet with flips": lambda draw: flipped(parquet(draw), draw),
    "noise": lambda draw: draw.randbytes(draw.randint(1, 3000)),
}
FLAGS = (
    *((), (), (), ("--skip-bad-rows",), ("--skip-bad-rows",), ("--test", "0")),
    *(("--test", "0", "--skip-bad-rows"), ("--core", "2"), ("--min-rating", "3"), ("--refit",)),
    *(("--user", "item", "--item", "user"), ("--user", "none"), ("--time", "rating")),
    *(("--user", "1", "--item", "2"), ("--without-users",), ("--items-table", "log.csv")),
)
ENDINGS = ("csv", "csv", "csv", "tsv", "txt", "csv.gz", "parquet", "inter")


def check(done: Done, case: str, before: set[str], json: bool = False) -> int:
    """Whole or nothing."""
    assert done.code in (0, 2, 3, 5), f"{case}: {done}"
    assert "Traceback" not in done.err, case
    left = {path.name for path in Path().iterdir()}
    if done.code:
        assert done.message, case
        assert left == before, f"{case} left {left - before}"
    else:
        assert left == before | {"model"}, case
        rec = ff.Recommender.load("model")
        assert rec.recommend_from_history([rec.items[0]], k=3, exclude_seen=False).items, case
    return done.code


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in (1, 2, 3))]
)
def test_odd_logs(part: int, here: Path) -> None:
    draw = random.Random(part)
    codes = []
    for number in range(100):
        kind = list(KINDS)[(number + part * 100) % len(KINDS)]
        ending, flags = draw.choice(ENDINGS), draw.choice(FLAGS)
        name = "log.csv" if "--items-table" in flags else f"log.{ending}"
        Path(name).write_bytes(KINDS[kind](draw))
        model = ("--model", draw.choice(["popularity", "item-knn"]))
        if number % 20 == 0:
            model = ("--hidden", "4", "--latent", "2", "--epochs", "1")
        arguments = ("fit", name, *model, *flags, *(("--json",) if number % 3 == 0 else ()))
        case = f"{kind} in part {part}, number {number}: {' '.join(arguments)}"
        codes.append(check(fewfold(*arguments), case, {name}))
        for path in list(here.iterdir()):
            if path.is_dir():
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()
            else:
                path.unlink()
    assert codes.count(0) > 20  # else nothing was tried
    assert codes.count(3) > 20


@pytest.mark.slow
def test_a_user_with_very_many_items() -> None:
    many = "".join(f"all,i{n}\n" for n in range(100_000))
    Path("log.csv").write_text("user,item\nu,i1\nu,i2\n" + many)
    assert check(fewfold("fit", "log.csv", "--model", "popularity"), "many", {"log.csv"}) == 0
    asked = fewfold("recommend", "model", "--users", "all,u", "-k", 3)
    assert asked.code == 0


def test_folders_and_what_is_no_file(here: Path) -> None:
    Path("folder").mkdir()
    for log in ("folder", "/dev/null", "none.csv", "n" * 300, "*.csv"):
        assert check(fewfold("fit", log, "--model", "popularity"), log, {"folder"}) in (3, 5)
