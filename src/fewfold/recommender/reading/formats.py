"""Registry of file formats, and detection of a file's format.

To add a format, write a class that implements `Table` and add a row to `READERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow import Arrow
from fewfold.recommender.reading.delimited import Delimited
from fewfold.recommender.reading.jsonlines import JsonLines, looks_like_json
from fewfold.recommender.reading.parquet import Parquet
from fewfold.recommender.reading.raw_files import COMPRESSIONS, File
from fewfold.recommender.reading.table_source import Opening, Table
from fewfold.recommender.reading.unsupported import foreign_kind

__all__ = ["READERS", "Reader", "has_known_ending", "reader_of"]


@dataclass(frozen=True)
class Reader:
    """Detection and opening of files of one format.

    Attributes:
        name: name of the format.
        endings: file endings, without that of a compression.
        recognises: whether a file with these first bytes has the format; the first reader that
            returns true opens the file, whatever its name.
        open: opens a file as a table.
        compressed: whether compressed files are supported.
    """

    name: str
    endings: tuple[str, ...]
    recognises: Callable[[bytes], bool]
    open: Callable[[File, Opening], Table]
    compressed: bool = False


def _begins(*magic: bytes) -> Callable[[bytes], bool]:
    return lambda start: start.startswith(magic)


READERS = (
    Reader("Parquet", (".parquet", ".parq", ".pq"), _begins(b"PAR1"), Parquet.open),
    Reader(
        "Arrow",
        (".feather", ".arrow", ".ipc", ".arrows"),
        _begins(b"ARROW1", b"\xff\xff\xff\xff"),
        Arrow.open,
    ),
    Reader("JSON lines", (".jsonl", ".ndjson"), looks_like_json, JsonLines.open, True),
    # The fallback, for any other content.
    Reader(
        "text",
        (".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter"),
        lambda start: True,
        Delimited.open,
        True,
    ),
)
_START = 4096  # bytes used to detect the format


def has_known_ending(name: str) -> bool:
    """Return whether a file name has the ending of a supported format."""
    return _by_ending(name) is not None


def reader_of(file: File) -> Reader:
    """Return the reader of a file, by its first bytes rather than its name.

    An unsupported file raises a `DataError` that names its kind and how to convert it.
    """
    start = file.start(_START)
    if not start:
        raise DataError(f"{file.name}: the file is empty; expected a header and rows")
    reader = next(one for one in READERS if one.recognises(start))
    packed = f", compressed with {file.packed}" if file.packed else ""
    if file.packed and not reader.compressed:
        raise DataError(
            f"{file.name}: this is a file of {reader.name}{packed}; unpack it first, since "
            f"{reader.name} compresses its columns by itself"
        )
    named = _by_ending(file.path.name)
    if reader is READERS[-1]:
        kind = foreign_kind(start, file.path, "FILE" if file.label else "")
        if kind is not None:
            raise DataError(
                f"{file.name}: this is {kind[0]}{packed}; expected CSV, TSV, JSON lines, Parquet "
                f"or Arrow: {kind[1]}"
            )
        _check_name(file, named)
    return named if named is not None and named.name == "JSON lines" else reader


def _check_name(file: File, named: Reader | None) -> None:
    """Raise if a text file has the ending of a binary or compressed format."""
    if named is not None and not named.compressed:
        raise DataError(
            f"{file.name}: this is not a file of {named.name}, whatever its name says; rename it"
        )
    endings = [one.ending for one in COMPRESSIONS]
    if file.compression is None and file.path.suffix.lower() in endings:
        raise DataError(f"{file.name}: this is not compressed, whatever its name says; rename it")


def _by_ending(name: str) -> Reader | None:
    """Return the reader for the ending of a file name."""
    bare = name.lower()
    for one in COMPRESSIONS:
        bare = bare.removesuffix(one.ending)
    return next((reader for reader in READERS if bare.endswith(reader.endings)), None)
