"""Read an interaction log from files or memory into numbered `Interactions`."""

from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from fewfold import _progress
from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions, from_keys
from fewfold.recommender.prepared.prepared_log import PreparedLog, is_prepared
from fewfold.recommender.reading.journal_rows import journal_paths, read_journals
from fewfold.recommender.reading.log_rows import Rows
from fewfold.recommender.reading.opened import (
    named_columns,
    no_rows_message,
    open_log,
    summary_of,
)
from fewfold.recommender.reading.read_options import READ_DEFAULTS, ReadOptions, complete_options
from fewfold.recommender.reading.summary import LogPlan, LogSummary, Size
from fewfold.recommender.weighting import confidences

_SECONDS_PER_ROW = 4e-7  # approximate seconds per row, for the progress bar
__all__ = ["Log", "LogPlan", "LogSummary", "plan_log", "read_log"]


@dataclass(frozen=True, eq=False, repr=False)
class Log:
    """An interaction log with numbered users and items.

    Attributes:
        interactions: the distinct (user, item) pairs, with times if the log has them.
        users: user ids; position i is user number i.
        items: item ids; position i is item number i.
        summary: files, columns, row counts and assumptions.
    """

    interactions: Interactions
    users: Ids
    items: Ids
    summary: LogSummary

    def __repr__(self) -> str:
        return f"Log({self.interactions!r}, users={self.users!r}, items={self.items!r})"


def read_log(source: Any, **options: Unpack[ReadOptions]) -> Log:
    """Read a log of user-item interactions.

    Rows with the same user and item are merged, with the latest time. Ids keep their spelling and
    are numbered in sorted order: integers by value, text by code point. Text of a CSV file becomes
    integers only if every id of the column is an integer in canonical form.

    Rows without a time (an empty field, null, NaT) count as the oldest: they are used for training,
    and a temporal split never tests on them. `Log.summary` lists all assumptions and changes.

    Args:
        source: a CSV, TSV, JSON lines, Parquet, Feather (Arrow IPC) or RecBole ``.inter`` file
            (text may be compressed with gzip, zstd, bzip2 or xz), a folder, perhaps with partitions
            such as ``dt=2024-01-01``, a glob or a list of them, here or in an object store
            (``"s3://bucket/logs"``), or ``"-"`` for standard input; a table or query of a database
            (``"sqlite:///shop.db?table=orders"``, ``"duckdb:///shop.duckdb?query=SELECT ..."``); a
            pandas, polars or pyarrow frame, a DuckDB relation, or another stream of Arrow batches;
            a dict of columns or a tuple (users, items) or (users, items, times); a scipy sparse
            matrix, whose rows and columns are the ids; or `Interactions`.
        options: columns, conditions and formats; see `ReadOptions` for each and its default.

    Returns:
        The `Log`. Invalid data raises a `DataError` that names the file and line.

    Example:
        >>> from fewfold.recommender.reading.log import read_log
        >>> log = read_log({"user": ["ann", "bob", "ann"], "item": [7, 3, 7]})
        >>> log.interactions, log.users.tolist(), log.items.tolist()
        (Interactions(users=2, items=2, pairs=2), ['ann', 'bob'], [3, 7])
        >>> print(log.summary)
        the columns in memory
        columns: user=user (guessed), item=item (guessed), rating not used, time not used
        3 rows read, 1 duplicate merged
        2 users, 2 items, 2 pairs
    """
    chosen = complete_options(options, "read_log")
    core = chosen["core"]
    if isinstance(source, (Log, Interactions)) or hasattr(source, "tocsr"):
        return _scaled(_k_core(_from_numbered(source, chosen), core), chosen)
    if isinstance(source, PreparedLog) or is_prepared(source):
        found = _k_core(_from_prepared(source, chosen), core)
        return _with_confidences(found, chosen["weight_scale"])
    opened = open_log(source, chosen)
    rows = Rows(opened.columns, opened.rules, not opened.typed, opened.filter())
    try:
        opened.read_into(rows)
        journals = journal_paths(chosen["journal"])
        if journals:
            rows.add_events(read_journals(journals))
        return _scaled(_k_core(_numbered(rows, opened.plan()), core), chosen)
    finally:
        _progress.line("")


def plan_log(source: Any, **options: Unpack[ReadOptions]) -> LogPlan:
    """Describe what `read_log` would read (files, columns, first rows) without reading it."""
    chosen = complete_options(options, "plan_log")
    if isinstance(source, Log):
        return source.summary.plan
    if isinstance(source, PreparedLog) or is_prepared(source):
        return _opened_folder(source).plan()
    if isinstance(source, Interactions) or hasattr(source, "tocsr"):
        return LogPlan((f"the {type(source).__name__}",), "in memory")
    return open_log(source, chosen).plan(rows=True)


def _numbered(rows: Rows, plan: LogPlan) -> Log:
    """Number the collected rows and build the log."""
    if rows.selected == 0:
        raise DataError(no_rows_message(rows, plan))
    newest = rows.newest()
    with _progress.phase("sorting the pairs", seconds=rows.selected * _SECONDS_PER_ROW):
        interactions, users, items = rows.numbered()
    size = Size(interactions.users, interactions.items, interactions.pairs)
    summary = replace(summary_of(rows, plan, size, _disliked(interactions)), newest=newest)
    return Log(interactions, users, items, summary)


def _disliked(interactions: Interactions) -> int:
    return 0 if interactions.dislikes is None else interactions.dislikes.pairs


def _opened_folder(source: Any) -> PreparedLog:
    return source if isinstance(source, PreparedLog) else PreparedLog.open(source)


def _from_prepared(source: Any, options: ReadOptions) -> Log:
    """Read a prepared log into memory; how rows are read was said when it was prepared."""
    changes = [
        name
        for name, default in READ_DEFAULTS.items()
        if options[name] != default and name not in ("core", "weight_scale")  # type: ignore[literal-required]
    ]
    if changes:
        raise ValueError(
            f"a prepared log has no rows to choose from; drop {', '.join(changes)}, or prepare the "
            "log again with it"
        )
    folder = _opened_folder(source)
    interactions, users, items = folder.whole()
    return Log(interactions, users, items, folder.summary)


def _from_numbered(source: Any, options: ReadOptions) -> Log:
    """Wrap data that is already numbered; the numbers become the ids."""
    min_rating, weighted = options["min_rating"], options["weight"] is True
    of_tables = {
        **named_columns(options), "where": options["where"] or None, "header": options["header"],
        "time_format": options["time_format"], "journal": options["journal"],
    }  # fmt: skip
    if options["weight"] is False or (weighted and hasattr(source, "tocsr")):
        del of_tables["weight"]
    if any(value is not None for value in of_tables.values()):
        dropped = ", ".join(name for name, value in of_tables.items() if value is not None)
        raise ValueError(f"a matrix or a log has no columns to name; drop {dropped}")
    if isinstance(source, (Log, Interactions)):
        if min_rating is not None:
            raise ValueError("min_rating needs ratings, and a log has none; drop it")
        if isinstance(source, Log):
            return source
        interactions, rows, below = source, source.pairs, 0
    else:
        interactions, rows, below = _from_matrix(source, min_rating, weighted=weighted)
    if interactions.pairs == 0:
        raise DataError(f"the {type(source).__name__}: there are no pairs; expected at least one")
    size = Size(interactions.users, interactions.items, interactions.pairs)
    plan = LogPlan((f"the {type(source).__name__}",), "in memory")
    summary = LogSummary(
        plan, rows, size, size, min_rating, below, disliked=_disliked(interactions)
    )
    users, items = (np.arange(count, dtype=np.int64) for count in (size.users, size.items))
    return Log(interactions, Ids(users), Ids(items), summary)


def _from_matrix(
    matrix: Any, min_rating: float | None, *, weighted: bool
) -> tuple[Interactions, int, int]:
    """Return the pairs rated at least `min_rating`, and the counts of nonzero and lower values."""
    csr = matrix.tocsr()
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    values = np.asarray(csr.data)
    row = np.repeat(np.arange(csr.shape[0], dtype=np.int64), np.diff(csr.indptr))
    odd = np.flatnonzero(values != values)
    if len(odd):
        raise DataError(f"the matrix: expected numbers, got nan in row {row[odd[0]]}")
    full = values != 0
    high = full if min_rating is None else full & (values >= min_rating)
    keys, low = row * csr.shape[1] + csr.indices, full & ~high
    if weighted:
        _check_matrix_weights(values, row)
    weight = np.clip(values[high].astype(np.float64), 1e-30, 1e30) if weighted else None
    found = from_keys(keys[high], None, csr.shape, weight)
    if low.any():
        found = found.with_values(dislikes=from_keys(keys[low], None, csr.shape))
    return found, int(full.sum()), int(low.sum())


def _check_matrix_weights(values: np.ndarray, row: np.ndarray) -> None:
    odd = np.flatnonzero(~((values >= 0) & np.isfinite(values)))
    if len(odd):
        raise DataError(
            f"the matrix: weights must be finite and at least 0, got {values[odd[0]]} in row "
            f"{row[odd[0]]}"
        )


def _scaled(log: Log, options: ReadOptions) -> Log:
    """Turn the weights into confidences, if they were read now."""
    if options["weight"] in (None, False):
        return log
    return _with_confidences(log, options["weight_scale"])


def _with_confidences(log: Log, scale: str) -> Log:
    """Turn weights, if there are any, into confidences."""
    weights = log.interactions.weights
    if weights is None:
        return log
    pairs = log.interactions.with_values(weights=confidences(weights, scale))
    return replace(log, interactions=pairs, summary=replace(log.summary, weight_scale=scale))


def _k_core(log: Log, core: int) -> Log:
    """Restrict a log to its k-core."""
    if core == 1:
        return log
    try:
        with _progress.phase("finding the core"):
            found = log.interactions.k_core(core)
    except ValueError:
        raise DataError(
            f"{log.summary.plan.files[0]}: nothing is left of the {core}-core of "
            f"{log.summary.before}; lower core (--core)"
        ) from None
    left = found.interactions
    size = Size(left.users, left.items, left.pairs)
    users, items = log.users.select(found.users.numpy()), log.items.select(found.items.numpy())
    return Log(left, users, items, replace(log.summary, core=core, after=size))
