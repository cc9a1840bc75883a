"""What a log that was read holds, by the ids of its owner."""

from pathlib import Path
from typing import Any


def known(log: Any) -> Any:
    """The pairs by their ids; a dict with their times where there are some."""
    users, items = log.users.take(log.interactions.row), log.items.take(log.interactions.ids)
    pairs = list(zip(users, items, strict=True))
    times = log.interactions.times
    return set(pairs) if times is None else dict(zip(pairs, times.tolist(), strict=True))


def written(path: Path, text: str | bytes) -> Path:
    """A file with this content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path
