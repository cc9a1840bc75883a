"""Count of the bytes that a process sends to others."""

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Traffic"]


@dataclass
class Traffic:
    """Bytes that this process has sent to others, and the number of operations, by their name."""

    bytes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """Bytes of all operations."""
        return sum(self.bytes.values())

    def add(self, name: str, sent: int) -> None:
        """Count one operation that sent this many bytes."""
        self.bytes[name] += sent
        self.calls[name] += 1

    def clear(self) -> None:
        """Start again at zero."""
        self.bytes.clear()
        self.calls.clear()
