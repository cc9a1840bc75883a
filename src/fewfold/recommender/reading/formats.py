"""File formats: detection, readers, and advice on converting unsupported ones.

To add a format, write a class that implements `Table` and add a row to `READERS`.
"""

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.arrow import Arrow
from fewfold.recommender.reading.delimited import Delimited
from fewfold.recommender.reading.jsonlines import JsonLines
from fewfold.recommender.reading.parquet import Parquet
from fewfold.recommender.reading.raw_files import COMPRESSIONS, File
from fewfold.recommender.reading.table_source import Opening, Table

__all__ = ["READERS", "Reader", "address", "has_known_ending", "lake_table", "reader_of"]


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


def _looks_like_json(start: bytes) -> bool:
    """Return whether a text begins like a JSON object or array, and unlike CSV."""
    bare = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    after = bare[1:].lstrip()[:1]
    return (bare[:1] == b"{" and after in (b'"', b"}")) or (bare[:1] == b"[" and after in b'{["]')


READERS = (
    Reader("Parquet", (".parquet", ".parq", ".pq"), _begins(b"PAR1"), Parquet.open),
    Reader(
        "Arrow",
        (".feather", ".arrow", ".ipc", ".arrows"),
        _begins(b"ARROW1", b"\xff\xff\xff\xff"),
        Arrow.open,
    ),
    Reader("JSON lines", (".jsonl", ".ndjson"), _looks_like_json, JsonLines.open, True),
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
        kind = _unsupported_kind(start, file.path, "FILE" if file.label else "")
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


_PANDAS = "python -c \"import pandas; pandas.{}.to_parquet('log.parquet')\""


@dataclass(frozen=True)
class _Kind:
    """A kind of file, identified by its magic bytes."""

    name: str
    magic: bytes
    way_out: str
    at: int = 0


_KINDS = (
    _Kind("an SQLite database", b"SQLite format 3\0",
          "name it with one of its tables: 'sqlite:///{path}?table=TABLE'"),
    _Kind("a DuckDB database", b"DUCK",
          "name it with one of its tables: 'duckdb:///{path}?table=TABLE'", 8),
    _Kind("an Excel workbook of before 2007", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
          "save the sheet as CSV, or " + _PANDAS.format("read_excel('{path}')")),
    _Kind("an HDF5 file", b"\x89HDF", "write its table to Parquet: "
          + _PANDAS.format("read_hdf('{path}')")),
    _Kind("a NumPy array", b"\x93NUMPY",
          "load it in Python and pass the columns: read_log((users, items))"),
    _Kind("an ORC file", b"ORC", "write it to Parquet: " + _PANDAS.format("read_orc('{path}')")),
    _Kind("an Avro file", b"Obj\x01",
          "write it to Parquet: python -c \"import polars; "
          "polars.read_avro('{path}').write_parquet('log.parquet')\""),
    _Kind("a Feather file of version 1", b"FEA1",
          "write it again: " + _PANDAS.format("read_feather('{path}')")),
    _Kind("an R data file", b"RDX", "write the table in R: write.csv(TABLE, 'log.csv')"),
    _Kind("a MATLAB file", b"MATLAB 5.0", "write the table in MATLAB: writetable(T, 'log.csv')"),
    _Kind("a 7z archive", b"7z\xbc\xaf\x27\x1c", "unpack it and name the table: 7z x {path}"),
    _Kind("a RAR archive", b"Rar!", "unpack it and name the table: unrar x {path}"),
    _Kind("a tar archive", b"ustar", "unpack it and name the table: tar xf {path}", 257),
    _Kind("an LZ4 file", b"\x04\x22\x4d\x18", "unpack it: lz4 -d {path}"),
    _Kind("a snappy file", b"\xff\x06\x00\x00sNaPpY", "unpack it: snzip -d {path}"),
    _Kind("a Unix compress file", b"\x1f\x9d", "unpack it: uncompress {path}"),
    _Kind("text in UTF-32", b"\xff\xfe\0\0", "write it as UTF-8: iconv -f utf-32 -t utf-8 {path}"),
    _Kind("text in UTF-16", b"\xff\xfe", "write it as UTF-8: iconv -f utf-16 -t utf-8 {path}"),
    _Kind("text in UTF-16", b"\xfe\xff", "write it as UTF-8: iconv -f utf-16 -t utf-8 {path}"),
    _Kind("a pointer of Git LFS, not the file itself", b"version https://git-lfs",
          "fetch the file: git lfs pull"),
    _Kind("a PDF document", b"%PDF", "export the table as CSV"),
    _Kind("a picture", b"\x89PNG", "name a table of users and items"),
    _Kind("a picture", b"\xff\xd8\xff", "name a table of users and items"),
    _Kind("a program", b"\x7fELF", "name a table of users and items"),
)  # fmt: skip
_PICKLE = "write its table to Parquet, if you trust it, since loading a pickle runs what is in it: "
_WEB = re.compile(rb"(<!doctype html|<html|<\?xml|<[a-z]+[ >])", re.IGNORECASE)
# At least two letters, since C:/ is a drive.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?P<rest>[^/].*)", re.DOTALL)
_PASSWORD = re.compile(r"(?<=://)([^/:@?#]*):[^/?#]*@")
_SERVERS = ("postgresql", "postgres", "mysql", "mariadb", "mssql", "oracle", "redshift")
_DOWNLOADS: dict[str, Callable[[str], str]] = {
    "http": lambda url: f"curl -L -O {url}",
    "https": lambda url: f"curl -L -O {url}",
    "ftp": lambda url: f"curl -O {url}",
    "s3": lambda url: f"aws s3 cp {url} .",
    "s3a": lambda url: f"aws s3 cp {url.replace('s3a:', 's3:', 1)} .",
    "s3n": lambda url: f"aws s3 cp {url.replace('s3n:', 's3:', 1)} .",
    "gs": lambda url: f"gcloud storage cp {url} .",
    "gcs": lambda url: f"gcloud storage cp {url.replace('gcs:', 'gs:', 1)} .",
    "hdfs": lambda url: f"hdfs dfs -get {url}",
    "hf": lambda url: "hf download NAME --repo-type dataset",
}


def _unsupported_kind(start: bytes, path: Path, shown_as: str = "") -> tuple[str, str] | None:
    """Return the kind of an unsupported file and how to convert it, or None if unknown.

    Args:
        start: its first bytes, at least 300 if the file has them.
        path: the file, to look into an archive.
        shown_as: its name in the suggested command; by default its path.
    """
    shown_as = shown_as or str(path)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip_kind(path, shown_as)
    # From version 2 on, a pickle begins with \x80, which is invalid in text, and its version.
    if re.match(rb"\x80[\x02-\x05][\x80-\x95}\](cX]", start):
        return "a pickle", _PICKLE + _PANDAS.format(f"read_pickle('{shown_as}')")
    for kind in _KINDS:
        if start.startswith(kind.magic, kind.at):
            return kind.name, kind.way_out.replace("{path}", shown_as)
    if _WEB.match(start.removeprefix(b"\xef\xbb\xbf").lstrip()):
        return (
            "a web page or XML",
            "the server may require a login; download the table itself",
        )
    return None


def _zip_kind(path: Path, shown_as: str) -> tuple[str, str]:
    """Return the kind of a zip archive by the names of its members."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return "a damaged zip archive", "download or write it again"
    if any(name.startswith("xl/") for name in names):
        read = _PANDAS.format(f"read_excel('{shown_as}')")
        return "an Excel workbook", f"save the sheet as CSV, or {read}"
    if "content.xml" in names:
        return "a spreadsheet of LibreOffice", "save the sheet as CSV"
    if names and all(name.endswith(".npy") for name in names):
        way_out = "load it in Python and pass the columns or the matrix: read_log((users, items))"
        return "a NumPy archive (.npz)", way_out
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    table = next((n for n in names if re.search(r"\.(csv|tsv|txt|jsonl|ndjson|dat)$", n)), None)
    if table is None:
        return f"a zip archive with {listed or 'nothing'}", f"unpack it: unzip {shown_as}"
    return (
        f"a zip archive with {listed}",
        f"write a table of it to a pipe: unzip -p {shown_as} {table} | fewfold fit -",
    )


def address(source: str) -> str | None:
    """Return advice for a URL such as https://... or s3://...; None if it is a path."""
    found = _ADDRESS.fullmatch(source)
    if found is None or Path(source).exists():
        return None
    scheme = found["scheme"].lower()
    # pathlib collapses the double slash; a password is not for messages and logs
    url = _PASSWORD.sub(r"\1:***@", f"{found['scheme']}://{found['rest']}")
    get = _DOWNLOADS.get(scheme)
    if scheme.startswith(("abfs", "wasb", "az", "adl")):
        get = _azure
    way = f"download it first: {get(url)}" if get else "write the log to a file here first"
    if scheme.partition("+")[0] in _SERVERS:
        way = "read its table with polars.read_database_uri or through DuckDB, and pass that"
    if scheme in ("http", "https"):
        way += (
            f", or curl -L {url} | fewfold fit - (fewfold data list names public data sets that "
            "fewfold data fetch downloads)"
        )
    return f"{url}: this is an address, and logs are read from files on this machine; {way}"


def _azure(url: str) -> str:
    return f"azcopy copy {url} ."


def lake_table(folder: Path) -> tuple[str, str] | None:
    """Return the kind of a lakehouse table and how to export it, or None for a plain folder."""
    if (folder / "_delta_log").is_dir():
        way_out = f"polars.read_delta('{folder}').write_parquet('log.parquet')"
        return "a Delta Lake table", way_out
    if (folder / ".hoodie").is_dir():
        return "a Hudi table", "write the rows of now to Parquet with Spark"
    if any((folder / "metadata").glob("*.metadata.json")):
        way_out = f"polars.scan_iceberg('{folder}').sink_parquet('log.parquet')"
        return "an Iceberg table", way_out
    return None
