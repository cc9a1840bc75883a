"""Convert text tables inside zip or gzip archives to Parquet."""

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
_GROWTH = 40  # maximum expansion factor; text compresses about tenfold
_SLACK = 1 << 20  # bytes allowed beyond the expansion limit


@dataclass(frozen=True)
class Table:
    """A text table inside an archive.

    Attributes:
        member: its name in a zip archive; "" for a gzip file.
        columns: names of its fields, in order; "" is dropped.
        separator: separator of fields.
        header: whether the first line names the columns.
        quoted: whether fields may be in double quotes.
        encoding: encoding of the text.
        flags: genres with a 0/1 field each after the columns; "" is dropped.
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
    """Write user, item and, if available, rating and time (seconds since 1970); count the rows."""
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
            f"{_display_name(archive, table)} is not the table it should be: {error}"
        ) from None
    finally:
        text.unlink()
        line("")
    if gaps or not rows:
        raise DataError(
            f"{_display_name(archive, table)} is not the table it should be: it has {rows:,} rows "
            f"and {gaps:,} empty fields"
        )
    return int(rows)


def write_titles(archive: Path, table: Table, target: Path) -> None:
    """Write item, name and, if available, genres separated by |."""
    pl = need_polars()
    text = target.with_suffix(".txt")
    _unpack(archive, table.member, text)
    try:
        columns = _titles(text, table)
        columns["item"] = [int(item) for item in columns["item"]]
    except (ValueError, IndexError, csv.Error) as error:
        raise DataError(
            f"{_display_name(archive, table)} is not the table it should be: {error}"
        ) from None
    finally:
        text.unlink()
    pl.DataFrame(columns).write_parquet(target)


def _display_name(archive: Path, table: Table) -> str:
    return f"{table.member} of {archive.name}" if table.member else archive.name


def _scan(pl: ModuleType, text: Path, table: Table) -> Any:
    """Scan the log as a lazy frame."""
    # polars has one-character separators: a two-character one yields an empty field in between.
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
        skip_rows=int(table.header),  # columns are renamed
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
    """Return the columns of a table of names, as text."""
    names = [name for name in table.columns if name]
    if table.flags:
        names.append("genres")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    # Bytes that are invalid in the encoding are replaced.
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
    """Write one member of an archive to `target`, up to the expansion limit."""
    limit = _SLACK + _GROWTH * archive.stat().st_size
    written, reported = 0, 0
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
                if written - reported > 1 << 26:
                    line(f"unpacking {archive.name}: {written / 1e6:,.0f} MB")
                    reported = written
    except (
        *(zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError),
        *(KeyError, RuntimeError, NotImplementedError),  # missing, encrypted or unsupported
    ) as error:
        raise DataError(
            f"{archive.name} cannot be unpacked: {error}; delete {archive} and fetch it again"
        ) from None


def _member(archive: Path, member: str) -> Any:
    if not member:
        return gzip.open(archive)
    with zipfile.ZipFile(archive) as opened:
        return opened.open(member)  # the member keeps the archive open
