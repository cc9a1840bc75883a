"""`prepared.json`: sizes, types and checksums of a prepared log; written last."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fewfold._files import new_file
from fewfold._progress import phase
from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.table_source import explained, library

__all__ = ["ITEMS", "MOST_PARTS", "PREPARED", "PreparedManifest", "file_facts", "part_name"]

PREPARED = "prepared.json"
ITEMS = "items.parquet"
MOST_PARTS = 4096
FORMAT, VERSION = "fewfold prepared log", 1
_AGAIN = "prepare it again (fewfold prepare LOG --out FOLDER --overwrite)"


def part_name(number: int) -> str:
    """Return the file name of a part."""
    return f"part-{number:05}.parquet"


@dataclass(frozen=True)
class PreparedManifest:
    """Content of `prepared.json`.

    Attributes:
        users, items, pairs, parts: how many there are.
        user_ids, item_ids: "int64" or "text".
        times: "int64" or "float64"; None if the log has none.
        weights: whether pairs have weights.
        dislikes: number of pairs that are known to be disliked.
        files: by name, its bytes, sha256, rows and, of a part, pairs.
        log: how the log was read: files, columns and counts, as `LogSummary.as_dict` returns them.
    """

    users: int
    items: int
    pairs: int
    parts: int
    user_ids: str
    item_ids: str
    times: str | None
    weights: bool
    dislikes: int
    files: Mapping[str, Mapping[str, Any]]
    log: Mapping[str, Any]

    def write(self, folder: Path) -> None:
        """Write `prepared.json`, which completes the folder."""
        found = {"format": FORMAT, "version": VERSION, **asdict(self)}
        with new_file(folder / PREPARED) as partial:
            partial.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> "PreparedManifest":
        """Read and validate `prepared.json`; a DataError says what is wrong."""
        path = folder / PREPARED
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); {_AGAIN}") from None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise DataError(f"{path}: this does not describe a prepared log; {_AGAIN}")
        if found.get("version") != VERSION:
            raise DataError(
                f"{path}: expected version {VERSION}, got {found.get('version')!r}; update fewfold,"
                f" or {_AGAIN}"
            )
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in found]
        if missing:
            raise DataError(f"{path}: {missing[0]!r} is missing; {_AGAIN}")
        manifest = cls(**{name: found[name] for name in names})
        manifest._check_names(path)
        return manifest

    def _check_names(self, path: Path) -> None:
        expected = [ITEMS, *map(part_name, range(self.parts))]
        if sorted(self.files) != sorted(expected):
            raise DataError(f"{path}: expected {self.parts} parts and {ITEMS} in files; {_AGAIN}")

    def verify(
        self, folder: Path, names: Sequence[str] | None = None, *, hashes: bool = False
    ) -> None:
        """Compare size and footer of files, and with `hashes` their content, to the manifest.

        Those of `names`, by default all.
        """
        names = list(self.files) if names is None else names
        with phase("verifying the prepared log", total=len(names)) as verifying:
            for name in verifying.each(names):
                path, expected = folder / name, self.files[name]
                size = path.stat().st_size if path.is_file() else None
                if size != expected["bytes"]:
                    found = "there is none" if size is None else f"it has {size:,}"
                    raise DataError(
                        f"{path}: expected a file of {expected['bytes']:,} bytes, {found}; {_AGAIN}"
                    )
                with explained(str(path)):
                    rows = library("pyarrow.parquet").read_metadata(path).num_rows
                if rows != expected["rows"]:
                    raise DataError(
                        f"{path}: expected {expected['rows']:,} rows, got {rows:,}; {_AGAIN}"
                    )
                if hashes and _sha256(path) != expected["sha256"]:
                    raise DataError(f"{path}: it has changed since it was written; {_AGAIN}")


def file_facts(path: Path, **more: int) -> dict[str, Any]:
    """Return bytes, sha256 and rows of a Parquet file, and more, for the manifest."""
    rows = library("pyarrow.parquet").read_metadata(path).num_rows
    return {"bytes": path.stat().st_size, "sha256": _sha256(path), "rows": rows, **more}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
