"""Read a log by the rules of the log that a model was fitted to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.ids import Ids
from fewfold.recommender.interactions import Interactions
from fewfold.recommender.prepared.prepared_log import is_prepared
from fewfold.recommender.reading.conditions import Condition
from fewfold.recommender.reading.journal_rows import converted, journal_paths, read_journals
from fewfold.recommender.reading.log import Log, LogPlan, plan_log, read_log
from fewfold.recommender.reading.read_options import READ_DEFAULTS, ReadOptions

__all__ = ["journal_log", "read_by_fitted_rules"]

_FITTED = ("strip_ids", "time_format")  # options that stay as in the earlier log


def read_by_fitted_rules(source: Any, data: Mapping[str, Any], reading: ReadOptions) -> Log:
    """Read a log with the threshold of ratings, the conditions and the formats of an earlier one.

    Args:
        source: as in `read_log`.
        data: summary of the earlier log, as in `config.json`.
        reading: options of `read_log`, which take precedence. The columns of the conditions must
            exist; the threshold applies if there is a column of ratings.
    """
    if not isinstance(source, (Log, Interactions)) and not hasattr(source, "tocsr"):
        defaults: Mapping[str, Any] = READ_DEFAULTS
        found = {name: data.get(name, defaults[name]) for name in _FITTED}
        fitted = {name: value for name, value in found.items() if value != defaults[name]}
        reading = {**fitted, **reading}  # type: ignore[typeddict-item]
    min_rating, where = data.get("min_rating"), data.get("where") or []
    by_rating = min_rating is not None and "min_rating" not in reading
    by_condition = where and "where" not in reading
    if not (by_rating or by_condition) or isinstance(source, Log) or is_prepared(source):
        return read_log(source, **reading)
    plan = plan_log(source, **reading)
    if plan.columns is None:
        return read_log(source, **reading)
    if min_rating is not None and (plan.columns.rating or plan.columns.idle_rating):
        reading = {"min_rating": min_rating, **reading}
    if where:
        _check_where(where, plan)
        reading = {"where": where, **reading}
    return read_log(source, **reading)


def journal_log(reading: ReadOptions, *, users: Ids | None, items: Ids) -> Log:
    """Return the events of journals as a log, with ids of the types of a model's.

    Args:
        reading: options of `read_log`, of which only `journal` may be given.
        users, items: ids of the model.
    """
    others = [name for name in reading if name != "journal"]
    if others or reading.get("journal") is None:
        unwanted = f"; {', '.join(others)} would be of a log" if others else ""
        raise ValueError(
            f"name a log, or a journal with journal=FILE (--journal FILE) alone{unwanted}"
        )
    rows = read_journals(journal_paths(reading["journal"]))
    events, other = converted(
        rows, users=None if users is None else users.textual, items=items.textual
    )
    if len(events) == 0:
        raise DataError(
            f"{reading['journal']}: there are no events"
            f"{f' with ids as those of the model ({other:,} with others)' if other else ''}"
        )
    log = read_log({"user": events.users, "item": events.items, "time": events.times})
    summary = replace(
        log.summary, rows=0, journal_events=len(events), journal_unreadable=rows.skipped,
        bad_rows={"id of another type": other} if other else {},
    )  # fmt: skip
    return replace(log, summary=summary)


def _check_where(where: Sequence[str], plan: LogPlan) -> None:
    """Raise unless a log has the columns of the conditions a model was fitted with."""
    for text in where:
        if Condition.column_of(text, plan.names) is None:
            listed = ", ".join(repr(column) for column in plan.names[:30])
            raise DataError(
                f"{plan.files[0]}: there is no column for where={text!r}, with which the model was "
                f"fitted; the columns are {listed}. If all rows are to count, write where=[] "
                "(--where ''), or say which: where='COLUMN=VALUE' (--where COLUMN=VALUE)"
            )
