"""Summaries of a log: planned files and columns, and counts of the rows read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fewfold.recommender.reading.columns import Columns

__all__ = ["LogPlan", "LogSummary", "Size"]


@dataclass(frozen=True)
class LogPlan:
    """Files and columns of a log, determined from its first bytes.

    Attributes:
        files: file names, or a description of in-memory data.
        format: CSV, Parquet, ...
        bytes: total file size; None for in-memory data.
        columns: column of each role; None for data without columns.
        names: all column names.
        first_rows: up to three rows, as text.
        notes: assumptions, and how to override them, as sentences.
    """

    files: tuple[str, ...]
    format: str
    bytes: int | None = None
    columns: Columns | None = None
    names: tuple[str, ...] = ()
    first_rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self._what(), *self._columns(), *(f"note: {note}" for note in self.notes)]
        if self.first_rows:
            lines += ["the first rows:", "  " + " | ".join(self.names)]
            lines += ["  " + " | ".join(_short(value) for value in row) for row in self.first_rows]
        return "\n".join(lines)

    def _what(self) -> str:
        if self.bytes is None:
            return self.files[0]
        more = f" and {len(self.files) - 3} more files" if len(self.files) > 3 else ""
        return f"{', '.join(self.files[:3])}{more} ({self.format}, {_size(self.bytes)})"

    def _columns(self) -> list[str]:
        return [] if self.columns is None else [f"columns: {self.columns}"]

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            "files": list(self.files),
            "format": self.format,
            "bytes": self.bytes,
            "columns": None if self.columns is None else self.columns.as_dict(),
            "names": list(self.names),
            "first_rows": [list(row) for row in self.first_rows],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Size:
    """Numbers of users, items and pairs."""

    users: int
    items: int
    pairs: int

    def __str__(self) -> str:
        counts = {"user": self.users, "item": self.items, "pair": self.pairs}
        return ", ".join(_count(number, what) for what, number in counts.items())


@dataclass(frozen=True)
class LogSummary:
    """Counts of the rows read, and of those dropped or changed.

    Attributes:
        plan: the files and their columns.
        rows: rows read, including invalid ones.
        min_rating: lowest rating that counts; None if ratings were ignored.
        below_rating: rows with a lower rating, which are dislikes.
        bad_rows: invalid rows that were dropped, by reason.
        duplicates: rows merged into another of the same user and item.
        before: users, items and pairs.
        core: k of the k-core.
        after: users, items and pairs of the core.
        where: the conditions on rows.
        left_out: rows that did not satisfy them.
        stripped: rows with whitespace around an id, which was stripped.
        untimed: rows without a time.
        notes: further notes, as sentences.
        strip_ids: whether whitespace around ids was stripped.
        time_format: strptime format of the times, or None.
        weight_scale: how weights became confidences: "linear" or "log"; None without weights.
        weightless: rows with a weight of 0, which do not count.
        disliked: pairs rated below the threshold, of users and items that have others.
        journal_events: events of journals that were added to the rows.
        journal_unreadable: lines of journals that are not events.
        newest: newest time, as ISO 8601 in UTC; None if times are missing or not since 1970.

    Example:
        >>> from fewfold.recommender.reading.summary import LogPlan, LogSummary, Size
        >>> size = Size(2, 3, 4)
        >>> print(LogSummary(LogPlan(("log.csv",), "CSV", 81), rows=5, duplicates=1,
        ...                  before=size, after=size))
        log.csv (CSV, 81 bytes)
        5 rows read, 1 duplicate merged
        2 users, 3 items, 4 pairs
    """

    plan: LogPlan
    rows: int
    before: Size
    after: Size
    min_rating: float | None = None
    below_rating: int = 0
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    duplicates: int = 0
    core: int = 1
    where: tuple[str, ...] = ()
    left_out: int = 0
    stripped: int = 0
    untimed: int = 0
    notes: tuple[str, ...] = ()
    strip_ids: bool = True
    time_format: str | None = None
    weight_scale: str | None = None
    weightless: int = 0
    disliked: int = 0
    journal_events: int = 0
    journal_unreadable: int = 0
    newest: str | None = None

    def __str__(self) -> str:
        parts = [f"{_count(self.rows, 'row')} read"]
        if self.journal_events:
            parts.append(f"{_count(self.journal_events, 'event')} of the journal added")
        if self.journal_unreadable:
            parts.append(f"{_count(self.journal_unreadable, 'line')} of the journal unreadable")
        if self.where:
            parts.append(f"{self.left_out:,} left out by where {' and '.join(self.where)}")
        if self.min_rating is not None:
            parts.append(f"{self.below_rating:,} with a rating below {self.min_rating:g}")
        if self.weightless:
            parts.append(f"{self.weightless:,} with a weight of 0 left out")
        if self.bad_rows:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.bad_rows.items())
            parts.append(f"{_count(sum(self.bad_rows.values()), 'bad row')} skipped ({reasons})")
        if self.duplicates:
            added = "" if self.weight_scale is None else ", their weights added"
            parts.append(f"{_count(self.duplicates, 'duplicate')} merged{added}")
        lines = [self.plan._what(), *self.plan._columns(), ", ".join(parts), str(self.before)]
        if self.core > 1:
            lines.append(f"{self.core}-core: {self.after}")
        if self.disliked:
            lines.append(
                f"{_count(self.disliked, 'pair')} rated below {self.min_rating:g}: dislikes, never "
                "recommended to their users"
            )
        if self.weight_scale is not None:
            logarithm = "logarithms of weights" if self.weight_scale == "log" else "weights"
            lines.append(
                f"confidence of a pair: {logarithm}, at most ten times the median, over the mean"
            )
        lines += [f"note: {remark}" for remark in self.remarks()]
        return "\n".join(lines)

    def remarks(self) -> tuple[str, ...]:
        """Return assumptions and changes, and how to override them, as sentences."""
        remarks = list(self.plan.notes)
        if self.stripped:
            remarks.append(
                f"{_count(self.stripped, 'row')} had blanks around an id, which were taken away; "
                "to keep them write strip_ids=False (--no-strip-ids)"
            )
        time = None if self.plan.columns is None else self.plan.columns.time
        if self.untimed and time is not None:
            remarks.append(self._untimed(time.name))
        return (*remarks, *self.notes)

    def _untimed(self, column: str) -> str:
        gone = self.left_out + self.below_rating + self.weightless + sum(self.bad_rows.values())
        if self.untimed == self.rows - gone and not self.journal_events:
            return f"no row has a time in {column}, so the log has no times"
        return (
            f"{_count(self.untimed, 'row')} had no time in {column}: taken for the oldest, to be "
            f"learned from and never tested on; to drop them write "
            f"where='{column}!=' (--where '{column}!=')"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {**asdict(self), "plan": self.plan.as_dict(), "bad_rows": dict(self.bad_rows)}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} bytes"
    unit, name = next((u, n) for u, n in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if size >= u)
    return f"{size / unit:.1f} {name}"


def _short(value: str) -> str:
    return repr(value)[1:-1] if len(value) <= 24 else repr(value[:21])[1:-1] + "..."
