"""A moment by which a computation must have ended."""

import time
from dataclasses import dataclass

__all__ = ["Deadline"]


@dataclass(frozen=True)
class Deadline:
    """A moment by which a computation must have ended.

    Attributes:
        ends: on the clock of `time.monotonic`.
    """

    ends: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment so many seconds from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then, 0 if it has passed."""
        return max(0.0, self.ends - time.monotonic())

    def share(self, part: float) -> "Deadline":
        """The moment at which this part of the remaining time has passed."""
        return Deadline.after(part * self.left())
