"""Open a log: its tables, the columns of each role, the conditions, and the batches of its rows."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fewfold import _progress
from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.columns import Columns, choose_columns, event_note
from fewfold.recommender.reading.conditions import Condition, Filter
from fewfold.recommender.reading.journal_rows import journal_paths
from fewfold.recommender.reading.log_rows import Rows, Rules
from fewfold.recommender.reading.read_options import ReadOptions
from fewfold.recommender.reading.source import Source, open_source
from fewfold.recommender.reading.summary import LogPlan, LogSummary, Size
from fewfold.recommender.reading.table_source import Batch, explained
from fewfold.recommender.reading.values import NO_TIME

__all__ = ["OpenedLog", "named_columns", "no_rows_message", "open_log", "summary_of"]


@dataclass(frozen=True)
class OpenedLog:
    """The tables of a log whose columns and conditions are known.

    Attributes:
        source: the tables.
        columns: the column of each role.
        conditions: which rows count.
        rules: how rows are validated.
        notes: what was assumed, and how to override it.
    """

    source: Source
    columns: Columns
    conditions: tuple[Condition, ...]
    rules: Rules
    notes: tuple[str, ...]

    def plan(self, *, rows: bool = False) -> LogPlan:
        """Describe files and columns, perhaps with the first rows."""
        source, table = self.source, self.source.tables[0]
        first = tuple(table.head()) if rows else ()
        return LogPlan(
            source.files, source.format, source.bytes, self.columns, table.columns, first,
            self.notes,
        )  # fmt: skip

    def read_into(self, rows: Rows) -> None:
        """Validate all rows and add them, reporting progress."""
        batches = _batches(self.source, rows.roles())
        try:
            for batch, name in batches:
                with explained(name):
                    rows.add(batch, name)
        finally:
            batches.close()

    def filter(self) -> Filter:
        """Return a new filter by the conditions."""
        return Filter(self.conditions)

    @property
    def typed(self) -> bool:
        """Whether values have types; otherwise all are text, and integers are detected."""
        return self.source.tables[0].typed


def open_log(source: Any, options: ReadOptions) -> OpenedLog:
    """Open the tables, choose the columns shared by all of them, and parse the conditions."""
    opened, columns, conditions = _open(source, options)
    rules = Rules(
        options["min_rating"], options["skip_bad_rows"], options["strip_ids"],
        options["time_format"],
    )  # fmt: skip
    notes = _notes(opened, columns, conditions, options)
    return OpenedLog(opened, columns, conditions, rules, notes)


def _open(source: Any, options: ReadOptions) -> tuple[Source, Columns, tuple[Condition, ...]]:
    """Open the tables, choose the columns shared by all of them, and parse the conditions."""
    header, where, named = options["header"], options["where"], named_columns(options)
    if named["weight"] is True:
        raise ValueError(
            "weight=True takes the values of a sparse matrix; of a table name the column: "
            "weight='plays'"
        )
    opened = open_source(source, header=header)
    given = {str(name) for name in named.values() if name not in (None, False)}
    if header is None and not given <= set(opened.tables[0].columns):
        # Headerless columns are named by position, so only decimal names point to a missing header.
        again = open_source(source, header=not all(name.isdecimal() for name in given))
        opened = again if given <= set(again.tables[0].columns) else opened
    first = opened.tables[0]
    try:
        columns = choose_columns(
            first.columns, named, rated=options["min_rating"] is not None,
            by_position=first.headless, name=first.name,
        )  # fmt: skip
    except DataError as error:
        raise DataError("; ".join([str(error), *first.notes])) from None
    texts = [where] if isinstance(where, str) else list(where)
    texts = [text for text in texts if text.strip()]  # an empty condition selects all rows
    conditions = tuple(Condition.parse(text, first.columns, first.name) for text in texts)
    timed = columns.roles().get("time")
    conditions = tuple(
        replace(one, missing=NO_TIME) if one.column == timed else one for one in conditions
    )
    needed = [*columns.roles().values(), *(one.column for one in conditions)]
    for table in opened.tables[1:]:
        for column in needed:
            if column not in table.columns:
                raise DataError(
                    f"{table.name}: there is no column {column!r}, unlike in {first.name}; its "
                    f"columns are {', '.join(map(repr, table.columns[:30]))}; to read only some "
                    "files, name them"
                )
    return opened, columns, conditions


def named_columns(options: ReadOptions) -> dict[str, Any]:
    """Return the column names that were given for the user, item, rating, time and weight."""
    return {
        "user": options["user"], "item": options["item"], "rating": options["rating"],
        "time": options["time"], "weight": options["weight"],
    }  # fmt: skip


def _notes(
    source: Source, columns: Columns, conditions: Sequence[Condition], options: ReadOptions
) -> tuple[str, ...]:
    """Return notes on what was assumed about the first table, and how to override it."""
    table = source.tables[0]
    # A caller who names the user and item columns knows whether there is a header.
    sure = options["user"] is not None and options["item"] is not None
    used = {*columns.roles().values(), *(one.column for one in conditions)}
    event = event_note(table, used)
    events = [f"the events of {path} are added" for path in journal_paths(options["journal"])]
    return (*(() if sure else table.notes), *(() if event is None else (event,)), *events)


def _batches(source: Source, roles: dict[str, str]) -> Generator[tuple[Batch, str], None, None]:
    """Yield every batch of every table with the table's name, reporting progress."""
    with _progress.phase("reading", total=len(source.tables)) as reading:
        for number, table in enumerate(source.tables):
            reading.what = f"reading {table.name}"
            for batch in table.batches(roles):
                yield batch, table.name
                reading.advance(number + batch.done)


def no_rows_message(rows: Rows, plan: LogPlan) -> str:
    if rows.read == 0:
        return f"{plan.files[0]}: there are columns and no rows; expected at least one"
    reasons = [f"{reason}: {count:,}" for reason, count in rows.bad.items()]
    if rows.weightless:
        reasons.append(f"weight of 0: {rows.weightless:,}")
    if rows.below:
        reasons.append(f"rating below {rows.rules.min_rating:g}: {rows.below:,}")
    if rows.where.left_out == rows.read:
        texts = " and ".join(one.text for one in rows.where.conditions)
        notes = "; ".join(rows.where.notes())
        return (
            f"{plan.files[0]}: none of the {rows.read:,} rows meets where {texts!r}"
            f"{'; ' if notes else ''}{notes}; check the condition (--where)"
        )
    if rows.where.left_out:
        reasons.append(f"left out by where: {rows.where.left_out:,}")
    return (
        f"{plan.files[0]}: none of the {rows.read:,} rows can be used ({', '.join(reasons)}); "
        f"check the columns: {plan.columns}"
    )


def summary_of(rows: Rows, plan: LogPlan, size: Size, disliked: int) -> LogSummary:
    """Summarise the rows read, which became a log of this size."""
    return LogSummary(
        plan, rows.read, size, size, rows.rules.min_rating, rows.below, dict(rows.bad),
        rows.selected - size.pairs, 1, tuple(one.text for one in rows.where.conditions),
        rows.where.left_out, rows.stripped, rows.untimed, rows.notes(), rows.rules.strip_ids,
        rows.rules.time_format, weightless=rows.weightless, disliked=disliked,
        journal_events=rows.events, journal_unreadable=rows.unreadable,
    )  # fmt: skip
