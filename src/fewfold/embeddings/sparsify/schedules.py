"""Schedules of the L1 penalty, of the number of non-zeros per row and of regrowth."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fewfold._check import non_negative_number, whole_number

__all__ = ["Narrowing", "Regrow", "Schedule", "Warmup"]

Schedule = Callable[[int], float]
"""Maps the number of steps taken to the L1 penalty."""


@dataclass(frozen=True)
class Warmup:
    """L1 penalty that is zero for `after` steps, then rises linearly to `l1` over `over` steps.

    Example:
        >>> import fewfold as ff
        >>> [ff.embeddings.Warmup(1e-3, after=2, over=2)(step) for step in range(5)]
        [0.0, 0.0, 0.0, 0.0005, 0.001]
    """

    l1: float
    after: int = 0
    """steps with a penalty of zero"""
    over: int = 0
    """steps from zero to `l1`"""

    def __post_init__(self) -> None:
        non_negative_number(self.l1, "l1")
        whole_number(self.after, "after", least=0)
        whole_number(self.over, "over", least=0)

    def __call__(self, step: int) -> float:
        """Return the penalty at this step, counted from 0."""
        if step < self.after:
            return 0.0
        return self.l1 * min((step - self.after) / self.over, 1.0) if self.over else self.l1


@dataclass(frozen=True, eq=False)
class Narrowing:
    """Limit on the non-zeros per row that decreases geometrically from `first` to `last`.

    Every `every` steps the largest entries are kept and the others are set to zero. From step
    `after + over` on the places of the non-zeros are fixed and only their values are trained.

    If training stops earlier, rows have as many non-zeros as the last cut left;
    `table.narrow(narrowing.last)` then keeps the largest ones of each row, without training to
    recover from that cut. Choose `over` so that `end` lies within the training.

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
    """rank the entries of the whole table; the limits are then means over the rows"""
    shares: Tensor | None = None
    """(rows,) non-negative, e.g. popularity; limits are proportional to it, with the given means"""
    rows: slice | None = None
    """rows of `shares` that the table has, if it is a part of a larger one; None for all"""

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
        """Return the limit at this step, counted from 0."""
        return round(self.first * math.pow(self.last / self.first, self._done(step)))

    @property
    def end(self) -> int:
        """First step at which the places of the non-zeros are fixed."""
        return self.after + self.over

    def _done(self, step: int) -> float:
        """Completed fraction of the schedule."""
        return min(max(step - self.after, 0) / self.over, 1.0)

    def of_rows(self, step: int) -> Tensor:
        """Return the limit of each row of the table at this step, proportional to `shares`."""
        if self.shares is None:
            raise ValueError("there are no shares; call with the step for the number of any row")
        done = self._done(step)
        last = self._last if self.rows is None else self._last[self.rows]
        if done == 1.0:
            return last.round().long()
        return (last.clamp(min=0.3) ** done * math.pow(self.first, 1 - done)).ceil().long()

    @cached_property
    def _last(self) -> Tensor:
        """Final limits: proportional to the shares, at most `first`, rounded mean `last`."""
        shares = torch.as_tensor(self.shares, dtype=torch.float64)
        low, high = 0.0, self.first / max(float(shares[shares > 0].min()), 1e-300)
        for _ in range(200):
            middle = (low + high) / 2
            too_small = (shares * middle).clamp(max=self.first).round().mean() < self.last
            low, high = (middle, high) if too_small else (low, middle)
        return (shares * high).clamp(max=self.first)


@dataclass(frozen=True)
class Regrow:
    """Every `every` steps, exchange the weakest anchor of a row for the one of steepest descent.

    For tables of fixed width, on the rows with a gradient at that step: an entry of at most `below`
    times the largest of its row is replaced by the anchor along which the loss decreases most, if
    that slope exceeds the penalty. The new entry starts at zero.
    """

    every: int = 100
    below: float = 0.3
    until: int | None = None
    """last step at which rows regrow; None for no end"""

    def __post_init__(self) -> None:
        whole_number(self.every, "every")
        non_negative_number(self.below, "below")
        if self.until is not None:
            whole_number(self.until, "until", least=0)

    def due(self, step: int) -> bool:
        """Whether rows regrow at this step, counted from 0."""
        return (step + 1) % self.every == 0 and (self.until is None or step <= self.until)
