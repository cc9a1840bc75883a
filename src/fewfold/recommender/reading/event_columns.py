"""Detect columns of event types: view, cart, purchase."""

import re
from collections import Counter
from collections.abc import Set

from fewfold.recommender.reading.columns import is_event
from fewfold.recommender.reading.table_source import Table

__all__ = ["event_note"]

_ROWS = 1000  # rows inspected
_WORDS = re.compile(
    r"(view|click|cart|add|buy|bought|purchas|order|transaction|checkout|pv|fav|like|dislike|play|"
    r"skip|watch|impression|wish|remove|rent|download|install|share|save|rate|search|detail)",
    re.IGNORECASE,
)


def event_note(table: Table, used: Set[str]) -> str | None:
    """Return a note on an unused column of event types, or None.

    Args:
        table: the table.
        used: columns used for a role or a condition.
    """
    idle = [at for at, name in enumerate(table.columns) if name not in used]
    if not idle:
        return None
    rows = table.head(_ROWS)
    for at in idle:
        values = Counter(row[at].strip() for row in rows if at < len(row) and row[at].strip())
        if _is_event_type(table.columns[at], values):
            return _note(table.columns[at], values)
    return None


def _is_event_type(name: str, values: Counter[str]) -> bool:
    """Return whether a column has event types, by its name or its values."""
    plausible = 2 <= len(values) <= 30
    words = sum(_WORDS.match(value) is not None for value in values)
    return plausible and (is_event(name) or 3 * words >= 2 * len(values))


def _note(name: str, values: Counter[str]) -> str:
    common = [value for value, _ in values.most_common(6)]
    more = ", ..." if len(values) > 6 else ""
    best = next((v for v in common if re.match(r"purchas|buy|order|transact", v, re.I)), common[-1])
    return (
        f"every row counts alike, whatever {name} says ({', '.join(common)}{more}); to choose, "
        f"write where='{name}={best}' (--where {name}={best})"
    )
