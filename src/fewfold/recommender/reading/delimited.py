"""Text tables: CSV and its relatives, block after block, every line accounted for.

A block goes to polars when a few counts prove that it holds plain or properly quoted rows of the
right width. Any other goes through Python's csv module, which tells the rows that are wrong from
those that are right. So reading is quick where the file is good, and what a file means does not
depend on the way it took.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.header import first_row_is_data
from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.tables import Bad, Batch, Opening, Place, explained, library
from fewfold.recommender.reading.text_blocks import (
    Lines,
    Record,
    Sound,
    count,
    plain,
    proven,
    quoted,
    records,
    rectangular,
    usual_numbers,
)

__all__ = ["Delimited"]

_BLOCK = 1 << 24  # bytes at a time
_LONGEST = 1 << 26  # bytes after which an open quote is taken for a mistake
_COLONS = "\x1f"  # what "::" becomes, as a separator has one character
_HEAD = 1 << 16  # bytes to judge a file by
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_ATOMIC = re.compile(r"(.+):(token|float)(_seq)?")  # a column of RecBole's files


@dataclass(frozen=True)
class Delimited:
    """A file of rows with a separator between their fields.

    Attributes:
        file: the file, perhaps compressed.
        separator: one character.
        atomic: whether its header has types, as RecBole's files; there are no quotes then.
        columns: what the header says, or 1, 2, 3, ...
        headless: whether there is no header.
        first_line: the number of lines before the first row.
        first_byte: the number of bytes before the first row.
        notes: what was assumed about the header.
    """

    file: File
    separator: str
    atomic: bool
    columns: tuple[str, ...]
    headless: bool
    first_line: int
    first_byte: int
    notes: tuple[str, ...] = ()
    typed: bool = False

    @classmethod
    def open(cls, file: File, opening: Opening) -> "Delimited":
        """Find out how the file is written, from its first rows."""
        name = file.name
        with explained(name), file.open() as (plain_file, _):
            start = Lines(plain_file, name).block(_HEAD)
        mark = 3 if start.startswith(b"\xef\xbb\xbf") else 0
        text = proven(start[mark:], name, 1).decode()
        if not text.strip():
            raise DataError(f"{name}: the file is empty; expected a header and rows")
        if "\n" not in text and "\r" in text.strip():
            raise DataError(
                f"{name}: its lines end in a lone carriage return; convert it, for example with "
                "tr '\\r' '\\n'"
            )
        first = next(line for line in text.split("\n") if line.strip())
        separator = _separator(first)
        text = text.replace("::", _COLONS) if separator == _COLONS else text
        rows = (r for r in records(text, separator, separator != _COLONS) if r.fields != [])
        row = next(rows)
        fields = _fields(row, first, name)
        below = [r.fields for r in itertools.islice(rows, 200) if r.fields]
        headless, notes = _headless(fields, below, opening)
        if headless:
            columns = tuple(str(number + 1) for number in range(len(fields)))
            return cls(file, separator, False, columns, True, 0, mark, notes)
        lines = row.start + row.text.count("\n")
        size = mark + sum(len(line) + 1 for line in start[mark:].split(b"\n")[:lines])
        atomic = [found[1] for field in fields if (found := _ATOMIC.fullmatch(field))]
        whole = len(atomic) == len(fields)
        columns = _names(atomic if whole else fields, name)
        return cls(file, separator, whole, columns, False, lines, size, () if whole else notes)

    @property
    def name(self) -> str:
        """The path."""
        return self.file.name

    @property
    def format(self) -> str:
        """What a person calls it."""
        sign = "::" if self.separator == _COLONS else self.separator
        kind = {"\t": "TSV", ",": "CSV"}.get(sign, f"text separated by {sign}")
        kind = "RecBole atomic file" if self.atomic else kind
        return f"{kind}, {self.file.packed}" if self.file.packed else kind

    @property
    def _quotes(self) -> bool:
        return self.separator != _COLONS and not self.atomic

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Up to `count` of the first rows, as text."""
        with explained(self.name), self.file.open() as (file, _):
            lines, data = Lines(file, self.name), b""
            while len(data) <= self.first_byte and not lines.over:
                data += lines.block(_HEAD)
        data = data[self.first_byte :]
        text = proven(self._single(data), self.name, self.first_line + 1).decode()
        rows = (r.fields for r in records(text, self.separator, self._quotes) if r.fields)
        return [tuple(fields) for fields in itertools.islice(rows, count)]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """All rows: of each role in `roles`, the column named there, as text or numbers."""
        wanted = {role: self.columns.index(column) for role, column in roles.items()}
        numeric = {"user", "item", "time"} & set(wanted)  # perhaps
        with explained(self.name), self.file.open() as (file, raw):
            size = max(self.file.path.stat().st_size, 1)
            lines = Lines(file, self.name)
            data = b""
            while len(data) < self.first_byte and not lines.over:
                data += lines.block(_BLOCK)
            data = data[self.first_byte :]
            lines.line += self.first_line
            while data or not lines.over:
                data = self._single(proven(data, self.name, lines.line))
                batch, tail = self._batch(data, wanted, numeric, lines.line, lines.over)
                lines.line += count(data, 10) - count(tail, 10)
                lines.give_back(self._double(tail))
                if batch is not None:
                    yield Batch(batch.frame, batch.place, batch.bad, min(raw.tell() / size, 1.0))
                # A block that gave nothing is read again together with as much as it was.
                data = lines.block(max(_BLOCK, len(tail)))

    def _batch(
        self, data: bytes, wanted: Mapping[str, int], numeric: set[str], line: int, over: bool
    ) -> tuple[Batch | None, bytes]:
        """The rows of a block, and what of it belongs to the next one."""
        if not data:
            return None, b""
        separator, width = ord(self.separator), len(self.columns)
        # A quote inside a field that does not begin with one is a sign like any other.
        opening = (b'\n"', self.separator.encode() + b'"')
        has_quotes = (
            self._quotes
            and b'"' in data
            and (data.startswith(b'"') or any(start in data for start in opening))
        )
        if has_quotes:
            sound = quoted(data, separator, width, over)
        else:
            sound = plain(data, separator, width)
        hopeless = len(data) >= _LONGEST
        if sound is not None and (sound.rows or not hopeless):
            frame = self._quick(sound, wanted, numeric, has_quotes)
            if frame is not None:
                kept = data[: len(data) - len(sound.tail)]
                return Batch(frame, lambda row: self._place(kept, line, row)), sound.tail
        return self._careful(data, wanted, line, over, hopeless)

    def _quick(
        self, sound: Sound, wanted: Mapping[str, int], numeric: set[str], has_quotes: bool
    ) -> Any:
        """The block as polars reads it, a DataFrame; None when it is not surely right.

        A role in `numeric` is tried as numbers; one that turns out to be none is taken out.
        """
        pl, last = library("polars"), len(self.columns) - 1
        if sound.rows == 0:
            return pl.DataFrame(schema=dict.fromkeys(wanted, pl.String))
        frame = None
        if numeric and not has_quotes and usual_numbers(sound.data, ord(self.separator)):
            frame = self._polars(sound, wanted, {wanted[role] for role in numeric}, False)
        if frame is None:
            frame = self._polars(sound, wanted, set(), has_quotes)
            if frame is None:
                return None
            for role in list(numeric):
                column = frame[str(wanted[role])]
                if column.cast(pl.Int64, strict=False).null_count() > column.null_count():
                    numeric.remove(role)
        # There are as many separators as there should be. If a row has one too many, another has
        # one too few, and lacks its last field.
        if not sound.exact and frame[str(last)].null_count():
            signs = np.frombuffer(sound.data, dtype=np.uint8)
            kinds = signs[(signs == ord(self.separator)) | (signs == 10)]
            if not sound.data.endswith(b"\n"):
                kinds = np.append(kinds, np.uint8(10))
            if not rectangular(kinds, last + 1):
                return None
        return frame.select(pl.col(str(number)).alias(role) for role, number in wanted.items())

    def _polars(
        self, sound: Sound, wanted: Mapping[str, int], numbers: set[int], has_quotes: bool
    ) -> Any:
        """The wanted columns and the last, called by their positions; None if polars cannot."""
        pl, width = library("polars"), len(self.columns)
        kinds = {str(at): pl.Int64 if at in numbers else pl.String for at in range(width)}
        try:
            frame = pl.read_csv(
                sound.data, has_header=False, separator=self.separator, schema=kinds,
                columns=sorted({*wanted.values(), width - 1}),
                quote_char='"' if has_quotes else None,
            )  # fmt: skip
        except pl.exceptions.PolarsError:
            return None
        return frame if frame.height == sound.rows else None

    def _careful(
        self, data: bytes, wanted: Mapping[str, int], line: int, over: bool, hopeless: bool
    ) -> tuple[Batch | None, bytes]:
        """The block as the csv module reads it, and the rows that are wrong."""
        pl, width = library("polars"), len(self.columns)
        rows: list[Record] = []
        bad, tail = [], ""
        for record in records(data.decode(), self.separator, self._quotes):
            if record.rest and not over and (record.start or not hopeless):
                tail = record.rest
                break
            if record.fields is None:
                bad.append(Bad("broken quotes", self._told(record, line)))
            elif len(record.fields) == width:
                rows.append(record)
            elif record.fields:
                told = self._told(record, line)
                text = f"{len(record.fields)} instead of {width} in {told.text}"
                bad.append(Bad("wrong number of fields", Place(told.where, text)))
        columns = {
            role: pl.Series([(r.fields or [])[at] for r in rows], dtype=pl.String)
            for role, at in wanted.items()
        }
        batch = Batch(pl.DataFrame(columns), lambda row: self._told(rows[row], line), tuple(bad))
        return batch, tail.encode()

    def _place(self, data: bytes, line: int, row: int) -> Place:
        """Where row `row` of a sound block is."""
        rows = (r for r in records(data.decode(), self.separator, self._quotes) if r.fields)
        return self._told(next(r for number, r in enumerate(rows) if number == row), line)

    def _told(self, record: Record, line: int) -> Place:
        text = record.text.rstrip("\r\n").replace(_COLONS, "::")
        short = text if len(text) <= 80 else text[:77] + "..."
        return Place(f"{self.name}, line {line + record.start}", repr(short))

    def _single(self, data: bytes) -> bytes:
        """With a separator of one character."""
        return data.replace(b"::", _COLONS.encode()) if self.separator == _COLONS else data

    def _double(self, data: bytes) -> bytes:
        return data.replace(_COLONS.encode(), b"::") if self.separator == _COLONS else data


def _headless(
    fields: Sequence[str], below: Sequence[Sequence[str]], opening: Opening
) -> tuple[bool, tuple[str, ...]]:
    """Whether the first row is data, and what to say about it."""
    if opening.header is not None:
        return not opening.header, ()
    if all(_NUMBER.fullmatch(field) for field in fields):
        return True, ()
    is_data = first_row_is_data(fields, below)
    shown = " | ".join(field if len(field) <= 24 else field[:21] + "..." for field in fields[:6])
    if is_data:
        return True, (
            f"the first row ({shown}) looks like data, so the columns have no names: they are "
            "called 1, 2, 3, ...; if it is a header, write header=True (--header)",
        )
    if is_data is None:
        taken = "names of the columns" if opening.unclear else "data"
        other = "data, write header=False (--no-header)"
        other = other if opening.unclear else "a header, write header=True (--header)"
        return not opening.unclear, (
            f"the first row ({shown}) was taken for {taken}; if it is {other}",
        )
    return False, ()


def _separator(line: str) -> str:
    """The sign that separates the fields of a line."""
    bare = re.sub(r'"[^"]*"', "", line)
    counts = {sign: bare.count(sign) for sign in ("\t", ",", ";", "|")}
    best = max(counts, key=lambda sign: counts[sign])
    return _COLONS if bare.count("::") > counts[best] else best


def _fields(row: Record, line: str, name: str) -> list[str]:
    """The names or numbers of the first row."""
    if row.fields is None:
        raise DataError(
            f"{name}, line {row.start + 1}: the quotes of the header do not match, {line[:60]!r}"
        )
    if len(row.fields) < 2:
        raise DataError(
            f"{name}: found one column, {line[:60]!r}; expected two or more, separated by a comma, "
            "a semicolon, a tab, | or ::"
        )
    return [field.strip() for field in row.fields]


def _names(fields: Sequence[str], name: str) -> tuple[str, ...]:
    """What the header calls the columns; one without a name is called by its number."""
    names = [field or f"column {number}" for number, field in enumerate(fields, 1)]
    twice = sorted({field for field in names if names.count(field) > 1})
    if twice:
        raise DataError(f"{name}: the header names {twice[0]!r} twice; rename one of them")
    return tuple(names)
