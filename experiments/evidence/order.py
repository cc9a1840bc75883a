"""How much of a published order our figures reproduce."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, groupby

from experiments.evidence.published import Cell


@dataclass(frozen=True)
class Order:
    """Number of compared pairs of methods, and of those in the published and in reverse order."""

    pairs: int = 0
    same: int = 0
    reverse: int = 0

    @property
    def tau(self) -> float:
        """Kendall's tau: 1 if all pairs are in the published order, -1 if none is."""
        return (self.same - self.reverse) / self.pairs if self.pairs else 0.0

    def __add__(self, other: "Order") -> "Order":
        return Order(self.pairs + other.pairs, self.same + other.same, self.reverse + other.reverse)


def order(cells: Iterable[Cell]) -> Order:
    """Compare all pairs of methods that share a column and have a published and an own figure.

    Pairs whose published figures differ by no more than the larger of their published deviations
    are left out. A tie of ours is neither in the published nor in the reverse order.
    """
    known = [cell for cell in cells if cell.rows and cell.method.published]
    total = Order()
    for _, column in groupby(known, key=lambda cell: id(cell.column)):
        for first, second in combinations(column, 2):
            total += _pair(first, second)
    return total


def _pair(first: Cell, second: Cell) -> Order:
    theirs = first.method.published[0] - second.method.published[0]
    if abs(theirs) <= max(first.method.error, second.method.error):
        return Order()
    ours = first.values[0] - second.values[0]
    return Order(1, int(theirs * ours > 0), int(theirs * ours < 0))
