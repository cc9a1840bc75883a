"""Blocks of whole lines: reading, well-formedness checks, and splitting into records."""

import csv
import io
import re
from collections.abc import Iterator
from typing import IO, Literal, NamedTuple

import numpy as np

from fewfold._native import dispatch
from fewfold.recommender.errors import DataError

__all__ = [
    "Lines",
    "Record",
    "Sound",
    "count",
    "plain",
    "proven",
    "quoted",
    "records",
    "rectangular",
    "usual_numbers",
]

_MARK = b"\xef\xbb\xbf"
_LONGEST_LINE = 1 << 26  # bytes


class Lines:
    """Reads a file in blocks of whole lines and tracks the current line number."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name
        self._carry = b""
        self.line = 1
        self.over = False

    def block(self, size: int) -> bytes:
        """Return about `size` bytes, up to the end of a line; empty at the end of the file."""
        parts, held = [self._carry], 0
        while more := self._file.read(size):
            parts.append(more)
            if b"\n" in more:
                data = b"".join(parts)
                cut = data.rfind(b"\n") + 1
                self._carry = data[cut:]
                return data[:cut]
            held += len(more)
            if held > _LONGEST_LINE:
                raise DataError(
                    f"{self._name}, line {self.line}: this line has more than "
                    f"{_LONGEST_LINE >> 20} MB; expected a row of a table, so check that this is "
                    "a text file"
                )
        self.over, self._carry = True, b""
        return b"".join(parts)

    def give_back(self, tail: bytes) -> None:
        """Return lines to the reader: the next block begins with them."""
        self._carry = tail + self._carry


class Sound(NamedTuple):
    """A block of well-formed rows.

    Attributes:
        data: the rows, without empty lines.
        rows: number of rows.
        tail: the unfinished last row, which belongs to the next block.
        exact: whether each row is known to have the right width, not only the total.
    """

    data: bytes
    rows: int
    tail: bytes
    exact: bool


def plain(data: bytes, separator: int, width: int) -> Sound | None:
    """Check a block without quotes; return None if the rows differ in width."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\r" in data or data.startswith(_MARK):
        return None
    for attempt in (data, None):
        # Removing empty lines is slower than counting, so only if the count is wrong.
        tried = re.sub(rb"\n{2,}", b"\n", data).lstrip(b"\n") if attempt is None else attempt
        rows = count(tried, 10) + bool(tried and not tried.endswith(b"\n"))
        if count(tried, separator) == rows * (width - 1):
            return Sound(tried, rows, b"", exact=False)
    return None


def count(data: bytes, sign: int) -> int:
    """Count a byte; several times faster than bytes.count for a frequent one."""
    if dispatch.enabled():
        return int(dispatch.kernel("count_byte")(data, sign))
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) == sign))


def usual_numbers(data: bytes, separator: int) -> bool:
    """Return whether all integers are surely in canonical form (no 007, no +1)."""
    if b"+" in data or b" " in data or data[:1] == b"0" or (b"-" in data and b"-0" in data):
        return False
    if dispatch.enabled():
        return not dispatch.kernel("leading_zeros")(data, separator)
    signs = np.frombuffer(data, dtype=np.uint8)
    for shift in (0, 1):
        # Two bytes at a time: a zero at the start of a field must not be followed by a digit.
        pairs = np.frombuffer(data[shift:], dtype="<u2", count=(len(data) - shift) // 2)
        zeros = np.flatnonzero((pairs == 0x3000 + separator) | (pairs == 0x3000 + 10))
        places = 2 * zeros + shift + 2
        after = signs[places[places < len(data)]]
        if ((after >= 48) & (after < 58)).any():
            return False
    return True


def quoted(data: bytes, separator: int, width: int, final: bool) -> Sound | None:
    """Check a block with quotes; return None unless all quotes open and close whole fields."""
    signs = np.frombuffer(data, dtype=np.uint8)
    inside = np.cumsum(signs == 34, dtype=np.uint8) & 1  # parity survives wrap-around
    if data.startswith(_MARK) or (final and inside[-1]):
        return None
    marks = np.flatnonzero(((signs == separator) | (signs == 10)) & (inside == 0))
    if not final:
        ends = marks[signs[marks] == 10]
        cut = int(ends[-1]) + 1 if len(ends) else 0
        data, tail = data[:cut], data[cut:]
        signs, inside, marks = signs[:cut], inside[:cut], marks[marks < cut]
    else:
        tail = b""
    newline = np.full(1, 10, dtype=np.uint8)
    around = np.concatenate([newline, signs, newline, newline])
    quotes = np.flatnonzero(signs == 34) + 1
    before, after = around[quotes[0::2] - 1], around[quotes[1::2] + 1]
    returns = np.flatnonzero((signs == 13) & (inside == 0)) + 1
    sound = (
        np.isin(before, (10, 34, separator)).all()
        and np.isin(after, (10, 13, 34, separator)).all()
        and (around[returns + 1] == 10).all()
    )
    kinds = signs[marks]
    if len(data) and data[-1] != 10:
        kinds = np.append(kinds, np.uint8(10))
    if not sound or not rectangular(kinds, width):
        return None
    return Sound(data, len(kinds) // width, tail, exact=True)


def rectangular(kinds: np.ndarray, width: int) -> bool:
    """Return whether the separators and line ends, in order, form rows of `width` fields."""
    if len(kinds) % width:
        return False
    rows = kinds.reshape(-1, width)
    return bool((rows[:, -1] == 10).all() and (rows[:, :-1] != 10).all())


class Record(NamedTuple):
    """A row as split by the csv module.

    Attributes:
        start: index of its first line within the block.
        fields: None if malformed; empty for an empty line.
        text: the source text; only the first line if malformed.
        rest: text up to the end of the block, if a quote is still open there.
    """

    start: int
    fields: list[str] | None
    text: str
    rest: str = ""


def records(text: str, separator: str, with_quotes: bool) -> Iterator[Record]:
    """Yield every row of the text; after a malformed row, continue at the next line."""
    lines = list(io.StringIO(text, newline="\n"))
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if with_quotes else csv.QUOTE_NONE
    limit = csv.field_size_limit(2**31 - 1)  # a process-wide setting, so restore it
    at = 0
    try:
        while at < len(lines):
            start = at
            remaining = (lines[number] for number in range(at, len(lines)))
            rows = csv.reader(remaining, delimiter=separator, quoting=quoting, strict=True)
            try:
                for fields in rows:
                    end = at + rows.line_num
                    whole = lines[start] if end == start + 1 else "".join(lines[start:end])
                    blank = len(fields) <= 1 and not "".join(fields).strip()
                    yield Record(start, [] if blank else fields, whole)
                    start = end
                return
            except csv.Error:
                ended = at + rows.line_num == len(lines)
                yield Record(start, None, lines[start], "".join(lines[start:]) if ended else "")
                at = start + 1
    finally:
        csv.field_size_limit(limit)


def proven(data: bytes, name: str, line: int) -> bytes:
    """Validate that a block is UTF-8 text without NUL; `line` is the number of its first line."""
    if data.isascii() and b"\0" not in data:
        return data
    try:
        data.decode()
        at, what = data.find(b"\0"), "a NUL byte"
    except UnicodeDecodeError as error:
        at, what = error.start, f"the byte 0x{data[error.start]:02x}"
    if at < 0:
        return data
    where = line + data.count(b"\n", 0, at)
    before = data[max(data.rfind(b"\n", 0, at) + 1, at - 30) : at].decode(errors="replace")
    raise DataError(
        f"{name}, line {where}: expected text in UTF-8, got {what} after {before!r}; save the file "
        "as UTF-8, for example with iconv -f latin1 -t utf-8"
    )
