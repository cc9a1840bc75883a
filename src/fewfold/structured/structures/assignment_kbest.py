"""Best and k best assignments in plain numpy."""

import heapq
import itertools
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_assignment", "best_assignments"]

Array = NDArray[np.float64]
Chosen = NDArray[np.int64]
"""the column of each row, or -1 for a row that is left out"""


def best_assignment(scores: Array, rows: Chosen | None = None) -> Chosen | None:
    """Best assignment of rows to columns, by shortest augmenting paths.

    Args:
        scores: (m, n), -inf where a pair is not allowed.
        rows: rows to assign; by default those with an allowed column.

    Returns:
        The column of each row, -1 for rows left out; None if no assignment is feasible.
    """
    count, columns = scores.shape
    if rows is None:
        rows = np.flatnonzero((scores > -math.inf).any(1))
    price, taker = np.zeros(columns), np.full(columns, -1)
    chosen = np.full(count, -1)
    for start in rows:
        reach, predecessor = np.full(columns, math.inf), np.full(columns, -1)
        done = np.zeros(columns, dtype=bool)
        row, gone = int(start), 0.0
        best = float((scores[row] - price).max())
        if best == -math.inf:
            return None
        while True:
            through = gone + best - (scores[row] - price)
            nearer = ~done & (through < reach)
            reach[nearer], predecessor[nearer] = through[nearer], row
            column = int(np.where(done, math.inf, reach).argmin())
            if done[column] or not reach[column] < math.inf:
                return None
            gone = float(reach[column])
            if taker[column] < 0:
                break
            done[column] = True
            row = int(taker[column])
            best = float(scores[row, column] - price[column])
        price[done] += gone - reach[done]
        while True:
            row = int(predecessor[column])
            taker[column] = row
            chosen[row], column = column, int(chosen[row])
            if row == start:
                break
    return chosen


def best_assignments(scores: Array, k: int) -> list[tuple[float, Chosen]]:
    """The k best assignments and their values, best first; fewer if there are fewer.

    Murty's algorithm: the remaining assignments are partitioned by the first row in which they
    differ from the best one, and the best of each subset is computed.
    """
    first = best_assignment(scores)
    if first is None:
        return []
    here = np.flatnonzero(first >= 0)
    order = itertools.count()  # breaks ties between equal values
    heap = [(-_value(scores, first), next(order), first, 0, scores)]
    found: list[tuple[float, Chosen]] = []
    while heap and len(found) < k:
        value, _, chosen, fixed, allowed = heapq.heappop(heap)
        found.append((-value, chosen))
        for place in range(fixed, len(here)):
            barred = allowed.copy()
            barred[here[place], chosen[here[place]]] = -math.inf
            fixed_rows = here[:place]
            barred[np.ix_(here[place:], chosen[fixed_rows])] = -math.inf
            rest = best_assignment(barred, here[place:])
            if rest is not None:
                rest[fixed_rows] = chosen[fixed_rows]
                heapq.heappush(heap, (-_value(scores, rest), next(order), rest, place, barred))
    return found


def _value(scores: Array, chosen: Chosen) -> float:
    rows = np.flatnonzero(chosen >= 0)
    return float(scores[rows, chosen[rows]].sum())
