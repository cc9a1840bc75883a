"""Recommendations to all users, written to a file block by block."""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fewfold._check import whole_number
from fewfold._files import new_file
from fewfold._progress import Phase, phase
from fewfold.recommender.queries import stored_queries, stored_users
from fewfold.recommender.reading.table_source import library
from fewfold.recommender.recommendations import RankOptions, candidates, rank_queries
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["AllUsers", "UserRange", "write_recommendations"]

_USERS = 1024  # ranked at once; a model may take a matrix for each
_ROWS = 1 << 17  # ranked, and written, at once unless one user has more


def write_recommendations(
    state: RecommenderState,
    file: str | os.PathLike[str],
    options: RankOptions,
    *,
    overwrite: bool = False,
) -> int:
    """Rank the items for all users, and write them as a table; return the number of its rows.

    The columns are user, rank (from 1), item and score. Users are in the order of the log, those of
    the users table who are not in the log after them. The file appears when it is complete, and
    memory does not grow with the number of users.

    Args:
        file: name that ends in .parquet, .csv or .jsonl, which says what is written.
        options: of the ranking.
        overwrite: replace an existing file.
    """
    target = Path(file)
    kind = target.suffix.lower()
    if kind not in _WRITERS:
        raise ValueError(f"the file must end in {', '.join(_WRITERS)}, got {target.name!r}")
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{target} exists; choose another name or pass overwrite=True (--overwrite)"
        )
    ranked = AllUsers(state, options)
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as temporary, ranked.progress(ranked.parts()) as progress:
        return ranked.write(temporary, kind, ranked.parts(), progress)


class UserRange(NamedTuple):
    """Consecutive users, of the log or of the users table alone."""

    in_log: bool
    numbers: range


class AllUsers:
    """Rankings for all users of a model, computed block by block.

    Attributes:
        count: number of items for each user, at most.
        at_once: number of users in a block. Scores depend on it in the last digit.
        allowed: (items,) true for candidates; None if all items are.
    """

    def __init__(self, state: RecommenderState, options: RankOptions) -> None:
        arrow, (users, others) = library("pyarrow"), stored_users(state)
        self._state, self._options, self._items = state, options, state.items.to_arrow()
        self.allowed = candidates(options, state)
        self.count = min(whole_number(options.k, "k"), len(state.items))
        self.at_once = max(1, min(_USERS, _ROWS // max(self.count, 1)))
        self._ids = {True: users.to_arrow()}
        if others is not None:
            self._ids[False] = others.to_arrow()
        fields = {"user": self._ids[True].type, "rank": arrow.int32(), "item": self._items.type}
        self._schema = arrow.schema({**fields, "score": arrow.float32()})

    def parts(self, blocks: int | None = None) -> list[UserRange]:
        """Divide the users, in the order of the rows, into parts of so many blocks, or by kind."""
        found = []
        for in_log, ids in self._ids.items():
            step = max(len(ids), 1) if blocks is None else blocks * self.at_once
            found += [
                UserRange(in_log, range(start, min(start + step, len(ids))))
                for start in range(0, len(ids), step)
            ]
        return found

    def progress(self, parts: Sequence[UserRange]) -> AbstractContextManager[Phase]:
        """Return the phase in which these users are ranked."""
        total = sum(len(part.numbers) for part in parts)
        return phase("recommending to all users", total=max(total, 1))

    def write(self, file: Path, kind: str, parts: Sequence[UserRange], progress: Phase) -> int:
        """Write the recommendations to these users to a file; return the number of its rows."""
        concatenated = library("pyarrow").concat_tables
        waiting, rows, written = [], 0, 0
        with _WRITERS[kind](file, self._schema) as write:
            for in_log, numbers in parts:
                for start in range(numbers.start, numbers.stop, self.at_once):
                    block = range(start, min(start + self.at_once, numbers.stop))
                    progress.part = len(block)
                    waiting.append(self._table(UserRange(in_log, block)))
                    written, rows = written + len(waiting[-1]), rows + len(waiting[-1])
                    if rows >= _ROWS:
                        write(concatenated(waiting))
                        waiting, rows = [], 0
                    progress.advance(progress.done + len(block))
            if rows:
                write(concatenated(waiting))
        return written

    def _table(self, users: UserRange) -> Any:
        """Return the ranking of one block as a table, one row for each item of a user."""
        arrow, (in_log, block) = library("pyarrow"), users
        queries = stored_queries(self._state, block, in_log=in_log)
        found = rank_queries(queries, self._state, self._options, self.allowed)
        row, place = (found.ids >= 0).nonzero(as_tuple=True)
        ids = self._ids[in_log].slice(block.start, len(block))
        columns = {
            "user": ids.take(arrow.array(row.numpy())),
            "rank": arrow.array((place + 1).int().numpy()),
            "item": self._items.take(arrow.array(found.ids[row, place].numpy())),
            "score": arrow.array(found.scores[row, place].to(torch.float32).numpy()),
        }
        return arrow.table(columns).cast(self._schema)


@contextmanager
def _parquet(file: Path, schema: Any) -> Iterator[Any]:
    with library("pyarrow.parquet").ParquetWriter(file, schema) as writer:
        yield writer.write_table


@contextmanager
def _csv(file: Path, schema: Any) -> Iterator[Any]:
    polars = library("polars")
    with file.open("wb") as out:
        polars.from_arrow(schema.empty_table()).write_csv(out)  # the header
        yield lambda table: polars.from_arrow(table).write_csv(out, include_header=False)


@contextmanager
def _jsonl(file: Path, schema: Any) -> Iterator[Any]:
    polars = library("polars")
    with file.open("wb") as out:
        yield lambda table: polars.from_arrow(table).write_ndjson(out)


_WRITERS: dict[str, Any] = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
