"""How the penalty, the non-zeros of a row and its anchors change over the steps of a training."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fewfold._check import non_negative_number, whole_number

__all__ = ["Narrowing", "Regrow", "Schedule", "Warmup"]

Schedule = Callable[[int], float]
"""From the number of steps taken to a penalty."""


@dataclass(frozen=True)
class Warmup:
    """A penalty that is zero for some steps, then rises evenly to `l1`.

    Example:
        >>> import fewfold as ff
        >>> [ff.embeddings.Warmup(1e-3, after=2, over=2)(step) for step in range(5)]
        [0.0, 0.0, 0.0, 0.0005, 0.001]
    """

    l1: float
    after: int = 0
    """steps without it"""
    over: int = 0
    """steps from zero to `l1`"""

    def __post_init__(self) -> None:
        non_negative_number(self.l1, "l1")
        whole_number(self.after, "after", least=0)
        whole_number(self.over, "over", least=0)

    def __call__(self, step: int) -> float:
        """The penalty at this step, counted from 0."""
        if step < self.after:
            return 0.0
        return self.l1 * min((step - self.after) / self.over, 1.0) if self.over else self.l1


@dataclass(frozen=True, eq=False)
class Narrowing:
    """At most so many non-zeros in a row, fewer and fewer by a constant factor down to `last`.

    Training starts with everything, and an entry that is dropped stays out: the winners keep their
    places. From `after + over` on the places are fixed and only their values change.

    A training that stops before that has as many in a row as the last cut left, and nothing cuts
    the rest by itself: `table.narrow(narrowing.last)` keeps the largest of every row, which costs
    what the steps that were left out would have mended. So let `end` lie within the training.

    Example:
        >>> import fewfold as ff
        >>> narrowing = ff.embeddings.Narrowing(first=64, last=4, over=40)
        >>> [narrowing(step) for step in (0, 10, 20, 30, 40, 50)]
        [64, 32, 16, 8, 4, 4]

    Reference: the exponential schedule is that of compressed shallow autoencoders, 2026.
    """

    first: int
    last: int
    over: int
    after: int = 0
    every: int = 10
    """steps between two cuts"""
    together: bool = False
    """rank the entries of the whole table: the counts are then means, and rows in use have more"""
    shares: Tensor | None = None
    """(rows,) the counts are means, and a row's is in proportion to its number here: popularity"""

    def __post_init__(self) -> None:
        for name in ("first", "last", "over", "every"):
            whole_number(getattr(self, name), name)
        whole_number(self.after, "after", least=0)
        if self.last > self.first:
            raise ValueError(f"last must be at most first={self.first}, got {self.last}")
        if self.shares is None:
            return
        if self.together or not bool((self.shares >= 0).all()):
            raise ValueError("shares must not be negative, and are not for together=True")
        if not bool((self.shares > 0).any()):
            raise ValueError("shares must have a number above 0, got none; leave them out")

    def __call__(self, step: int) -> int:
        """How many at this step, counted from 0."""
        return round(self.first * math.pow(self.last / self.first, self._done(step)))

    @property
    def end(self) -> int:
        """The step from which on places are fixed."""
        return self.after + self.over

    def _done(self, step: int) -> float:
        return min(max(step - self.after, 0) / self.over, 1.0)

    def of_rows(self, step: int) -> Tensor:
        """How many of each row at this step, (rows,), by `shares`."""
        if self.shares is None:
            raise ValueError("there are no shares; call with the step for the number of any row")
        done = self._done(step)
        last = self._last
        if done == 1.0:
            return last.round().long()
        return (last.clamp(min=0.3) ** done * math.pow(self.first, 1 - done)).ceil().long()

    @cached_property
    def _last(self) -> Tensor:
        """In proportion to the shares, none above `first`, `last` on average once rounded."""
        shares = torch.as_tensor(self.shares, dtype=torch.float64)
        low, high = 0.0, self.first / max(float(shares[shares > 0].min()), 1e-300)
        for _ in range(200):
            middle = (low + high) / 2
            few = (shares * middle).clamp(max=self.first).round().mean() < self.last
            low, high = (middle, high) if few else (low, middle)
        return (shares * high).clamp(max=self.first)


@dataclass(frozen=True)
class Regrow:
    """Every so many steps, give up the weakest anchor of a row for one its gradient asks for.

    For tables of fixed width, on the rows in use at that step: an entry of at most `below` times
    the largest of its row makes place for the anchor along which the loss falls most, if it falls
    more steeply than the penalty. The new entry starts at zero.
    """

    every: int = 100
    below: float = 0.3
    until: int | None = None
    """the last step at which this happens; None: always"""

    def __post_init__(self) -> None:
        whole_number(self.every, "every")
        non_negative_number(self.below, "below")
        if self.until is not None:
            whole_number(self.until, "until", least=0)

    def due(self, step: int) -> bool:
        """Whether it happens at this step, counted from 0."""
        return (step + 1) % self.every == 0 and (self.until is None or step <= self.until)
