"""The formats that logs are read from, and which of them a file has.

A new format is a class with what `Table` asks for, and a row in `READERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow import Arrow
from fewfold.recommender.reading.delimited import Delimited
from fewfold.recommender.reading.jsonlines import JsonLines, looks_like_json
from fewfold.recommender.reading.parquet import Parquet
from fewfold.recommender.reading.raw_files import COMPRESSIONS, File
from fewfold.recommender.reading.tables import Opening, Table
from fewfold.recommender.reading.unsupported import foreign_kind

__all__ = ["READERS", "Reader", "has_known_ending", "reader_of"]


@dataclass(frozen=True)
class Reader:
    """How files of one format are recognised and opened.

    Attributes:
        name: of the format.
        endings: of names of such files, without that of a compression.
        recognises: whether a file with these first bytes has the format; the first reader that
            says so takes the file, whatever its name.
        open: from a file to a table.
        compressed: whether a compressed file can be read.
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
    # Text is what is nothing else.
    Reader(
        "text",
        (".csv", ".tsv", ".tab", ".txt", ".dat", ".data", ".inter"),
        lambda start: True,
        Delimited.open,
        True,
    ),
)
_START = 4096  # bytes to recognise a file by


def has_known_ending(name: str) -> bool:
    """Whether a file in a folder is taken for a table, by its name."""
    return _by_ending(name) is not None


def reader_of(file: File) -> Reader:
    """The reader of a file, by its first bytes and not by its name.

    What no reader takes raises a `DataError` that names its kind and the way out.
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
    """Raise if a text file is called like something else."""
    if named is not None and not named.compressed:
        raise DataError(
            f"{file.name}: this is not a file of {named.name}, whatever its name says; rename it"
        )
    endings = [one.ending for one in COMPRESSIONS]
    if file.compression is None and file.path.suffix.lower() in endings:
        raise DataError(f"{file.name}: this is not compressed, whatever its name says; rename it")


def _by_ending(name: str) -> Reader | None:
    """The reader for files with this name."""
    bare = name.lower()
    for one in COMPRESSIONS:
        bare = bare.removesuffix(one.ending)
    return next((reader for reader in READERS if bare.endswith(reader.endings)), None)
