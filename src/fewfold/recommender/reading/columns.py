"""Choose the user, item, rating, time and weight columns; note a column of event types."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from fewfold.recommender.errors import DataError
from fewfold.recommender.reading.table_source import Table

__all__ = ["ROLES", "Column", "Columns", "called", "choose_columns", "event_note", "is_event"]

ROLES = ("user", "item", "rating", "time")  # those that are guessed; the weight is not

# Common names without suffixes such as "id"; earlier lines take precedence.
_NAMES: dict[str, tuple[str, ...]] = {
    "user": (
        "user u uid reviewer userhash",
        "username customer cust visitor client member account buyer shopper consumer subscriber "
        "player reader listener viewer patron person profile student patient household author",
        "session sess basket cart order playlist device cookie ip package source query",
    ),
    "item": (
        "item i iid",
        "product prod sku article movie film book isbn asin track song artist album video show "
        "game app business restaurant place poi venue location recipe podcast news story course "
        "good goods offer ad listing job hotel anime post page url dependency parent stock",
        "category brand tag title target word",
    ),
    "rating": (
        "rating rate score stars star overall reviewrating userrating",
        "value preference pref weight playcount plays count like label feedback quantity qty",
    ),
    "time": (
        "time timestamp ts datetime unixtime unixreviewtime unixtimestamp eventtime epoch",
        "date dt day when createdat created createdon eventdate eventtimestamp reviewdate "
        "reviewtime orderdate invoicedate ratedat addedat purchasedat visitedat servertime",
        "updatedat updated modifiedat modified month year",
    ),
}
# Names of event-type columns. "type" alone may be the type of an item.
_EVENTS = (
    "event eventtype eventname eventkind action actiontype behavior behaviour behaviortype "
    "behaviourtype interaction interactiontype activity activitytype feedbacktype"
)
_EVENT_ROWS = 1000  # rows inspected
_EVENT_WORDS = re.compile(
    r"(view|click|cart|add|buy|bought|purchas|order|transaction|checkout|pv|fav|like|dislike|play|"
    r"skip|watch|impression|wish|remove|rent|download|install|share|save|rate|search|detail)",
    re.IGNORECASE,
)
_NOTHING_NAMED: Mapping[str, Any] = {}
_ENDING = re.compile(r"(?:id|key|no|nr|num|number|code|uuid|idx|index)$")


@dataclass(frozen=True)
class Column:
    """The column of a role, and whether it was guessed."""

    name: str
    guessed: bool

    def __str__(self) -> str:
        return f"{self.name} (guessed)" if self.guessed else self.name


@dataclass(frozen=True)
class Columns:
    """The column of each role; `rating`, `time` and `weight` are optional.

    A rating column that is not needed is not read and is stored in `idle_rating`.

    Example:
        >>> from fewfold.recommender.reading.columns import choose_columns
        >>> print(choose_columns(["userId", "movieId", "timestamp"]))
        user=userId (guessed), item=movieId (guessed), rating not used, time=timestamp (guessed)
    """

    user: Column
    item: Column
    rating: Column | None
    time: Column | None
    idle_rating: Column | None = None
    weight: Column | None = None

    def __str__(self) -> str:
        parts = [f"user={self.user}", f"item={self.item}"]
        for role, column in (("rating", self.rating), ("time", self.time)):
            parts.append(f"{role} not used" if column is None else f"{role}={column}")
        if self.idle_rating is not None:
            parts[2] = f"rating not used ({self.idle_rating.name} would be, with min_rating)"
        if self.weight is not None:
            parts.append(f"weight={self.weight}")
        return ", ".join(parts)

    def roles(self) -> dict[str, str]:
        """Return the column name of each role in use."""
        given = {role: getattr(self, role) for role in (*ROLES, "weight")}
        return {role: column.name for role, column in given.items() if column is not None}

    def as_dict(self) -> dict[str, dict[str, object] | None]:
        """Return the roles in JSON-serialisable form."""
        given = {role: getattr(self, role) for role in (*ROLES, "weight")}
        return {
            role: None if column is None else {"name": column.name, "guessed": column.guessed}
            for role, column in given.items()
        }


def choose_columns(
    columns: Sequence[str],
    named: Mapping[str, Any] = _NOTHING_NAMED,
    *,
    rated: bool = False,
    by_position: bool = False,
    name: str = "the table",
) -> Columns:
    """Choose the column of each role.

    Args:
        columns: available column names.
        named: by role (user, item, rating, time, weight), the name given by the caller; None
            guesses, but not the weight. ``"time": False`` means no time column.
        rated: whether ratings are needed.
        by_position: for a table without a header: user, item, rating, time in this order.
        name: name of the table, for messages.

    Returns:
        The columns. An ambiguous or missing column raises a `DataError`.
    """
    chosen = {
        role: Column(_existing(str(given), columns, role, name), False)
        for role, given in named.items()
        if given is not None and given is not False
    }
    weight = chosen.pop("weight", None)  # which may be the column of ratings, too
    wanted = ["user", "item", "rating", *([] if named.get("time") is False else ["time"])]
    if by_position:
        for role, column in zip(("user", "item", "rating", "time"), columns, strict=False):
            if role in wanted and role not in chosen and not _is_chosen(column, chosen):
                chosen[role] = Column(column, True)
    else:
        _guess(columns, chosen, wanted, rated, name)
    for role in ("user", "item", *(["rating"] if rated else [])):
        if role not in chosen:
            why = ", which min_rating needs" if role == "rating" else ""
            raise DataError(
                f"{name}: it is not clear which column is the {role}{why}; write "
                f"{_flags(chosen, role)}; the columns are {_listed(columns)}"
            )
    _check_different(chosen, weight, columns, name)
    idle = None if rated else chosen.pop("rating", None)
    return Columns(
        chosen["user"], chosen["item"], chosen.get("rating"), chosen.get("time"), idle, weight
    )


def _check_different(
    chosen: dict[str, Column], weight: Column | None, columns: Sequence[str], name: str
) -> None:
    """Raise unless user, item, time and weight are different columns."""
    apart: dict[str, str] = {
        role: chosen[role].name for role in ("user", "item", "time") if role in chosen
    }
    if weight is not None:
        apart["weight"] = weight.name
    if len(set(apart.values())) < len(apart):
        roles = "user, item, time and weight" if weight is not None else "user, item and time"
        raise DataError(
            f"{name}: {roles} must be different columns, got "
            f"{', '.join(f'{role}={column}' for role, column in apart.items())}; "
            f"the columns are {_listed(columns)}"
        )


def _guess(
    columns: Sequence[str], chosen: dict[str, Column], wanted: list[str], rated: bool, name: str
) -> None:
    """Add to `chosen` the roles that follow from the column names."""
    for role in wanted:
        found = [] if role in chosen else _candidates(columns, role, chosen)
        if len(found) > 1 and (rated or role != "rating"):
            raise DataError(
                f"{name}: {' and '.join(found)} could each be the {role}; write "
                f"{role}={found[0]!r} (--{role} {found[0]}) or another; "
                f"the columns are {_listed(columns)}"
            )
        if found:
            chosen[role] = Column(found[0], True)
    # With exactly two columns that are neither rating nor time, identify one by elimination.
    sides = [c for c in columns if all(_rank(c, role) is None for role in ("rating", "time"))]
    open_roles = [role for role in ("user", "item") if role not in chosen]
    others = [role for role in ("user", "item") if role in chosen]
    left = [
        column
        for column in sides
        if not _is_chosen(column, chosen) and all(_rank(column, role) is None for role in others)
    ]
    if len(sides) == 2 and len(left) == len(open_roles):
        chosen.update({role: Column(c, True) for role, c in zip(open_roles, left, strict=True)})


def _candidates(columns: Sequence[str], role: str, chosen: dict[str, Column]) -> list[str]:
    ranks = {
        column: rank
        for column in columns
        if not _is_chosen(column, chosen) and (rank := _rank(column, role)) is not None
    }
    best = min(ranks.values(), default=None)
    return [column for column, rank in ranks.items() if rank == best]


def _is_chosen(column: str, chosen: dict[str, Column]) -> bool:
    return any(column == other.name for other in chosen.values())


def called(column: str, role: str) -> bool:
    """Return whether a column has a common name for this role."""
    return _rank(column, role) is not None


def is_event(column: str) -> bool:
    """Return whether a column has a common name for event types (view, cart, purchase)."""
    return re.sub(r"[\W_]", "", column.lower()) in _EVENTS.split()


def _rank(column: str, role: str) -> int | None:
    """Return the precedence of the name for the role, 0 first; None if it does not match."""
    bare = re.sub(r"[\W_]", "", column.lower())
    spellings = {bare, _ENDING.sub("", bare)} - {""}
    for rank, names in enumerate(_NAMES[role]):
        if spellings & set(names.split()):
            return rank
    return None


def _existing(given: str, columns: Sequence[str], role: str, name: str) -> str:
    if given in columns:
        return given
    lower = {column.lower(): column for column in columns}
    close = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    raise DataError(
        f"{name}: there is no column {given!r} for {role}; {hint}the columns are {_listed(columns)}"
    )


def _flags(chosen: dict[str, Column], missing: str) -> str:
    roles = [role for role in ("user", "item") if role not in chosen] or [missing]
    call = ", ".join(f"{role}=..." for role in roles)
    return f"{call} ({' '.join(f'--{role} NAME' for role in roles)} on the command line)"


def _listed(columns: Sequence[str]) -> str:
    listed = ", ".join(repr(column) for column in columns[:30])
    return listed + (f" and {len(columns) - 30} more" if len(columns) > 30 else "")


def event_note(table: Table, used: Set[str]) -> str | None:
    """Return a note on an unused column of event types, or None.

    Args:
        table: the table.
        used: columns used for a role or a condition.
    """
    idle = [at for at, name in enumerate(table.columns) if name not in used]
    if not idle:
        return None
    rows = table.head(_EVENT_ROWS)
    for at in idle:
        values = Counter(row[at].strip() for row in rows if at < len(row) and row[at].strip())
        if _is_event_type(table.columns[at], values):
            return _advice(table.columns[at], values)
    return None


def _is_event_type(name: str, values: Counter[str]) -> bool:
    """Return whether a column has event types, by its name or its values."""
    plausible = 2 <= len(values) <= 30
    words = sum(_EVENT_WORDS.match(value) is not None for value in values)
    return plausible and (is_event(name) or 3 * words >= 2 * len(values))


def _advice(name: str, values: Counter[str]) -> str:
    common = [value for value, _ in values.most_common(6)]
    more = ", ..." if len(values) > 6 else ""
    best = next((v for v in common if re.match(r"purchas|buy|order|transact", v, re.I)), common[-1])
    return (
        f"every row counts alike, whatever {name} says ({', '.join(common)}{more}); to choose, "
        f"write where='{name}={best}' (--where {name}={best})"
    )
