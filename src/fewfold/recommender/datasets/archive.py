"""Tables of text inside a zip or gzip archive, written as tidy Parquet."""

import csv
import gzip
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fewfold._optional import optional_import
from fewfold._progress import line
from fewfold.recommender.errors import DataError

__all__ = ["Table", "need_polars", "write_log", "write_titles"]

_BLOCK = 1 << 20
_GROWTH = 40  # text packs ten times smaller, not forty
_SLACK = 1 << 20  # bytes that need no reason


@dataclass(frozen=True)
class Table:
    """A file of an archive, as lines of fields.

    Attributes:
        member: its name in a zip archive; "" in a gzip file, which has one.
        columns: what its fields are, in their order; "" is left out.
        separator: between fields.
        header: whether the first line names the columns.
        quoted: whether fields may stand in double quotes.
        encoding: of the text.
        flags: genres that have a field each behind the columns, 1 or 0; "" is left out.
    """

    member: str
    columns: tuple[str, ...]
    separator: str = ","
    header: bool = False
    quoted: bool = False
    encoding: str = "utf-8"
    flags: tuple[str, ...] = ()


def need_polars() -> ModuleType:
    """The module polars, or an ImportError that says how to get it."""
    with optional_import("polars", "recommender", "fetching data"):
        import polars
    return polars


def write_log(archive: Path, table: Table, target: Path) -> int:
    """Write user, item and, where there are, rating and time (seconds since 1970); count rows."""
    pl = need_polars()
    text = target.with_suffix(".txt")
    _unpack(archive, table.member, text)
    line(f"writing {target.name}")
    try:
        frame = _scan(pl, text, table)
        frame.sink_parquet(target)
        empty = pl.scan_parquet(target).select(
            pl.len(), gaps=pl.sum_horizontal(pl.all().null_count())
        )
        rows, gaps = empty.collect().row(0)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise DataError(
            f"{_named(archive, table)} is not the table it should be: {error}"
        ) from None
    finally:
        text.unlink()
        line("")
    if gaps or not rows:
        raise DataError(
            f"{_named(archive, table)} is not the table it should be: it has {rows:,} rows "
            f"and {gaps:,} empty fields"
        )
    return int(rows)


def write_titles(archive: Path, table: Table, target: Path) -> None:
    """Write item, name and, where there are, genres with | between them."""
    pl = need_polars()
    text = target.with_suffix(".txt")
    _unpack(archive, table.member, text)
    try:
        columns = _titles(text, table)
        columns["item"] = [int(item) for item in columns["item"]]
    except (ValueError, IndexError, csv.Error) as error:
        raise DataError(
            f"{_named(archive, table)} is not the table it should be: {error}"
        ) from None
    finally:
        text.unlink()
    pl.DataFrame(columns).write_parquet(target)


def _named(archive: Path, table: Table) -> str:
    return f"{table.member} of {archive.name}" if table.member else archive.name


def _scan(pl: ModuleType, text: Path, table: Table) -> Any:
    """The log as a lazy frame."""
    # polars separates by one character: between two of them it sees an empty field.
    gap = [""] * (len(table.separator) - 1)
    fields = [field for column in table.columns for field in (column, *gap)]
    fields = fields[: len(fields) - len(gap)]
    checked_in = "rating" not in table.columns  # check-ins have dates, ratings have seconds
    types = {
        "user": pl.Int64,
        "item": pl.Int64,
        "rating": pl.Float32,
        "time": pl.String if checked_in else pl.Int64,
    }
    frame = pl.scan_csv(
        text,
        separator=table.separator[0],
        has_header=False,
        skip_rows=int(table.header),  # the columns get our names
        quote_char=None,
        schema={
            name or f"left out {place}": types.get(name, pl.String)
            for place, name in enumerate(fields)
        },
    ).select(name for name in ("user", "item", "rating", "time") if name in table.columns)
    if checked_in:
        moment = pl.col("time").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="ms")
        frame = frame.with_columns(moment.dt.epoch("s").alias("time"))
    return frame


def _titles(text: Path, table: Table) -> dict[str, list[Any]]:
    """The columns of a table of names, as texts."""
    names = [name for name in table.columns if name]
    if table.flags:
        names.append("genres")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    # A name that is not in the encoding of its table is shown as well as it can be.
    with text.open(encoding=table.encoding, errors="replace", newline="\n") as lines:
        rows: Iterator[list[str]] = (
            csv.reader(lines, delimiter=table.separator, strict=True)
            if table.quoted
            else (row.rstrip("\r\n").split(table.separator) for row in lines)
        )
        if table.header:
            next(rows, None)
        for row in rows:
            if row in ([], [""]):
                continue
            for place, name in enumerate(table.columns):
                if name:
                    columns[name].append(row[place])
            if table.flags:
                marks = row[len(table.columns) :]
                marked = zip(table.flags, marks, strict=True)
                columns["genres"].append(
                    "|".join(genre for genre, mark in marked if mark == "1" and genre)
                )
    if "genres" in columns:
        columns["genres"] = ["" if g == "(no genres listed)" else g for g in columns["genres"]]
    return columns


def _unpack(archive: Path, member: str, target: Path) -> None:
    """Write one member to `target`: by its name, never by its path, and no more than is likely."""
    limit = _SLACK + _GROWTH * archive.stat().st_size
    written, told = 0, 0
    try:
        with _member(archive, member) as source, target.open("wb") as file:
            while block := source.read(_BLOCK):
                written += len(block)
                if written > limit:
                    raise DataError(
                        f"{archive.name} unpacks to more than {limit:,} bytes, {_GROWTH} times its "
                        f"size: that is no table of text; delete {archive} and fetch it again"
                    )
                file.write(block)
                if written - told > 1 << 26:
                    line(f"unpacking {archive.name}: {written / 1e6:,.0f} MB")
                    told = written
    except (
        *(zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError),
        *(KeyError, RuntimeError, NotImplementedError),  # not there, encrypted, packed otherwise
    ) as error:
        raise DataError(
            f"{archive.name} cannot be unpacked: {error}; delete {archive} and fetch it again"
        ) from None


def _member(archive: Path, member: str) -> Any:
    if not member:
        return gzip.open(archive)
    with zipfile.ZipFile(archive) as opened:
        return opened.open(member)  # the archive stays open until its member is closed
