"""Delimited text (CSV, TSV, RecBole atomic files), read in blocks with every line accounted for.

A block is parsed by polars if counting its separators and quotes proves that all rows are well
formed and of the right width. Any other block is parsed by Python's csv module, which separates
valid rows from invalid ones. So well-formed files are read fast, and the result does not depend on
the parser.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.header import (
    COLONS,
    column_names,
    detect_header,
    find_separator,
    first_fields,
)
from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.table_source import Bad, Batch, Opening, Place, explained, library
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

_BLOCK = 1 << 22  # bytes per block: memory that the allocator gives again, without new pages
_LONGEST = 1 << 26  # bytes after which an unclosed quote is an error
_HEAD = 1 << 16  # bytes used to detect header and separator
_ATOMIC = re.compile(r"(.+):(token|float)(_seq)?")  # a column of a RecBole atomic file


@dataclass(frozen=True)
class Delimited:
    """A text file with separated fields.

    Attributes:
        file: the file, perhaps compressed.
        separator: a single character.
        atomic: whether the header has types (RecBole), in which case quotes are literal.
        columns: names in the header, or 1, 2, 3, ...
        headless: whether the file has no header.
        first_line: number of lines before the first row.
        first_byte: number of bytes before the first row.
        notes: notes on what was assumed about the header.
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
        """Detect separator, header and columns from the first rows."""
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
        separator = find_separator(first)
        text = text.replace("::", COLONS) if separator == COLONS else text
        rows = (r for r in records(text, separator, separator != COLONS) if r.fields != [])
        row = next(rows)
        fields = first_fields(row, first, name)
        below = [r.fields for r in itertools.islice(rows, 200) if r.fields]
        headless, notes = detect_header(fields, below, opening)
        if headless:
            columns = tuple(str(number + 1) for number in range(len(fields)))
            return cls(file, separator, False, columns, True, 0, mark, notes)
        lines = row.start + row.text.count("\n")
        size = mark + sum(len(line) + 1 for line in start[mark:].split(b"\n")[:lines])
        atomic = [found[1] for field in fields if (found := _ATOMIC.fullmatch(field))]
        whole = len(atomic) == len(fields)
        columns = column_names(atomic if whole else fields, name)
        return cls(file, separator, whole, columns, False, lines, size, () if whole else notes)

    @property
    def name(self) -> str:
        """Path of the file."""
        return self.file.name

    @property
    def format(self) -> str:
        """Name of the format, for messages."""
        sign = "::" if self.separator == COLONS else self.separator
        kind = {"\t": "TSV", ",": "CSV"}.get(sign, f"text separated by {sign}")
        kind = "RecBole atomic file" if self.atomic else kind
        return f"{kind}, {self.file.packed}" if self.file.packed else kind

    @property
    def _quotes(self) -> bool:
        return self.separator != COLONS and not self.atomic

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        with explained(self.name), self.file.open() as (file, _):
            lines, data = Lines(file, self.name), b""
            while len(data) <= self.first_byte and not lines.over:
                data += lines.block(_HEAD)
        data = data[self.first_byte :]
        text = proven(self._encode_separator(data), self.name, self.first_line + 1).decode()
        rows = (r.fields for r in records(text, self.separator, self._quotes) if r.fields)
        return [tuple(fields) for fields in itertools.islice(rows, count)]

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        wanted = {role: self.columns.index(column) for role, column in roles.items()}
        numeric = {"user", "item", "time"} & set(wanted)  # tried as integers first
        with explained(self.name), self.file.open() as (file, raw):
            size = max(self.file.path.stat().st_size, 1)
            lines = Lines(file, self.name)
            data = b""
            while len(data) < self.first_byte and not lines.over:
                data += lines.block(_BLOCK)
            data = data[self.first_byte :]
            lines.line += self.first_line
            while data or not lines.over:
                data = self._encode_separator(proven(data, self.name, lines.line))
                batch, tail = self._batch(data, wanted, numeric, lines.line, lines.over)
                lines.line += count(data, 10) - count(tail, 10)
                lines.give_back(self._decode_separator(tail))
                if batch is not None:
                    yield Batch(batch.frame, batch.place, batch.bad, min(raw.tell() / size, 1.0))
                # If a block had no complete row, read it again with twice the data.
                data = lines.block(max(_BLOCK, len(tail)))

    def _batch(
        self, data: bytes, wanted: Mapping[str, int], numeric: set[str], line: int, over: bool
    ) -> tuple[Batch | None, bytes]:
        """Parse a block; also return its unfinished last row, which belongs to the next block."""
        if not data:
            return None, b""
        separator, width = ord(self.separator), len(self.columns)
        # A quote inside a field that does not begin with one is a literal character.
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
        too_long = len(data) >= _LONGEST
        if sound is not None and (sound.rows or not too_long):
            frame = self._parse_fast(sound, wanted, numeric, has_quotes)
            if frame is not None:
                rows_text = data[: len(data) - len(sound.tail)]
                return Batch(frame, lambda row: self._place(rows_text, line, row)), sound.tail
        return self._parse_strict(data, wanted, line, over, too_long)

    def _parse_fast(
        self, sound: Sound, wanted: Mapping[str, int], numeric: set[str], has_quotes: bool
    ) -> Any:
        """Parse a well-formed block with polars; return None if it may be wrong.

        Roles in `numeric` are tried as integers; a role with other values is removed from the set.
        """
        pl, last = library("polars"), len(self.columns) - 1
        if sound.rows == 0:
            return pl.DataFrame(schema=dict.fromkeys(wanted, pl.String))
        frame = None
        if numeric and not has_quotes and usual_numbers(sound.data, ord(self.separator)):
            frame = self._read_polars(sound, wanted, {wanted[role] for role in numeric}, False)
        if frame is None:
            frame = self._read_polars(sound, wanted, set(), has_quotes)
            if frame is None:
                return None
            for role in list(numeric):
                column = frame[str(wanted[role])]
                if column.cast(pl.Int64, strict=False).null_count() > column.null_count():
                    numeric.remove(role)
        # The total number of separators is right. If one row has too many, another has too few,
        # and its last field is null.
        if not sound.exact and frame[str(last)].null_count():
            signs = np.frombuffer(sound.data, dtype=np.uint8)
            kinds = signs[(signs == ord(self.separator)) | (signs == 10)]
            if not sound.data.endswith(b"\n"):
                kinds = np.append(kinds, np.uint8(10))
            if not rectangular(kinds, last + 1):
                return None
        return frame.select(pl.col(str(number)).alias(role) for role, number in wanted.items())

    def _read_polars(
        self, sound: Sound, wanted: Mapping[str, int], numbers: set[int], has_quotes: bool
    ) -> Any:
        """Parse the wanted columns and the last one, named by position; None if polars fails."""
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

    def _parse_strict(
        self, data: bytes, wanted: Mapping[str, int], line: int, over: bool, too_long: bool
    ) -> tuple[Batch | None, bytes]:
        """Parse a block with the csv module; invalid rows are listed in the batch."""
        pl, width = library("polars"), len(self.columns)
        rows: list[Record] = []
        bad, tail = [], ""
        for record in records(data.decode(), self.separator, self._quotes):
            if record.rest and not over and (record.start or not too_long):
                tail = record.rest
                break
            if record.fields is None:
                bad.append(Bad("broken quotes", self._located(record, line)))
            elif len(record.fields) == width:
                rows.append(record)
            elif record.fields:
                located = self._located(record, line)
                text = f"{len(record.fields)} instead of {width} in {located.text}"
                bad.append(Bad("wrong number of fields", Place(located.where, text)))
        columns = {
            role: pl.Series([(r.fields or [])[at] for r in rows], dtype=pl.String)
            for role, at in wanted.items()
        }
        batch = Batch(pl.DataFrame(columns), lambda row: self._located(rows[row], line), tuple(bad))
        return batch, tail.encode()

    def _place(self, data: bytes, line: int, row: int) -> Place:
        """Return the location of row `row` of a well-formed block."""
        rows = (r for r in records(data.decode(), self.separator, self._quotes) if r.fields)
        return self._located(next(r for number, r in enumerate(rows) if number == row), line)

    def _located(self, record: Record, line: int) -> Place:
        text = record.text.rstrip("\r\n").replace(COLONS, "::")
        short = text if len(text) <= 80 else text[:77] + "..."
        return Place(f"{self.name}, line {line + record.start}", repr(short))

    def _encode_separator(self, data: bytes) -> bytes:
        """Replace a "::" separator by a single character."""
        return data.replace(b"::", COLONS.encode()) if self.separator == COLONS else data

    def _decode_separator(self, data: bytes) -> bytes:
        return data.replace(COLONS.encode(), b"::") if self.separator == COLONS else data
