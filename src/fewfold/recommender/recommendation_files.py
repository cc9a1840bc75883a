"""Recommendations to all users, written to a file block by block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fewfold._check import whole_number
from fewfold._files import new_file
from fewfold._progress import phase
from fewfold.recommender.queries import stored_queries, stored_users
from fewfold.recommender.ranking.exact_ranking import Ranking
from fewfold.recommender.reading.table_source import library
from fewfold.recommender.recommendations import RankOptions, candidates, rank_queries
from fewfold.recommender.recommender_state import RecommenderState

__all__ = ["write_recommendations"]

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
    arrow, (users, others) = library("pyarrow"), stored_users(state)
    allowed, items = candidates(options, state), state.items.to_arrow()
    count = min(whole_number(options.k, "k"), len(state.items))
    at_once = max(1, min(_USERS, _ROWS // max(count, 1)))
    first = users.to_arrow()
    parts = [(True, first), *([] if others is None else [(False, others.to_arrow())])]
    total, done, written = sum(len(ids) for _, ids in parts), 0, 0
    target.parent.mkdir(parents=True, exist_ok=True)
    fields = {"user": first.type, "rank": arrow.int32(), "item": items.type}
    schema = arrow.schema({**fields, "score": arrow.float32()})
    with (
        new_file(target) as temporary,
        phase("recommending to all users", total=max(total, 1)) as progress,
        _WRITERS[kind](temporary, schema) as write,
    ):
        waiting, rows = [], 0
        for in_log, ids in parts:
            for start in range(0, len(ids), at_once):
                block = range(start, min(start + at_once, len(ids)))
                progress.part = len(block)
                queries = stored_queries(state, block, in_log=in_log)
                found = rank_queries(queries, state, options, allowed)
                waiting.append(_table(arrow, schema, found, ids.slice(start, len(block)), items))
                written, rows = written + len(waiting[-1]), rows + len(waiting[-1])
                if rows >= _ROWS:
                    write(arrow.concat_tables(waiting))
                    waiting, rows = [], 0
                done += len(block)
                progress.advance(done)
        if rows:
            write(arrow.concat_tables(waiting))
    return written


def _table(arrow: Any, schema: Any, found: Ranking, users: Any, items: Any) -> Any:
    """Return a ranking as a table, one row for each item of a user."""
    row, place = (found.ids >= 0).nonzero(as_tuple=True)
    columns = {
        "user": users.take(arrow.array(row.numpy())),
        "rank": arrow.array((place + 1).int().numpy()),
        "item": items.take(arrow.array(found.ids[row, place].numpy())),
        "score": arrow.array(found.scores[row, place].to(torch.float32).numpy()),
    }
    return arrow.table(columns).cast(schema)


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
