"""JSON lines (one object per line), read in blocks with every line accounted for.

A block is parsed by pyarrow, which raises on unexpected types. A block it rejects is parsed by
Python's json module, which separates valid lines from invalid ones.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.raw_files import File
from fewfold.recommender.reading.table_source import (
    Bad,
    Batch,
    Opening,
    Place,
    explained,
    in_roles,
    library,
)
from fewfold.recommender.reading.text_blocks import Lines, count, proven

__all__ = ["JsonLines"]

_BLOCK = 1 << 24  # bytes per block
_HEAD = 1 << 18  # bytes used to infer columns and types
# A null that is not a value in an object or list: pyarrow (26) crashes on one outside of objects.
_LONE_NULL = re.compile(rb"[^:,\[\s]\s*null")
_FOUND = {str: "text", bool: "true or false", int: "a number", float: "a number"}
_EXPECTED = {
    "text": "text",
    "mixed": "text or a number",
    "whole": "a whole number of 64 bits, as in the first lines,",
    "real": "a number, as in the first lines,",
}


@dataclass(frozen=True)
class JsonLines:
    """A file with one JSON object per line.

    Attributes:
        file: the file, perhaps compressed.
        kinds: columns of the first lines, and their types: text, whole, real or mixed.
    """

    file: File
    kinds: Mapping[str, str]
    headless: bool = False
    typed: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def open(cls, file: File, opening: Opening) -> "JsonLines":
        """Infer the columns and their types from the first lines."""
        kinds: dict[str, str | None] = {}
        rows = 0
        for line, text in _lines(_head(file)):
            value = _parsed(text)
            if not isinstance(value, dict):
                if not rows:
                    raise DataError(_not_json_lines_message(text, file.name, line))
                continue
            rows += 1
            for name, one in value.items():
                kinds[name] = _common_type(kinds.get(name), one)
        if not rows:
            raise DataError(f"{file.name}: the file is empty; expected a JSON object on each line")
        if len(kinds) < 2:
            raise DataError(
                f"{file.name}: found the columns {', '.join(map(repr, kinds)) or 'none'}; expected "
                "two or more, the user and the item, in the object on each line"
            )
        return cls(file, {name: kind or "mixed" for name, kind in kinds.items()})

    @property
    def name(self) -> str:
        """Path of the file."""
        return self.file.name

    @property
    def format(self) -> str:
        """Name of the format, for messages."""
        return f"JSON lines, {self.file.packed}" if self.file.packed else "JSON lines"

    @property
    def columns(self) -> tuple[str, ...]:
        """Keys of the objects, in order of first occurrence."""
        return tuple(self.kinds)

    def head(self, count: int = 3) -> list[tuple[str, ...]]:
        """Return up to `count` of the first rows, as text."""
        rows: list[tuple[str, ...]] = []
        for _, text in _lines(_head(self.file)):
            value = _parsed(text)
            if len(rows) == count:
                break
            if isinstance(value, dict):
                rows.append(tuple(_shown(value.get(name)) for name in self.kinds))
        return rows

    def batches(self, roles: Mapping[str, str]) -> Iterator[Batch]:
        """Yield all rows; `roles` maps each role to the name of its column."""
        with explained(self.name), self.file.open() as (file, raw):
            size, lines = max(self.file.path.stat().st_size, 1), Lines(file, self.name)
            while data := lines.block(_BLOCK):
                data = proven(_without_bom(data, lines.line), self.name, lines.line)
                batch = self._parse_fast(data, roles, lines.line)
                if batch is None:
                    batch = self._parse_strict(data, roles, lines.line)
                lines.line += count(data, 10)
                yield Batch(batch.frame, batch.place, batch.bad, min(raw.tell() / size, 1.0))

    def _parse_fast(self, data: bytes, roles: Mapping[str, str], line: int) -> Batch | None:
        """Parse a block with pyarrow; return None if the result may be wrong."""
        arrow, reading = library("pyarrow"), library("pyarrow.json")
        types = {"text": arrow.string(), "whole": arrow.int64(), "real": arrow.float64()}
        wanted = list(dict.fromkeys(roles.values()))
        if any(self.kinds[name] not in types for name in wanted):
            return None
        rows = [text for _, text in _lines(data)]
        single = all(text[:1] == b"{" and text[-1:] == b"}" for text in rows)
        if not single or _LONE_NULL.search(data):
            return None
        schema = arrow.schema([(name, types[self.kinds[name]]) for name in wanted])
        try:
            table = reading.read_json(
                arrow.BufferReader(data),
                reading.ReadOptions(use_threads=True, block_size=len(data) + 1),
                reading.ParseOptions(schema, unexpected_field_behavior="ignore"),
            )
        except arrow.ArrowException:
            return None
        # pyarrow also accepts two objects on a line, and one object across lines.
        if table.num_rows != len(rows):
            return None
        frame = in_roles(library("polars").from_arrow(table), roles)
        return Batch(frame, lambda row: self._place(data, line, row))

    def _parse_strict(self, data: bytes, roles: Mapping[str, str], line: int) -> Batch:
        """Parse a block with the json module; invalid lines are listed in the batch."""
        polars = library("polars")
        columns: dict[str, list[Any]] = {role: [] for role in roles}
        places: list[Place] = []
        bad = []
        for number, text in _lines(data):
            place = self._located(text, line + number - 1)
            value = _parsed(text)
            if not isinstance(value, dict):
                bad.append(Bad("not a JSON object", place))
                continue
            row = {}
            for role, column in roles.items():
                fits, row[role] = self._converted(value.get(column), column)
                if not fits:
                    bad.append(Bad(self._mismatch(value[column], column), place))
                    break
            else:
                places.append(place)
                for role, one in row.items():
                    columns[role].append(one)
        kinds = {"whole": polars.Int64, "real": polars.Float64}
        frame = polars.DataFrame(
            {
                role: polars.Series(values, dtype=kinds.get(self.kinds[roles[role]], polars.String))
                for role, values in columns.items()
            }
        )
        return Batch(frame, places.__getitem__, tuple(bad))

    def _converted(self, value: Any, column: str) -> tuple[bool, Any]:
        """Return whether a value fits the type of its column, and the converted value."""
        kind = self.kinds[column]
        if value is None:
            return True, None
        if isinstance(value, (dict, list)):
            return False, None
        if kind in ("text", "mixed"):  # numbers in a text column become text
            text = value if isinstance(value, str) else json.dumps(value)
            return _is_unicode(text), text
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False, None
        if kind == "whole":
            fits = float(value).is_integer() and -(2**63) <= value < 2**63
            return fits, int(value) if fits else None
        return abs(value) < 2**1000, float(value) if abs(value) < 2**1000 else None

    def _mismatch(self, value: Any, column: str) -> str:
        """Describe a value that does not fit the type of its column."""
        found = _FOUND.get(type(value), "a list or an object")
        if isinstance(value, str) and not _is_unicode(value):
            found = "half of a surrogate pair"
        return f"{column} is {found} where {_EXPECTED[self.kinds[column]]} was expected"

    def _place(self, data: bytes, line: int, row: int) -> Place:
        number, text = list(_lines(data))[row]
        return self._located(text, line + number - 1)

    def _located(self, text: bytes, line: int) -> Place:
        shown = text.decode(errors="replace")
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return Place(f"{self.name}, line {line}", repr(shown))


def _head(file: File) -> bytes:
    """Return the first lines of a file."""
    with explained(file.name), file.open() as (plain, _):
        data = Lines(plain, file.name).block(_HEAD)
    return proven(_without_bom(data, 1), file.name, 1)


def _without_bom(data: bytes, line: int) -> bytes:
    return data.removeprefix(b"\xef\xbb\xbf") if line == 1 else data


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield every line that is not blank, with its number from 1."""
    for number, line in enumerate(data.split(b"\n"), 1):
        if text := line.strip():
            yield number, text


def _parsed(text: bytes) -> Any:
    """Parse a line; None if it is not valid JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _common_type(known: str | None, value: Any) -> str | None:
    """Return the common type of a column of type `known` so far and one more value."""
    found = {str: "text", int: "whole", float: "real"}.get(type(value), "mixed")
    if value is None or known == found:
        return known
    if known is None:
        return found
    return "real" if {known, found} == {"whole", "real"} else "mixed"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _not_json_lines_message(text: bytes, name: str, line: int) -> str:
    shown = text[:60].decode(errors="replace")
    if text.startswith(b"["):
        return (
            f"{name}: this is a JSON array; expected JSON lines, an object on each line, so "
            "convert it: jq -c '.[]' FILE > log.jsonl, or pandas.read_json(FILE).to_parquet(...)"
        )
    if text.startswith(b"{"):
        return (
            f"{name}, line {line}: this JSON object does not end on its line, {shown!r}; expected "
            "JSON lines, so convert it: jq -c . FILE > log.jsonl"
        )
    return f"{name}, line {line}: expected a JSON object on each line, got {shown!r}"
